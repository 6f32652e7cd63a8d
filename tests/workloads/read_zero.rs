//! `read_zero SECONDS CPU`: reads `/dev/zero` in pieces of 64 KiB. Nearly all of its time is kernel
//! time, in few functions.

use std::fs::File;
use std::io::Read;

use anyhow::Result;
use tests::workload::truth::Work;

fn main() -> Result<()> {
    let work = Work::start("read_zero")?;
    let mut zero = File::open("/dev/zero")?;
    let mut buffer = vec![0; 64 * 1024];
    let mut reads = 0;
    while !work.over()? {
        // Sixteen reads to one look at the clock: the clock is user time.
        for _ in 0..16 {
            zero.read_exact(&mut buffer)?;
            reads += 1;
        }
    }
    work.end(reads)
}
