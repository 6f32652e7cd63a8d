//! Unwind tables: how to get from a pc to the caller's registers, without frame pointers.
//!
//! Distributions build without frame pointers, and a BPF program can't evaluate DWARF. So the call
//! frame information of an ELF file is evaluated once, here, into a [`Table`] that a bounded binary
//! search reads: a [`Row`] of 4 bytes is the low half of a pc and the number of a [`Rule`]; rows
//! are grouped by 64 KiB [`Page`] of pc. Rules repeat from file to file (all programs and libraries
//! of a Debian system have about 5,000), so all files share one [`Rules`].
//!
//! Go's programs have a table of their own for the same end, stripped or not, from which their
//! functions' rows are made.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use user_collector::unwind::{Rules, Table};
//!
//! let mut rules = Rules::new();
//! let file = std::fs::read(std::env::current_exe()?)?;
//! let (table, summary) = Table::of_elf(&file, &mut rules)?;
//! println!("{} rows of {} functions", table.rows().len(), summary.fdes);
//! let rule = table.lookup(&rules, 0x1234); // a pc of the file's own address space
//! # let _ = rule;
//! # Ok(())
//! # }
//! ```
//!
//! Bytes come in, a table goes out; nothing is opened, mapped or read here. The bytes are
//! anybody's: whoever runs a program chooses its `.eh_frame`. So nothing panics, time is linear in
//! the size of the section (about 1 ms per MB of text; the worst that was thought of costs seconds
//! for the largest section), memory is bounded by the limits below, and one bad entry is counted
//! and does not lose the rest.
//!
//! What it refuses: general DWARF expressions, and stack pointers that are not the CFA: 19 of 10.7
//! million rows in the programs and libraries of a Debian system, marked as [`Rule::Unsupported`]
//! and counted. Also `.debug_frame` compressed in another way than zlib's, and files of another
//! class, byte order or machine. What depends on the processor is in `x86_64.rs` and `x86_64_go.rs`
//! alone.

pub(crate) mod elf;
mod frames;
mod go;
mod go_elf;
mod pclntab;
mod rule;
mod summary;
mod table;
mod x86_64;
mod x86_64_go;

pub use bpf_abi::UnwindRow;
pub use elf::{Error, Frames, Sections};
pub use go_elf::GoFunctions;
pub use rule::{Base, Cfa, Frame, FramePointer, ReturnAddress, Rule, Rules, Unsupported};
pub use summary::{RowCounts, Summary};
pub use table::{Page, Table};

/// Largest section of frame information that is read, bytes. The largest browsers and compilers
/// have 10 to 20 MiB.
pub const MAX_SECTION: usize = 64 << 20;

/// Most rows of one table: 64 MiB of rows, or about 1 GB of text.
pub const MAX_ROWS: usize = 1 << 24;

/// Most 64 KiB pages of one table: 4 GiB of text, what the ABI's large models allow in one file.
pub const MAX_PAGES: usize = 1 << 16;

/// Longest CIE that is read, bytes. Compilers write some 24. Its program runs once for each FDE, so
/// that a long one would cost the square of the section's size.
pub const MAX_CIE: usize = 256;

/// Longest DWARF expression that is looked at, bytes: the longest that is understood is the PLT's
/// with 11. One expression may be looked at for each row that it holds for.
pub const MAX_EXPRESSION: usize = 16;

/// Longest gap between two functions that counts as padding of the first, bytes: alignment to 16.
pub const MAX_PADDING: u64 = 15;
