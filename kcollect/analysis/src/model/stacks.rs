//! All stacks of a model as a trie, in which stacks share their common callers.
//!
//! A node is a frame with the path to its thread's outermost frame, so it stands for a stack; its
//! ancestors are the callers. Children have higher numbers than their parents, so a sum over
//! everything that a frame calls is one loop backwards.

use super::trie::Trie;
use super::{FrameId, StackId};

/// No stack.
const NONE: u32 = u32::MAX;

/// The stacks of a model.
#[derive(Debug)]
pub struct Stacks {
    /// The root is the empty stack.
    nodes: Trie<FrameId>,
}

impl Default for Stacks {
    fn default() -> Self {
        Stacks {
            nodes: Trie::new(1, FrameId(NONE)),
        }
    }
}

impl Stacks {
    /// Returns the stack with one more frame than `caller`. Equal frames are the same stack.
    pub(crate) fn child(&mut self, caller: StackId, frame: FrameId) -> StackId {
        StackId(self.nodes.child(caller.0, frame))
    }

    /// Returns the leaf of the first stack that was added below `caller`, which is likely to be the
    /// next one too.
    pub(crate) fn first_callee(&self, caller: StackId) -> Option<FrameId> {
        self.nodes.first_child(caller.0)
    }

    /// Frees what only [`Stacks::child`] needs.
    pub(crate) fn freeze(&mut self) {
        self.nodes.freeze();
    }

    /// Returns the number of stacks, with the empty one and those that are only callers of others.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether there is only the empty stack.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Returns the stack without its leaf. None: it is the empty stack.
    #[must_use]
    pub fn caller(&self, stack: StackId) -> Option<StackId> {
        self.nodes.parent(stack.0).map(StackId)
    }

    /// Returns the frame at the leaf. None: it is the empty stack.
    #[must_use]
    pub fn leaf(&self, stack: StackId) -> Option<FrameId> {
        (stack != StackId::EMPTY).then(|| self.nodes.value(stack.0))
    }

    /// Returns the frames, leaf first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = FrameId> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let frame = self.leaf(at)?;
            at = self.caller(at)?;
            Some(frame)
        })
    }

    /// Returns all stacks but the empty one, callers before callees: the stack, its caller's stack,
    /// and its leaf.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (StackId, StackId, FrameId)> {
        let all = 1..self.nodes.len() as u32;
        all.filter_map(|at| {
            let caller = self.nodes.parent(at)?;
            Some((StackId(at), StackId(caller), self.nodes.value(at)))
        })
    }

    /// Returns the children of each stack.
    #[must_use]
    pub fn callees(&self) -> Callees {
        let mut callees = Callees {
            first: vec![NONE; self.nodes.len()],
            next: vec![NONE; self.nodes.len()],
        };
        for (stack, caller, _) in self.iter().rev() {
            callees.next[stack.index()] = callees.first[caller.index()];
            callees.first[caller.index()] = stack.0;
        }
        callees
    }
}

/// The links of a trie from callers to callees.
#[derive(Debug)]
pub struct Callees {
    first: Vec<u32>,
    next: Vec<u32>,
}

impl Callees {
    /// Returns the stacks with one more frame than `stack`, in their order.
    pub fn of(&self, stack: StackId) -> impl Iterator<Item = StackId> {
        let mut at = self.first[stack.index()];
        std::iter::from_fn(move || {
            let found = StackId(at);
            at = *self.next.get(at as usize)?;
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_interned_is_found(stacks in prop::collection::vec(prop::collection::vec(0u32..4, 0..6), 1..20)) {
            let mut trie = Stacks::default();
            let of = |frames: &[u32]| frames.iter().map(|frame| FrameId(*frame)).collect::<Vec<_>>();
            let mut intern = |frames: &[u32]| {
                let frames = of(frames).into_iter().rev();
                frames.fold(StackId::EMPTY, |caller, frame| trie.child(caller, frame))
            };
            let ids: Vec<_> = stacks.iter().map(|frames| intern(frames)).collect();
            prop_assert_eq!(stacks.iter().map(|frames| intern(frames)).collect::<Vec<_>>(), ids.clone());
            for (id, frames) in ids.iter().zip(&stacks) {
                prop_assert_eq!(trie.frames(*id).collect::<Vec<_>>(), of(frames));
                prop_assert_eq!(trie.leaf(*id), of(frames).first().copied());
            }
            let callees = trie.callees();
            let mut count = 1;
            for (stack, caller, _) in trie.iter() {
                prop_assert!(caller < stack);
                prop_assert!(callees.of(caller).any(|callee| callee == stack));
                count += callees.of(stack).count();
            }
            count += callees.of(StackId::EMPTY).count();
            prop_assert_eq!(count, trie.len());
        }
    }
}
