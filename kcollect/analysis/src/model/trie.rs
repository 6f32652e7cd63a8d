//! A trie: each node holds a value, and stands for the path of values up to its root.
//!
//! Most nodes have a single child, created right after them. The first child is stored in its
//! parent, so only its siblings need a hash table.

use std::hash::Hash;

use super::interner::Numbers;

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node<T> {
    parent: u32,
    first_child: u32,
    value: T,
}

/// Nodes, numbered from 0: first the roots, all others after their parents.
#[derive(Debug)]
pub(crate) struct Trie<T> {
    nodes: Vec<Node<T>>,
    /// All nodes but roots and first children, by parent and value.
    others: Numbers,
}

impl<T: Copy + Eq + Hash> Trie<T> {
    /// Creates a trie with `roots` roots, each with this value.
    pub(crate) fn new(roots: usize, value: T) -> Trie<T> {
        let root = Node {
            parent: NONE,
            first_child: NONE,
            value,
        };
        Trie {
            nodes: vec![root; roots],
            others: Numbers::default(),
        }
    }

    /// Returns the child of `parent` with a value, which is added if it is new.
    pub(crate) fn child(&mut self, parent: u32, value: T) -> u32 {
        let next = self.nodes.len();
        let child = match self.nodes[parent as usize].first_child {
            NONE => {
                self.nodes[parent as usize].first_child = next as u32;
                next as u32
            }
            first if self.nodes[first as usize].value == value => first,
            _ => self.others.number(&(parent, value), next, |at| {
                let node = &self.nodes[at];
                (node.parent, node.value)
            }),
        };
        if child as usize == next {
            self.nodes.push(Node {
                parent,
                first_child: NONE,
                value,
            });
        }
        child
    }

    /// Returns the value of a node's first child.
    pub(crate) fn first_child(&self, parent: u32) -> Option<T> {
        let first = self.nodes[parent as usize].first_child;
        self.nodes.get(first as usize).map(|node| node.value)
    }

    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a node's parent. None: it is a root.
    pub(crate) fn parent(&self, node: u32) -> Option<u32> {
        let parent = self.nodes[node as usize].parent;
        (parent != NONE).then_some(parent)
    }

    /// Returns a node's value.
    pub(crate) fn value(&self, node: u32) -> T {
        self.nodes[node as usize].value
    }

    /// Frees what only [`Trie::child`] needs.
    pub(crate) fn freeze(&mut self) {
        self.others = Numbers::default();
        self.nodes.shrink_to_fit();
    }
}
