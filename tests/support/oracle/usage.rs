//! A parser of gprofng's `statistics` and `sample_detail`, block by block.

use std::collections::BTreeMap;

/// gprofng's names of the columns of `kcollect report statistics` and `samples`.
pub const WORDS: [(&str, &str); 27] = [
    ("Start Time (sec.)", "start_s"),
    ("End Time (sec.)", "end_s"),
    ("Duration (sec.)", "duration_s"),
    ("Total Thread Time (sec.)", "total_s"),
    ("Average number of Threads", "threads"),
    ("User CPU", "user_s"),
    ("System CPU", "system_s"),
    ("Trap CPU", "trap_s"),
    ("User Lock", "lock_s"),
    ("Data Page Fault", "datapfault_s"),
    ("Text Page Fault", "textpfault_s"),
    ("Kernel Page Fault", "kernelpfault_s"),
    ("Stopped", "stop_s"),
    ("Wait CPU", "wait_s"),
    ("Sleep", "sleep_s"),
    ("Minor Page Faults", "minor_faults"),
    ("Major Page Faults", "major_faults"),
    ("Process swaps", "swaps"),
    ("Input blocks", "blocks_in"),
    ("Output blocks", "blocks_out"),
    ("Messages sent", "messages_sent"),
    ("Messages received", "messages_received"),
    ("Signals handled", "signals"),
    ("Voluntary context switches", "voluntary_switches"),
    ("Involuntary context switches", "involuntary_switches"),
    ("System calls", "system_calls"),
    ("Characters of I/O", "io_chars"),
];

/// A block of lines `word: number`: of an experiment on the whole, or one sample of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleBlock {
    /// The experiment's path.
    pub experiment: String,
    /// The sample's number; none of the whole.
    pub sample: Option<u64>,
    /// Numbers by column, as they are displayed.
    pub values: BTreeMap<&'static str, f64>,
}

/// Returns all blocks of experiments, without the block of the total.
#[must_use]
pub fn blocks(text: &str) -> Vec<SampleBlock> {
    let mut found: Vec<SampleBlock> = Vec::new();
    let mut experiment = None;
    for line in text.lines().map(str::trim) {
        let Some((word, value)) = line.split_once(':') else {
            if line.starts_with("Aggregated statistics")
                && let Some(experiment) = &experiment
            {
                found.push(SampleBlock {
                    experiment: String::clone(experiment),
                    ..SampleBlock::default()
                });
            }
            continue;
        };
        let value = value.trim();
        match word {
            "Experiment" => experiment = Some(value.to_owned()),
            "Sample Number" => found.push(SampleBlock {
                experiment: experiment.clone().unwrap_or_default(),
                sample: value.parse().ok(),
                ..SampleBlock::default()
            }),
            _ => {
                let known = WORDS.iter().find(|(theirs, _)| *theirs == word);
                let number = value.split_whitespace().next();
                let number = number.and_then(|number| number.parse::<f64>().ok());
                if let (Some((_, ours)), Some(number), Some(block)) =
                    (known, number, found.last_mut())
                {
                    block.values.insert(ours, number);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_distinguished() {
        let text = "<Sum across selected experiments>\n  Aggregated statistics for selected samples\n\n  User CPU: 9.0 ( 1.6%)\n\
                    Experiment: a.er\n  Aggregated statistics for selected samples\n  User CPU:  0.476 (  1.6%)\n  Text Page Fault:  0.    (  0. %)\n\
                    \n  Sample Number: 1\n  End Label: stop\n  User CPU:  0.4 (1 %)\n";
        let block = |sample, values: &[(&'static str, f64)]| SampleBlock {
            experiment: "a.er".to_owned(),
            sample,
            values: values.iter().copied().collect(),
        };
        let whole = block(None, &[("user_s", 0.476), ("textpfault_s", 0.0)]);
        assert_eq!(blocks(text), [whole, block(Some(1), &[("user_s", 0.4)])]);
    }
}
