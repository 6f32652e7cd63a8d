//! The options of `report`, `flame` and `export` that filter the data.

use std::path::{Path, PathBuf};

use analysis::filter::{Filter, Pattern, ProcessFilter, TimeRange, WakerFilter};
use analysis::metric::BaseMetric;
use analysis::model::{GroupKind, STATE_SLOTS, WaitReason};
use analysis::sources::clock::NotAClockRange;
use analysis::sources::{Period, Sources};
use clap::Args;
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use experiment_format::packed::is_packed;
use experiment_format::units::Nanos;
use host::machine;

use super::{CliError, values};

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct FilterArgs {
    /// Only data of these processes: number, regular expression for the name, or %N for gprofng's
    /// process N; separated by commas. May be repeated
    #[arg(long, value_name = "PID|REGEXP|%N,...", allow_hyphen_values = true)]
    process: Vec<String>,
    /// Only processes of these units of systemd, separated by commas; nginx is nginx.service. This
    /// and the next four are known of followed processes
    #[arg(long, value_name = "UNIT,...", allow_hyphen_values = true)]
    unit: Vec<String>,
    /// Only processes of these containers: the beginnings of their ids, or their names
    #[arg(long, value_name = "ID,...", allow_hyphen_values = true)]
    container: Vec<String>,
    /// Only processes of these pods of Kubernetes, by UID
    #[arg(long, value_name = "UID,...", allow_hyphen_values = true)]
    pod: Vec<String>,
    /// Only processes in these control groups and below them
    #[arg(long, value_name = "PATH,...", allow_hyphen_values = true)]
    cgroup: Vec<String>,
    /// Only processes of these users, by number or by a name of this machine
    #[arg(long, value_name = "USER,...", allow_hyphen_values = true)]
    user: Vec<String>,
    /// Only data of these threads, separated by commas. May be repeated
    #[arg(long, value_name = "TID,...", allow_hyphen_values = true)]
    thread: Vec<String>,
    /// Only data of these CPUs, separated by commas. May be repeated
    #[arg(long, value_name = "CPU,...", allow_hyphen_values = true)]
    cpu: Vec<String>,
    /// Only these states: metrics, separated by commas
    #[arg(long, value_name = "STATE,...", allow_hyphen_values = true)]
    state: Option<String>,
    /// Only data of this time, in seconds since the start; 2- means from second 2 on
    #[arg(long, value_name = "FROM-TO", conflicts_with_all = ["last", "at"], allow_hyphen_values = true)]
    time: Option<String>,
    /// Only stacks that contain a function whose name matches one of these, separated by commas.
    /// May be repeated: each has to match
    #[arg(long, value_name = "REGEXP,...", allow_hyphen_values = true)]
    function: Vec<String>,
    /// Only waits for these reasons, separated by commas: device, kernel, lock, child, write,
    /// thread-end, answer, middle, timer, outside, new-work, undecided, not-ended, or cpu. May be
    /// repeated
    #[arg(long, value_name = "CAUSE,...", allow_hyphen_values = true)]
    cause: Vec<String>,
    /// Only waits that threads suffered, those for a CPU included: no idle and no undecided ones
    #[arg(long)]
    suffered: bool,
    /// Only waits that these threads ended, as far as recorded with -W on: tid, pid, or regular
    /// expression for the name of the thread or its process; separated by commas. May be repeated
    #[arg(long, value_name = "PID|TID|REGEXP,...", allow_hyphen_values = true)]
    waker: Vec<String>,
}

/// The time by the clock, and with it the experiments; and what their ticks count.
#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct PeriodArgs {
    /// Only the last part of what was recorded, such as 90s, 10m or 2h, from all experiments here
    /// or in the directories that are named instead of experiments
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with = "at",
        allow_hyphen_values = true
    )]
    last: Option<String>,
    /// Only this time by the recorded machine's clock, from all experiments here or in the
    /// directories that are named instead of experiments: 03:10-03:15, 03:12 (a minute), 03:12:05
    /// (a second), 2026-11-24T23:50-00:10. Without a day it is the last such time that was recorded
    #[arg(long, value_name = "FROM-TO", allow_hyphen_values = true)]
    at: Vec<String>,
    /// Count ticks times the interval, as gprofng does, instead of the exact time of their thread
    /// and state that they stand for
    #[arg(long)]
    ticks: bool,
}

