//! Processes: `-F` and `-T`.

use experiment_format::ids::{Pid, Tid};
use host::machine;
use user_collector::follow::{Follow, GroupRule, Pattern};

use super::error;
use crate::cli::CliError;
use crate::plan::Target;

/// `-F`: which processes are followed.
pub(in crate::cli) fn follow(typed: &str) -> Result<Follow, CliError> {
    match typed {
        "off" => Ok(Follow::Off),
        "load" => Ok(Follow::Load),
        "on" => Ok(Follow::On),
        "all" => Ok(Follow::All),
        _ => {
            if let Some(group) = group(typed) {
                return group.map(Follow::Group);
            }
            let Some(pattern) = typed.strip_prefix('=').filter(|rest| !rest.is_empty()) else {
                return Err(error(
                    "-F",
                    typed,
                    "not a choice of processes",
                    "type on, off, all, load, =REGEXP for processes by name or number, as in -F '=nginx|1264', or \
                     unit:NAME, container:ID, cgroup:PATH, pod:UID, user:NAME",
                ));
            };
            Pattern::new(pattern).map(Follow::Matching).map_err(|wrong| {
                error(
                    "-F",
                    typed,
                    &wrong.to_string(),
                    "it has to match the whole of a process's name, of its program's file name, or of its number; quote it for \
                     the shell",
                )
            })
        }
    }
}

/// `-F KIND:NAME`; None if it is something else.
fn group(typed: &str) -> Option<Result<GroupRule, CliError>> {
    let (kind, name) = typed.split_once(':')?;
    if typed.starts_with('=') {
        return None;
    }
    let wrong = |hint: &str| Some(Err(error("-F", typed, "not a choice of processes", hint)));
    let name = name.to_owned();
    Some(Ok(match kind {
        "cgroup" if !name.starts_with('/') => {
            return wrong("type a path as in /proc/PID/cgroup, such as cgroup:/system.slice");
        }
        _ if name.is_empty() => return wrong("type a name after the colon"),
        "cgroup" => GroupRule::Cgroup(name),
        "container" => GroupRule::Container(name),
        "unit" => GroupRule::Unit(name),
        "pod" => GroupRule::Pod(name),
        "user" => match machine::uid_of(&name) {
            Some(uid) => GroupRule::User(uid),
            None => return wrong("type the name of a user in /etc/passwd, or a number"),
        },
        _ => {
            return wrong(
                "before the colon type one of unit, container, cgroup, pod and user; a name with a colon is \
                 matched by =REGEXP",
            );
        }
    }))
}

/// `-T`: a process or a thread.
pub(in crate::cli) fn target(typed: &str) -> Result<Target, CliError> {
    const HINT: &str = "type a process id (1264), process/thread (1264/1270), or 0/thread for a thread of the kernel";
    let bad = || error("-T", typed, "not a process or a thread", HINT);
    let id = |text: &str| match text.parse::<u32>() {
        Ok(id) if !text.starts_with('+') => Ok(id),
        _ => Err(bad()),
    };
    let target = match typed.split_once('/') {
        // On Linux each kernel thread is a process of its own; on Solaris all belong to process 0.
        Some(("0", thread)) => Target {
            pid: Pid(id(thread)?),
            tid: None,
        },
        Some((process, thread)) => Target {
            pid: Pid(id(process)?),
            tid: Some(Tid(id(thread)?)),
        },
        None => Target {
            pid: Pid(id(typed)?),
            tid: None,
        },
    };
    if target.pid == Pid(0) || target.tid == Some(Tid(0)) {
        return Err(bad());
    }
    Ok(target)
}
