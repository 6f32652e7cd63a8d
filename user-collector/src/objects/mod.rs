//! From "a process mapped a file" to that file's unwind table, off the hot path.
//!
//! [`open()`] finds the file behind a mapping, [`TableBuilder`] makes its table in a thread of its own,
//! [`TableCache`] keeps tables on disk for the next run.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use user_collector::elf::ElfSource;
//! use user_collector::objects::{TableBuilder, ObjectId};
//!
//! let mut builder = TableBuilder::start(None)?;
//! let file = std::fs::File::open(std::env::current_exe()?)?;
//! builder.ask(ObjectId(0), ElfSource::File(file));
//! let mut rules = Vec::new();
//! for built in builder.wait(Duration::from_secs(60)) {
//!     rules.extend(built.new_rules);
//!     let module = built.module?;
//!     println!("{} rows", module.table.rows().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! All of it is other people's: the paths, the files, and what is in them, while they are read. A
//! path is resolved inside its process's root and never through a device, a pipe or a symbolic link
//! at its end. A file is read in pieces and never mapped, because its owner may cut it at any time,
//! and a mapped page that is gone is a `SIGBUS`. How much is read is bounded by the limits of
//! [`crate::unwind`], whatever the file says.
//!
//! What it does not hold off: a file system that does not answer. A file on a dead NFS server holds
//! up whoever reads it, as it does the process that runs it: [`open()`] its caller, for the few
//! pieces that prove a file to be the one, which therefore is to be asked with
//! [`TimedOpener`](crate::files::TimedOpener); and the builder, for all that come later. Nobody waits
//! for that.

mod backing;
mod load_objects;
mod names;
mod open;
mod stored_table;
mod table_builder;
mod table_cache;

pub use backing::{Backing, backing, without_mark};
pub use load_objects::{LoadObject, LoadObjects, UnwindTableCounts, UnwindTableState, VDSO};
pub use names::ObjectNames;
pub use open::{
    FoundBy, MAX_OBJECT_FILE_BYTES, MAX_VDSO_BYTES, OpenError, OpenedFile, open, own_vdso, vdso,
};
pub use table_builder::{BuiltTable, ObjectId, TableBuildError, TableBuilder, UnwindInfo};
pub use table_cache::{TableCache, TableCacheError};
