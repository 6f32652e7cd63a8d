//! Code that was in stacks: load objects, functions and frames.

use super::ids::{FunctionId, ObjectId};
use crate::symbol::NAMELESS;

/// gprofng's name for code without a known function.
pub const UNKNOWN: &str = "<Unknown>";
/// The function of exact time in which no tick fell.
pub const NOT_SAMPLED: &str = "<not sampled>";
/// Outermost frame of a stack that was cut.
pub const TRUNCATED: &str = "<Truncated-stack>";
/// Outermost frame of a stack whose next caller could not be found.
pub const UNWIND_FAILED: &str = "<Stack-unwind-failed>";
/// gprofng's load object of what is not a function.
pub const TOTAL: &str = "<Total>";

/// The kind of a load object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A file or the image of one.
    File,
    /// All functions of JIT code, and others without a file: gprofng's `DYNAMIC_FUNCTIONS`.
    Dynamic,
    /// No code: gprofng's `<Total>`, with `<Unknown>` and the marks of unfinished stacks.
    Special,
}

/// A load object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its path, or its name if it is not a file.
    pub path: String,
    /// Its kind.
    pub kind: ObjectKind,
    /// Whether it is the kernel or a module, in the upper half of the addresses.
    pub kernel: bool,
}

impl ObjectInfo {
    /// Returns its name in gprofng's tables, such as `<libc.so.6>`.
    #[must_use]
    pub fn short_name(&self) -> String {
        let base = self.path.rsplit('/').next().unwrap_or(&self.path);
        match self.kind {
            ObjectKind::File if !base.starts_with('<') => format!("<{base}>"),
            _ => base.to_owned(),
        }
    }

    /// Returns its name in tables of load objects, where what is not a function has no name.
    #[must_use]
    pub fn table_name(&self) -> String {
        match self.kind {
            ObjectKind::Special => UNKNOWN.to_owned(),
            _ => self.short_name(),
        }
    }
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Its name, demangled.
    pub name: String,
    /// Its name in the symbol table, if that differs.
    pub mangled: Option<String>,
    /// Its load object.
    pub object: ObjectId,
    /// Its position in the file, in bytes; 0 without a file.
    pub offset: u64,
    /// Whether it is kernel code.
    pub kernel: bool,
}

impl FunctionInfo {
    /// Returns whether the experiment has no name for it. Its symbol is then gprofng's name for
    /// code without one, `<static>@0xPOSITION (<FILE>)`.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        self.symbol().starts_with(NAMELESS)
    }

    /// Returns its name in the symbol table.
    #[must_use]
    pub fn symbol(&self) -> &str {
        self.mangled.as_deref().unwrap_or(&self.name)
    }
}

/// A place in a load object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Its function.
    pub function: FunctionId,
    /// Bytes from the beginning of the file, or of the function if it has no file. In a caller, the
    /// position of the call instruction.
    pub offset: u64,
}
