//! The command line as users see it: the help and all errors; no arguments make it panic.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use host::exit::{ExitKind, Failure};
use kcollect::cli::{self, HostFacts};
use proptest::prelude::*;

const FACTS: HostFacts = HostFacts {
    max_sample_rate: Some(100_000),
    terminal_columns: Some(80),
    free_lock_time: Duration::from_micros(3),
};

fn failure(args: &[&str]) -> Failure {
    let argv = ["kcollect"].iter().chain(args).map(OsString::from);
    match cli::parse(argv, &FACTS) {
        Err(error) => error.into(),
        Ok(command) => unreachable!("{args:?} was accepted: {command:?}"),
    }
}

#[test]
fn help_in_80_columns() {
    insta::assert_snapshot!(cli::help(Some(80)));
}

#[test]
fn help_fits_every_terminal() {
    for width in [80, 100, 200] {
        let help = cli::help(Some(width));
        let longest = help
            .lines()
            .max_by_key(|line| line.chars().count())
            .unwrap();
        assert!(longest.chars().count() <= usize::from(width), "{longest}");
    }
}

#[test]
fn messages_of_bad_command_lines() {
    let lines: &[&[&str]] = &[
        &[],
        &["-p", "5x"],
        &["-p", "-5"],
        &["-p", "+5"],
        &["-p", "2000"],
        &["-p", "off"],
        &["-p", "0", "make"],
        &["-p"],
        &["-p", "1", "--interval", "2"],
        &["-t", "5-2"],
        &["-t", "10w"],
        &["-p", "on", "--rotate", "0.5"],
        &["-p", "on", "--rotate", "1m", "--keep", "20"],
        &["-p", "on", "--keep", "20G"],
        &["-p", "on", "--rotate", "1m", "-o", "night.er"],
        &["-q", "-1"],
        &["-x", "maybe"],
        &["-o", "name"],
        &["-o", ".er"],
        &["-o", ""],
        &["-d", ""],
        &["-g", "runs.er"],
        &["-L", "0"],
        &["-A", "some"],
        &["-S", "0"],
        &["-l", "FOO"],
        &["-l", "INT"],
        &["-l", "SEGV"],
        &["-y", "SIGKILL"],
        &["-y", "STOP,r"],
        &["-y", "USR1,x"],
        &["-l", "SIGUSR1", "-y", "USR1,r"],
        &["-T", "sshd"],
        &["-T", "0"],
        &["--budget", "much"],
        &["--budget", "0"],
        &["-s", "maybe", "-T", "1"],
        &["-s", "on"],
        &["-s", "on", "-F", "on", "make"],
        &["-s", "on", "-F", "all"],
        &["-s", "on", "-F", "off", "make"],
        &["-i", "maybe", "-T", "1"],
        &["-i", "on", "-F", "all"],
        &["-i", "on"],
        &["-H", "5", "-T", "1"],
        &["-F", "maybe"],
        &["-F", "="],
        &["-F", "=ssh("],
        &["-h", "cycles/0"],
        &["-h", "cycles,0"],
        &["-h", "cycles", "-h", "hi,insts"],
        &["-h", "-v"],
        &[
            "-C", "1", "-C", "2", "-C", "3", "-C", "4", "-C", "5", "-C", "6", "-C", "7", "-C", "8",
            "-C", "9", "-C", "10", "-C", "11",
        ],
        &["--json=yes"],
        &["--intervall", "3"],
        &["-Z"],
        &["doctor", "make"],
        &["doctor", "-p", "on"],
        &["report", "--json", "--csv"],
        &["flame", "--all", "--state", "lock"],
    ];
    let text: Vec<String> = lines
        .iter()
        .map(|args| {
            let failure = failure(args);
            assert_eq!(failure.kind, ExitKind::Usage, "{args:?}");
            format!("$ kcollect {}\n{}\n", args.join(" "), failure.line())
        })
        .collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn a_value_that_is_not_utf8() {
    let argv = [
        "kcollect".into(),
        "-p".into(),
        OsString::from_vec(vec![0xff, 0xfe]),
    ];
    let failure = Failure::from(cli::parse(argv, &FACTS).unwrap_err());
    assert_eq!(
        failure.line(),
        "kcollect: an option's value is not valid UTF-8: type it as plain text"
    );
}

#[test]
fn a_whole_plan() {
    let line = "kcollect -p hi -t 2-10 -q 1 -x off -o deep/run.7.er -d /tmp -g runs.erg -O log -L 100 -A usedsrc -C note \
                -S 5 -l USR2 -y USR1,r -T 1264/1270 -T 0/12 -F off --json -n make -j4 -p off";
    insta::assert_debug_snapshot!(cli::parse(line.split(' ').map(OsString::from), &FACTS).unwrap());
}

/// Generates an argument that is like a real one, or any bytes.
fn argument() -> impl Strategy<Value = OsString> {
    let known = prop::sample::select(vec![
        "-p",
        "-t",
        "-q",
        "-x",
        "-o",
        "-d",
        "-g",
        "-O",
        "-L",
        "-A",
        "-C",
        "-S",
        "-l",
        "-y",
        "-T",
        "-F",
        "-h",
        "-n",
        "-v",
        "-V",
        "--",
        "--json",
        "--help",
        "--interval",
        "--interval=",
        "doctor",
        "on",
        "off",
        "hi",
        "0",
        "5",
        "2-10",
        "USR1,r",
        "1/2",
        "x.er",
        "x.1.er",
        "g.erg",
        "/",
        "..",
        "",
        "-",
        "=",
        "make",
        "-vn",
        "-p5",
        "-hx",
    ]);
    prop_oneof![
        8 => known.prop_map(OsString::from),
        1 => "-{0,2}\\PC{0,8}".prop_map(OsString::from),
        1 => prop::collection::vec(any::<u8>(), 0..8).prop_map(OsString::from_vec),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_arguments_cause_a_panic(args in prop::collection::vec(argument(), 0..10), rate in any::<Option<u64>>(), width in any::<Option<u16>>()) {
        let facts = HostFacts { max_sample_rate: rate, terminal_columns: width, free_lock_time: Duration::ZERO };
        match cli::parse(args, &facts) {
            Ok(cli::Command::Record(plan)) => {
                prop_assert!(plan.timing.end.is_none_or(|end| plan.timing.start < end));
                prop_assert!(!plan.place.directory.as_os_str().is_empty());
                prop_assert!(plan.timing.sample_period.is_none_or(|period| !period.is_zero()));
            }
            Ok(_) => {}
            Err(error) => prop_assert!(!error.message.is_empty() && !error.hint.is_empty()),
        }
    }
}
