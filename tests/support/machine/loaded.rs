//! The BPF objects in the kernel: programs, maps, links and type information, by their ids.
//!
//! kcollect must not leave any of them loaded, however it ends. Only ids are read
//! (`BPF_PROG_GET_NEXT_ID` and the like), so that objects of unknown types count too.

use std::collections::BTreeSet;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libbpf_sys::{
    bpf_btf_get_next_id, bpf_link_get_next_id, bpf_map_get_next_id, bpf_prog_get_next_id,
};

/// Maximum time until objects that were loaded later are freed: a recording of another running
/// check has ended by then, and the kernel frees what it held a little later, after grace periods
/// and in the background.
const FREE_LIMIT: Duration = Duration::from_secs(90);

type NextId = unsafe extern "C" fn(u32, *mut u32) -> i32;

const KINDS: [(&str, NextId); 4] = [
    ("program", bpf_prog_get_next_id),
    ("map", bpf_map_get_next_id),
    ("link", bpf_link_get_next_id),
    ("btf", bpf_btf_get_next_id),
];

/// The objects that were loaded at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded(BTreeSet<(&'static str, u32)>);

impl Loaded {
    /// Returns the objects that are loaded now.
    ///
    /// # Errors
    /// When the kernel does not say: it takes root.
    pub fn now() -> Result<Self> {
        let mut objects = BTreeSet::new();
        for (kind, next_id) in KINDS {
            let mut id = 0;
            loop {
                // SAFETY: it writes one number, where `id` is.
                let done = unsafe { next_id(id, &raw mut id) };
                if done == 0 {
                    objects.insert((kind, id));
                    continue;
                }
                let error = io::Error::from_raw_os_error(-done);
                if error.kind() == io::ErrorKind::NotFound {
                    break;
                }
                return Err(error).context(format!("the next {kind} after {id}"));
            }
        }
        Ok(Self(objects))
    }

    /// Waits until all objects that are loaded now, and were not then, are freed. Objects of other
    /// running checks are freed with their recordings, and what they load meanwhile does not count.
    /// Ids are reused only after all others, so an object with an old id is the same object.
    ///
    /// # Errors
    /// When something stays.
    pub fn nothing_more(&self) -> Result<()> {
        let start = Instant::now();
        let mut left = &Self::now()?.0 - &self.0;
        while !left.is_empty() {
            ensure!(
                start.elapsed() < FREE_LIMIT,
                "left in the kernel: {left:?}, in addition to the {} objects that were there",
                self.0.len()
            );
            sleep(Duration::from_millis(50));
            left = &left & &Self::now()?.0;
        }
        Ok(())
    }
}
