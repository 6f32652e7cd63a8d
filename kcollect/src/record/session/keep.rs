//! Which experiments of a series are removed when another one is complete (`--keep`): the oldest,
//! until the others are within the limit. An experiment that is being read stays.

use std::collections::HashSet;
use std::time::SystemTime;

use experiment_format::directory::OlderExperiment;
use host::output::Output;

use crate::plan::Keep;

/// Removes what is beyond `keep` of the complete experiments of a series, the oldest first.
pub(super) fn remove_oldest(
    keep: Keep,
    older_experiments: &mut Vec<OlderExperiment>,
    output: &mut Output,
) {
    let beyond = beyond(keep, older_experiments, SystemTime::now());
    for older in older_experiments.drain(..beyond) {
        let name = older.name().to_owned();
        match older.remove() {
            Ok(true) => output.detail(&format!("{name} is removed (--keep)")),
            Ok(false) => output.detail(&format!("{name} is in use and stays for now (--keep)")),
            Err(error) => output.say(&format!("{name} is not removed (--keep): {error}")),
        }
    }
}

/// Number of experiments, counted from the oldest, that are beyond the limit.
fn beyond(keep: Keep, older_experiments: &[OlderExperiment], now: SystemTime) -> usize {
    match keep {
        Keep::Age(age) => older_experiments
            .iter()
            .take_while(|older| now.duration_since(older.written).is_ok_and(|old| old > age))
            .count(),
        Keep::Bytes(most) => {
            // Files are shared: each counts once, with the newest experiment that has it.
            let (mut seen, mut disk_usage) = (HashSet::new(), 0u64);
            let kept = older_experiments.iter().rev().take_while(|older| {
                for (file, bytes) in &older.files {
                    if seen.insert(*file) {
                        disk_usage = disk_usage.saturating_add(*bytes);
                    }
                }
                disk_usage <= most
            });
            older_experiments.len() - kept.count()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use experiment_format::directory::{ExperimentDir, NameRequest};

    use super::*;

    const FILE_BYTES: usize = 400_000;

    fn experiment(parent: &Path, number: u32) -> ExperimentDir {
        let request = NameRequest::Exactly(format!("k.{number}.er"));
        let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
        let log = "<collector>kcollect 0.1.0</collector>\n";
        fs::write(dir.path().join("log.xml"), log).unwrap();
        fs::write(dir.path().join("profile"), vec![1; FILE_BYTES]).unwrap();
        dir
    }

    #[test]
    fn oldest_are_beyond_by_size_or_by_age() {
        let tmp = tempfile::tempdir().unwrap();
        for number in 1..=3 {
            drop(experiment(tmp.path(), number));
        }
        let newest = experiment(tmp.path(), 4);
        // The first file is shared with the newest of those that are complete.
        let shared = |number| tmp.path().join(format!("k.{number}.er/shared"));
        fs::write(shared(1), vec![1; FILE_BYTES]).unwrap();
        fs::hard_link(shared(1), shared(3)).unwrap();
        let older_experiments = newest.older_experiments().unwrap();
        let now = SystemTime::now();
        let beyond_size = |files: f64| {
            let bytes = (files * FILE_BYTES as f64) as u64;
            beyond(Keep::Bytes(bytes), &older_experiments, now)
        };
        let found = [0.5, 1.5, 2.5, 3.5, 4.5].map(beyond_size);
        assert_eq!(found, [3, 3, 2, 1, 0]);
        let hour = Duration::from_secs(3600);
        assert_eq!(beyond(Keep::Age(hour), &older_experiments, now), 0);
        assert_eq!(
            beyond(Keep::Age(hour), &older_experiments, now + 2 * hour),
            3
        );
    }
}
