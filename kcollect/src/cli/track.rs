//! `kcollect track` and `kcollect stat`: their words and options, and what they mean.
//!
//! The letters are cputrack's and cpustat's.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use counters::sink::Wish;
use counters::track::{Request, Who};

use super::CliError;
use super::filters::number;

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = TRACK_EXAMPLES)]
pub(super) struct Track {
    /// The command to count, from its first instruction, looked up along PATH. Its exit status
    /// becomes kcollect's
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
    /// From one tick to the next, in seconds; the default is 1. 0: no ticks, only births, forks,
    /// execs and ends
    #[arg(short = 'T', long, value_name = "SECONDS", allow_hyphen_values = true)]
    period: Option<String>,
    /// Count this process, which runs already, instead of a command
    #[arg(short = 'p', long, value_name = "PID", allow_hyphen_values = true)]
    pid: Option<String>,
    /// Count also the processes that it forks, and those that they fork
    #[arg(short = 'f', long)]
    forks: bool,
    /// Count on after an exec: so it is always here; for scripts that were written for cputrack
    #[arg(short = 'e', long)]
    execs: bool,
    #[command(flatten)]
    rows: Rows,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = STAT_EXAMPLES)]
pub(super) struct Stat {
    /// From one tick to the next, in seconds; the default is 5
    #[arg(short = 'p', long, value_name = "SECONDS", allow_hyphen_values = true)]
    period: Option<String>,
    #[command(flatten)]
    rows: Rows,
}

/// What both have.
#[derive(Debug, Default, PartialEq, Eq, Args)]
struct Rows {
    /// The events to count; the default is task-clock,context-switches,cpu-migrations,page-faults
    #[arg(
        short = 'c',
        long,
        value_name = "EVENT,...",
        allow_hyphen_values = true
    )]
    events: Option<String>,
    /// End after so many ticks
    #[arg(short = 'N', long, value_name = "COUNT", allow_hyphen_values = true)]
    count: Option<String>,
    /// Columns of seconds: how long the events were enabled, and how long the one that was counted
    /// least was counted
    #[arg(short = 't', long)]
    times: bool,
    /// Without the line above the rows
    #[arg(short = 'n', long)]
    no_header: bool,
    /// Write the rows to this file; the default is standard output
    #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<PathBuf>,
    /// Say more, on standard error
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Rows as JSON, an object a line
    #[arg(long)]
    json: bool,
}

const TRACK_EXAMPLES: &str = "\
Examples:
  kcollect track make                                 every second, until it ends
  kcollect track -f -c page-faults -T 0 make          forks, execs, ends; no ticks
  kcollect track -p 1264 -N 10                        ten seconds of a process
  kcollect track -o counts.txt --json -- ls -l

Rows: tick (what a thread counted since its last one), lwp_create, fork, exec,
lwp_exit (all that a thread counted), exit (all that a process counted), total.
Times are seconds since the start. A - is where there is no number; behind #
stand names, children, and figures that were scaled because events took turns.";

const STAT_EXAMPLES: &str = "\
Examples:
  kcollect stat                          every five seconds, until Ctrl-C
  kcollect stat -p 1 -N 10 -c context-switches,page-faults
  kcollect stat -p 60 -o night.txt

Rows: tick (what happened on a CPU since its last one), offline, online, and at
the end the total of all. A - is where there is no number.";

impl Track {
    pub(super) fn resolve(self) -> Result<Request, CliError> {
        let who = match (self.pid, self.command.is_empty()) {
            (Some(pid), true) => Who::Process(process(&pid)?),
            (None, false) => Who::Command(self.command),
            (Some(pid), false) => {
                return Err(CliError::new(
                    format!("-p {pid}: there is a command too"),
                    "count a process that runs, or a command",
                ));
            }
            (None, true) => {
                return Err(CliError::new(
                    "track: whom?",
                    "type a process, kcollect track -p PID, or a command, kcollect track make",
                ));
            }
        };
        let period = self.period.as_deref().unwrap_or("1");
        let period = seconds("-T", period)?;
        Ok(Request {
            who,
            forks: self.forks,
            wish: self.rows.resolve((!period.is_zero()).then_some(period))?,
        })
    }
}

