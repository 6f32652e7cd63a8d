//! `map.xml`: what lay where in the address space, and when.

/// The only access modes with which gprofng 2.40 accepts the first segment of an object:
/// read and execute.
pub const READ_EXECUTE: u32 = 5;

/// An event of `map.xml`. Every `at` is in nanoseconds since the start; an event may be written
/// later than the samples that it explains.
///
/// gprofng keeps an old object that a new one overlaps: write an [`MapEvent::Unmap`] first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapEvent {
    /// A piece of a file was mapped.
    Segment {
        /// When.
        at: u64,
        /// First address.
        vaddr: u64,
        /// Bytes. Above 2 GiB the writer splits it in several.
        size: u64,
        /// Where in the file the piece begins, in bytes.
        file_offset: u64,
        /// 1 read, 2 write, 4 execute; write [`READ_EXECUTE`].
        modes: u32,
        /// The load object. Objects are one namespace in all of a session: two files of one path
        /// need two names. A name with a back-quote is never opened.
        name: String,
    },
    /// A dynamic function appeared; or, after [`MapEvent::DynamicFunction`] events of its name, a
    /// group of them is complete.
    Function {
        /// When.
        at: u64,
        /// First address.
        vaddr: u64,
        /// Bytes, below 2 GiB.
        size: u64,
        /// Its name.
        name: String,
    },
    /// One function of a group.
    DynamicFunction {
        /// When.
        at: u64,
        /// First address.
        vaddr: u64,
        /// Bytes, below 2 GiB.
        size: u64,
        /// The group, for instance `[vdso]`.
        group: String,
        /// Its name.
        name: String,
    },
    /// A Java method was compiled.
    JavaMethod {
        /// When.
        at: u64,
        /// First address.
        vaddr: u64,
        /// Bytes, below 2 GiB.
        size: u64,
        /// Number of the method in `jclasses`.
        method: u64,
    },
    /// The mapping that begins at this address ended.
    Unmap {
        /// When.
        at: u64,
        /// First address.
        vaddr: u64,
    },
}
