//! The check that the processes and threads of `-T` exist.

use experiment_format::ids::Pid;
use host::Root;
use host::exit::{ExitKind, Failure};

use crate::plan::Target;

const HINT: &str = "`ps -eLo pid,tid,comm` lists the running processes and threads";

/// Checks that every target exists. It may exit at any time after that.
///
/// # Errors
/// [`ExitKind::NoInput`] names the first target that does not exist, or that is a thread where a
/// process is needed.
pub fn check_targets(targets: &[Target]) -> Result<(), Failure> {
    check(targets, &Root::machine())
}

fn check(targets: &[Target], root: &Root) -> Result<(), Failure> {
    targets
        .iter()
        .try_for_each(|target| check_one(*target, root))
}

fn check_one(Target { pid, tid }: Target, root: &Root) -> Result<(), Failure> {
    // /proc/N exists for every thread N, although /proc lists only processes. The thread group
    // leader distinguishes them.
    let leader = root
        .text(&format!("/proc/{pid}/status"))
        .and_then(|status| {
            status
                .lines()
                .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<Pid>().ok())
        });
    match leader {
        None => Err(Failure::new(
            ExitKind::NoInput,
            format!("-T {pid}: no such process"),
            HINT,
        )),
        Some(leader) if leader != pid => Err(Failure::new(
            ExitKind::NoInput,
            format!("-T {pid}: {pid} is a thread of process {leader}"),
            format!("type -T {leader}/{pid}"),
        )),
        Some(_) => match tid {
            Some(tid) if !root.exists(&format!("/proc/{pid}/task/{tid}")) => Err(Failure::new(
                ExitKind::NoInput,
                format!("-T {pid}/{tid}: process {pid} has no thread {tid}"),
                HINT,
            )),
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment_format::ids::Tid;
    use host::tree::Tree;

    fn target(pid: Pid, tid: Option<Tid>) -> Target {
        Target { pid, tid }
    }

    #[test]
    fn processes_and_their_threads() {
        let tree = Tree::new()
            .file("/proc/10/status", "Name:\tsshd\nTgid:\t10\n")
            .file("/proc/10/task/11/status", "Name:\tsshd\nTgid:\t10\n")
            .file("/proc/11/status", "Name:\tsshd\nTgid:\t10\n");
        let check =
            |targets: &[Target]| check(targets, &tree.root()).map_err(|failure| failure.line());
        assert_eq!(
            check(&[target(Pid(10), None), target(Pid(10), Some(Tid(11)))]),
            Ok(())
        );
        insta::assert_snapshot!(check(&[target(Pid(12), None)]).unwrap_err(), @"kcollect: -T 12: no such process: `ps -eLo pid,tid,comm` lists the running processes and threads");
        insta::assert_snapshot!(check(&[target(Pid(10), Some(Tid(12)))]).unwrap_err(), @"kcollect: -T 10/12: process 10 has no thread 12: `ps -eLo pid,tid,comm` lists the running processes and threads");
        insta::assert_snapshot!(check(&[target(Pid(11), None)]).unwrap_err(), @"kcollect: -T 11: 11 is a thread of process 10: type -T 10/11");
    }

    #[test]
    fn this_process_exists() {
        assert_eq!(
            check_targets(&[target(Pid(std::process::id()), None)]),
            Ok(())
        );
    }
}
