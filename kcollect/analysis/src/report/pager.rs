//! Shows long text on a terminal through a pager, as git does: `$PAGER`, or `less -FRX`, which
//! exits by itself if everything fits.

use std::io::Write;
use std::process::{Command, Stdio};

/// Shows a text. False: there is no pager or it cannot be started, and nothing was shown.
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
        // The pager closes the pipe when its user quits.
        let _ = stdin.write_all(text.as_bytes());
    }
    // 127 is the shell's exit code for a missing program.
    child.wait().is_ok_and(|status| status.code() != Some(127))
}
