//! The functions that JIT compilers and interpreters make: code in anonymous memory, which no file
//! names.
//!
//! Two conventions name it, both invented for perf: a text file `/tmp/perf-PID.map` ([`perf_map`])
//! and a binary one, `jit-PID.dump` ([`jitdump`]). [`JitWatch`] finds and reads them for one
//! process, [`JitFunctions`] keeps the functions as a function of time from that, and returns each
//! [`JitChange`] for the experiment: a [`JitChange::End`] is a `MapEvent::Unmap`, a
//! [`JitChange::Begin`] a `MapEvent::Function`. Ends come before the beginning that causes them,
//! and a nanosecond earlier: gprofng keeps an old object where a new one lies on it, and it sorts
//! what is written late before the events of the same instant, so that an end would come after its
//! beginning.
//!
//! A perf map has no times. Its entry is valid since the end of the poll before the one that read
//! it, or since the process began to be watched for the first reading of a file: then the ticks of
//! the code's first moments, before its line was read, have its name too. Where the address was
//! free before, the exact time matters even less: gprofng resolves what is earlier than all
//! mappings at its address by the first of them.
//!
//! Not all that a perf map names is of a JIT. node lists its builtins, which lie in the text of its
//! own file, and functions that are only interpreted, whose address is of byte code that is never
//! executed. A function must not be written where a file is mapped: [`is_anonymous`] tells which
//! mappings are meant.
//!
//! The instructions are read too, for disassembly: [`CodeReader`] reads them.
//!
//! The files are written by the profiled processes and may be hostile: each bound is here or in the
//! parsers, and what is beyond it is counted in [`JitStats`] or a [`JitRefusal`].

mod code;
mod code_reader;
mod functions;
mod growing_file;
pub mod jitdump;
mod memory_limit;
pub mod perf_map;
mod process_files;
mod watch;

pub use code::{FunctionCode, LAST_WAIT, MAX_FUNCTION_CODE_BYTES, MAX_PROCESS_CODE_BYTES};
pub use code_reader::{CodeReader, MAX_READ_TIME, MAX_TOTAL_CODE_BYTES};
pub use functions::{JitChange, JitFunctions, MAX_FUNCTIONS, MAX_NAMES_BYTES};
pub use memory_limit::{JitMemory, MAX_TOTAL_BYTES, MIN_PROCESS_BYTES};
pub use process_files::JitRefusal;
pub use watch::{JitStats, JitWatch};

use crate::space::MappedFile;

/// What the watches of all processes share.
#[derive(Clone, Debug, Default)]
pub struct SharedJit {
    /// The memory that functions may take.
    pub memory: JitMemory,
    /// The reader of their code. None: no code is recorded.
    pub code: Option<CodeReader>,
}

/// Bytes of a name that are kept. Longer ones are cut, not refused.
pub const MAX_NAME_BYTES: usize = 1000;

/// Returns whether this is memory for code that is made at run time, by the kernel's name of the
/// mapping.
///
/// `//anon` is anonymous memory, `[heap]` and `[stack]` and `[anon:NAME]` are too, and so is what
/// only looks like a file: shared anonymous memory and memfds, which .NET and others map twice,
/// once for writing and once for execution.
#[must_use]
pub fn is_anonymous(file: &MappedFile) -> bool {
    const NAMES: [&[u8]; 3] = [b"//anon", b"[heap]", b"[stack]"];
    const BEGINNINGS: [&[u8]; 6] = [
        b"[anon:",
        b"[anon_shmem:",
        b"/memfd:",
        b"/dev/zero",
        b"/anon_hugepage",
        b"/SYSV",
    ];
    NAMES.contains(&&*file.path) || BEGINNINGS.iter().any(|begin| file.path.starts_with(begin))
}
