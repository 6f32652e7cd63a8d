//! Keeps what libbpf prints while it loads, so that an error carries the verifier's log.
//!
//! libbpf-rs reports a refused program as "Permission denied" alone; the reason goes to a global
//! print hook. The hook is a plain function, hence the one static.

use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

/// Enough for the instructions around the refused one, which are last in the log.
const TAIL_BYTES: usize = 4000;

static LOG: Mutex<String> = Mutex::new(String::new());

fn log() -> MutexGuard<'static, String> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `load` and returns its result together with the tail of what libbpf printed meanwhile.
pub(crate) fn with_log<T>(load: impl FnOnce() -> T) -> (T, String) {
    log().clear();
    let before = set_print(Some((PrintLevel::Warn, |_, text| log().push_str(&text))));
    let result = load();
    set_print(before);
    let printed = std::mem::take(&mut *log());
    (result, tail(&printed))
}

/// Returns the last [`TAIL_BYTES`] from the start of a line, after a newline; or nothing.
fn tail(printed: &str) -> String {
    let printed = printed.trim_end();
    if printed.is_empty() {
        return String::new();
    }
    let from = printed.ceil_char_boundary(printed.len().saturating_sub(TAIL_BYTES));
    let rest = &printed[from..];
    let whole_lines = match rest.find('\n') {
        Some(end) if from > 0 => &rest[end + 1..],
        _ => rest,
    };
    format!("\n{whole_lines}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_log_is_kept_whole() {
        assert_eq!(tail("first\nsecond\n"), "\nfirst\nsecond");
        assert_eq!(tail(" \n"), "");
    }

    #[test]
    fn a_long_log_keeps_its_last_whole_lines() {
        let printed = (0..1000)
            .map(|n| format!("instruction {n}\n"))
            .collect::<String>();
        let kept = tail(&printed);
        assert!(kept.len() <= TAIL_BYTES + 1);
        assert!(kept.starts_with("\ninstruction "));
        assert!(kept.ends_with("instruction 999"));
    }
}
