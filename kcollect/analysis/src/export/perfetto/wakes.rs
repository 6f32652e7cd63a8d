//! Which thread ended which wait, as flows between tracks.

use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use crate::export::selected::{Selected, Slice};
use crate::model::{Model, ThreadId};
use crate::wakers::{Waker, Wakers};

/// A wake-up of another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wake {
    /// When the wait ended, since the start of the recording.
    pub(super) time_ns: Nanos,
    /// The flow from the waker to the thread that it woke.
    pub(super) flow: u64,
    /// The thread that was woken.
    pub(super) woken: ThreadId,
}

/// The wake-ups of threads by threads that have a track. Flows are numbered in the order of the
/// slices of waits.
#[derive(Debug)]
pub(super) struct Wakes {
    wakers: Wakers,
    /// For each thread, whether it has a track.
    tracks: Vec<bool>,
    by_waker: FxHashMap<ThreadId, Vec<Wake>>,
    last_flow: u64,
}

impl Wakes {
    pub(super) fn of(selected: &Selected<'_>) -> Wakes {
        let model = selected.model;
        let mut wakes = Wakes {
            wakers: Wakers::new(model),
            tracks: vec![false; model.threads.len()],
            by_waker: FxHashMap::default(),
            last_flow: 0,
        };
        for of in selected.threads() {
            wakes.tracks[of.id.index()] = true;
        }
        for of in selected.threads() {
            for slice in of.slices() {
                if let Some((waker, flow)) = wakes.next_flow(model, &slice) {
                    wakes.by_waker.entry(waker).or_default().push(Wake {
                        time_ns: slice.end_ns,
                        flow,
                        woken: of.id,
                    });
                }
            }
        }
        for list in wakes.by_waker.values_mut() {
            list.sort_by_key(|wake| (wake.time_ns, wake.flow));
        }
        wakes.last_flow = 0;
        wakes
    }

    /// Returns the thread that ended a wait and the flow of that, if the thread has a track. Each
    /// slice is asked for once, in the order of the selection.
    pub(super) fn next_flow(&mut self, model: &Model, slice: &Slice) -> Option<(ThreadId, u64)> {
        if slice.row.ticks == 0 || model.cause(&slice.row).is_none() {
            return None;
        }
        match self.waker(slice)? {
            Waker::Thread(id) if self.tracks[id.index()] => {
                self.last_flow += 1;
                Some((id, self.last_flow))
            }
            Waker::Thread(_) | Waker::Other(_) => None,
        }
    }

    /// Returns what ended a wait.
    pub(super) fn waker(&self, slice: &Slice) -> Option<Waker> {
        self.wakers.of(&slice.row)
    }

    /// Returns how a thread is shown.
    pub(super) fn title(&self, model: &Model, thread: Waker) -> String {
        self.wakers.names(model, thread).numbered_title()
    }

    /// Takes the wake-ups by a thread, in the order of time.
    pub(super) fn take(&mut self, waker: ThreadId) -> Vec<Wake> {
        self.by_waker.remove(&waker).unwrap_or_default()
    }
}
