//! The join of kernel records with user stacks, by thread and number of the return to user mode.
//!
//! All that a thread does in the kernel between two times in user mode has the same user stack. So
//! each record has the number of the next return to user mode, and the stack comes once, with that
//! number. It comes after the records if it is captured on the return. It comes before them if the
//! number stands for a call site, and is then used for all records with that number. A thread may
//! have several series of numbers, one for each [`StackSeries`].
//!
//! A record may come after records with greater numbers, if it describes something that began long
//! before. Its stack is kept for it ([`Join::keep`]).
//!
//! A stack may be announced before it is known, because it has to be unwound first and the table is
//! not ready. Records continue waiting for it, also when the thread has exited.
//!
//! Records whose return to user mode never comes, because the thread exits or recording stops, are
//! returned without a user stack, and counted.

use std::sync::Arc;

use experiment_format::ids::Tid;
use experiment_format::units::Ticks;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// A series of numbered user stacks: the thread, and the number of the series.
pub type StackSeries = (Tid, u8);

/// Numbers of ticks by what became of their user stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JoinCounts {
    /// User stacks that were announced.
    pub user_stacks: u64,
    /// Ticks that have their user stack.
    pub ticks: Ticks,
    /// Of those, ticks whose stack earlier ticks had too.
    pub reused: Ticks,
    /// Ticks whose user stack is missing: the thread ended in the kernel, or was there when
    /// recording stopped, or the record of the stack was lost.
    pub missing: Ticks,
    /// Ticks that can't have a user stack: of kernel threads, of threads that were exiting, and of
    /// processes that are not followed.
    pub not_expected: Ticks,
}

/// The key of an announced user stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserStackKey {
    series: StackSeries,
    /// The number of the series that is never reused, as a thread's id may be.
    series_id: u64,
    return_number: u32,
}

/// Records `W` that wait for user stacks `S`.
#[derive(Debug)]
pub struct Join<W, S> {
    /// The series of each thread, a few.
    threads: FxHashMap<Tid, Vec<Returns<W, S>>>,
    /// Series of threads that have ended, with announced stacks that are not known yet, by id.
    ended: FxHashMap<u64, Returns<W, S>>,
    last_id: u64,
    counts: JoinCounts,
}

/// The returns to user mode of a series.
#[derive(Debug)]
struct Returns<W, S> {
    series: u8,
    id: u64,
    /// In the order of their numbers. Usually one; more if some are kept, or their announced stack
    /// is not known yet.
    pending: Vec<(u32, PendingReturn<W, S>)>,
}

/// A return to user mode, and the records that wait for its stack.
#[derive(Debug)]
struct PendingReturn<W, S> {
    /// Whether the stack was announced.
    announced: bool,
    stack: Option<Arc<S>>,
    /// Whether a record has used it.
    used: bool,
    /// Ticks and records.
    waiting: Vec<(Ticks, W)>,
    /// How many records come later, perhaps after those with greater numbers.
    kept: u32,
}

/// A complete record, with its user stack if it has one.
pub type Complete<W, S> = (W, Option<Arc<S>>);

impl<W, S> Returns<W, S> {
    fn position(&self, number: u32) -> Result<usize, usize> {
        self.pending.binary_search_by_key(&number, |(of, _)| *of)
    }

    fn get(&mut self, number: u32) -> Option<&mut PendingReturn<W, S>> {
        let position = self.position(number).ok()?;
        Some(&mut self.pending[position].1)
    }

    /// The return with a number; a new one if the number is not there yet.
    fn get_or_insert(&mut self, number: u32) -> &mut PendingReturn<W, S> {
        let position = self.position(number).unwrap_or_else(|position| {
            // There is rarely a second one, and there are as many of these as threads.
            self.pending.reserve_exact(1);
            let pending = PendingReturn {
                announced: false,
                stack: None,
                used: false,
                waiting: Vec::new(),
                kept: 0,
            };
            self.pending.insert(position, (number, pending));
            position
        });
        &mut self.pending[position].1
    }

