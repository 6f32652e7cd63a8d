//! The program without privileges: which output goes to which stream, and the exit status.

use std::process::{Command, Output, Stdio};

use host::exit::ExitKind;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| unreachable!("{error}"))
}

fn code(output: &Output) -> Option<u8> {
    output
        .status
        .code()
        .and_then(|code| u8::try_from(code).ok())
}

#[test]
fn errors_go_to_standard_error_alone() {
    for arguments in [
        &[][..],
        &["-p", "5x"],
        &["--bogus"],
        &["-t", "5-2"],
        &["-F", "maybe"],
    ] {
        let output = run(arguments);
        assert_eq!(code(&output), Some(ExitKind::Usage.code()), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(output.stderr.starts_with(b"kcollect: "), "{arguments:?}");
    }
}

#[test]
fn results_go_to_standard_output_alone() {
    for arguments in [
        &["--help"][..],
        &["doctor", "--help"],
        &["-V"],
        &["--version"],
        &["-h"],
    ] {
        let output = run(arguments);
        assert_eq!(code(&output), Some(ExitKind::Ok.code()), "{arguments:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let output = Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .arg("--version")
        .stdout(full.unwrap())
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(ExitKind::IoErr.code()));
    assert!(output.stderr.starts_with(b"kcollect: "));
}

#[test]
fn the_doctor_exits_with_the_code_that_it_prints() {
    let output = run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["exit_code"].as_u64(), code(&output).map(u64::from));
    assert_eq!(report["ok"].as_bool(), Some(output.status.success()));
    assert!(
        report["findings"]
            .as_array()
            .is_some_and(|findings| findings.len() > 15)
    );

    let table = run(&["doctor"]);
    assert_eq!(table.status, output.status);
    assert!(String::from_utf8(table.stdout).unwrap().contains("kernel"));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    // As with `kcollect --help | head -1`.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = Command::new(env!("CARGO_BIN_EXE_kcollect"));
    let output = child
        .arg("--help")
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(code(&output), Some(ExitKind::Ok.code()));
}
