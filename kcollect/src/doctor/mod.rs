//! Checks of the machine: what it permits, what profiling misses, and how to fix that.
//!
//! When the kernel refuses something it returns one error, EPERM, for a dozen reasons: lockdown, a
//! capability, a sysctl, a container. Each reason can be read from /proc and /sys in advance.
//! `kcollect doctor` prints every [`Finding`]; a recording that cannot start prints the
//! [`first_obstacle`], in the same words.
//!
//! Every check is a pure function of a [`Root`], the directory that contains `proc` and `sys`. What
//! has to be tried, such as loading a BPF program, is not checked here: the caller adds a
//! [`Finding`] of its own.
//!
//! Nothing is changed. A finding names the hint, and the user applies it.

mod kernel;
mod machine;
mod perf;
mod privilege;
mod show;
pub mod tested;

use host::Root;
use host::exit::{ExitKind, Failure};
pub use machine::{descriptors_needed, raise_open_files};
use serde::Serialize;
pub use show::{json, table};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// A recording works, but something will be missing.
    Warn,
    /// A recording cannot start.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject of the check, the same on every machine.
    pub name: &'static str,
    /// What was found. No full stop.
    pub found: String,
    /// The severity.
    pub verdict: Verdict,
    /// What to type or change. None exactly if the verdict is [`Verdict::Ok`].
    pub hint: Option<String>,
    /// The kind of exit code: [`ExitKind::Ok`] unless the verdict is [`Verdict::Fail`].
    #[serde(rename = "exit_code", serialize_with = "show::exit_code")]
    pub kind: ExitKind,
}

impl Finding {
    /// Returns a finding with nothing to do.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Finding {
            name,
            found: found.into(),
            verdict: Verdict::Ok,
            hint: None,
            kind: ExitKind::Ok,
        }
    }

    /// A finding with which a recording works, but will miss what `found` names.
    pub fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Finding {
            verdict: Verdict::Warn,
            hint: Some(hint.into()),
            ..Finding::ok(name, found)
        }
    }

    /// A finding with which a recording cannot start, and exits with the code of `kind`.
    pub fn fail(
        name: &'static str,
        kind: ExitKind,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Finding {
            verdict: Verdict::Fail,
            kind,
            ..Finding::warn(name, found, hint)
        }
    }
}

/// Returns the findings of all checks. Obstacles that no privilege removes come first.
#[must_use]
pub fn examine(root: &Root) -> Vec<Finding> {
    vec![
        kernel::version(root),
        machine::open_files(root),
        machine::user_namespace(root),
        privilege::capabilities(root),
        machine::pid_namespace(root),
        kernel::lockdown(root),
        kernel::btf(root),
        kernel::symbols(root),
        kernel::jit(root),
        kernel::jit_symbols(root),
        kernel::unprivileged_bpf(root),
        perf::paranoid(root),
        perf::sample_rate(root),
        perf::stack_depth(root),
        perf::locked_memory(root),
        perf::pmu(root),
        machine::clock_source(root),
        machine::cpus(root),
        machine::kcore(root),
        machine::gprofng(root),
    ]
}

/// Returns the first reason why a recording cannot start. None: no check failed.
#[must_use]
pub fn first_obstacle(findings: &[Finding]) -> Option<Failure> {
    let finding = findings
        .iter()
        .find(|finding| finding.verdict == Verdict::Fail)?;
    Some(Failure::new(
        finding.kind,
        format!("{}: {}", finding.name, finding.found),
        finding.hint.clone().unwrap_or_default(),
    ))
}

/// The kind of exit code of `kcollect doctor`: the first obstacle's, or [`ExitKind::Ok`].
#[must_use]
pub fn exit_kind(findings: &[Finding]) -> ExitKind {
    first_obstacle(findings).map_or(ExitKind::Ok, |failure| failure.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::tree::Tree;

    #[test]
    fn a_good_machine_has_no_findings() {
        let findings = examine(&Tree::good().root());
        let bad: Vec<_> = findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Ok)
            .collect();
        assert_eq!(bad, Vec::<&Finding>::new());
        assert_eq!(first_obstacle(&findings), None);
        assert_eq!(exit_kind(&findings), ExitKind::Ok);
    }

    #[test]
    fn an_empty_tree_has_findings_with_hints() {
        let findings = examine(&Tree::new().root());
        for finding in &findings {
            assert_eq!(
                finding.hint.is_some(),
                finding.verdict != Verdict::Ok,
                "{finding:?}"
            );
            assert_eq!(
                finding.kind != ExitKind::Ok,
                finding.verdict == Verdict::Fail,
                "{finding:?}"
            );
            assert!(
                !finding.found.ends_with('.') && !finding.found.is_empty(),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn the_running_machine_can_be_examined() {
        let findings = examine(&Root::machine());
        assert!(findings.len() > 15);
    }

    #[test]
    fn the_first_obstacle_has_the_words_of_its_finding() {
        let tree = Tree::good().file(
            "/proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
        );
        let failure = first_obstacle(&examine(&tree.root())).unwrap();
        assert_eq!(failure.kind, ExitKind::NoPerm);
        insta::assert_snapshot!(failure.line());
    }
}