    /// Removes those before a number, or all. Numbers rise: a stack that was not announced by now
    /// does not come any more. Returns the records that waited, and their ticks.
    fn remove_before(&mut self, number: Option<u32>) -> (Vec<Complete<W, S>>, Ticks) {
        let (mut complete, mut missing) = (Vec::new(), Ticks::ZERO);
        self.pending.retain_mut(|(of, pending)| {
            let past = number.is_none_or(|number| *of < number && pending.kept == 0);
            if !past || (pending.announced && pending.stack.is_none()) {
                return true;
            }
            for (ticks, what) in pending.waiting.drain(..) {
                missing += ticks;
                complete.push((what, None));
            }
            false
        });
        (complete, missing)
    }
}

impl<W, S> Default for Join<W, S> {
    fn default() -> Join<W, S> {
        Join {
            threads: FxHashMap::default(),
            ended: FxHashMap::default(),
            last_id: 0,
            counts: JoinCounts::default(),
        }
    }
}

impl<W, S> Join<W, S> {
    /// Adds a record of a thread, with its ticks and the number of the next return to user mode (0:
    /// no return). Returns the records that this completes.
    pub fn recorded(
        &mut self,
        series: StackSeries,
        return_number: u32,
        ticks: Ticks,
        what: W,
    ) -> Vec<Complete<W, S>> {
        if return_number == 0 {
            self.counts.not_expected += ticks;
            return vec![(what, None)];
        }
        let (returns, mut complete) = self.returns(series, return_number);
        let pending = returns.get_or_insert(return_number);
        let used = std::mem::replace(&mut pending.used, true);
        match &pending.stack {
            Some(stack) => {
                complete.push((what, Some(Arc::clone(stack))));
                self.counts.ticks += ticks;
                self.counts.reused += if used { ticks } else { Ticks::ZERO };
            }
            None => pending.waiting.push((ticks, what)),
        }
        complete
    }

    /// Keeps the user stack of a number for a record that comes later, perhaps after records with
    /// greater numbers, unless the thread ends before that. Returns the records that are complete
    /// because their own stack can't come any more.
    pub fn keep(&mut self, series: StackSeries, return_number: u32) -> Vec<Complete<W, S>> {
        let (returns, complete) = self.returns(series, return_number);
        returns.get_or_insert(return_number).kept += 1;
        complete
    }

    /// Notes that a record came for which a stack was kept.
    pub fn has_come(&mut self, series: StackSeries, return_number: u32) {
        let returns = self.known(series);
        if let Some(pending) = returns.and_then(|returns| returns.get(return_number)) {
            pending.kept = pending.kept.saturating_sub(1);
        }
    }

    /// Announces a user stack. Returns the key for [`Join::resolved`], and the records that are
    /// complete because their own stack can't come any more.
    pub fn announced(
        &mut self,
        series: StackSeries,
        return_number: u32,
    ) -> (UserStackKey, Vec<Complete<W, S>>) {
        let (returns, complete) = self.returns(series, return_number);
        returns.get_or_insert(return_number).announced = true;
        let key = UserStackKey {
            series,
            series_id: returns.id,
            return_number,
        };
        self.counts.user_stacks += 1;
        (key, complete)
    }

    /// Adds an announced user stack. Returns all records that waited for it.
    pub fn resolved(&mut self, key: UserStackKey, stack: Arc<S>) -> Vec<Complete<W, S>> {
        let UserStackKey {
            series,
            series_id,
            return_number,
        } = key;
        let of_thread = self.known(series);
        let lives = of_thread.is_some_and(|returns| returns.id == series_id);
        let returns = if lives {
            self.known(series)
        } else {
            self.ended.get_mut(&series_id)
        };
        let Some(returns) = returns else {
            return Vec::new();
        };
        let Ok(position) = returns.position(return_number) else {
            return Vec::new();
        };
        let pending = &mut returns.pending[position].1;
        pending.stack = Some(Arc::clone(&stack));
        let waiting = std::mem::take(&mut pending.waiting);
        // No more records with this number come, unless it is the last one.
        let is_last = position + 1 == returns.pending.len();
        if returns.pending[position].1.kept == 0 && !(lives && is_last) {
            returns.pending.remove(position);
        }
        if !lives && returns.pending.is_empty() {
            self.ended.remove(&series_id);
        }
        let mut complete = Vec::with_capacity(waiting.len());
        for (ticks, what) in waiting {
            self.counts.ticks += ticks;
            complete.push((what, Some(Arc::clone(&stack))));
        }
        complete
    }

