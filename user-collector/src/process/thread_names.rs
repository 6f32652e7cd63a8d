//! The names of threads that an experiment has, and when another one has to be written.
//!
//! For a reader, a name with time 0 is valid for all packets of the thread; of several such names
//! the last one counts. So a thread's name is written before its first packet, and again when it
//! changes. If a thread of another process gets its id, the new name is valid from that time on.

use std::collections::HashMap;

use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;

/// Max changes of a thread's name that are written: a reader's time grows with packets times
/// names.
const MAX_NAME_CHANGES: u32 = 8;

/// The names that were written to an experiment.
#[derive(Debug, Default)]
pub struct ThreadNames {
    written: HashMap<Tid, LastWritten>,
    /// Changes that were too many.
    unwritten: u64,
}

#[derive(Debug)]
struct LastWritten {
    pid: Pid,
    name: Box<[u8]>,
    changes: u32,
}

impl ThreadNames {
    /// Notes a thread's name at a time; empty if it is not known. Returns the time with which a
    /// name has to be written, if one has to be: a reader takes a thread without any for one of
    /// Java's virtual machine.
    pub fn update(&mut self, pid: Pid, tid: Tid, name: &[u8], at_ns: Nanos) -> Option<Nanos> {
        let written = self.written.get(&tid);
        let (at_ns, changes) = match written {
            Some(written) if written.pid != pid => (at_ns, 0),
            // Of a tick that the kernel showed to no program, the name is not known.
            Some(_) if name.is_empty() => return None,
            Some(written) if written.name.is_empty() => (at_ns, written.changes),
            // Each CPU's idle thread has this id, and a name of its own.
            Some(written) if *written.name == *name || tid == Tid(0) => return None,
            Some(written) if written.changes == MAX_NAME_CHANGES => {
                self.unwritten += 1;
                return None;
            }
            Some(written) => (Nanos::ZERO, written.changes + 1),
            None => (Nanos::ZERO, 0),
        };
        let name = name.into();
        self.written.insert(tid, LastWritten { pid, name, changes });
        Some(at_ns)
    }

    /// Returns how often a thread had a name after its last written one: once for each tick or
    /// event with it.
    #[must_use]
    pub fn unwritten(&self) -> u64 {
        self.unwritten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_once_and_a_new_one_for_all() {
        let mut names = ThreadNames::default();
        assert_eq!(
            names.update(Pid(7), Tid(8), b"a", Nanos(5)),
            Some(Nanos::ZERO)
        );
        assert_eq!(names.update(Pid(7), Tid(8), b"a", Nanos(6)), None);
        assert_eq!(names.update(Pid(7), Tid(8), b"", Nanos(6)), None);
        assert_eq!(
            names.update(Pid(7), Tid(8), b"b", Nanos(7)),
            Some(Nanos::ZERO)
        );
        // Another process has the id.
        assert_eq!(names.update(Pid(9), Tid(8), b"", Nanos(8)), Some(Nanos(8)));
        assert_eq!(names.update(Pid(9), Tid(8), b"b", Nanos(9)), Some(Nanos(9)));
        for change in 0..2 * MAX_NAME_CHANGES {
            let written = names.update(Pid(9), Tid(8), &change.to_ne_bytes(), Nanos(9));
            assert_eq!(written.is_some(), change < MAX_NAME_CHANGES, "{change}");
        }
        assert_eq!(names.unwritten(), u64::from(MAX_NAME_CHANGES));
        assert_eq!(
            names.update(Pid(0), Tid(0), b"swapper/0", Nanos(1)),
            Some(Nanos::ZERO)
        );
        assert_eq!(names.update(Pid(0), Tid(0), b"swapper/1", Nanos(2)), None);
    }
}
