//! From Go's table of functions to rows.
//!
//! A function's return address is at its stack height, which the table has for each pc: also in
//! prologues, leaf functions and assembly. The caller's frame pointer is below the return address,
//! once the text shows that it was saved there. Go's own code does not need it for unwinding. It is
//! followed for the few functions of the runtime that change stacks, and for C above Go.
//!
//! Goroutines have stacks of their own, and a thread has one for the scheduler, on which C is
//! called too. Go's runtime changes between them by its data of each goroutine, which a rule can't
//! express. So, where a function changes stacks,
//!
//! * `systemstack`, `asmcgocall` and the readers of clocks are unwound by the frame pointer, which
//!   they keep, to the goroutine's stack. Up to Go 1.20 the first two have no frame: their caller
//!   is left out; their callee has its name, as `F.func1`. They have the rule of an interrupted
//!   function, since the caller's stack may be at lower addresses.
//! * a stack ends at `mcall` and `morestack`, which begin the scheduler's stack again each time;
//!   and at `gogo` and the code after `clone` in the new thread, which have no caller.
//!
//! `asyncPreempt` and `sigpanic` are not called: a signal's handler makes it look so. Their caller
//! was interrupted.

use std::ops::Range;

use super::MAX_ROWS;
use super::go_sections::GoFunctions;
use super::pclntab::{GoFunction, Pclntab, StackHeight};
use super::rule::{
    Base, Cfa, FramePointer, FrameRule, Rbx, ReturnAddress, UnwindRule, UnwindRules,
};
use super::sections::UnwindError;
use super::summary::TableSummary;
use super::table_functions::TableFunctions;
use super::x86_64_go::{
    FORKS_RETURN_ADDRESS, RETURN_ADDRESS, SAVED, SIGNAL_FP, SIGNAL_PC_WORDS, SIGNAL_SP,
    StackPointerSet, saves, stack_pointer_sets,
};
use super::x86_64_registers::{FP, SP};

/// Longest function that changes stacks, bytes.
const MAX_STACK_SWITCH_BYTES: usize = 1024;

/// Kinds of functions by how they return to their caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoFunctionKind {
    /// An ordinary function.
    Plain,
    /// A function without a caller.
    Root,
    /// A function without a caller once it has set the stack pointer.
    Leaves,
    /// A function that calls on another stack and returns.
    Detour,
    /// A function for which a signal's handler fakes a call.
    Injected,
    /// The function that a signal's handler returns to.
    Restorer,
    /// A function that takes its return address off the stack, since its child uses the stack too.
    Forks,
}

impl GoFunctionKind {
    fn of(name: &[u8]) -> GoFunctionKind {
        match name.strip_suffix(b".abi0").unwrap_or(name) {
            b"runtime.goexit" | b"runtime.mstart" | b"runtime.rt0_go" | b"_rt0_amd64"
            | b"_rt0_amd64_linux" | b"main" => GoFunctionKind::Root,
            b"runtime.mcall" | b"runtime.morestack" | b"runtime.gogo" | b"gogo"
            | b"runtime.clone" => GoFunctionKind::Leaves,
            b"runtime.systemstack"
            | b"runtime.asmcgocall"
            | b"runtime.nanotime"
            | b"runtime.nanotime1"
            | b"runtime.walltime"
            | b"runtime.walltime1"
            | b"runtime.vgetrandom1"
            | b"runtime.callCgoMmap"
            | b"runtime.callCgoMunmap"
            | b"runtime.callCgoSigaction"
            | b"runtime.sigfwd"
            | b"time.now" => GoFunctionKind::Detour,
            b"runtime.asyncPreempt" | b"runtime.sigpanic" | b"runtime.sigpanic0" => {
                GoFunctionKind::Injected
            }
            b"runtime.sigreturn" | b"runtime.sigreturn__sigaction" => GoFunctionKind::Restorer,
            b"syscall.rawVforkSyscall" => GoFunctionKind::Forks,
            _ => GoFunctionKind::Plain,
        }
    }
}

