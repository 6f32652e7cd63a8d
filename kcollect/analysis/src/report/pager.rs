//! Long text on a terminal goes through a pager, as git does it: `$PAGER`, or `less -FRX`, which
//! ends by itself where everything fits.

use std::io::Write;
use std::process::{Command, Stdio};

/// Shows a text. False: there is no pager, or it cannot be started, and nothing was shown.
pub(super) fn show(text: &str) -> bool {
    let pager = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
    if pager.is_empty() || pager == "cat" {
        return false;
    }
    let mut command = Command::new("sh");
    command.args(["-c", &pager]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    if let Some(mut stdin) = child.stdin.take() {
        // Who has seen enough closes the pipe.
        let _ = stdin.write_all(text.as_bytes());
    }
    // 127 is the shell's word for a program that is not there.
    child.wait().is_ok_and(|status| status.code() != Some(127))
}
