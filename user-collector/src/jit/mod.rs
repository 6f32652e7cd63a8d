//! The functions of JIT compilers and interpreters: code in anonymous memory, which no ELF file
//! describes.
//!
//! Two conventions name it, both invented for perf: a text file `/tmp/perf-PID.map` ([`perf_map`])
//! and a binary one, `jit-PID.dump` ([`jitdump`]). [`JitWatch`] finds and reads them for one
//! process. [`JitFunctions`] holds the functions that exist at a time, and returns each
//! [`JitChange`] for the experiment: a [`JitChange::End`] is a `MapEvent::Unmap`, a
//! [`JitChange::Begin`] a `MapEvent::Function`. A function that takes the place of another one
//! begins a nanosecond after the other's end: gprofng reverses events of the same time if they are
//! written late, and the end would come after the beginning.
//!
//! A perf map has no times. Its entry is valid from the end of the poll before the one that read
//! it, or from the start of the watch if it is in the first poll of a file: so the ticks of the
//! code before its line was read have its name too. Where the address was free before, the exact
//! time matters even less: gprofng resolves what is earlier than all mappings at its address by the
//! first of them.
//!
//! Not all that a perf map names is JIT code. node lists its builtins, which lie in the text of its
//! own file, and functions that are only interpreted, at the address of byte code, which is never
//! executed. A function must not be written where an ELF file is mapped: [`is_anonymous`]
//! distinguishes the mappings. Other files that are mapped may hold code that their process makes.
//!
//! [`CodeReader`] reads the instructions, for disassembly.
//!
//! The files are written by the profiled processes and may be hostile. All is bounded, here or in
//! the parsers; what is beyond a bound is counted in [`JitFileStats`] or is a [`JitRefusal`].

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
pub use memory_limit::{JitMemory, LastBytes, MAX_TOTAL_BYTES, MIN_PROCESS_BYTES};
pub use process_files::JitRefusal;
pub use watch::{JitFileStats, JitWatch};

use crate::space::MappedFile;

/// What the watches of all processes share.
#[derive(Clone, Debug, Default)]
pub struct SharedJit {
    /// The limit for the memory of functions.
    pub memory: JitMemory,
    /// The limit for what is read of long files when their processes end.
    pub last_bytes: LastBytes,
    /// The reader of their code; `None` if no code is recorded.
    pub code: Option<CodeReader>,
}

/// Bytes of a name that are kept. Longer ones are cut, not refused.
pub const MAX_NAME_BYTES: usize = 1000;

/// Whether a mapping may hold JIT code, by the kernel's name for it.
///
/// `//anon`, `[heap]`, `[stack]` and `[anon:NAME]` are anonymous memory. Shared anonymous memory
/// and memfds have names like files; .NET and others map them twice, once for writing and once for
/// execution.
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
