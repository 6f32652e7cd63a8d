//! Which unwinder is right where they differ, and which differences are no fault of ours.

use bpf_abi::unwind::{UnwindEnd, Unwound};
use user_collector::unwind::{Cfa, FrameRule, ReturnAddress, Unsupported, UnwindRule, UnwindRules};

use super::space::{Hopped, Space};

/// Which unwinder is right about one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// Both, as far as is known.
    Agreed,
    /// Both stop early, and ours says so.
    BothShort,
    /// Both say what is not true.
    BothWrong,
    /// Ours; framehop is wrong, or stops early.
    Ours,
    /// framehop; ours stops early, and says so.
    OursShort,
    /// framehop; ours is wrong.
    OursWrong,
    /// They differ, and it is unknown which is right.
    Unknown,
}

pub(crate) fn judge(ours: &Unwound, theirs: &Hopped, truth: Option<&[u64]>) -> Verdict {
    let agreed = ours.frames == theirs.frames;
    let Some(truth) = truth else {
        return if agreed {
            Verdict::Agreed
        } else {
            Verdict::Unknown
        };
    };
    match (agreed, ours.frames == truth) {
        (true, true) => Verdict::Agreed,
        (false, true) => Verdict::Ours,
        (true, false) if truth.starts_with(&ours.frames) && ours.end != UnwindEnd::Complete => {
            Verdict::BothShort
        }
        (true, false) => Verdict::BothWrong,
        (false, false) if truth.starts_with(&ours.frames) && ours.end != UnwindEnd::Complete => {
            Verdict::OursShort
        }
        (false, false) => Verdict::OursWrong,
    }
}

/// Why a difference is no fault of ours, where that is known. Nothing else may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excuse {
    /// What the program did says that ours is right.
    Proven,
    /// Ours ends where Go has changed stacks, and says that it is complete.
    GoRoot,
    /// Ours continues at the goroutine's stack, where Go has changed stacks.
    GoStacks,
    /// No code is mapped there, as when a null pointer was called; framehop guesses its caller.
    Unmapped,
    /// The C library has no frame information, nor have the start files anywhere; framehop guesses.
    Bare,
    /// The frame is found by a register that is known in the innermost frame only, as is rbx in the
    /// dynamic linker's resolver of lazily bound functions: ours says that it stops there, and so
    /// does framehop.
    OtherRegister,
    /// `longjmp` between two stacks, whose stack pointer is not what its description says.
    LongJump,
    /// A rule with a register that framehop does not have, or an expression that it does not
    /// evaluate, where the program was stopped before its calls were known. In later stacks of the
    /// kind they are.
    BeyondFramehop,
    /// libgcc rewrites its own return address, to land in the handler of an exception.
    Landing,
}

/// A stack by both unwinders, and what is known of it.
pub(crate) struct Seen<'a> {
    pub(crate) ours: &'a Unwound,
    pub(crate) theirs: &'a [u64],
    pub(crate) truth: Option<&'a [u64]>,
    pub(crate) bare: bool,
    /// Nothing is known of the calls since the program was stopped.
    pub(crate) unsettled: bool,
}

impl Seen<'_> {
    pub(crate) fn excuse(
        &self,
        verdict: Verdict,
        space: &Space,
        rules: &UnwindRules,
    ) -> Option<Excuse> {
        let ours = &self.ours.frames;
        let last = *ours.last()?;
        let other = self.truth.unwrap_or(self.theirs);
        let short = other.starts_with(ours);
        let differs = ours.iter().zip(other).take_while(|(a, b)| a == b).count();
        let callee = space.rule(rules, *ours.get(differs.saturating_sub(1))?);
        if verdict == Verdict::Ours {
            return Some(Excuse::Proven);
        }
        if self.truth.is_some() && (ours == self.theirs || by_rcx(callee)) && lands(ours, space) {
            return Some(Excuse::Landing);
        }
        match (self.ours.end, callee) {
            (UnwindEnd::NoMapping, _) if short && (last == 0 || self.truth.is_none()) => {
                Some(Excuse::Unmapped)
            }
            (UnwindEnd::NoRule, None) if short && (self.bare || initial(last, space)) => {
                Some(Excuse::Bare)
            }
            (UnwindEnd::Unsupported, Some(UnwindRule::Frame(frame)))
                if short && differs > 1 && beyond_framehop(frame) =>
            {
                Some(Excuse::OtherRegister)
            }
            (UnwindEnd::Unsupported, Some(UnwindRule::Unsupported(Unsupported::StackPointer)))
                if short =>
            {
                Some(Excuse::LongJump)
            }
            (UnwindEnd::Complete, Some(UnwindRule::Stop))
                if short && self.truth.is_none() && go_root(last, space) =>
            {
                Some(Excuse::GoRoot)
            }
            (_, Some(rule)) if self.truth.is_none() && rule.changes_stacks() => {
                Some(Excuse::GoStacks)
            }
            // Only in the innermost frame: in others it would be our unwinder that does not have
            // the register.
            (_, Some(UnwindRule::Frame(frame)))
                if self.unsettled
                    && verdict == Verdict::Unknown
                    && differs == 1
                    && beyond_framehop(frame) =>
            {
                Some(Excuse::BeyondFramehop)
            }
            _ => None,
        }
    }
}

