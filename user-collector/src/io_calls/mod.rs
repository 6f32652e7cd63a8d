//! System calls that do I/O, of the processes that are traced (`-i`): what each did, to which
//! descriptor, and what that is called.
//!
//! [`calls`] lists the calls. [`descriptors`] follows the descriptors of one process from call to
//! call; what it has not seen made, it looks up in the process's `/proc`, by [`look`].

pub mod calls;
pub mod descriptors;
pub mod look;

pub use calls::traced_calls;
pub use descriptors::{Descriptors, Operation};
pub use look::{Look, ProcessFiles, Sockets};
