//! Unwind tables, which have the caller's registers for each pc, without frame pointers.
//!
//! Distributions build without frame pointers, and a BPF program can't evaluate DWARF. So the call
//! frame information of an ELF file is evaluated once, here, into an [`UnwindTable`] for a bounded
//! binary search: an [`UnwindRow`] of 4 bytes is the low half of a pc and the number of an
//! [`UnwindRule`]; rows are grouped by [`TablePage`], 64 KiB of pc. Rules repeat from file to file
//! (all programs and libraries of a Debian system have about 5,000), so all files share one
//! [`UnwindRules`].
//!
//! Both `.eh_frame` and `.debug_frame` are read, by address: C programs may have the one for the
//! C library's part of them, and the other for their own. Code in which threads begin ends a stack
//! also where neither says so.
//!
//! Go's programs, also stripped ones, have a table of functions of their own, from which the rows
//! of these functions are built.
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
//! No file is opened, mapped or read here. The bytes may be hostile: any user can run a program
//! with any `.eh_frame`. So nothing panics, time is linear in the size of the section (about 1 ms
//! per MB of text; the worst known input takes seconds for the largest section), memory is bounded
//! by the limits below, and a bad entry is counted and skipped.
//!
//! Limits: general DWARF expressions, and stack pointers that are not the CFA, are marked as
//! [`UnwindRule::Unsupported`] and counted: 19 of 10.7 million rows in the programs and libraries
//! of a Debian system. `.debug_frame` compressed in another way than by zlib, and files of another
//! class, byte order or machine, are not read. All that depends on the processor is in the files
//! `x86_64*.rs`.

mod build;
mod cfi_entries;
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
mod thread_starts;
mod x86_64;
mod x86_64_go;
mod x86_64_registers;

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

/// Max rows of one table: 64 MiB of rows, or about 1 GB of text.
pub const MAX_ROWS: usize = 1 << 24;

/// Max 64 KiB pages of one table: 4 GiB of text, what the ABI's large models allow in one file.
pub const MAX_PAGES: usize = bpf_abi::layout::MAX_PAGES as usize;

/// Longest CIE that is read, bytes. Compilers' CIEs have about 24. Its program runs once for each
/// FDE, so that a long one would take time quadratic in the section's size.
pub const MAX_CIE_BYTES: usize = 256;

/// Longest DWARF expression that is parsed, bytes. The longest supported one is the PLT's, with 11.
/// An expression may be parsed again for each row that it is valid for.
pub const MAX_EXPRESSION_BYTES: usize = 16;

/// Longest gap between two functions that counts as padding of the first, bytes: alignment to 16.
pub const MAX_PADDING_BYTES: u64 = 15;