impl PeriodArgs {
    /// Returns how many times were typed.
    pub(super) fn times(&self) -> usize {
        self.at.len()
    }

    /// Takes the first of several times out.
    pub(super) fn take_first(&mut self) -> PeriodArgs {
        PeriodArgs {
            last: None,
            ticks: self.ticks,
            at: self.at.drain(..self.at.len().min(1)).collect(),
        }
    }

    /// The named experiments, or where to find the experiments of the period. `refuse` makes the
    /// error for any other path.
    pub(super) fn sources(
        &self,
        named: Vec<PathBuf>,
        refuse: impl Fn(&Path) -> CliError,
    ) -> Result<Sources, CliError> {
        let period = match (&self.last, &self.at[..]) {
            (Some(text), _) => Some(Period::Last(values::last(text)?)),
            (None, []) => None,
            (None, [text]) => Some(Period::At(text.parse().map_err(|NotAClockRange| {
                CliError::new(
                    format!("--at {text}: not a time"),
                    "type times of a clock: 03:10-03:15, 03:12, 2026-11-24T23:50-00:10",
                )
            })?)),
            (None, _) => {
                return Err(CliError::new(
                    "--at was given more than once",
                    "keep one of them; kcollect report --compare takes two",
                ));
            }
        };
        let is_source = |path: &&PathBuf| is_experiment(path) || period.is_some();
        match named.iter().find(|path| !is_source(path)) {
            Some(other) => Err(refuse(other)),
            None => Ok(Sources {
                named,
                period,
                ticks: self.ticks,
            }),
        }
    }
}

/// Returns the refusal of a path that is no experiment.
pub(super) fn not_an_experiment(path: &Path) -> CliError {
    CliError::new(
        format!(
            "{} is not an experiment: its name does not end in .er or .er.zst",
            path.display()
        ),
        "name a directory that kcollect or gprofng collect made, such as ktest.1.er, or with \
         --last or --at one that holds some",
    )
}

impl FilterArgs {
    pub(super) fn resolve(&self) -> Result<Filter, CliError> {
        Ok(Filter {
            processes: each("--process", &self.process, process)?,
            groups: self.groups()?,
            threads: each("--thread", &self.thread, |text| number("--thread", text))?,
            cpus: each("--cpu", &self.cpu, |text| number("--cpu", text))?,
            states: self.state.as_deref().map(states).transpose()?,
            time: self
                .time
                .as_deref()
                .map(time)
                .transpose()?
                .map(TimeRange::SinceStart),
            functions: self
                .function
                .iter()
                .map(|text| any_of("--function", text))
                .collect::<Result<_, _>>()?,
            reasons: each("--cause", &self.cause, wait_reason)?,
            suffered: self.suffered,
            wakers: each("--waker", &self.waker, waker)?,
        })
    }

    fn groups(&self) -> Result<Vec<(GroupKind, Vec<String>)>, CliError> {
        let user = |text: &str| {
            let number = machine::uid_of(text).map(|number| number.to_string());
            number.ok_or_else(|| {
                CliError::new(
                    format!("--user {text}: not a user of this machine"),
                    "type the number that the user had",
                )
            })
        };
        let own = |text: &str| Ok(text.to_owned());
        let all = [
            (GroupKind::Unit, each("--unit", &self.unit, own)?),
            (
                GroupKind::Container,
                each("--container", &self.container, own)?,
            ),
            (GroupKind::Pod, each("--pod", &self.pod, own)?),
            (GroupKind::Cgroup, each("--cgroup", &self.cgroup, own)?),
            (GroupKind::User, each("--user", &self.user, user)?),
        ];
        Ok(all
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .collect())
    }

