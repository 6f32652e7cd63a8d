//! `state_tfault SECONDS CPU`: calls a function in each page of a file that is not in memory:
//! blocked in page faults of instruction fetches.

use anyhow::Result;
use experiment_format::microstate::Microstate;
use nix::sys::mman::ProtFlags;
use tests::machine::cold_file::ColdFile;
use tests::workload::truth::Work;

const MIN_ROUNDS: u32 = 4;

fn main() -> Result<()> {
    let mut work = Work::start("state_tfault")?;
    let code = ColdFile::make(&mut work, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC)?;
    let mut calls = 0;
    // Several times in any case: a slow disk may take all the time to make the file, and pages that
    // were just written are not always dropped.
    let mut rounds = 0;
    while rounds < MIN_ROUNDS || !work.over()? {
        rounds += 1;
        code.drop_cache(&mut work)?;
        for place in code.places() {
            // SAFETY: the page is mapped for execution and full of `ret`, which is a function of
            // this type.
            let function =
                unsafe { std::mem::transmute::<*mut u8, extern "C" fn()>(place.as_ptr()) };
            work.blocked(Microstate::TextFault, || function())?;
            calls += 1;
        }
    }
    code.remove(&mut work)?;
    work.end(calls)
}