    /// Returns whether a record waits for a user stack that was not announced yet.
    #[must_use]
    pub fn awaits(&self, (tid, series): StackSeries, return_number: u32) -> bool {
        let mut all = self.threads.get(&tid).into_iter().flatten();
        let returns = all.find(|returns| returns.series == series);
        let pending = returns.and_then(|returns| {
            let position = returns.position(return_number).ok()?;
            Some(&returns.pending[position].1)
        });
        pending.is_some_and(|pending| !pending.announced && !pending.waiting.is_empty())
    }

    /// Ends a thread. Returns its records that have no user stack.
    pub fn ended(&mut self, tid: Tid) -> Vec<Complete<W, S>> {
        let mut complete = Vec::new();
        for mut returns in self.threads.remove(&tid).unwrap_or_default() {
            let (without, missing) = returns.remove_before(None);
            self.counts.missing += missing;
            complete.extend(without);
            if !returns.pending.is_empty() {
                returns.pending.iter_mut().for_each(|(_, it)| it.kept = 0);
                self.ended.insert(returns.id, returns);
            }
        }
        complete
    }

    /// Returns all records that wait, without user stacks. Stacks that came are kept: a stack of a
    /// call site does not come again.
    pub fn close(&mut self) -> Vec<Complete<W, S>> {
        let mut complete = Vec::new();
        let of_threads = self.threads.values_mut().flatten();
        for returns in of_threads.chain(self.ended.values_mut()) {
            for (_, pending) in &mut returns.pending {
                for (ticks, what) in std::mem::take(&mut pending.waiting) {
                    self.counts.missing += ticks;
                    complete.push((what, None));
                }
            }
            returns.pending.retain(|(_, it)| it.stack.is_some());
        }
        self.ended.clear();
        complete
    }

    /// Sets the counts to zero, after [`Join::close`].
    pub fn on_rotation(&mut self) {
        self.counts = JoinCounts::default();
    }

    /// What became of all ticks so far; ticks that still wait count as missing.
    #[must_use]
    pub fn counts(&self) -> JoinCounts {
        let waiting = self.all().flat_map(|pending| &pending.waiting);
        JoinCounts {
            missing: self.counts.missing + waiting.map(|(ticks, _)| ticks).sum::<Ticks>(),
            ..self.counts
        }
    }

    fn all(&self) -> impl Iterator<Item = &PendingReturn<W, S>> {
        let of_threads = self.threads.values().flatten();
        let all = of_threads.chain(self.ended.values());
        all.flat_map(|returns| returns.pending.iter().map(|(_, pending)| pending))
    }

    fn known(&mut self, (tid, series): StackSeries) -> Option<&mut Returns<W, S>> {
        let mut all = self.threads.get_mut(&tid)?.iter_mut();
        all.find(|returns| returns.series == series)
    }

