//! System calls that do I/O, of the processes that are traced (`-i`): their operations, and the
//! names of their descriptors.
//!
//! [`calls`] has the calls that are traced. [`descriptors`] follows the descriptors of one process
//! from call to call. [`tables`] has the tables, some of which several processes share. [`look`]
//! finds the names of others in the process's `/proc`. [`registered`] has the files of `io_uring`
//! that have no descriptor. [`interrupted`] holds calls that a signal has interrupted. `address`
//! has the addresses of sockets as text.

mod address;
pub mod calls;
pub mod descriptors;
pub mod interrupted;
pub mod look;
pub mod registered;
pub mod tables;

pub use calls::traced_calls;
pub use descriptors::Descriptors;
pub use interrupted::InterruptedCalls;
pub use look::{DescriptorLookup, ProcLookup, Sockets};
pub use registered::RegisteredFiles;
pub use tables::{DescriptorTables, ProcessDescriptors};
