//! What is archived of the files of followed processes (`-A`), and when.
//!
//! The code that the processes generate at run time is in no file: it is read if load objects are
//! archived.
//!
//! Archiving runs in the background from the moment that a process is followed. At the end the
//! recording waits for the rest, unless the user gives up. With `-A usedldobjects` a file is
//! archived once a stack was seen in it. With `-A usedsrc` the sources come last, when all lines
//! that are in stacks are known.

use std::io;
use std::os::fd::OwnedFd;

use experiment_format::directory::{ExperimentDir, Owner};
use experiment_format::ids::Pid;
use host::machine;
use nix::unistd::{Gid, getgid, getgroups, getppid, getuid};
use procfs::process::Process;
use user_collector::archive::{Archiver, SourceCopies};
use user_collector::files::InvokingUser;
use user_collector::jit::CodeReader;
use user_collector::loaded_code::LoadedCode;
use user_collector::objects::VDSO;

use crate::plan::Archive;

/// Starts archiving as the command line says. `taken` are the kernel's load objects, whose names no
/// file gets; `most` is the max number of bytes of all copies; `before` is the `archives/` of the
/// experiment that ended when this one began.
///
/// # Errors
/// When the directory can't be created, or the thread cannot be spawned.
pub fn begin<'a>(
    code: &mut LoadedCode,
    archive: Archive,
    dir: &ExperimentDir,
    taken: impl Iterator<Item = &'a str>,
    most: Option<u64>,
    before: Option<OwnedFd>,
) -> io::Result<()> {
    let taken: Vec<&str> = taken.chain([VDSO]).collect();
    taken.iter().for_each(|name| code.objects.reserve(name));
    let sources = match archive {
        Archive::Off => return Ok(()),
        Archive::LoadObjects | Archive::UsedLoadObjects => SourceCopies::None,
        Archive::UsedSources => SourceCopies::Used,
        Archive::Sources | Archive::All => SourceCopies::All,
    };
    let dir = dir.for_archiver().map_err(io::Error::other)?;
    let user = invoking_user();
    code.jit.code = Some(CodeReader::start(user.clone())?);
    let archiver = Archiver::start(dir, user, sources, taken, most, before)?;
    code.objects
        .set_archiver(archiver, archive == Archive::UsedLoadObjects);
    Ok(())
}

/// The user who asked for the recording and will own the archives: the user who called sudo, or the
/// user that this process runs as.
fn invoking_user() -> InvokingUser {
    let Some(Owner { uid, gid }) = machine::sudo_user() else {
        let groups = getgroups()
            .unwrap_or_default()
            .into_iter()
            .chain([getgid()]);
        return InvokingUser {
            uid: getuid().as_raw(),
            groups: groups.map(Gid::as_raw).collect(),
        };
    };
    let mut groups = groups_of(uid, Pid::from_raw(getppid().as_raw())).unwrap_or_default();
    groups.push(gid);
    InvokingUser { uid, groups }
}

/// A user's groups, from the nearest process that runs as the user: `process` or one of its
/// ancestors, such as the shell below sudo. None if no such process is left.
///
/// They are not looked up in the group database, since that loads libraries of whatever C library
/// the machine has, which a statically linked program must not do.
fn groups_of(uid: u32, process: Pid) -> Option<Vec<u32>> {
    let mut process = process.as_raw();
    // Bounded, since the chain may change meanwhile.
    for _ in 0..100 {
        let status = Process::new(process).ok()?.status().ok()?;
        if status.ruid == uid {
            return Some(status.groups);
        }
        process = status.ppid;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_nearest_process_of_the_user() {
        let mut own: Vec<_> = getgroups().unwrap().into_iter().map(Gid::as_raw).collect();
        own.sort_unstable();
        let found = groups_of(getuid().as_raw(), Pid(std::process::id()));
        let found = found.map(|mut groups| {
            groups.sort_unstable();
            groups
        });
        assert_eq!(found, Some(own));
        // No process is this one's.
        assert_eq!(groups_of(u32::MAX, Pid(std::process::id())), None);
    }
}
