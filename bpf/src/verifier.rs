//! Keeps what libbpf prints while it loads, and finds the reason of a refusal in it.
//!
//! libbpf-rs reports a refused program as "Permission denied" alone; the reason goes to a global
//! print hook. The hook is a plain function, hence the one static.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{ErrorKind, PrintLevel, set_print};

/// The end of the log is kept: the instructions around the refused one are last in it.
const MAX_LOG_BYTES: usize = 1 << 20;

const NEWER_KERNEL: &str =
    "use a newer kcollect, or report this with the log and the kernel's version (uname -r)";
const REPORT: &str = "report this with the log and the kernel's version (uname -r)";

static LOG: Mutex<String> = Mutex::new(String::new());

fn log() -> MutexGuard<'static, String> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `load` and returns its result together with the end of what libbpf printed meanwhile.
pub(crate) fn with_log<T>(load: impl FnOnce() -> T) -> (T, String) {
    log().clear();
    let before = set_print(Some((PrintLevel::Warn, |_, text| log().push_str(&text))));
    let result = load();
    set_print(before);
    let printed = std::mem::take(&mut *log());
    (result, tail(&printed, MAX_LOG_BYTES).to_owned())
}

/// Returns the last `bytes`, from the start of a line.
fn tail(printed: &str, bytes: usize) -> &str {
    let printed = printed.trim_end();
    let from = printed.ceil_char_boundary(printed.len().saturating_sub(bytes));
    let rest = &printed[from..];
    match rest.find('\n') {
        Some(end) if from > 0 => &rest[end + 1..],
        _ => rest,
    }
}

/// Why the programs could not be loaded. Displayed as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong. One line, no full stop.
    pub reason: String,
    /// What the user can do.
    pub remedy: &'static str,
    /// A privilege is missing.
    pub is_permission: bool,
    /// What libbpf and the verifier printed; may be empty.
    pub log: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Refusal {
    pub(crate) fn new(source: &libbpf_rs::Error, log: String) -> Refusal {
        let (reason, remedy) = reason(source.kind(), &source.to_string(), &log);
        Refusal {
            // EACCES is also what the verifier returns for a program that is not safe.
            is_permission: source.kind() == ErrorKind::PermissionDenied && !has_verifier_log(&log),
            reason,
            remedy,
            log,
        }
    }
}

fn has_verifier_log(log: &str) -> bool {
    log.contains("BEGIN PROG LOAD LOG")
}

/// Returns what is wrong and what the user can do, from the error and libbpf's log.
fn reason(kind: ErrorKind, error: &str, log: &str) -> (String, &'static str) {
    let line_with = |text: &str| log.lines().find(|line| line.contains(text));
    if let Some(line) = line_with("failed to resolve CO-RE relocation") {
        let what = relocated(line).unwrap_or("a type");
        let text = format!(
            "this kernel is newer than kcollect knows: {what} is missing or has changed in it"
        );
        return (text, NEWER_KERNEL);
    }
    if let Some(line) = line_with("extern (func ksym)").or(line_with("extern (var ksym)")) {
        let name = quoted(line).unwrap_or("a symbol");
        let text = format!(
            "this kernel is newer than kcollect knows: its {name} is missing or has changed"
        );
        return (text, NEWER_KERNEL);
    }
    if let Some(line) = line_with("is not found in vmlinux BTF")
        .or(line_with("failed to find kernel BTF type ID of"))
    {
        // The program comes first where both are named.
        let name = line.rsplit('\'').nth(1).unwrap_or("a tracepoint");
        let text = format!("this kernel has no {name} to attach a program to");
        return (text, NEWER_KERNEL);
    }
    let no_btf = [
        "failed to find valid kernel BTF",
        "Error loading vmlinux BTF",
    ];
    if no_btf.iter().any(|text| log.contains(text)) {
        return (
            "the kernel's BTF cannot be read".to_owned(),
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, such as Debian's or Ubuntu's",
        );
    }
    let program = line_with("BPF program load failed").and_then(quoted);
    let program = program.map_or_else(|| "a program".to_owned(), |name| format!("program {name}"));
    if log.contains("BPF program is too large") {
        let text = format!("{program} has too many instructions for this kernel's verifier");
        return (text, REPORT);
    }
    if has_verifier_log(log) {
        let text = match verifier_message(log) {
            Some(message) => format!("the verifier refused {program}: {message}"),
            None => format!("the verifier refused {program}: {error}"),
        };
        return (text, REPORT);
    }
    match kind {
        ErrorKind::PermissionDenied => (
            format!("a privilege is missing, or lockdown forbids it: {error}"),
            "run as root; `kcollect doctor` says what is missing",
        ),
        ErrorKind::OutOfMemory => (
            format!("the kernel has no memory for them: {error}"),
            "make memory free, or raise the limit of locked memory (ulimit -l)",
        ),
        _ => (
            match log.lines().map(str::trim).rfind(|line| !line.is_empty()) {
                Some(last) => format!("{error} ({last})"),
                None => error.to_owned(),
            },
            "`kcollect doctor` says what is missing",
        ),
    }
}

