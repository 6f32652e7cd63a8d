//! What this machine permits, what it lacks for profiling, and the cure for that.
//!
//! A refusal of the kernel is one number, EPERM, for a dozen reasons: lockdown, a capability, a
//! sysctl, a container. Each reason can be read beforehand from /proc and /sys, so it is. `kcollect
//! doctor` prints every [`Finding`]; a start that fails asks [`first_obstacle`] for the one to
//! show, so that both say the same words.
//!
//! Every check is a pure function of a [`Root`], the directory that holds `proc` and `sys`. What
//! can be known only by trying, such as whether the kernel takes a BPF program, is no business of
//! this module: whoever tries it appends a [`Finding`] of its own to the list.
//!
//! What this refuses: to change anything. A cure is told, and the user applies it.

mod kernel;
mod machine;
mod perf;
mod privilege;

mod show;

pub use host::Root;
use host::exit::{ExitKind, Failure};
use serde::Serialize;
pub use show::{json, table};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// A recording works, and lacks something.
    Warn,
    /// A recording cannot start.
    Fail,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, the same words on every machine.
    pub name: &'static str,
    /// What was there. No full stop.
    pub found: String,
    /// How bad it is.
    pub verdict: Verdict,
    /// What to type or change. Always there unless the verdict is [`Verdict::Ok`].
    pub cure: Option<String>,
    /// The exit code's kind: [`ExitKind::Ok`] unless the verdict is [`Verdict::Fail`].
    #[serde(rename = "exit_code", serialize_with = "show::exit_code")]
    pub kind: ExitKind,
}

impl Finding {
    /// Nothing to do.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Finding {
            name,
            found: found.into(),
            verdict: Verdict::Ok,
            cure: None,
            kind: ExitKind::Ok,
        }
    }

    /// A recording works, and lacks something, which `found` names.
    pub fn warn(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Finding {
            verdict: Verdict::Warn,
            cure: Some(cure.into()),
            ..Finding::ok(name, found)
        }
    }

    /// A recording cannot start, and ends with the code of `kind`.
    pub fn fail(
        name: &'static str,
        kind: ExitKind,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Finding {
            verdict: Verdict::Fail,
            kind,
            ..Finding::warn(name, found, cure)
        }
    }
}

/// Every check, in the order in which obstacles matter: what no privilege cures comes first.
#[must_use]
pub fn examine(root: &Root) -> Vec<Finding> {
    vec![
        kernel::version(root),
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

/// The first reason why a recording cannot start. None: nothing that was looked at stands in the
/// way.
#[must_use]
pub fn first_obstacle(findings: &[Finding]) -> Option<Failure> {
    let finding = findings
        .iter()
        .find(|finding| finding.verdict == Verdict::Fail)?;
    Some(Failure::new(
        finding.kind,
        format!("{}: {}", finding.name, finding.found),
        finding.cure.clone().unwrap_or_default(),
    ))
}

/// How `kcollect doctor` ends: the kind of the first obstacle, else [`ExitKind::Ok`].
#[must_use]
pub fn exit_kind(findings: &[Finding]) -> ExitKind {
    first_obstacle(findings).map_or(ExitKind::Ok, |failure| failure.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::tree::Tree;

    #[test]
    fn a_good_machine_has_nothing_to_cure() {
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
    fn an_empty_tree_is_answered_not_panicked_on() {
        let findings = examine(&Tree::new().root());
        for finding in &findings {
            assert_eq!(
                finding.cure.is_some(),
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
    fn the_obstacle_reads_as_the_doctor_says_it() {
        let tree = Tree::good().file(
            "/proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
        );
        let failure = first_obstacle(&examine(&tree.root())).unwrap();
        assert_eq!(failure.kind, ExitKind::NoPerm);
        insta::assert_snapshot!(failure.line());
    }
}
