//! Unwind tables: how to get from a pc to the caller's registers, without frame pointers.
//!
//! Distributions build without frame pointers, and a BPF program can't evaluate DWARF. So the call
//! frame information of an ELF file is evaluated once, here, into a [`UnwindTable`] that a bounded
//! binary search reads: a [`UnwindRow`] of 4 bytes is the low half of a pc and the number of a
//! [`UnwindRule`]; rows are grouped by 64 KiB [`TablePage`] of pc. Rules repeat from file to file
//! (all programs and libraries of a Debian system have about 5,000), so all files share one
//! [`UnwindRules`].
//!
//! Go's programs have a table of their own for the same end, stripped or not, from which their
//! functions' rows are made.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use user_collector::unwind::{UnwindRules, UnwindTable};
//!
//! let mut rules = UnwindRules::new();
//! let file = std::fs::read(std::env::current_exe()?)?;
//! let (table, summary) = UnwindTable::of_elf(&file, &mut rules)?;
//! println!("{} rows of {} functions", table.rows().len(), summary.fdes);
//! let rule = table.lookup(&rules, 0x1234); // a pc of the file's own address space
//! # let _ = rule;
//! # Ok(())
//! # }
//! ```
//!
//! Bytes come in, a table goes out; nothing is opened, mapped or read here. The bytes may be
//! hostile: any user can run a program with any `.eh_frame`. So nothing panics, time is linear in
//! the size of the section (about 1 ms per MB of text; the worst known input takes seconds for the
//! largest section), memory is bounded by the limits below, and one bad entry is counted and does
//! not lose the rest.
//!
//! What it refuses: general DWARF expressions, and stack pointers that are not the CFA: 19 of 10.7
//! million rows in the programs and libraries of a Debian system, marked as
//! [`UnwindRule::Unsupported`] and counted. Also `.debug_frame` compressed in another way than
//! zlib's, and files of another class, byte order or machine. What depends on the processor is in
//! `x86_64.rs` and `x86_64_go.rs` alone.

mod frame_info;
mod go;
mod go_sections;
mod pclntab;
mod rule;
mod rule_bytes;
mod sections;
mod summary;
mod table;
mod table_functions;
mod x86_64;
mod x86_64_go;

pub use bpf_abi::UnwindRow;
pub use go_sections::GoFunctions;
pub use rule::{
    Base, Cfa, FramePointer, FrameRule, Rbx, ReturnAddress, Unsupported, UnwindRule, UnwindRules,
};
pub use sections::{FrameInfo, UnwindError, UnwindSections};
pub use summary::{RowCounts, TableSummary};
pub use table::{TablePage, UnwindTable};

/// Largest section of frame information that is read, bytes. The largest browsers and compilers
/// have 10 to 20 MiB.
pub const MAX_SECTION_BYTES: usize = 64 << 20;

/// Most rows of one table: 64 MiB of rows, or about 1 GB of text.
pub const MAX_ROWS: usize = 1 << 24;

/// Most 64 KiB pages of one table: 4 GiB of text, what the ABI's large models allow in one file.
pub const MAX_PAGES: usize = bpf_abi::layout::MAX_PAGES as usize;

/// Longest CIE that is read, bytes. Compilers write some 24. Its program runs once for each FDE, so
/// that a long one would cost the square of the section's size.
pub const MAX_CIE_BYTES: usize = 256;

/// Longest DWARF expression that is looked at, bytes: the longest that is understood is the PLT's
/// with 11. One expression may be looked at for each row that it holds for.
pub const MAX_EXPRESSION_BYTES: usize = 16;

/// Longest gap between two functions that counts as padding of the first, bytes: alignment to 16.
pub const MAX_PADDING_BYTES: u64 = 15;
