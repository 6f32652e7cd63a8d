//! Call paths of one experiment by address: a trie like [`Stacks`](crate::model::Stacks), with the
//! stack of the model that each path resolves to, and when.
//!
//! Stacks of one experiment share most of their callers, so that one lookup in this trie is enough
//! for most addresses.

use crate::model::StackId;
use crate::model::trie::Trie;

/// A value that holds for a time: from and until, in nanoseconds since the start of the experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lasting<T> {
    pub(crate) what: T,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl<T: Copy> Lasting<T> {
    pub(crate) fn always(what: T) -> Lasting<T> {
        Lasting {
            what,
            from: 0,
            until: u64::MAX,
        }
    }

    /// Returns the value, if it holds at a time.
    pub(crate) fn at(&self, time: u64) -> Option<T> {
        (self.from <= time && time < self.until).then_some(self.what)
    }

    /// The same value, for the time in which `other` holds too.
    pub(crate) fn and<U>(self, other: &Lasting<U>) -> Lasting<T> {
        Lasting {
            from: self.from.max(other.from),
            until: self.until.min(other.until),
            ..self
        }
    }
}

/// A path that has not been resolved yet.
const UNRESOLVED: Lasting<StackId> = Lasting {
    what: StackId::EMPTY,
    from: 0,
    until: 0,
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
    /// By path.
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
