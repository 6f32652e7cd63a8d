//! Chains: whom a thread waited for, what those threads did meanwhile, and whom they waited for.
//!
//! ```text
//! client   aaa1111111111aaa       the wait of 10 ticks
//! server   _____bbb22222b         of them, the server was idle in 2, in b for 3, blocked for 5,
//! disk     cccccccccccccc         and in these 5 the thread "disk" was in c
//! ```
//!
//! The time of a wait is split by what its waker did during the wait, and that of a wait of the
//! waker in the same way. So the children of a node always add up to the node.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::timeline::{Doing, Interval, Reason, Timelines};
use crate::model::ThreadId;

/// The longest chain: the number of threads after the first one.
pub const MAX_DEPTH: usize = 6;
/// Maximum number of parts into which waits are split. It takes some seconds.
pub const MAX_STEPS: u64 = 20_000_000;

/// What distinguishes the children of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The number of the thread's name.
    pub who: u32,
    /// What the thread did.
    pub doing: Doing,
    /// Where it was: [`Interval::place`].
    pub place: u32,
}

/// What threads did while others waited for them; or a wait to be explained, if it has no parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainNode {
    /// What they did.
    pub link: Link,
    /// For how long, microseconds.
    pub micros: i64,
    /// Positions of what others did meanwhile.
    pub children: Vec<usize>,
}

/// A tree of waits.
#[derive(Debug)]
pub struct Chains<'a> {
    timelines: &'a Timelines,
    /// The number of each thread's name, by [`ThreadId`].
    names: &'a [u32],
    nodes: Vec<ChainNode>,
    roots: Vec<usize>,
    /// The node of a parent (none: [`usize::MAX`]) and a link.
    known: FxHashMap<(usize, Link), usize>,
    steps_left: u64,
}

