//! Load objects: the mapped files, with names, unwind tables and archived copies.
//!
//! [`open()`] finds the file of a mapping, [`TableBuilder`] builds its table in another thread,
//! [`TableCache`] keeps tables on disk for the next run, and [`LoadObjects`] has the state of each
//! file.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use kcollect_elf::ElfSource;
//! use user_collector::objects::{TableBuilder, ObjectId};
//!
//! let mut builder = TableBuilder::start(None)?;
//! let file = std::fs::File::open(std::env::current_exe()?)?;
//! builder.request(ObjectId(0), ElfSource::File(file));
//! let mut rules = Vec::new();
//! for built in builder.wait(Duration::from_secs(60)) {
//!     rules.extend(built.new_rules);
//!     let info = built.info?;
//!     println!("{} rows", info.table.rows().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Paths, files and their content are under the control of other users, also while they are read. A
//! path is resolved inside its process's root, and not through a symbolic link at its end; devices
//! and pipes are not opened. A file is read in pieces and never mapped, because its owner may
//! truncate it at any time, and access to a mapped page beyond its end is a `SIGBUS`. How much is
//! read is bounded by the limits of [`crate::unwind`], whatever the file says.
//!
//! A file system may not answer. A file on an NFS server that is down blocks [`open()`], which
//! reads the few pieces that identify the file. So it is called through a
//! [`TimedOpener`](crate::files::TimedOpener). The builder's thread, which reads the rest, may
//! block: nothing waits for it.

mod backing;
mod copied_code;
mod load_objects;
mod names;
mod open;
mod stored_table;
mod table_builder;
mod table_cache;

pub use backing::{Backing, backing, without_mark};
pub use copied_code::{CopiedCode, MappedRange, copied_code};
pub use load_objects::{LoadObject, LoadObjects, UnwindTableCounts, UnwindTableState, VDSO};
pub use names::ObjectNames;
pub use open::{
    FoundBy, MAX_OBJECT_FILE_BYTES, MAX_VDSO_BYTES, OpenError, OpenedFile, open, own_vdso, vdso,
};
pub use table_builder::{BuiltTable, ObjectId, TableBuildError, TableBuilder, UnwindInfo};
pub use table_cache::{TableCache, TableCacheError};
