//! Which functions of a stack are the program's own, and which belong to libraries that it calls.

use experiment_format::kernel::is_scheduler;
use rustc_hash::FxHashMap;

use super::{FunctionId, Model, StackFrame, StackId};

impl Model {
    /// Returns the innermost function that explains a wait, and the innermost user function that
    /// led to it outside libraries and language runtimes. Without such a function, it is the
    /// innermost one outside C libraries, or else the innermost one of all.
    #[must_use]
    pub fn waits_at(&self, stack: StackId) -> Option<(FunctionId, Option<FunctionId>)> {
        let telling = |frame: &&StackFrame| {
            let function = self.function(frame.function);
            !(self.is_mark(function) || function.kernel && is_scheduler(&function.name))
        };
        let place = self.stack(stack).find(telling)?.function;
        let user = |frame: &&StackFrame| {
            let function = self.function(frame.function);
            !function.kernel && !self.is_mark(function)
        };
        let path = |frame: &StackFrame| &*self.object(self.function(frame.function).object).path;
        let outside_libc = |frame: &&StackFrame| user(frame) && !is_c_library(path(frame));
        let own = |frame: &&StackFrame| {
            user(frame)
                && self.is_of_program(frame)
                && !is_runtime(&self.function(frame.function).name)
        };
        let frames = || self.stack(stack);
        let caller = frames()
            .find(own)
            .or_else(|| frames().find(outside_libc))
            .or_else(|| frames().find(user));
        Some((place, caller.map(|frame| frame.function)))
    }

    /// Returns the function of the C library, or of a language's runtime, that the program called
    /// in a stack: the outermost one on top of the program's own.
    #[must_use]
    pub fn called_in_library(&self, stack: StackId) -> Option<FunctionId> {
        let user = |frame: &&StackFrame| {
            let function = self.function(frame.function);
            !function.kernel && !self.is_mark(function)
        };
        let in_library = |frame: &&StackFrame| {
            let function = self.function(frame.function);
            is_c_library(&self.object(function.object).path) || is_runtime(&function.name)
        };
        let called = self.stack(stack).filter(user).take_while(in_library);
        called.last().map(|frame| frame.function)
    }

    /// Returns the two functions that stand for a lock: the result of [`Model::called_in_library`],
    /// and the program's function that called it. They come from the stack in which threads waited
    /// for it longest, according to `stacks`.
    #[must_use]
    pub fn functions_of_lock(
        &self,
        stacks: &FxHashMap<StackId, i64>,
    ) -> (Option<FunctionId>, Option<FunctionId>) {
        let most = stacks.iter().max_by_key(|(stack, ns)| (**ns, stack.0));
        let most = most.map(|(stack, _)| *stack);
        (
            most.and_then(|stack| self.called_in_library(stack)),
            most.and_then(|stack| self.waits_at(stack)?.1),
        )
    }

    /// Returns whether a frame is of user code and of no library.
    pub(crate) fn is_of_program(&self, frame: &StackFrame) -> bool {
        let function = self.function(frame.function);
        let path = &self.object(function.object).path;
        !function.kernel && !is_c_library(path) && !is_library(path)
    }
}

/// Returns whether a load object is a shared library, by its path.
fn is_library(path: &str) -> bool {
    let base = path.rsplit('/').next().unwrap_or(path);
    base.ends_with(".so") || base.contains(".so.")
}

/// Returns whether a function belongs to the runtime that a compiler links into each program of
/// its language, by its name: Rust, C++, Go.
pub(crate) fn is_runtime(name: &str) -> bool {
    const PREFIXES: [&str; 8] = [
        "std::",
        "core::",
        "alloc::",
        "__gnu_cxx::",
        "__rust",
        "__gthread",
        "runtime.",
        "sync.",
    ];
    // `<std::thread::Thread>::park`, `<core::… as …>::…`.
    let name = name.trim_start_matches('<');
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether a load object is a library that waits on behalf of its callers.
fn is_c_library(path: &str) -> bool {
    let base = path.rsplit('/').next().unwrap_or(path);
    ["libc.", "libc-", "libpthread", "ld-", "libstdc++", "[vdso]"]
        .iter()
        .any(|prefix| base.starts_with(prefix))
}