    /// Returns the filters except for the states, as text for a title.
    pub(super) fn title(&self) -> String {
        let lists = [
            ("process", &self.process),
            ("unit", &self.unit),
            ("container", &self.container),
            ("pod", &self.pod),
            ("control group", &self.cgroup),
            ("user", &self.user),
            ("thread", &self.thread),
            ("CPU", &self.cpu),
            ("stacks with", &self.function),
            ("waits for", &self.cause),
            ("waits ended by", &self.waker),
        ];
        let lists = lists.into_iter().filter(|(_, values)| !values.is_empty());
        let mut parts: Vec<_> = lists
            .map(|(name, values)| format!("{name} {}", values.join(", ")))
            .collect();
        parts.extend(self.suffered.then(|| "suffered waits".to_owned()));
        parts.extend(self.time.iter().map(|time| format!("second {time}")));
        parts.join(", ")
    }
}

/// Returns whether a path is an experiment or a group of experiments, by its name.
pub(super) fn is_experiment(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("er" | "erg")) || is_packed(path)
}

/// Parses each value of an option that may be repeated.
fn each<T>(
    option: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, CliError>,
) -> Result<Vec<T>, CliError> {
    let mut values = Vec::new();
    for text in texts {
        for word in words(option, text)? {
            values.push(parse(word)?);
        }
    }
    Ok(values)
}

/// Splits a list at its commas; those in brackets belong to a regular expression or to a name, as
/// in `a{1,2}` and `map<int, int>`, and so does one after a backslash.
fn words<'a>(option: &str, text: &'a str) -> Result<Vec<&'a str>, CliError> {
    let mut words = Vec::new();
    let (mut begin, mut depth, mut escaped) = (0, 0u32, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                words.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    words.push(&text[begin..]);
    if words.contains(&"") {
        Err(CliError::new(
            format!("{option} {text}: an empty value"),
            "separate values with one comma: a,b",
        ))
    } else {
        Ok(words)
    }
}

/// Returns a pattern that matches where one of a list of regular expressions does.
fn any_of(option: &str, text: &str) -> Result<Pattern, CliError> {
    let words = words(option, text)?;
    if let [word] = words[..] {
        return regexp(option, word);
    }
    words
        .iter()
        .try_for_each(|word| regexp(option, word).map(drop))?;
    let words: Vec<_> = words.iter().map(|word| format!("(?:{word})")).collect();
    regexp(option, &words.join("|"))
}

pub(super) fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T, CliError> {
    text.parse().map_err(|_| {
        CliError::new(
            format!("{option} {text}: not a number"),
            "type a whole number",
        )
    })
}

fn regexp(option: &str, text: &str) -> Result<Pattern, CliError> {
    Pattern::new(text).map_err(|error| {
        let text_of = error.to_string();
        let reason = text_of
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        CliError::new(
            format!("{option} {text}: {reason}"),
            "type a regular expression, such as '^do_sys'",
        )
    })
}

fn process(text: &str) -> Result<ProcessFilter, CliError> {
    if let Some(rest) = text.strip_prefix('%') {
        return number("--process", rest).map(ProcessFilter::Number);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return number("--process", text).map(|pid| ProcessFilter::Pid(Pid(pid)));
    }
    regexp("--process", text).map(ProcessFilter::Name)
}

fn waker(text: &str) -> Result<WakerFilter, CliError> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return number("--waker", text).map(WakerFilter::Number);
    }
    regexp("--waker", text).map(WakerFilter::Name)
}

fn wait_reason(text: &str) -> Result<WaitReason, CliError> {
    WaitReason::of_keyword(text).ok_or_else(|| {
        let all: Vec<_> = WaitReason::all().map(WaitReason::keyword).collect();
        CliError::new(
            format!("--cause {text}: not a cause"),
            format!("the causes are {}", all.join(", ")),
        )
    })
}

