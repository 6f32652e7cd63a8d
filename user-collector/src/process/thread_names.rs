//! Which names of threads an experiment tells, and from when on.
//!
//! A name that is told with time 0 holds for all packets of the thread, and the one that is told
//! last stands. So a thread's name is told before its first packet, and again when it has another
//! one; and when another process has its id, what comes from then on is that one's.

use std::collections::HashMap;

/// So often a thread may change its name in the experiment: a reader's work grows with packets
/// times names.
const MAX_NAME_CHANGES: u32 = 8;

/// The names that were told.
#[derive(Debug, Default)]
pub struct ThreadNames {
    told: HashMap<u32, LastWritten>,
}

#[derive(Debug)]
struct LastWritten {
    pid: u32,
    name: Box<[u8]>,
    changes: u32,
}

impl ThreadNames {
    /// A thread has this name now. Gives the time to tell it with, if it has to be told; `at` is
    /// now.
    pub fn tell(&mut self, pid: u32, tid: u32, name: &[u8], at: u64) -> Option<u64> {
        let told = self.told.get(&tid);
        let (at, changes) = match told {
            Some(told) if told.pid != pid => (at, 0),
            // Each CPU's idle thread has this id, and a name of its own.
            Some(told) if *told.name == *name || tid == 0 => return None,
            Some(told) if told.changes == MAX_NAME_CHANGES => return None,
            Some(told) => (0, told.changes + 1),
            None => (0, 0),
        };
        let name = name.into();
        self.told.insert(tid, LastWritten { pid, name, changes });
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_once_and_a_new_one_for_all() {
        let mut names = ThreadNames::default();
        assert_eq!(names.tell(7, 8, b"a", 5), Some(0));
        assert_eq!(names.tell(7, 8, b"a", 6), None);
        assert_eq!(names.tell(7, 8, b"b", 7), Some(0));
        // Another process has the id.
        assert_eq!(names.tell(9, 8, b"b", 8), Some(8));
        for change in 0..2 * MAX_NAME_CHANGES {
            let told = names.tell(9, 8, &change.to_ne_bytes(), 9);
            assert_eq!(told.is_some(), change < MAX_NAME_CHANGES, "{change}");
        }
        assert_eq!(names.tell(0, 0, b"swapper/0", 1), Some(0));
        assert_eq!(names.tell(0, 0, b"swapper/1", 2), None);
    }
}
