//! The rings into which the programs put records, apart from the programs: whoever empties them
//! need not be who fills the maps.

use std::fmt;
use std::mem::swap;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, RingBuffer, RingBufferBuilder};

use crate::Error;
use crate::load::step;
use crate::skeleton::CollectorSkel;

/// As in `c/maps.h`.
pub(crate) const CPUS_PER_RING: u32 = 8;

/// All rings of the loaded programs, one for every eight CPUs.
pub struct Rings {
    rings: RingBuffer<'static>,
    maps: Vec<MapHandle>,
    arrived: Arc<Mutex<Vec<u8>>>,
    backlog: MapHandle,
    told: u32,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").finish_non_exhaustive()
    }
}

impl Rings {
    /// Makes `count` of them of `size` bytes each, and hands them to the programs.
    pub(crate) fn make(skel: &CollectorSkel<'_>, count: u32, size: u32) -> Result<Rings, Error> {
        let handles = (0..count)
            .map(|index| make_ring(skel, index, size))
            .collect::<Result<Vec<_>, _>>()?;
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        for handle in &handles {
            let arrived = Arc::clone(&arrived);
            builder
                .add(handle, move |bytes| {
                    let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
                    arrived.extend_from_slice(bytes);
                    0
                })
                .map_err(step("map a ring"))?;
        }
        let rings = builder.build().map_err(step("map the rings"))?;
        let backlog = MapHandle::try_from(&skel.maps.backlog).map_err(step("find the backlog"))?;
        Ok(Rings {
            rings,
            maps: handles,
            arrived,
            backlog,
            told: 0,
        })
    }

    /// Appends all that the rings hold to `bytes`, in no order across CPUs, for
    /// [`Record::decode_all`](crate::Record::decode_all).
    ///
    /// # Errors
    /// [`Error::Step`] when a ring can't be read.
    pub fn take(&mut self, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.rings.consume().map_err(step("read the rings"))?;
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        match bytes.is_empty() {
            true => swap(bytes, &mut arrived),
            false => bytes.append(&mut arrived),
        }
        Ok(())
    }

    /// Tells the programs how much of what was taken waits, in eighths of what may. They copy fewer
    /// stacks, and from a half on none, as where their ring is so full.
    pub fn tell_backlog(&mut self, eighths: u32) {
        if eighths != self.told {
            let told = (self.backlog).update(&[0; 4], &eighths.to_ne_bytes(), MapFlags::ANY);
            // A word of a map that is there can be set; if not, it is tried again.
            if told.is_ok() {
                self.told = eighths;
            }
        }
    }

    /// One for each ring. It is readable as long as anything is in the ring; but who waits for that
    /// is woken only when an eighth of it is full, long before it overflows.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.maps.iter().map(MapHandle::as_fd)
    }
}

fn make_ring(skel: &CollectorSkel<'_>, index: u32, size: u32) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let ring = MapHandle::create(
        MapType::RingBuf,
        Some("kcollect_ring"),
        0,
        0,
        size,
        &options,
    )
    .map_err(step(format!("make a ring of {} MiB", size >> 20)))?;
    skel.maps
        .rings
        .update(
            &index.to_ne_bytes(),
            &ring.as_fd().as_raw_fd().to_ne_bytes(),
            MapFlags::ANY,
        )
        .map_err(step("hand a ring to the programs"))?;
    Ok(ring)
}
