//! The two kinds of files that a writer fills, and what keeps them whole when a disk fails.
//!
//! [`append::AppendFile`] writes whole records by system calls. [`block::BlockFile`] stores packets
//! into mapped memory, for the ticks of the whole machine; [`bus_error`] turns the signal that a
//! failing disk raises there into an error.

pub(crate) mod append;
pub(crate) mod block;
mod bus_error;