/// Returns the rows of all of Go's functions.
pub(super) fn read(
    go: &GoFunctions<'_>,
    executable: &[Range<u64>],
    rules: &mut UnwindRules,
    summary: &mut TableSummary,
) -> Result<TableFunctions, UnwindError> {
    let mut rows = GoRows {
        go,
        rules,
        functions: TableFunctions::default(),
        heights: 0,
    };
    let mut executable = executable.to_vec();
    executable.sort_by_key(|range| range.start);
    let Some(table) = Pclntab::new(go.table, go.text) else {
        return Ok(rows.functions);
    };
    for function in table.functions() {
        let before = executable.partition_point(|range| range.start <= function.pcs.start);
        let inside = executable[..before]
            .last()
            .is_some_and(|range| function.pcs.end <= range.end);
        match rows.end(&function)? {
            Some(end) if inside => {
                summary.go_functions += 1;
                rows.function(&function, end)?;
            }
            // A function of C, which Go's linker has put among its own.
            _ => summary.go_unknown += 1,
        }
    }
    rows.functions.all_sorted();
    Ok(rows.functions)
}

struct GoRows<'a, 'data> {
    go: &'a GoFunctions<'data>,
    rules: &'a mut UnwindRules,
    functions: TableFunctions,
    heights: usize,
}

impl GoRows<'_, '_> {
    /// Returns where the known heights of a function end.
    fn end(&mut self, function: &GoFunction<'_>) -> Result<Option<u64>, UnwindError> {
        let mut end = None;
        for height in function.heights() {
            end = Some(height.pcs.end);
            self.heights += 1;
        }
        // Each height is a row, unless the rules have run out.
        if self.heights > MAX_ROWS {
            Err(UnwindError::TooManyRows)
        } else {
            Ok(end)
        }
    }

    fn function(&mut self, function: &GoFunction<'_>, end: u64) -> Result<(), UnwindError> {
        let start = function.pcs.start;
        let kind = GoFunctionKind::of(function.name);
        if kind == GoFunctionKind::Restorer {
            // The pc is its first instruction, and is looked up at −1 as a return address.
            self.functions.begin(start.saturating_sub(1)..end);
            let rule = self.rules.number(RESTORER);
            return self.functions.row(start.saturating_sub(1), rule);
        }
        self.functions.begin(start..end);
        // Without the text it is not known where the stack is changed.
        let changes = matches!(kind, GoFunctionKind::Leaves | GoFunctionKind::Detour);
        if changes && self.go.text_at(start).is_empty() {
            return self.functions.row(start, UnwindRules::STOP);
        }
        match kind {
            GoFunctionKind::Root => self.functions.row(start, UnwindRules::STOP),
            GoFunctionKind::Leaves => {
                self.plain(function, CALLED)?;
                match self.sets(start..end).first() {
                    Some(set) => self
                        .functions
                        .end(start + set.after as u64, UnwindRules::STOP),
                    // It jumps to another function (`gogo`).
                    None => Ok(()),
                }
            }
            GoFunctionKind::Detour => self.detour(function, start..end),
            GoFunctionKind::Injected => self.plain(function, INTERRUPTED),
            GoFunctionKind::Forks => self.forks(function),
            GoFunctionKind::Plain | GoFunctionKind::Restorer => self.plain(function, CALLED),
        }
    }

    fn plain(&mut self, function: &GoFunction<'_>, ra: ReturnAddress) -> Result<(), UnwindError> {
        let mut saved = SavedFramePointer::default();
        for height in function.heights() {
            for (pc, fp) in saved.at(&height, self.go) {
                self.row(pc, above(height.bytes, fp, ra))?;
            }
        }
        Ok(())
    }

    fn forks(&mut self, function: &GoFunction<'_>) -> Result<(), UnwindError> {
        for height in function.heights() {
            let ra = match height.bytes {
                OFF_THE_STACK => ReturnAddress::Register(FORKS_RETURN_ADDRESS),
                _ => CALLED,
            };
            let rule = above(height.bytes, FramePointer::Same, ra);
            self.row(height.pcs.start, rule)?;
        }
        Ok(())
    }

