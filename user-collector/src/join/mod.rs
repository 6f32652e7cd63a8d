//! The join of kernel and user side, by thread and number of the entry to user mode.
//!
//! What a thread does in the kernel between two times in user mode has one user stack. So whatever
//! is recorded there carries the number of the entry to user mode that ends it, and the stack comes
//! once, with that number: afterwards where threads tell of their entries themselves; before, and
//! for all that follows with that number, where a number stands for a place in user mode.
//!
//! A stack may be known to come and still be unknown, because it has to be walked first and a table
//! for that is being made. Then what waits for it goes on waiting, also when the thread has gone.
//!
//! Nothing waits for ever: what a thread did before its end, or before data stopped, may have no
//! entry, and comes out without a user side, counted as such.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

/// Ticks by what became of their user side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JoinCounts {
    /// User sides that were told.
    pub user_stacks: u64,
    /// Ticks that have theirs.
    pub ticks: u64,
    /// Of those, ticks that others had shared it with.
    pub reused: u64,
    /// Ticks whose user side was not told: the thread ended in the kernel, or was there when data
    /// stopped, or the record of it was lost.
    pub missing: u64,
    /// Ticks that have none: of kernel threads, of threads that were ending, and of those that
    /// nobody follows.
    pub not_expected: u64,
}

/// Which user side of which thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserStackKey {
    tid: u32,
    life: u64,
    number: u32,
}

/// Things `W` that wait for user sides `S`.
#[derive(Debug)]
pub struct Join<W, S> {
    threads: HashMap<u32, u64>,
    lives: BTreeMap<(u64, u32), Open<W, S>>,
    last_life: u64,
    joined: JoinCounts,
}

/// One number of one thread.
#[derive(Debug)]
struct Open<W, S> {
    /// The side will come, or is there.
    told: bool,
    side: Option<Arc<S>>,
    used: bool,
    waiting: Vec<(u64, W)>,
}

/// What is complete: with its user side, or without one.
pub type Complete<W, S> = (W, Option<Arc<S>>);

impl<W, S> Default for Join<W, S> {
    fn default() -> Join<W, S> {
        Join {
            threads: HashMap::new(),
            lives: BTreeMap::new(),
            last_life: 0,
            joined: JoinCounts::default(),
        }
    }
}

impl<W, S> Join<W, S> {
    /// Something of so many ticks was recorded of a thread with this number, 0 for none. Gives all
    /// that is complete by that.
    pub fn recorded(&mut self, tid: u32, number: u32, ticks: u64, what: W) -> Vec<Complete<W, S>> {
        if number == 0 {
            self.joined.not_expected += ticks;
            return vec![(what, None)];
        }
        let (slot, mut complete) = self.slot(tid, number);
        if let Some(open) = self.lives.get_mut(&(slot.life, slot.number)) {
            match &open.side {
                Some(side) => {
                    self.joined.ticks += ticks;
                    self.joined.reused += if open.used { ticks } else { 0 };
                    complete.push((what, Some(Arc::clone(side))));
                }
                None => open.waiting.push((ticks, what)),
            }
            open.used = true;
        }
        complete
    }

    /// The user side with this number will be told by [`Join::resolved`], with the slot that this
    /// gives. Also gives what is complete because its own will not be told any more.
    pub fn announced(&mut self, tid: u32, number: u32) -> (UserStackKey, Vec<Complete<W, S>>) {
        let (slot, complete) = self.slot(tid, number);
        if let Some(open) = self.lives.get_mut(&(slot.life, slot.number)) {
            open.told = true;
        }
        self.joined.user_stacks += 1;
        (slot, complete)
    }

    /// Here it is. Gives all that has waited for it.
    pub fn resolved(&mut self, slot: UserStackKey, side: Arc<S>) -> Vec<Complete<W, S>> {
        let key = (slot.life, slot.number);
        let Some(open) = self.lives.get_mut(&key) else {
            return Vec::new();
        };
        open.side = Some(Arc::clone(&side));
        let waiting = std::mem::take(&mut open.waiting);
        if !self.is_present(slot) {
            self.lives.remove(&key);
        }
        let mut complete = Vec::new();
        for (ticks, what) in waiting {
            self.joined.ticks += ticks;
            complete.push((what, Some(Arc::clone(&side))));
        }
        complete
    }

    /// The thread has ended. Gives what will have no user side.
    pub fn ended(&mut self, tid: u32) -> Vec<Complete<W, S>> {
        match self.threads.remove(&tid) {
            Some(life) => self.give_up(life, u32::MAX),
            None => Vec::new(),
        }
    }

    /// Nothing more will be told. Gives what still waits.
    pub fn close(&mut self) -> Vec<Complete<W, S>> {
        let mut complete = Vec::new();
        for open in std::mem::take(&mut self.lives).into_values() {
            for (ticks, what) in open.waiting {
                self.joined.missing += ticks;
                complete.push((what, None));
            }
        }
        self.threads.clear();
        complete
    }

    /// What became of all ticks until now; those that still wait count as open.
    #[must_use]
    pub fn joined(&self) -> JoinCounts {
        let waiting = self.lives.values().flat_map(|open| &open.waiting);
        JoinCounts {
            missing: self.joined.missing + waiting.map(|(ticks, _)| ticks).sum::<u64>(),
            ..self.joined
        }
    }

    /// Is it what the thread is at, so that more may come with its number?
    fn is_present(&self, slot: UserStackKey) -> bool {
        let last = self.lives.range(..=(slot.life, u32::MAX)).next_back();
        last.is_some_and(|(key, _)| *key == (slot.life, slot.number))
            && self.threads.get(&slot.tid) == Some(&slot.life)
    }