impl<'a> Chains<'a> {
    /// An empty tree. Threads with the same number in `names` are not told apart.
    #[must_use]
    pub fn new(timelines: &'a Timelines, names: &'a [u32], max_steps: u64) -> Chains<'a> {
        Chains {
            timelines,
            names,
            nodes: Vec::new(),
            roots: Vec::new(),
            known: FxHashMap::default(),
            steps_left: max_steps,
        }
    }

    /// Adds a wait of a thread that stands for `micros`.
    pub fn add(&mut self, thread: ThreadId, wait: &Interval, micros: i64) {
        let root = self.node(None, self.link(thread, wait.doing, wait.place), micros);
        if matches!(wait.doing, Doing::Blocked(_)) {
            // A wait that the timeline has no time for was short, and ended then.
            let start_ns = wait.start_ns.min(wait.end_ns.saturating_sub(1));
            let mut path = vec![thread];
            self.follow(root, &mut path, wait.waker, start_ns..wait.end_ns, micros);
        }
    }

    /// The nodes; [`Chains::roots`] and [`ChainNode::children`] are positions.
    #[must_use]
    pub fn nodes(&self) -> &[ChainNode] {
        &self.nodes
    }

    /// The waits to be explained.
    #[must_use]
    pub fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// Whether the limit of steps was reached.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.steps_left == 0
    }

    fn link(&self, thread: ThreadId, doing: Doing, place: u32) -> Link {
        let who = self.names[thread.index()];
        Link { who, doing, place }
    }

    /// Adds time to a child of a node, or to a root. Returns its position.
    fn node(&mut self, parent: Option<usize>, link: Link, micros: i64) -> usize {
        let next = self.nodes.len();
        let key = (parent.unwrap_or(usize::MAX), link);
        let at = *self.known.entry(key).or_insert(next);
        if at == next {
            self.nodes.push(ChainNode {
                link,
                micros: 0,
                children: Vec::new(),
            });
            match parent {
                Some(parent) => self.nodes[parent].children.push(at),
                None => self.roots.push(at),
            }
        }
        let sum = &mut self.nodes[at].micros;
        *sum = sum.saturating_add(micros);
        at
    }

    /// Splits the time of a wait by what its waker did in `range`, which is the wait or a part of
    /// it. `path` has the threads of the chain so far.
    fn follow(
        &mut self,
        parent: usize,
        path: &mut Vec<ThreadId>,
        waker: Option<ThreadId>,
        range: Range<u64>,
        micros: i64,
    ) {
        let reason = match waker {
            None => Some(Reason::NoWaker),
            Some(waker) if path.contains(&waker) => Some(Reason::Circle),
            Some(_) if path.len() > MAX_DEPTH => Some(Reason::Depth),
            Some(_) => None,
        };
        let (Some(waker), None) = (waker, reason) else {
            let reason = reason.unwrap_or(Reason::NoWaker);
            self.not_followed(parent, reason, micros);
            return;
        };
        let timelines = self.timelines;
        let length_ns = range.end.saturating_sub(range.start).max(1);
        let share_until = |ns: u64| {
            let share = i128::from(micros) * i128::from(ns) / i128::from(length_ns);
            share as i64
        };
        let mut given = 0;
        path.push(waker);
        for (part, interval) in timelines.of(waker).parts(range.clone()) {
            if self.steps_left == 0 {
                break;
            }
            self.steps_left -= 1;
            let until = share_until(part.end - range.start);
            let share = until - given;
            given = until;
            if share == 0 {
                continue;
            }
            let (doing, place) = interval.map_or((Doing::NotSampled, 0), |it| (it.doing, it.place));
            let child = self.node(Some(parent), self.link(waker, doing, place), share);
            if let Some(interval) = interval
                && matches!(doing, Doing::Blocked(_))
            {
                self.follow(child, path, interval.waker, part, share);
            }
        }
        path.pop();
        if given != micros {
            self.not_followed(parent, Reason::Steps, micros - given);
        }
    }

    fn not_followed(&mut self, parent: usize, reason: Reason, micros: i64) {
        let link = Link {
            who: self.nodes[parent].link.who,
            doing: Doing::NotFollowed(reason),
            place: 0,
        };
        self.node(Some(parent), link, micros);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::drawing::{TICK_NS, draw, letter};
    use super::*;

    /// Adds the suffered waits of thread 0, each for as many microseconds as it has nanoseconds.
    fn tree<'a>(timelines: &'a Timelines, names: &'a [u32], max_steps: u64) -> Chains<'a> {
        let mut chains = Chains::new(timelines, names, max_steps);
        for interval in timelines.threads[0].intervals() {
            if matches!(interval.doing, Doing::Blocked(_)) {
                let micros = interval.end_ns - interval.start_ns;
                chains.add(ThreadId(0), interval, micros as i64);
            }
        }
        chains
    }

    /// One line for each node: depth, number of the thread, letter, ticks.
    fn lines(chains: &Chains<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        let mut pending: Vec<_> = chains.roots.iter().map(|root| (0, *root)).collect();
        pending.reverse();
        while let Some((depth, at)) = pending.pop() {
            let ChainNode {
                link,
                micros,
                children,
            } = &chains.nodes[at];
            let indent = "  ".repeat(depth);
            let letter = letter(link.doing, link.place);
            let ticks = *micros as f64 / TICK_NS as f64;
            lines.push(format!("{indent}{} {letter} {ticks}", link.who));
            pending.extend(children.iter().rev().map(|child| (depth + 1, *child)));
        }
        lines
    }

    fn assert_adds_up(chains: &Chains<'_>) {
        for node in &chains.nodes {
            if !node.children.is_empty() {
                let children = node
                    .children
                    .iter()
                    .map(|child| chains.nodes[*child].micros);
                assert_eq!(children.sum::<i64>(), node.micros, "{:?}", node.link);
            }
        }
    }

    #[test]
    fn a_wait_is_split_by_what_its_waker_did() {
        let timelines = draw(
            "aaa1111111111aaa
             _____bbb22222b
             cccccccccccccc",
        );
        let chains = tree(&timelines, &[0, 1, 2], 100);
        let expected = [
            "0 w 10",
            "  1 _ 2",
            "    1 ! 2",
            "  1 b 3",
            "  1 w 5",
            "    2 c 5",
        ];
        assert_eq!(lines(&chains), expected);
        assert_adds_up(&chains);
        assert!(!chains.is_cut());
    }

    #[test]
    fn time_without_ticks_is_not_sampled() {
        let timelines = draw("a11111\n...b..");
        let chains = tree(&timelines, &[0, 1], 100);
        // Two ticks before b, and two after it.
        assert_eq!(lines(&chains), ["0 w 5", "  1 . 4", "  1 b 1"]);
        assert_adds_up(&chains);
    }

    #[test]
    fn equal_waits_are_one_node() {
        let timelines = draw("a11a11a1\n.bb--b.-");
        let chains = tree(&timelines, &[0, 1], 100);
        assert_eq!(lines(&chains), ["0 w 5", "  1 b 3", "  1 - 2"]);
        assert_adds_up(&chains);
    }

    #[test]
    fn circles_end() {
        let timelines = draw("a1111\nb2222\nc0000");
        let chains = tree(&timelines, &[0, 1, 2], 100);
        let expected = ["0 w 4", "  1 w 4", "    2 w 4", "      2 ! 4"];
        assert_eq!(lines(&chains), expected);
        let circle = chains.nodes.last().map(|node| node.link.doing);
        assert_eq!(circle, Some(Doing::NotFollowed(Reason::Circle)));
    }

    #[test]
    fn long_chains_are_cut() {
        let timelines = draw("1111\n2222\n3333\n4444\n5555\n6666\n7777\n8888\nbbbb");
        let chains = tree(&timelines, &[0; 9], 100);
        let depths: Vec<_> = chains.nodes.iter().map(|node| node.link.doing).collect();
        assert_eq!(depths.len(), MAX_DEPTH + 2);
        assert_eq!(depths.last(), Some(&Doing::NotFollowed(Reason::Depth)));
        assert_adds_up(&chains);
    }

    #[test]
    fn the_limit_of_steps_is_shown() {
        let timelines = draw("a111111\n.bcbcbc");
        let chains = tree(&timelines, &[0, 1], 4);
        assert_eq!(lines(&chains), ["0 w 6", "  1 b 2", "  1 c 2", "  0 ! 2"]);
        assert_adds_up(&chains);
        assert!(chains.is_cut());
    }

    #[test]
    fn a_wait_shorter_than_its_interval_has_a_child() {
        let timelines = draw("a1\nbb");
        let mut chains = Chains::new(&timelines, &[0, 1], 100);
        let mut wait = timelines.threads[0].intervals()[1];
        wait.start_ns = wait.end_ns;
        chains.add(ThreadId(0), &wait, 7);
        assert_eq!(chains.nodes[1].micros, 7);
        assert_eq!(
            letter(chains.nodes[1].link.doing, chains.nodes[1].link.place),
            'b'
        );
    }

    proptest! {
        #[test]
        fn children_always_add_up(
            drawing in prop::collection::vec("[abc~_.0-4A-E-]{1,24}", 5..6),
            names in prop::collection::vec(0_u32..3, 5..6),
            micros in 1_i64..1_000_000,
            max_steps in 0_u64..200,
        ) {
            let timelines = draw(&drawing.join("\n"));
            let mut chains = Chains::new(&timelines, &names, max_steps);
            let mut whole = 0;
            for (thread, timeline) in (0..).map(ThreadId).zip(&timelines.threads) {
                for wait in timeline.intervals() {
                    if matches!(wait.doing, Doing::Blocked(_)) {
                        chains.add(thread, wait, micros);
                        whole += micros;
                    }
                }
            }
            assert_adds_up(&chains);
            let roots = chains.roots.iter().map(|root| chains.nodes[*root].micros);
            prop_assert_eq!(roots.sum::<i64>(), whole);
        }
    }
}
