//! A trie: each node is a thing below another node, and so stands for all things up to the root.
//!
//! Most nodes of stacks are the only ones below theirs, and lie beside it, since both were new at a
//! time. So the first child is found without a search, which only its siblings need.

use std::hash::Hash;

use super::interner::Numbers;

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node<T> {
    parent: u32,
    first_child: u32,
    thing: T,
}

/// Nodes, numbered from 0 on: first the roots, all others above their parents.
#[derive(Debug)]
pub(crate) struct Trie<T> {
    nodes: Vec<Node<T>>,
    /// All but the roots and first children, by parent and thing.
    others: Numbers,
}

impl<T: Copy + Eq + Hash> Trie<T> {
    /// One that has but roots, so many; `thing` is what they are.
    pub(crate) fn new(roots: usize, thing: T) -> Trie<T> {
        let root = Node {
            parent: NONE,
            first_child: NONE,
            thing,
        };
        Trie {
            nodes: vec![root; roots],
            others: Numbers::default(),
        }
    }

    /// The node of a thing below another node: the next one, if it is new.
    pub(crate) fn child(&mut self, parent: u32, thing: T) -> u32 {
        let next = self.nodes.len();
        let child = match self.nodes[parent as usize].first_child {
            NONE => {
                self.nodes[parent as usize].first_child = next as u32;
                next as u32
            }
            first if self.nodes[first as usize].thing == thing => first,
            _ => self.others.number(&(parent, thing), next, |at| {
                let node = &self.nodes[at];
                (node.parent, node.thing)
            }),
        };
        if child as usize == next {
            self.nodes.push(Node {
                parent,
                first_child: NONE,
                thing,
            });
        }
        child
    }

    /// What the first child of a node is.
    pub(crate) fn first_child(&self, parent: u32) -> Option<T> {
        let first = self.nodes[parent as usize].first_child;
        self.nodes.get(first as usize).map(|node| node.thing)
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What a node is below; none of a root.
    pub(crate) fn parent(&self, node: u32) -> Option<u32> {
        let parent = self.nodes[node as usize].parent;
        (parent != NONE).then_some(parent)
    }

    /// What a node is.
    pub(crate) fn thing(&self, node: u32) -> T {
        self.nodes[node as usize].thing
    }

    /// Gives back what only [`Trie::child`] needs.
    pub(crate) fn freeze(&mut self) {
        self.others = Numbers::default();
        self.nodes.shrink_to_fit();
    }
}