    /// Adds the rows of a detour. A function without a frame is on the other stack between two
    /// settings of the stack pointer. One with a frame is there from the first setting on, until it
    /// sets it again; and, where code follows its return, after its frame is gone.
    fn detour(&mut self, function: &GoFunction<'_>, pcs: Range<u64>) -> Result<(), UnwindError> {
        let mut sets = self.sets(pcs.clone()).into_iter().peekable();
        let (mut saved, mut away, mut framed) = (SavedFramePointer::default(), false, false);
        for height in function.heights() {
            let mut rows = saved.at(&height, self.go).into_iter().peekable();
            if framed && height.bytes < SAVED {
                away = true;
            }
            let mut fp = FramePointer::Same;
            let mut pc = height.pcs.start;
            loop {
                while let Some((_, now)) = rows.next_if(|(at, _)| *at <= pc) {
                    fp = now;
                }
                while let Some(set) = sets.next_if(|set| pcs.start + set.after as u64 <= pc) {
                    away = set.aligns || !away;
                    framed |= fp != FramePointer::Same;
                }
                let rule = if away && (!framed || height.bytes >= SAVED) {
                    BY_FRAME_POINTER
                } else {
                    above(height.bytes, fp, CALLED)
                };
                self.row(pc, rule)?;
                let next_set = sets.peek().map(|set| pcs.start + set.after as u64);
                let next = rows.peek().map(|(at, _)| *at).into_iter().chain(next_set);
                match next.min().filter(|next| *next < height.pcs.end) {
                    Some(next) => pc = next,
                    None => break,
                }
            }
        }
        Ok(())
    }

    fn sets(&self, pcs: Range<u64>) -> Vec<StackPointerSet> {
        let text = self.go.text_at(pcs.start);
        let length = usize::try_from(pcs.end - pcs.start).unwrap_or(usize::MAX);
        stack_pointer_sets(&text[..text.len().min(length).min(MAX_STACK_SWITCH_BYTES)])
    }

    fn row(&mut self, pc: u64, rule: UnwindRule) -> Result<(), UnwindError> {
        let number = self.rules.number(rule);
        self.functions.row(pc, number)
    }
}

/// Where a function has saved its caller's frame pointer.
#[derive(Default)]
struct SavedFramePointer {
    /// The height from which on it is saved, bytes; `None` until it is.
    height: Option<i32>,
}

impl SavedFramePointer {
    /// Returns where the caller's frame pointer is, from which pcs of a height on.
    fn at(&mut self, height: &StackHeight, go: &GoFunctions<'_>) -> Vec<(u64, FramePointer)> {
        let start = height.pcs.start;
        if self.height.is_some_and(|least| least <= height.bytes) {
            return vec![(start, SAVED_FP)];
        }
        let mut rows = vec![(start, FramePointer::Same)];
        if height.bytes >= SAVED && self.height.is_none() {
            let before = go.text_at(start.saturating_sub(1));
            let saves = before
                .split_first()
                .and_then(|(&before, text)| saves(before, text, height.bytes));
            if let Some(after) = saves {
                self.height = Some(height.bytes);
                rows.push((start + after, SAVED_FP));
            }
            rows.dedup_by(|later, first| {
                let same = later.0 == first.0;
                if same {
                    first.1 = later.1;
                }
                same
            });
        }
        rows
    }
}

/// The height after the return address was popped.
const OFF_THE_STACK: i32 = -RETURN_ADDRESS;

const SAVED_FP: FramePointer = FramePointer::At {
    base: Base::Cfa,
    offset: -16,
};

const CALLED: ReturnAddress = ReturnAddress::At {
    base: Base::Cfa,
    words: -1,
};

const INTERRUPTED: ReturnAddress = ReturnAddress::Interrupted {
    base: Base::Cfa,
    words: -1,
};

/// The rule of a frame whose frame pointer points to the saved one.
const BY_FRAME_POINTER: UnwindRule = UnwindRule::Frame(FrameRule {
    cfa: Cfa::Register {
        register: FP,
        offset: 16,
    },
    fp: SAVED_FP,
    bx: Rbx::Lost,
    ra: INTERRUPTED,
});

/// The rule for the stack that the kernel has left for the return from a handler.
const RESTORER: UnwindRule = UnwindRule::Frame(FrameRule {
    cfa: Cfa::Deref {
        register: SP,
        offset: SIGNAL_SP,
        plus: 0,
    },
    fp: FramePointer::At {
        base: Base::Register(SP),
        offset: SIGNAL_FP,
    },
    bx: Rbx::Lost,
    ra: ReturnAddress::Interrupted {
        base: Base::Register(SP),
        words: SIGNAL_PC_WORDS,
    },
});

/// Returns the rule for a caller's frame above `height` bytes and the return address.
fn above(height: i32, fp: FramePointer, ra: ReturnAddress) -> UnwindRule {
    UnwindRule::Frame(FrameRule {
        cfa: Cfa::Register {
            register: SP,
            offset: height.saturating_add(RETURN_ADDRESS),
        },
        fp,
        // Go's functions use it for arguments.
        bx: Rbx::Lost,
        ra,
    })
}
