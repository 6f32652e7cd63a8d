//! The callers in one experiment's stacks, by their addresses: a trie like that of
//! [`Stacks`](crate::model::Stacks), which says what they stand for there, and when.
//!
//! Stacks of one experiment share most of their callers, so that for most addresses one look into
//! this trie is all.

use crate::model::StackId;
use crate::model::trie::Trie;

/// What is so for some time: from and until, nanoseconds since the start of the experiment.
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

    /// What it is, if it is so at a time.
    pub(crate) fn at(&self, time: u64) -> Option<T> {
        (self.from <= time && time < self.until).then_some(self.what)
    }

    /// The same for as long as another is so too.
    pub(crate) fn and<U>(self, other: &Lasting<U>) -> Lasting<T> {
        Lasting {
            from: self.from.max(other.from),
            until: self.until.min(other.until),
            ..self
        }
    }
}

/// What nobody has looked for yet.
const UNKNOWN: Lasting<StackId> = Lasting {
    what: StackId::EMPTY,
    from: 0,
    until: 0,
};

/// Callers: an address, and all that are above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallersId(u32);

impl CallersId {
    /// The roots of the trie: what is above the first address of a complete stack, of one of which
    /// there was more, and of one that could not be unwound.
    pub(crate) const ROOTS: [CallersId; 3] = [CallersId(0), CallersId(1), CallersId(2)];
}

/// All callers of an experiment.
#[derive(Debug)]
pub(crate) struct Callers {
    nodes: Trie<u64>,
    /// At their numbers.
    stacks: Vec<Lasting<StackId>>,
}

impl Default for Callers {
    fn default() -> Callers {
        let roots = CallersId::ROOTS.len();
        Callers {
            nodes: Trie::new(roots, 0),
            stacks: vec![UNKNOWN; roots],
        }
    }
}

impl Callers {
    /// Those that have an address below them.
    pub(crate) fn child(&mut self, above: CallersId, address: u64) -> CallersId {
        let child = self.nodes.child(above.0, address);
        if child as usize == self.stacks.len() {
            self.stacks.push(UNKNOWN);
        }
        CallersId(child)
    }

    /// The stack that they were found to be.
    pub(crate) fn stack(&self, callers: CallersId) -> Lasting<StackId> {
        self.stacks[callers.0 as usize]
    }

    /// Says what they are.
    pub(crate) fn set(&mut self, callers: CallersId, stack: Lasting<StackId>) {
        self.stacks[callers.0 as usize] = stack;
    }
}
