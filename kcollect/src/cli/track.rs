//! The arguments of `kcollect track` and `kcollect stat`.
//!
//! The letters are the same as in cputrack and cpustat.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use counters::rows::writer::CountOptions;
use counters::stat::StatOptions;
use counters::track::{TrackOptions, TrackTarget};
use experiment_format::ids::Pid;

use super::CliError;
use super::filters::number;

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = TRACK_EXAMPLES)]
pub(super) struct TrackArgs {
    /// The command to count, from its first instruction on, found along PATH. Its exit status
    /// becomes kcollect's
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
    /// The time between two ticks, in seconds; the default is 1. With 0 there are no ticks, only
    /// rows for starts, forks, execs and exits
    #[arg(short = 'T', long, value_name = "SECONDS", allow_hyphen_values = true)]
    period: Option<String>,
    /// Count this running process instead of a command
    #[arg(short = 'p', long, value_name = "PID", allow_hyphen_values = true)]
    pid: Option<String>,
    /// Count also the processes that it forks, and those that these fork
    #[arg(short = 'f', long)]
    forks: bool,
    /// Continue counting after an exec. This is always so; the option is for scripts of cputrack
    #[arg(short = 'e', long)]
    execs: bool,
    #[command(flatten)]
    rows: RowArgs,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = STAT_EXAMPLES)]
pub(super) struct StatArgs {
    /// The time between two ticks, in seconds; the default is 5
    #[arg(short = 'p', long, value_name = "SECONDS", allow_hyphen_values = true)]
    period: Option<String>,
    #[command(flatten)]
    rows: RowArgs,
}

/// The options of both.
#[derive(Debug, Default, PartialEq, Eq, Args)]
struct RowArgs {
    /// The events to count; the default is task-clock,context-switches,cpu-migrations,page-faults
    #[arg(
        short = 'c',
        long,
        value_name = "EVENT,...",
        allow_hyphen_values = true
    )]
    events: Option<String>,
    /// End after this number of ticks
    #[arg(short = 'N', long, value_name = "COUNT", allow_hyphen_values = true)]
    count: Option<String>,
    /// Add two columns, in seconds: how long the events were enabled, and the shortest time that
    /// any of them was counted
    #[arg(short = 't', long)]
    times: bool,
    /// Leave out the header line
    #[arg(short = 'n', long)]
    no_header: bool,
    /// Write the rows to this file; the default is standard output
    #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<PathBuf>,
    /// Print more messages on standard error
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

const TRACK_EXAMPLES: &str = "\
Examples:
  kcollect track make                                 every second, until it exits
  kcollect track -f -c page-faults -T 0 make          forks, execs, exits; no ticks
  kcollect track -p 1264 -N 10                        ten seconds of a process
  kcollect track -o counts.txt --json -- ls -l

Rows: tick (counts of a thread since its last tick), lwp_create, fork, exec,
lwp_exit (all counts of a thread), exit (all counts of a process), total.
Times are seconds since the start. A - means that there is no number. After #
come names, children, and counts that were scaled because events took turns.";

const STAT_EXAMPLES: &str = "\
Examples:
  kcollect stat                          every five seconds, until Ctrl-C
  kcollect stat -p 1 -N 10 -c context-switches,page-faults
  kcollect stat -p 60 -o night.txt

Rows: tick (counts of a CPU since its last tick), offline, online, and at the
end the total of all CPUs. A - means that there is no number.";

impl TrackArgs {
    pub(super) fn resolve(self) -> Result<TrackOptions, CliError> {
        let target = match (self.pid, self.command.is_empty()) {
            (Some(pid), true) => TrackTarget::Process(process(&pid)?),
            (None, false) => TrackTarget::Command(self.command),
            (Some(pid), false) => {
                return Err(CliError::new(
                    format!("-p {pid}: there is also a command"),
                    "type either a running process or a command",
                ));
            }
            (None, true) => {
                return Err(CliError::new(
                    "track: no process and no command",
                    "type kcollect track -p PID, or a command as in kcollect track make",
                ));
            }
        };
        let period = self.period.as_deref().unwrap_or("1");
        let period = seconds("-T", period)?;
        let period = (!period.is_zero()).then_some(period);
        Ok(TrackOptions {
            target,
            forks: self.forks,
            period,
            counting: self.rows.resolve(period.is_some())?,
        })
    }
}

impl StatArgs {
    pub(super) fn resolve(self) -> Result<StatOptions, CliError> {
        let period = self.period.as_deref().unwrap_or("5");
        let period = match seconds("-p", period)? {
            Duration::ZERO => {
                return Err(CliError::new(
                    format!("-p {period}: the time between two ticks cannot be zero"),
                    "type a number of seconds, such as 5 or 0.5",
                ));
            }
            period => period,
        };
        Ok(StatOptions {
            period,
            counting: self.rows.resolve(true)?,
        })
    }
}