/// Returns whether it is a function of Go's that has changed to the scheduler's stack, or begins
/// it. A goroutine's registers are elsewhere then, and the frames that framehop finds above are
/// left over on the scheduler's stack.
fn go_root(frame: u64, space: &Space) -> bool {
    space.at(frame).is_some_and(|loaded| {
        let symbol = loaded.file.symbol(frame.wrapping_sub(loaded.bias));
        [
            "runtime.mcall",
            "runtime.morestack",
            "runtime.mstart",
            "runtime.rt0_go",
            "runtime.clone",
            "gogo",
            "_rt0_amd64",
        ]
        .iter()
        .any(|root| symbol.starts_with(root))
    })
}

/// The functions of the start files, which are built without frame information.
const START_FILES: [&str; 6] = [
    "_init",
    "_fini",
    "frame_dummy",
    "register_tm_clones",
    "deregister_tm_clones",
    "__do_global_dtors_aux",
];

/// Returns whether it is of the start files that the linker adds to each program.
fn initial(frame: u64, space: &Space) -> bool {
    space.at(frame).is_some_and(|loaded| {
        let symbol = loaded.file.symbol(frame.wrapping_sub(loaded.bias));
        START_FILES.contains(&symbol.as_str())
    })
}

/// Returns whether one of the first two frames is libgcc's, on the way to a handler.
fn lands(frames: &[u64], space: &Space) -> bool {
    frames.iter().take(2).any(|&frame| {
        space.at(frame).is_some_and(|loaded| {
            let inside = frame.wrapping_sub(loaded.bias);
            loaded.file.name.starts_with("libgcc_s.")
                && LANDINGS.contains(&loaded.file.symbol(inside).as_str())
        })
    })
}

/// Returns whether a rule is of the last instructions of a landing.
fn by_rcx(rule: Option<&UnwindRule>) -> bool {
    let Some(UnwindRule::Frame(frame)) = rule else {
        return false;
    };
    matches!(frame.cfa, Cfa::Register { register: 2, .. })
}

/// The functions that leave by landing.
const LANDINGS: [&str; 3] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
];

/// Returns whether framehop cannot apply a rule: it follows the stack and the frame pointer only,
/// and evaluates no expression that reads memory.
fn beyond_framehop(frame: &FrameRule) -> bool {
    match (frame.cfa, frame.ra) {
        (Cfa::Deref { .. }, _) | (_, ReturnAddress::Register(_)) => true,
        (Cfa::Register { register, .. }, _) => !matches!(register, 6 | 7),
        (Cfa::Plt { .. }, _) => false,
    }
}

/// Returns the kind of rule by which an innermost frame at this pc was unwound; nothing for the
/// ordinary ones.
pub(crate) fn odd(rule: Option<&UnwindRule>, pc: u64) -> Option<&'static str> {
    let Some(UnwindRule::Frame(frame)) = rule else {
        return None;
    };
    match (frame.cfa, frame.ra) {
        (_, ReturnAddress::Interrupted { .. }) => Some("signal frame"),
        (_, ReturnAddress::Register(_)) => Some("return address in a register"),
        (Cfa::Plt { threshold, .. }, _) if (pc & 15).cast_signed() >= i64::from(threshold) => {
            Some("PLT, pushed")
        }
        (Cfa::Plt { .. }, _) => Some("PLT"),
        (Cfa::Deref { .. }, _) => Some("realigned"),
        (Cfa::Register { register: 10, .. }, _) => Some("realigned, prologue"),
        _ => None,
    }
}
