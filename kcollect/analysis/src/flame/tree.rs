//! The frames of a flame graph: stacks merged by name, without those too narrow to be seen.
//!
//! There may be a million stacks, and inferno takes one line for each, with all names in it. That
//! is gigabytes, most of which it would not draw. So what is narrower than a pixel is added to its
//! caller before lines are made. The picture is the same, with at most as many lines as frames.

use std::fmt::Write as _;

use rustc_hash::FxHashMap;

use crate::export::folded::Folded;
use crate::model::{Model, StackId};

/// Maximum number of frames of a stack that are drawn, which is three screens. Deeper ones belong
/// to their callers.
pub(super) const MAX_DEPTH: u32 = 200;

/// All frames, callers before callees. The first is the root.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    children: FxHashMap<(u32, u32), u32>,
    names: Vec<String>,
    numbers: FxHashMap<String, u32>,
    has_recursion: bool,
    /// The number of frames that are too deep.
    cut: usize,
}

#[derive(Debug)]
struct Node {
    parent: u32,
    name: u32,
    /// The number of its callers.
    depth: u32,
    /// The exclusive microseconds in the earlier and the later experiment.
    own: [u64; 2],
}

impl Tree {
    pub(super) fn new() -> Tree {
        let all = Node {
            parent: 0,
            name: 0,
            depth: 0,
            own: [0; 2],
        };
        Tree {
            nodes: vec![all],
            children: FxHashMap::default(),
            names: vec![String::new()],
            numbers: FxHashMap::default(),
            has_recursion: false,
            cut: 0,
        }
    }

    /// Adds stacks of the earlier experiment (0) or of the later one (1), with or without the
    /// frames on top of them.
    pub(super) fn add(&mut self, when: usize, model: &Model, folded: &Folded<'_>, tops: bool) {
        let functions = folded.functions().iter().map(|name| self.name(name));
        let functions: Vec<_> = functions.collect();
        let mut known: FxHashMap<StackId, u32> = FxHashMap::default();
        let (mut under, mut base) = (None, 0);
        for (below, stack, top, sum) in folded.sums() {
            if under != Some(below) {
                under = Some(below);
                let frames = below.split(';').filter(|frame| !frame.is_empty());
                base = frames.fold(0, |at, frame| self.child(at, frame));
                known.clear();
                known.insert(StackId::EMPTY, base);
            }
            let mut missing = Vec::new();
            let mut at = stack;
            let mut node = loop {
                if let Some(node) = known.get(&at) {
                    break *node;
                }
                missing.push(at);
                // Only the empty stack has no caller, and it is known.
                at = model.stacks.caller(at).unwrap_or(StackId::EMPTY);
            };
            for stack in missing.into_iter().rev() {
                if let Some(leaf) = model.stacks.leaf(stack) {
                    let function = model.frame(leaf).function;
                    node = self.callee(base, node, functions[function.index()]);
                }
                known.insert(stack, node);
            }
            if tops {
                node = top.split(';').fold(node, |at, frame| self.child(at, frame));
            } else if node == 0 {
                node = self.child(node, "?");
            }
            self.nodes[node as usize].own[when] += sum;
        }
    }

    /// Multiplies the times of the earlier experiment.
    pub(super) fn scale(&mut self, factor: f64) {
        for node in &mut self.nodes {
            node.own[0] = (node.own[0] as f64 * factor).round() as u64;
        }
    }

