//! The header of a subexperiment's `log.xml`: facts about the process.

use std::fmt::Display;

use experiment_format::ids::Pid;
use experiment_format::log::{LogHeader, ProfileDecl};
use experiment_format::microstate::NumStates;
use experiment_format::text::printable;
use user_collector::process::{Cgroup, ProcessFacts};

use crate::record::kernel::counter_tags;
use crate::record::kernel::header::Inherited;

/// Returns the header of a process's experiment.
pub(super) fn header(
    inherited: &Inherited,
    facts: &ProcessFacts,
    pid: Pid,
    name: &[u8],
) -> LogHeader {
    let mut header = inherited.header.clone();
    header.pid = pid;
    [header.ppid, header.pgrp, header.sid] = facts.relatives;
    header.command_line = described_by_name(name, facts.command_line.as_deref());
    header.profiles.retain(|profile| {
        !matches!(
            profile,
            ProfileDecl::Clock {
                states: NumStates::Kernel,
                ..
            }
        )
    });
    header
        .profiles
        .iter_mut()
        .for_each(counter_tags::of_process);
    header.settings.clear();
    header.comments = comments(facts, name);
    header.mpi_rank = facts.mpi_rank;
    let cgroup = facts.cgroup.clone();
    header.container = cgroup.and_then(|cgroup| cgroup.container).map(Into::into);
    header
}

/// The text by which gprofng names a process: the part of its first word after the last `/`. That
/// is the name of the process in Linux, as everywhere in kcollect. A command line that begins with
/// another name, such as a script's, or of a program that writes its state there, follows in
/// parentheses.
fn described_by_name(name: &[u8], command_line: Option<&str>) -> String {
    let blank = |character: char| {
        if character.is_whitespace() {
            '_'
        } else {
            character
        }
    };
    let name = printable(name).replace('/', ":");
    let name: String = name.chars().map(blank).collect();
    let Some(line) = command_line else {
        return name;
    };
    let word = line.split(' ').next().unwrap_or(line);
    if word.rsplit('/').next() == Some(&name) {
        line.to_owned()
    } else {
        format!("{name} ({line})")
    }
}

fn comments(facts: &ProcessFacts, name: &[u8]) -> Vec<String> {
    let user = facts.users.map(|[_, user, ..]| user);
    let mut comments = vec![format!("process: {}", printable(name))];
    comments.extend(comment("command line", facts.command_line.as_ref()));
    comments.extend(comment("program", facts.executable.as_ref()));
    comments.extend(comment("directory", facts.cwd.as_ref()));
    comments.extend(group_comments(user, facts.cgroup.as_ref()));
    comments.extend(comment("MPI rank", facts.mpi_rank));
    comments
}

/// Returns the comments about the groups that a process belongs to.
pub(super) fn group_comments(user: Option<u32>, cgroup: Option<&Cgroup>) -> Vec<String> {
    let mut comments = Vec::from_iter(comment("user id", user));
    if let Some(cgroup) = cgroup.filter(|cgroup| !cgroup.is_root()) {
        let container = cgroup.container.as_ref();
        let container =
            container.map(|container| format!("{} {}", container.runtime.name(), container.id));
        comments.extend(comment("cgroup", Some(&cgroup.path)));
        comments.extend(comment("unit", cgroup.unit.as_ref()));
        comments.extend(comment("pod", cgroup.pod.as_ref()));
        comments.extend(comment("container", container));
    }
    comments
}

fn comment(what: &str, value: Option<impl Display>) -> Option<String> {
    value.map(|value| format!("{what}: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gprofng_sees_the_name_of_the_process_first() {
        let text = |name: &[u8], line| described_by_name(name, Some(line));
        assert_eq!(text(b"ls", "/bin/ls -l"), "/bin/ls -l");
        assert_eq!(
            text(b"redis-server", "'redis-server *:6379'"),
            "redis-server ('redis-server *:6379')"
        );
        assert_eq!(
            text(b"load.sh", "/bin/sh ./load.sh"),
            "load.sh (/bin/sh ./load.sh)"
        );
        assert_eq!(text(b"a b/c", "x"), "a_b:c (x)");
        assert_eq!(described_by_name(b"kworker/0:1", None), "kworker:0:1");
    }
}