impl Stat {
    pub(super) fn resolve(self) -> Result<Wish, CliError> {
        let period = self.period.as_deref().unwrap_or("5");
        let period = match seconds("-p", period)? {
            Duration::ZERO => {
                return Err(CliError::new(
                    format!("-p {period}: no time passes in it"),
                    "type a number of seconds, such as 5 or 0.5",
                ));
            }
            period => period,
        };
        self.rows.resolve(Some(period))
    }
}

impl Rows {
    fn resolve(self, period: Option<Duration>) -> Result<Wish, CliError> {
        let count = self.count.as_deref();
        let ticks: Option<u64> = count.map(|text| number("-N", text)).transpose()?;
        if ticks == Some(0) {
            return Err(CliError::new("-N 0: no tick", "type at least 1"));
        }
        if ticks.is_some() && period.is_none() {
            return Err(CliError::new(
                "-N: there are no ticks with -T 0",
                "leave one of them out",
            ));
        }
        Ok(Wish {
            events: self.events,
            period,
            ticks,
            times: self.times,
            header: !self.no_header,
            output: self.output,
            json: self.json,
            verbose: self.verbose,
        })
    }
}

fn process(text: &str) -> Result<u32, CliError> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| {
            CliError::new(
                format!("-p {text}: not a process id"),
                "see `ps -eo pid,comm` for what runs",
            )
        })
}

/// A day at most; less than a millisecond is none.
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
        };
        cli::parse(line.split(' ').map(OsString::from), &facts)
    }

    fn track(line: &str) -> Request {
        match parse(line) {
            Ok(Command::Track(request)) => *request,
            other => unreachable!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_command_is_all_that_follows_the_options() {
        let request = track("kcollect track -f -T 0.5 -c page-faults make -j4 -n");
        let words = ["make", "-j4", "-n"].map(OsString::from).to_vec();
        assert_eq!(request.who, Who::Command(words));
        assert!(request.forks && request.wish.header);
        assert_eq!(request.wish.period, Some(Duration::from_millis(500)));
        assert_eq!(request.wish.events.as_deref(), Some("page-faults"));
        let request = track("kcollect track -T 0 -en -- ls -l");
        assert_eq!(request.wish.period, None);
        assert!(!request.wish.header);
    }

    #[test]
    fn a_process_is_counted_every_second() {
        let request = track("kcollect track -p 1264 -N 10 --json");
        assert_eq!(request.who, Who::Process(1264));
        assert_eq!(request.wish.period, Some(Duration::from_secs(1)));
        assert_eq!((request.wish.ticks, request.wish.json), (Some(10), true));
    }

    #[test]
    fn stat_has_cpustats_letters() {
        let Ok(Command::Stat(wish)) = parse("kcollect stat -p 0.25 -N 3 -t -n -v -o x.txt") else {
            unreachable!()
        };
        assert_eq!(wish.period, Some(Duration::from_millis(250)));
        assert_eq!(wish.ticks, Some(3));
        assert!(wish.times && !wish.header && wish.verbose);
        assert_eq!(wish.output, Some("x.txt".into()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let said = [
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
        let said = said.map(|line| parse(&format!("kcollect {line}")).unwrap_err().to_string());
        insta::assert_snapshot!(said.join("\n"), @r"
        track: whom?: type a process, kcollect track -p PID, or a command, kcollect track make
        -p 12: there is a command too: count a process that runs, or a command
        -p make: not a process id: see `ps -eo pid,comm` for what runs
        -p 0: not a process id: see `ps -eo pid,comm` for what runs
        -T -1: not a number of seconds: type one from 0.001 to 86400, such as 1 or 0.5
        -N: there are no ticks with -T 0: leave one of them out
        -p 0: no time passes in it: type a number of seconds, such as 5 or 0.5
        -p inf: not a number of seconds: type one from 0.001 to 86400, such as 1 or 0.5
        -N x: not a number: type a whole number
        -N 0: no tick: type at least 1
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
