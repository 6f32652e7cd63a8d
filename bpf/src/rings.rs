//! The rings into which the programs write records. They are apart from
//! [`Programs`](crate::Programs), so that one thread can drain them while another one fills the
//! tables.

use std::fmt;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use bpf_abi::Record;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::Error;
use crate::error::step;
use crate::ring_buffer::RingBuffer;
use crate::skeleton::KcollectSkel;

/// All rings of the loaded programs, one for every eight CPUs.
pub struct Rings {
    rings: Vec<RingBuffer>,
    backlog: MapHandle,
    last_eighths: u32,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").finish_non_exhaustive()
    }
}

impl Rings {
    /// Makes `count` rings of `size` bytes each, which the programs have from then on.
    pub(crate) fn make(skel: &KcollectSkel<'_>, count: u32, size: u32) -> Result<Rings, Error> {
        let rings = (0..count)
            .map(|index| make_ring(skel, index, size))
            .collect::<Result<Vec<_>, _>>()?;
        let backlog =
            MapHandle::try_from(&skel.maps.kc_backlog).map_err(step("find the backlog"))?;
        Ok(Rings {
            rings,
            backlog,
            last_eighths: 0,
        })
    }

    /// Appends all that the rings hold to `bytes`, in no order across CPUs, for
    /// [`Record::decode_all`]. Returns whether a stack copy is among them.
    pub fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        let mut copies = false;
        for ring in &self.rings {
            ring.take(bytes, |record| copies |= Record::is_stack_copy(record));
        }
        copies
    }

    /// Sets how much of what was read waits in user space, in eighths of the limit. From a quarter
    /// on the programs send shorter stack copies, and from a half on no copies, as when their ring
    /// is that full.
    pub fn set_backlog(&mut self, eighths: u32) {
        if eighths != self.last_eighths {
            let set = (self.backlog).update(&[0; 4], &eighths.to_ne_bytes(), MapFlags::ANY);
            // An update of an array that exists does not fail; if it does, it is tried again.
            if set.is_ok() {
                self.last_eighths = eighths;
            }
        }
    }

    /// Returns a descriptor for each ring. It is readable as long as anything is in the ring; but a
    /// waiter is woken only when an eighth of it is full, long before it overflows.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(RingBuffer::as_fd)
    }
}

fn make_ring(skel: &KcollectSkel<'_>, index: u32, size: u32) -> Result<RingBuffer, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let ring = MapHandle::create(MapType::RingBuf, Some("kc_ring"), 0, 0, size, &options)
        .map_err(step(format!("make a ring of {} MiB", size >> 20)))?;
    skel.maps
        .kc_rings
        .update(
            &index.to_ne_bytes(),
            &ring.as_fd().as_raw_fd().to_ne_bytes(),
            MapFlags::ANY,
        )
        .map_err(step("publish a ring"))?;
    let fd = ring.as_fd().try_clone_to_owned();
    let mapped = fd.and_then(|fd| RingBuffer::map(fd, size));
    mapped.map_err(|error| step("map a ring")(error.into()))
}