impl RowArgs {
    fn resolve(self, has_ticks: bool) -> Result<CountOptions, CliError> {
        let count = self.count.as_deref();
        let ticks: Option<u64> = count.map(|text| number("-N", text)).transpose()?;
        if ticks == Some(0) {
            return Err(CliError::new("-N 0: no ticks", "type at least 1"));
        }
        if ticks.is_some() && !has_ticks {
            return Err(CliError::new(
                "-N: there are no ticks with -T 0",
                "leave one of them out",
            ));
        }
        Ok(CountOptions {
            events: self.events,
            ticks,
            times: self.times,
            header: !self.no_header,
            output: self.output,
            json: self.json,
            verbose: self.verbose,
        })
    }
}

fn process(text: &str) -> Result<Pid, CliError> {
    let pid = text.parse().ok().filter(|pid| *pid > Pid(0));
    pid.filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| {
            CliError::new(
                format!("-p {text}: not a process id"),
                "`ps -eo pid,comm` lists the running processes",
            )
        })
}

/// Returns a time of 1 ms to one day, or zero.
fn seconds(option: &str, text: &str) -> Result<Duration, CliError> {
    let seconds = text.parse::<f64>().ok();
    let good = |seconds: &f64| *seconds == 0.0 || (0.001..=86_400.0).contains(seconds);
    let digits = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = seconds.filter(good).filter(|_| digits);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        CliError::new(
            format!("{option} {text}: not a number of seconds"),
            "type one from 0.001 to 86400, such as 1 or 0.5",
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::{self, Command, HostFacts};

    fn parse(line: &str) -> Result<Command, CliError> {
        let facts = HostFacts {
            max_sample_rate: None,
            terminal_columns: None,
            free_lock_time: std::time::Duration::from_micros(3),
        };
        cli::parse(line.split(' ').map(OsString::from), &facts)
    }

    fn track(line: &str) -> TrackOptions {
        match parse(line) {
            Ok(Command::Track(options)) => *options,
            other => unreachable!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_command_is_all_that_follows_the_options() {
        let options = track("kcollect track -f -T 0.5 -c page-faults make -j4 -n");
        let words = ["make", "-j4", "-n"].map(OsString::from).to_vec();
        assert_eq!(options.target, TrackTarget::Command(words));
        assert!(options.forks && options.counting.header);
        assert_eq!(options.period, Some(Duration::from_millis(500)));
        assert_eq!(options.counting.events.as_deref(), Some("page-faults"));
        let options = track("kcollect track -T 0 -en -- ls -l");
        assert_eq!(options.period, None);
        assert!(!options.counting.header);
    }

    #[test]
    fn a_process_is_counted_every_second() {
        let options = track("kcollect track -p 1264 -N 10 --json");
        assert_eq!(options.target, TrackTarget::Process(Pid(1264)));
        assert_eq!(options.period, Some(Duration::from_secs(1)));
        assert_eq!(
            (options.counting.ticks, options.counting.json),
            (Some(10), true)
        );
    }

    #[test]
    fn stat_has_cpustats_letters() {
        let Ok(Command::Stat(options)) = parse("kcollect stat -p 0.25 -N 3 -t -n -v -o x.txt")
        else {
            unreachable!()
        };
        assert_eq!(options.period, Duration::from_millis(250));
        assert_eq!(options.counting.ticks, Some(3));
        let counting = options.counting;
        assert!(counting.times && !counting.header && counting.verbose);
        assert_eq!(counting.output, Some("x.txt".into()));
    }

    #[test]
    fn contradictions_are_errors() {
        let lines = [
            "track",
            "track -p 12 make",
            "track -p make",
            "track -p 0",
            "track -T -1 make",
            "track -T 0 -N 2 make",
            "stat -p 0",
            "stat -p inf",
            "stat -N x",
            "stat -N 0",
        ];
        let errors = lines.map(|line| parse(&format!("kcollect {line}")).unwrap_err().to_string());
        insta::assert_snapshot!(errors.join("\n"), @r"
        track: no process and no command: type kcollect track -p PID, or a command as in kcollect track make
        -p 12: there is also a command: type either a running process or a command
        -p make: not a process id: `ps -eo pid,comm` lists the running processes
        -p 0: not a process id: `ps -eo pid,comm` lists the running processes
        -T -1: not a number of seconds: type one from 0.001 to 86400, such as 1 or 0.5
        -N: there are no ticks with -T 0: leave one of them out
        -p 0: the time between two ticks cannot be zero: type a number of seconds, such as 5 or 0.5
        -p inf: not a number of seconds: type one from 0.001 to 86400, such as 1 or 0.5
        -N x: not a number: type a whole number
        -N 0: no ticks: type at least 1
        ");
    }

    proptest! {
        #[test]
        fn no_number_panics(text in "\\PC{0,12}|[-+0-9.e]{0,24}") {
            let _ = seconds("-T", &text);
            let _ = process(&text);
        }
    }
}