    /// Returns a series, and the records whose stack can't come any more, since a return to user
    /// mode with this number is known.
    fn returns(
        &mut self,
        (tid, series): StackSeries,
        number: u32,
    ) -> (&mut Returns<W, S>, Vec<Complete<W, S>>) {
        let of_thread = self.threads.entry(tid).or_default();
        let known = of_thread.iter().position(|it| it.series == series);
        let position = known.unwrap_or_else(|| {
            self.last_id += 1;
            of_thread.reserve_exact(1);
            of_thread.push(Returns {
                series,
                id: self.last_id,
                pending: Vec::new(),
            });
            of_thread.len() - 1
        });
        let returns = &mut of_thread[position];
        let (complete, missing) = returns.remove_before(Some(number));
        self.counts.missing += missing;
        (returns, complete)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Words = Join<&'static str, &'static str>;

    fn announced(
        join: &mut Words,
        series: StackSeries,
        return_number: u32,
        stack: &'static str,
    ) -> String {
        let (key, mut complete) = join.announced(series, return_number);
        complete.extend(join.resolved(key, Arc::new(stack)));
        shown(complete)
    }

    fn shown(complete: Vec<Complete<&'static str, &'static str>>) -> String {
        let each = complete
            .into_iter()
            .map(|(what, stack)| format!("{what}:{}", stack.as_deref().unwrap_or(&"?")));
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_wait_for_the_return_to_user_mode_that_follows_them() {
        let mut join = Words::default();
        assert_eq!(shown(join.recorded((Tid(7), 0), 1, Ticks(2), "a")), "");
        assert_eq!(shown(join.recorded((Tid(7), 0), 1, Ticks(3), "b")), "");
        assert_eq!(join.counts().missing, Ticks(5));
        assert_eq!(
            announced(&mut join, (Tid(7), 0), 1, "main"),
            "a:main b:main"
        );
        assert_eq!(shown(join.recorded((Tid(7), 0), 2, Ticks(1), "c")), "");
        assert_eq!(shown(join.ended(Tid(7))), "c:?");
        let expected = JoinCounts {
            user_stacks: 1,
            ticks: Ticks(5),
            missing: Ticks(1),
            ..JoinCounts::default()
        };
        assert_eq!(join.counts(), expected);
    }

    #[test]
    fn a_place_is_announced_once_and_used_again() {
        let mut join = Words::default();
        assert_eq!(announced(&mut join, (Tid(7), 0), 1, "poll"), "");
        for _ in 0..4 {
            assert_eq!(
                shown(join.recorded((Tid(7), 0), 1, Ticks(2), "a")),
                "a:poll"
            );
        }
        let expected = JoinCounts {
            user_stacks: 1,
            ticks: Ticks(8),
            reused: Ticks(6),
            ..JoinCounts::default()
        };
        assert_eq!(join.counts(), expected);
    }

    #[test]
    fn a_stack_is_awaited_until_it_is_announced() {
        let mut join = Words::default();
        let series = (Tid(7), 0);
        assert!(!join.awaits(series, 1));
        assert_eq!(shown(join.recorded(series, 1, Ticks(2), "a")), "");
        let awaited = [((Tid(8), 0), 1), ((Tid(7), 1), 1), (series, 2), (series, 1)];
        assert_eq!(
            awaited.map(|(series, number)| join.awaits(series, number)),
            [false, false, false, true]
        );
        assert_eq!(announced(&mut join, series, 1, "main"), "a:main");
        assert!(!join.awaits(series, 1));
    }

    #[test]
    fn a_user_stack_is_known_after_a_rotation() {
        let mut join = Words::default();
        assert_eq!(announced(&mut join, (Tid(7), 0), 1, "poll"), "");
        assert_eq!(shown(join.recorded((Tid(7), 3), 1, Ticks(2), "a")), "");
        assert_eq!(shown(join.close()), "a:?");
        join.on_rotation();
        assert_eq!(join.counts(), JoinCounts::default());
        assert_eq!(
            shown(join.recorded((Tid(7), 0), 1, Ticks(2), "b")),
            "b:poll"
        );
    }

    #[test]
    fn the_places_of_a_thread_have_their_own_numbers() {
        let mut join = Words::default();
        assert_eq!(announced(&mut join, (Tid(7), 1), 1, "read"), "");
        assert_eq!(announced(&mut join, (Tid(7), 2), 5, "write"), "");
        assert_eq!(
            shown(join.recorded((Tid(7), 1), 1, Ticks::ZERO, "a")),
            "a:read"
        );
        assert_eq!(
            shown(join.recorded((Tid(7), 2), 5, Ticks::ZERO, "b")),
            "b:write"
        );
        assert_eq!(shown(join.recorded((Tid(7), 2), 6, Ticks::ZERO, "c")), "");
        assert_eq!(shown(join.ended(Tid(7))), "c:?");
    }

    #[test]
    fn a_stack_is_kept_for_a_record_that_comes_late() {
        let mut join = Words::default();
        let series = (Tid(7), 1);
        assert_eq!(announced(&mut join, series, 1, "read"), "");
        assert_eq!(shown(join.keep(series, 1)), "");
        assert_eq!(announced(&mut join, series, 2, "write"), "");
        assert_eq!(shown(join.recorded(series, 2, Ticks(1), "b")), "b:write");
        assert_eq!(shown(join.recorded(series, 1, Ticks(1), "a")), "a:read");
        join.has_come(series, 1);
        assert_eq!(shown(join.recorded(series, 2, Ticks(1), "c")), "c:write");
        assert_eq!(join.all().count(), 1);
        // What is kept goes with the thread.
        assert_eq!(shown(join.keep(series, 2)), "");
        assert_eq!(shown(join.ended(Tid(7))), "");
        join.has_come(series, 2);
        assert_eq!(join.all().count(), 0);
    }

    #[test]
    fn a_kept_stack_may_be_unwound_late() {
        let mut join = Words::default();
        let series = (Tid(7), 1);
        let (first, _) = join.announced(series, 1);
        assert_eq!(shown(join.keep(series, 1)), "");
        assert_eq!(announced(&mut join, series, 2, "write"), "");
        assert_eq!(shown(join.resolved(first, Arc::new("read"))), "");
        assert_eq!(shown(join.recorded(series, 1, Ticks(1), "a")), "a:read");
    }

    #[test]
    fn a_lost_stack_leaves_its_ticks_without_one_and_takes_no_others() {
        let mut join = Words::default();
        join.recorded((Tid(7), 0), 1, Ticks(2), "a");
        assert_eq!(shown(join.recorded((Tid(7), 0), 2, Ticks(3), "b")), "a:?");
        assert_eq!(announced(&mut join, (Tid(7), 0), 2, "main"), "b:main");
        assert_eq!(shown(join.recorded((Tid(8), 0), 0, Ticks(4), "c")), "c:?");
        let counts = join.counts();
        assert_eq!(
            (counts.missing, counts.ticks, counts.not_expected),
            (Ticks(2), Ticks(3), Ticks(4))
        );
    }

    #[test]
    fn a_stack_may_be_unwound_long_after_its_thread_has_exited() {
        let mut join = Words::default();
        join.recorded((Tid(7), 0), 1, Ticks(1), "a");
        let (first, _) = join.announced((Tid(7), 0), 1);
        join.recorded((Tid(7), 0), 2, Ticks(1), "b");
        let (second, complete) = join.announced((Tid(7), 0), 2);
        assert_eq!(shown(complete), "");
        assert_eq!(shown(join.ended(Tid(7))), "");
        // Another thread with its id.
        assert_eq!(shown(join.recorded((Tid(7), 0), 1, Ticks(1), "c")), "");
        assert_eq!(shown(join.resolved(second, Arc::new("two"))), "b:two");
        assert_eq!(shown(join.resolved(first, Arc::new("one"))), "a:one");
        assert_eq!(shown(join.close()), "c:?");
        assert_eq!(join.all().count(), 0);
    }

    proptest! {
        /// Whatever comes in whatever order, each thing comes out once.
        #[test]
        fn everything_is_returned_once(
            events in proptest::collection::vec((0_u8..11, 1_u32..4, 0_u32..4, 1_u64..5), 0..200)
        ) {
            let (mut join, mut sum, mut came, mut out) = (Join::<u32, u32>::default(), 0, 0, Vec::new());
            let mut slots = Vec::new();
            for (kind, tid, return_number, ticks) in events {
                match kind {
                    0 => out.extend(join.ended(Tid(tid))),
                    1 | 2 | 8 if return_number > 0 => {
                        let (key, complete) = join.announced((Tid(tid), kind / 7), return_number);
                        out.extend(complete);
                        slots.push(key);
                    }
                    9 if return_number > 0 => out.extend(join.keep((Tid(tid), 0), return_number)),
                    10 => join.has_come((Tid(tid), 0), return_number),
                    3 if !slots.is_empty() => {
                        let key = slots.swap_remove(return_number as usize % slots.len());
                        out.extend(join.resolved(key, Arc::new(0)));
                    }
                    _ => {
                        out.extend(join.recorded((Tid(tid), kind / 7), return_number, Ticks(ticks), came));
                        came += 1;
                        sum += ticks;
                    }
                }
            }
            out.extend(join.close());
            let counts = join.counts();
            prop_assert_eq!(counts.ticks + counts.missing + counts.not_expected, Ticks(sum));
            let mut numbers: Vec<_> = out.into_iter().map(|(what, _)| what).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..came).collect::<Vec<_>>());
        }
    }
}