    /// Returns lines for inferno, with the times of both experiments, or of the later one alone.
    /// What has less than `least` percent of the whole is added to its caller, unless that is the
    /// root, which has no line.
    pub(super) fn lines(&self, least: f64, both: bool) -> String {
        let whole: u64 = self.nodes.iter().map(|node| node.own[1]).sum();
        let least = whole as f64 * least / 100.0;
        let mut own: Vec<_> = self.nodes.iter().map(|node| node.own).collect();
        let mut inclusive = own.clone();
        for (at, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let sums = inclusive[at];
            let caller = node.parent as usize;
            let add = |to: &mut [u64; 2]| {
                to[0] += sums[0];
                to[1] += sums[1];
            };
            add(&mut inclusive[caller]);
            if caller != 0 && (sums[1] as f64) < least {
                add(&mut own[caller]);
                own[at] = [0; 2];
            }
        }
        let mut lines = String::new();
        let mut path = Vec::new();
        for (at, own) in own.into_iter().enumerate() {
            if own == [0; 2] {
                continue;
            }
            path.clear();
            let mut at = at;
            while at != 0 {
                path.push(self.names[self.nodes[at].name as usize].as_str());
                at = self.nodes[at].parent as usize;
            }
            path.reverse();
            // Writing to a String cannot fail.
            let _ = if both {
                writeln!(lines, "{} {} {}", path.join(";"), own[0], own[1])
            } else {
                writeln!(lines, "{} {}", path.join(";"), own[1])
            };
        }
        lines
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn child(&mut self, of: u32, name: &str) -> u32 {
        let name = self.name(name);
        self.numbered(of, name)
    }

    /// Returns whether a function that calls itself is one frame.
    pub(super) fn has_recursion(&self) -> bool {
        self.has_recursion
    }

    /// Returns the number of frames that are too deep.
    pub(super) fn cut(&self) -> usize {
        self.cut
    }

    /// Returns the frame of a function that is called; stacks begin above `base`.
    fn callee(&mut self, base: u32, of: u32, function: u32) -> u32 {
        let caller = &self.nodes[of as usize];
        if of != base && caller.name == function {
            self.has_recursion = true;
            return of;
        }
        if caller.depth >= MAX_DEPTH {
            self.cut += 1;
            return of;
        }
        self.numbered(of, function)
    }

    fn numbered(&mut self, parent: u32, name: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.children.entry((parent, name)).or_insert(next);
        if node == next {
            self.nodes.push(Node {
                parent,
                name,
                depth: self.nodes[parent as usize].depth + 1,
                own: [0; 2],
            });
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(stacks: &[(Vec<u8>, [u64; 2])]) -> Tree {
        let mut tree = Tree::new();
        for (stack, own) in stacks {
            let node = stack
                .iter()
                .fold(0, |at, name| tree.child(at, &format!("f{name}")));
            let to = &mut tree.nodes[node as usize].own;
            *to = [to[0] + own[0], to[1] + own[1]];
        }
        tree
    }

    #[test]
    fn narrow_frames_are_merged_into_their_callers() {
        let stacks = [
            (vec![0], [1, 10]),
            (vec![0, 1], [0, 980]),
            (vec![0, 2], [5, 4]),
            (vec![0, 2, 3], [0, 5]),
            (vec![4], [0, 1]),
        ];
        let tree = tree(&stacks);
        assert_eq!(tree.lines(1.0, true), "f0 6 19\nf0;f1 0 980\nf4 0 1\n");
        assert_eq!(tree.lines(0.0, false).lines().count(), 5);
    }

    #[test]
    fn recursion_is_one_frame_and_depth_is_bounded() {
        let mut tree = Tree::new();
        let base = tree.child(0, "f");
        let f = tree.name("f");
        let first = tree.callee(base, base, f);
        assert_ne!(first, base, "the process is not the function");
        assert!(!tree.has_recursion());
        assert_eq!(tree.callee(base, first, f), first);
        assert!(tree.has_recursion());
        let mut node = base;
        for frame in 0..2 * MAX_DEPTH {
            let function = tree.name(&format!("g{frame}"));
            node = tree.callee(base, node, function);
        }
        assert_eq!(tree.nodes[node as usize].depth, MAX_DEPTH);
        assert_eq!(tree.cut(), MAX_DEPTH as usize + 1);
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            stacks in prop::collection::vec((prop::collection::vec(0u8..4, 1..6), prop::array::uniform2(0u64..1000)), 0..40),
            least in 0.0..50.0,
        ) {
            let whole = |at: usize| stacks.iter().map(|(_, own)| own[at]).sum::<u64>();
            let lines = tree(&stacks).lines(least, true);
            let mut sums = [0, 0];
            for line in lines.lines() {
                let mut words = line.rsplit(' ');
                for at in [1, 0] {
                    sums[at] += words.next().unwrap().parse::<u64>().unwrap();
                }
            }
            prop_assert_eq!(sums, [whole(0), whole(1)]);
        }
    }
}
