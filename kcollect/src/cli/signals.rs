//! Signals by name and number, and which of them `-l` and `-y` can use.

use std::str::FromStr;

use host::signals::name_of;
use nix::sys::signal::Signal;

use super::CliError;
use super::values::error;
use crate::plan::PauseSignal;

/// `-y`: a signal, with `,r` to begin recording.
pub(super) fn pause_signal(typed: &str) -> Result<PauseSignal, CliError> {
    match typed.split_once(',') {
        None => Ok(PauseSignal {
            signal: signal("-y", typed, typed)?,
            start_recording: false,
        }),
        Some((name, "r")) => Ok(PauseSignal {
            signal: signal("-y", typed, name)?,
            start_recording: true,
        }),
        Some(_) => Err(error(
            "-y",
            typed,
            "only r may follow the comma",
            "type a signal, or a signal and ,r to begin recording: USR1,r",
        )),
    }
}

/// `-l`: a signal.
pub(super) fn sample_signal(typed: &str) -> Result<i32, CliError> {
    signal("-l", typed, typed)
}

/// Returns the number of the signal `name`, with or without SIG, or a number, if kcollect does not
/// need it itself.
fn signal(option: &str, typed: &str, name: &str) -> Result<i32, CliError> {
    const HINT: &str = "use SIGUSR1 or SIGUSR2";
    let number = number_of(name).ok_or_else(|| error(option, typed, "unknown signal", HINT))?;
    match reason_to_refuse(number) {
        Some(reason) => Err(error(
            option,
            typed,
            &format!("signal {} cannot be used: {reason}", name_of(number)),
            HINT,
        )),
        None => Ok(number),
    }
}

fn number_of(name: &str) -> Option<i32> {
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = name.parse().ok()?;
        let known = Signal::try_from(number).is_ok()
            || (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number);
        return known.then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    match bare {
        // Second names in the C library, which nix does not have.
        "POLL" => return Some(libc::SIGIO),
        "IOT" => return Some(libc::SIGABRT),
        "CLD" => return Some(libc::SIGCHLD),
        _ => {}
    }
    if let Some(rest) = bare.strip_prefix("RTMIN") {
        return real_time(libc::SIGRTMIN(), rest, '+', 1);
    }
    if let Some(rest) = bare.strip_prefix("RTMAX") {
        return real_time(libc::SIGRTMAX(), rest, '-', -1);
    }
    Signal::from_str(&format!("SIG{bare}"))
        .ok()
        .map(|signal| signal as i32)
}

/// Returns the number of `RTMIN+3` or `RTMAX-1`: an end of the range, and a distance into it.
fn real_time(base: i32, rest: &str, sign: char, direction: i32) -> Option<i32> {
    let distance = match rest.strip_prefix(sign) {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse::<u8>().ok()?
        }
        None if rest.is_empty() => 0,
        _ => return None,
    };
    let number = base + direction * i32::from(distance);
    (libc::SIGRTMIN()..=libc::SIGRTMAX())
        .contains(&number)
        .then_some(number)
}

/// Returns why `-l` and `-y` cannot use a signal. None: they can.
fn reason_to_refuse(number: i32) -> Option<&'static str> {
    Some(match Signal::try_from(number).ok()? {
        Signal::SIGKILL | Signal::SIGSTOP => "no program can catch it",
        Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM | Signal::SIGHUP => {
            "it ends the recording"
        }
        Signal::SIGCHLD => "the kernel sends it when the load has exited",
        Signal::SIGPIPE => "the kernel sends it when kcollect's output is not read any more",
        Signal::SIGXFSZ => "the kernel sends it when a file has reached its limit",
        Signal::SIGCONT | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
            "the shell's job control uses it"
        }
        Signal::SIGSEGV
        | Signal::SIGBUS
        | Signal::SIGILL
        | Signal::SIGFPE
        | Signal::SIGABRT
        | Signal::SIGTRAP
        | Signal::SIGSYS => "the kernel sends it when a program fails",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn signals_by_name_and_number() {
        for (typed, number) in [
            ("USR1", libc::SIGUSR1),
            ("SIGUSR2", libc::SIGUSR2),
            ("sigusr2", libc::SIGUSR2),
            ("12", libc::SIGUSR2),
            ("POLL", libc::SIGIO),
            ("RTMIN", libc::SIGRTMIN()),
            ("SIGRTMIN+3", libc::SIGRTMIN() + 3),
            ("RTMAX-1", libc::SIGRTMAX() - 1),
            ("64", 64),
        ] {
            assert_eq!(sample_signal(typed), Ok(number), "{typed}");
        }
        for unknown in [
            "",
            "SIG",
            "FOO",
            "0",
            "65",
            "32",
            "-1",
            "RTMIN+40",
            "RTMIN-1",
            "RTMAX+1",
            "SIGSIGUSR1",
            "999999999999",
        ] {
            assert!(sample_signal(unknown).is_err(), "{unknown}");
            assert_eq!(number_of(unknown), None);
        }
        for refused in [
            "KILL", "9", "STOP", "INT", "QUIT", "TERM", "HUP", "CHLD", "CLD", "PIPE", "SEGV",
            "IOT", "TSTP",
        ] {
            assert!(sample_signal(refused).is_err(), "{refused}");
            let number = number_of(refused).unwrap();
            assert!(reason_to_refuse(number).is_some(), "{refused}");
        }
        assert_eq!(
            pause_signal("USR1"),
            Ok(PauseSignal {
                signal: libc::SIGUSR1,
                start_recording: false
            })
        );
        assert_eq!(
            pause_signal("10,r"),
            Ok(PauseSignal {
                signal: libc::SIGUSR1,
                start_recording: true
            })
        );
        assert!(
            ["USR1,", "USR1,x", "USR1,r,r", ",r"]
                .iter()
                .all(|bad| pause_signal(bad).is_err())
        );
        assert_eq!(name_of(libc::SIGRTMIN() + 2), "SIGRTMIN+2");
    }

    proptest! {
        #[test]
        fn no_text_panics(typed in "\\PC{0,12}|(SIG)?RTM(IN|AX)[-+]?[0-9]{0,4}(,r)?") {
            let _ = pause_signal(&typed);
            if let Ok(number) = sample_signal(&typed) {
                prop_assert_eq!(sample_signal(&name_of(number)), Ok(number));
            }
        }
    }
}
