//! The call paths of one experiment by address: a trie like [`Stacks`](crate::model::Stacks), with
//! the stack of the model that each path resolves to, and the time for which it does.
//!
//! Stacks of one experiment share most of their callers, so that one lookup in this trie is enough
//! for most addresses.

use experiment_format::units::Nanos;

use crate::model::StackId;
use crate::model::trie::Trie;

/// A value that holds for a time, which is in nanoseconds since the start of the experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lasting<T> {
    pub(crate) value: T,
    pub(crate) from_ns: Nanos,
    pub(crate) until_ns: Nanos,
}

impl<T: Copy> Lasting<T> {
    /// Returns a value that holds at all times.
    pub(crate) fn always(value: T) -> Lasting<T> {
        Lasting {
            value,
            from_ns: Nanos::ZERO,
            until_ns: Nanos::MAX,
        }
    }

    /// Returns the value, if it holds at a time.
    pub(crate) fn at(&self, time_ns: Nanos) -> Option<T> {
        (self.from_ns <= time_ns && time_ns < self.until_ns).then_some(self.value)
    }

    /// Limits the value to the time in which `other` holds too.
    pub(crate) fn and<U>(self, other: &Lasting<U>) -> Lasting<T> {
        Lasting {
            from_ns: self.from_ns.max(other.from_ns),
            until_ns: self.until_ns.min(other.until_ns),
            ..self
        }
    }
}

/// A path that has not been resolved yet.
const UNRESOLVED: Lasting<StackId> = Lasting {
    value: StackId::EMPTY,
    from_ns: Nanos::ZERO,
    until_ns: Nanos::ZERO,
};

/// A call path: an address and all callers above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallersId(u32);

impl CallersId {
    /// The roots of the trie, above the outermost address of a complete stack, of a truncated one,
    /// and of one that could not be unwound.
    pub(crate) const ROOTS: [CallersId; 3] = [CallersId(0), CallersId(1), CallersId(2)];
}

/// All call paths of an experiment.
#[derive(Debug)]
pub(crate) struct Callers {
    nodes: Trie<u64>,
    /// The stack of each path.
    stacks: Vec<Lasting<StackId>>,
}

impl Default for Callers {
    fn default() -> Callers {
        let roots = CallersId::ROOTS.len();
        Callers {
            nodes: Trie::new(roots, 0),
            stacks: vec![UNRESOLVED; roots],
        }
    }
}

impl Callers {
    /// Returns the path with one more address below `above`.
    pub(crate) fn child(&mut self, above: CallersId, address: u64) -> CallersId {
        let child = self.nodes.child(above.0, address);
        if child as usize == self.stacks.len() {
            self.stacks.push(UNRESOLVED);
        }
        CallersId(child)
    }

    /// Returns the stack that a path was resolved to.
    pub(crate) fn stack(&self, callers: CallersId) -> Lasting<StackId> {
        self.stacks[callers.0 as usize]
    }

    /// Sets the stack that a path resolves to.
    pub(crate) fn set(&mut self, callers: CallersId, stack: Lasting<StackId>) {
        self.stacks[callers.0 as usize] = stack;
    }
}