fn states(text: &str) -> Result<[bool; STATE_SLOTS], CliError> {
    let mut wanted = [false; STATE_SLOTS];
    for word in words("--state", text)? {
        let base = BaseMetric::from_keyword(word).ok_or_else(|| {
            let all: Vec<_> = Microstate::ALL
                .iter()
                .filter_map(|state| state.metric())
                .collect();
            CliError::new(
                format!("--state {text}: {word} is not a state"),
                format!("the states are {}", all.join(", ")),
            )
        })?;
        for (slot, wanted) in wanted.iter_mut().enumerate() {
            *wanted |= base.has(slot);
        }
    }
    Ok(wanted)
}

fn time(text: &str) -> Result<std::ops::Range<Nanos>, CliError> {
    let bad = || {
        CliError::new(
            format!("--time {text}: not a time"),
            "type seconds from and to: 2-5, 0.5-0.75, 2-",
        )
    };
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let ns = |text: &str| -> Result<Nanos, CliError> {
        let seconds: f64 = text.parse().map_err(|_| bad())?;
        let in_range = (0.0..1e9).contains(&seconds);
        // Below 10^18 ns, so that it fits into the result.
        if in_range {
            Ok(Nanos((seconds * 1e9).round() as u64))
        } else {
            Err(bad())
        }
    };
    let from = if from.is_empty() {
        Nanos::ZERO
    } else {
        ns(from)?
    };
    let to = if to.is_empty() { Nanos::MAX } else { ns(to)? };
    if from >= to {
        return Err(bad());
    }
    Ok(from..to)
}

#[cfg(test)]
mod tests {
    use experiment_format::cause::Cause;

    use super::*;

    fn filter(args: FilterArgs) -> Filter {
        args.resolve().unwrap()
    }

    fn list2(a: &str, b: &str) -> Vec<String> {
        vec![a.to_owned(), b.to_owned()]
    }

    fn list(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn a_comma_separates_values_of_every_filter() {
        let several = filter(FilterArgs {
            process: list("sshd,7,%2"),
            unit: list("nginx,ssh.service"),
            container: Vec::new(),
            pod: Vec::new(),
            cgroup: Vec::new(),
            user: list("0"),
            thread: list("1,2"),
            cpu: list("0,3"),
            state: Some("user,lock".to_owned()),
            time: None,
            function: list("read,write"),
            cause: list("lock,new-work,cpu"),
            suffered: true,
            waker: list("nginx,7"),
        });
        assert_eq!(
            several.reasons,
            [
                WaitReason::Blocked(Cause::Lock),
                WaitReason::Blocked(Cause::NewWork),
                WaitReason::Cpu,
            ]
        );
        let nginx = WakerFilter::Name(Pattern::new("nginx").unwrap());
        assert_eq!(several.wakers, [nginx, WakerFilter::Number(7)]);
        assert!(several.suffered);
        assert_eq!(
            several.processes,
            [
                ProcessFilter::Name(Pattern::new("sshd").unwrap()),
                ProcessFilter::Pid(Pid(7)),
                ProcessFilter::Number(2),
            ]
        );
        assert_eq!(
            several.groups,
            [
                (GroupKind::Unit, list2("nginx", "ssh.service")),
                (GroupKind::User, list("0")),
            ]
        );
        assert_eq!((several.threads, several.cpus), (vec![1, 2], vec![0, 3]));
        let function = &several.functions[0];
        assert!(function.matches("vfs_read") && function.matches("vfs_write"));
        assert!(!function.matches("open"));
    }

    #[test]
    fn commas_in_brackets_belong_to_the_value() {
        for (text, expected) in [
            ("a{1,2},b", &["a{1,2}", "b"][..]),
            ("f(int, char)", &["f(int, char)"]),
            ("map<int, int>,[,]", &["map<int, int>", "[,]"]),
            (r"a\,b", &[r"a\,b"]),
            ("a>,b", &["a>", "b"]),
        ] {
            assert_eq!(words("--function", text).unwrap(), expected, "{text}");
        }
        for text in ["", "a,", ",a", "a,,b"] {
            assert!(words("--process", text).is_err(), "{text}");
        }
    }
}