    fn slot(&mut self, tid: u32, number: u32) -> (UserStackKey, Vec<Complete<W, S>>) {
        let life = *self.threads.entry(tid).or_insert_with(|| {
            self.last_life += 1;
            self.last_life
        });
        let complete = self.give_up(life, number);
        self.lives.entry((life, number)).or_insert_with(|| Open {
            told: false,
            side: None,
            used: false,
            waiting: Vec::new(),
        });
        (UserStackKey { tid, life, number }, complete)
    }

    /// Numbers rise: what waits for one below, and was not told, waits in vain.
    fn give_up(&mut self, life: u64, below: u32) -> Vec<Complete<W, S>> {
        let past = self.lives.range((life, 0)..(life, below));
        let past: Vec<_> = past
            .filter(|(_, open)| !open.told || open.side.is_some())
            .map(|(key, _)| *key)
            .collect();
        let mut complete = Vec::new();
        for key in past {
            for (ticks, what) in self
                .lives
                .remove(&key)
                .into_iter()
                .flat_map(|open| open.waiting)
            {
                self.joined.missing += ticks;
                complete.push((what, None));
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Words = Join<&'static str, &'static str>;

    fn told(join: &mut Words, tid: u32, number: u32, side: &'static str) -> String {
        let (slot, mut complete) = join.announced(tid, number);
        complete.extend(join.resolved(slot, Arc::new(side)));
        shown(complete)
    }

    fn shown(complete: Vec<Complete<&'static str, &'static str>>) -> String {
        let each = complete
            .into_iter()
            .map(|(what, side)| format!("{what}:{}", side.as_deref().unwrap_or(&"?")));
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_wait_for_the_entry_that_ends_their_stay() {
        let mut join = Words::default();
        assert_eq!(shown(join.recorded(7, 1, 2, "a")), "");
        assert_eq!(shown(join.recorded(7, 1, 3, "b")), "");
        assert_eq!(join.joined().missing, 5);
        assert_eq!(told(&mut join, 7, 1, "main"), "a:main b:main");
        assert_eq!(shown(join.recorded(7, 2, 1, "c")), "");
        assert_eq!(shown(join.ended(7)), "c:?");
        let expected = JoinCounts {
            user_stacks: 1,
            ticks: 5,
            missing: 1,
            ..JoinCounts::default()
        };
        assert_eq!(join.joined(), expected);
    }

    #[test]
    fn a_place_is_told_once_and_used_again() {
        let mut join = Words::default();
        assert_eq!(told(&mut join, 7, 1, "poll"), "");
        for _ in 0..4 {
            assert_eq!(shown(join.recorded(7, 1, 2, "a")), "a:poll");
        }
        let expected = JoinCounts {
            user_stacks: 1,
            ticks: 8,
            reused: 6,
            ..JoinCounts::default()
        };
        assert_eq!(join.joined(), expected);
    }

    #[test]
    fn a_lost_entry_leaves_its_ticks_open_and_takes_no_others() {
        let mut join = Words::default();
        join.recorded(7, 1, 2, "a");
        assert_eq!(shown(join.recorded(7, 2, 3, "b")), "a:?");
        assert_eq!(told(&mut join, 7, 2, "main"), "b:main");
        assert_eq!(shown(join.recorded(8, 0, 4, "c")), "c:?");
        let joined = join.joined();
        assert_eq!(
            (joined.missing, joined.ticks, joined.not_expected),
            (2, 3, 4)
        );
    }

    #[test]
    fn a_stack_may_be_walked_long_after_its_thread_is_gone() {
        let mut join = Words::default();
        join.recorded(7, 1, 1, "a");
        let (first, _) = join.announced(7, 1);
        join.recorded(7, 2, 1, "b");
        let (second, complete) = join.announced(7, 2);
        assert_eq!(shown(complete), "");
        assert_eq!(shown(join.ended(7)), "");
        // Another thread with its id.
        assert_eq!(shown(join.recorded(7, 1, 1, "c")), "");
        assert_eq!(shown(join.resolved(second, Arc::new("two"))), "b:two");
        assert_eq!(shown(join.resolved(first, Arc::new("one"))), "a:one");
        assert_eq!(shown(join.close()), "c:?");
        assert_eq!(join.lives.len(), 0);
    }

    proptest! {
        /// Whatever comes in whatever order, each thing comes out once.
        #[test]
        fn nothing_is_lost(
            events in proptest::collection::vec((0_u8..8, 1_u32..4, 0_u32..4, 1_u64..5), 0..200)
        ) {
            let (mut join, mut sum, mut came, mut out) = (Join::<u32, u32>::default(), 0, 0, Vec::new());
            let mut slots = Vec::new();
            for (kind, tid, number, ticks) in events {
                match kind {
                    0 => out.extend(join.ended(tid)),
                    1 | 2 if number > 0 => {
                        let (slot, complete) = join.announced(tid, number);
                        out.extend(complete);
                        slots.push(slot);
                    }
                    3 if !slots.is_empty() => {
                        let slot = slots.swap_remove(number as usize % slots.len());
                        out.extend(join.resolved(slot, Arc::new(0)));
                    }
                    _ => {
                        out.extend(join.recorded(tid, number, ticks, came));
                        came += 1;
                        sum += ticks;
                    }
                }
            }
            out.extend(join.close());
            let joined = join.joined();
            prop_assert_eq!(joined.ticks + joined.missing + joined.not_expected, sum);
            let mut numbers: Vec<_> = out.into_iter().map(|(what, _)| what).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..came).collect::<Vec<_>>());
        }
    }
}