/// Returns the field or type in a line such as `failed to resolve CO-RE relocation <byte_off> [14]
/// struct task_struct.on_rq (0:21 @ offset 104)`.
fn relocated(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("CO-RE relocation ")?;
    let from = ["struct ", "union ", "enum ", "enum64 "];
    let from = from.iter().filter_map(|word| rest.find(word)).min()?;
    let rest = &rest[from..];
    Some(rest.split(" (").next().unwrap_or(rest).trim())
}

/// Returns the first text in single quotes.
fn quoted(line: &str) -> Option<&str> {
    line.split('\'').nth(1)
}

/// Returns the verifier's message: the last line that is neither about an instruction nor a
/// statistic.
fn verifier_message(log: &str) -> Option<&str> {
    let (_, log) = log.rsplit_once("BEGIN PROG LOAD LOG --")?;
    let (log, _) = log.split_once("-- END PROG LOAD LOG").unwrap_or((log, ""));
    let is_message = |line: &&str| {
        let statistic = ["processed ", "verification time", "stack depth", "libbpf:"];
        !line.is_empty() && !statistic.iter().any(|start| line.starts_with(start))
    };
    log.lines().map(str::trim).rfind(is_message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_of(log: &str) -> String {
        reason(ErrorKind::PermissionDenied, "Permission denied", log).0
    }

    #[test]
    fn a_short_log_is_kept_whole() {
        assert_eq!(tail("first\nsecond\n", 100), "first\nsecond");
        assert_eq!(tail(" \n", 100), "");
    }

    #[test]
    fn a_long_log_keeps_its_last_whole_lines() {
        let printed = (0..1000)
            .map(|n| format!("instruction {n}\n"))
            .collect::<String>();
        let kept = tail(&printed, 4000);
        assert!(kept.len() <= 4000);
        assert!(kept.starts_with("instruction "));
        assert!(kept.ends_with("instruction 999"));
    }

    #[test]
    fn a_field_that_changed_is_named() {
        let log = "libbpf: prog 'kc_sched_switch': BPF program load failed: Invalid argument\n\
            libbpf: prog 'kc_sched_switch': -- BEGIN PROG LOAD LOG --\n\
            0: (79) r1 = *(u64 *)(r1 +8)\n\
            12: <invalid CO-RE relocation>\n\
            failed to resolve CO-RE relocation <byte_off> [14] struct task_struct.on_rq (0:21 @ offset 104)\n\
            processed 12 insns (limit 1000000)\n-- END PROG LOAD LOG --";
        assert_eq!(
            reason_of(log),
            "this kernel is newer than kcollect knows: struct task_struct.on_rq is missing or has changed in it"
        );
    }

    #[test]
    fn a_function_that_changed_is_named() {
        let log = "libbpf: extern (func ksym) 'bpf_session_is_return': func_proto [9] incompatible with vmlinux [7]";
        assert_eq!(
            reason_of(log),
            "this kernel is newer than kcollect knows: its bpf_session_is_return is missing or has changed"
        );
        let log = "libbpf: prog 'kc_kernel_fault': failed to find kernel BTF type ID of 'page_fault_kernel': -3";
        assert_eq!(
            reason_of(log),
            "this kernel has no page_fault_kernel to attach a program to"
        );
    }

    #[test]
    fn a_refused_program_is_named_with_the_verifiers_message() {
        let log = "libbpf: prog 'kc_exec_rename': BPF program load failed: Permission denied\n\
            libbpf: prog 'kc_exec_rename': -- BEGIN PROG LOAD LOG --\n\
            3: (85) call bpf_get_current_task#35\n\
            R1 invalid mem access 'scalar'\n\
            processed 4 insns (limit 1000000) max_states_per_insn 0\n\
            -- END PROG LOAD LOG --\nlibbpf: failed to load object 'kcollect'";
        assert_eq!(
            reason_of(log),
            "the verifier refused program kc_exec_rename: R1 invalid mem access 'scalar'"
        );
        let refusal = Refusal::new(&libbpf_rs::Error::from_raw_os_error(13), log.to_owned());
        assert!(!refusal.is_permission, "{refusal:?}");
    }

    #[test]
    fn error_without_a_log_is_a_missing_privilege() {
        let refusal = Refusal::new(&libbpf_rs::Error::from_raw_os_error(1), String::new());
        assert!(refusal.is_permission && !refusal.reason.contains('\n'));
    }
}
