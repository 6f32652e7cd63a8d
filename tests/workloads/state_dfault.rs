//! `state_dfault SECONDS CPU`: reads a byte of each page of a mapped file that is not in memory:
//! blocked in page faults of user mode.

use anyhow::Result;
use experiment_format::microstate::Microstate;
use nix::sys::mman::ProtFlags;
use tests::machine::cold_file::ColdFile;
use tests::workload::truth::Work;

fn main() -> Result<()> {
    let mut work = Work::start("state_dfault")?;
    let data = ColdFile::make(&mut work, ProtFlags::PROT_READ)?;
    let mut touches = 0;
    // Once in any case: a slow disk may take all the time to make the file.
    while touches == 0 || !work.over()? {
        data.drop_cache(&mut work)?;
        for place in data.places() {
            // SAFETY: the page is mapped for reading until the file is removed.
            work.blocked(Microstate::DataFault, || unsafe { place.read_volatile() })?;
            touches += 1;
        }
    }
    data.remove(&mut work)?;
    work.end(touches)
}
