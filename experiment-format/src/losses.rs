//! What is missing from an experiment or impaired in it, by cause.
//!
//! Each count is taken where the loss happens: in the kernel by the books of a CPU, here where
//! events are put in order and written. They are in the summary, in the header of every report, and
//! in `kcollect.json`. Zeros are facts too.

use serde::Serialize;

/// What is missing or impaired. Zeros are facts too.
#[derive(Debug, Default, Serialize)]
pub struct Losses {
    /// Ticks that found the ring full.
    pub ring_full: u64,
    /// Ticks that came after writing had failed.
    pub not_written: u64,
    /// Ticks that the books know and the experiment does not, for no known cause.
    pub unaccounted: i64,
    /// Ticks of threads away from a CPU that found the ring full.
    pub absences: u64,
    /// Accounts of threads, or changes of thread in them, that are lost.
    pub threads: u64,
    /// Side-band records that the kernel could not deliver.
    pub sideband: u64,
    /// Ticks of processes without a name.
    pub unnamed: u64,
    /// Stacks cut at the kernel's depth limit.
    pub truncated_stacks: u64,
    /// Stacks that the kernel could not give.
    pub missing_stacks: u64,
    /// Ticks made up for firings that came late by intervals.
    pub made_up: u64,
    /// Entries of threads to user mode that could not be told: ticks without their user side.
    pub entries: u64,
    /// Births of processes whose parent waits for their exec that could not be told: of
    /// descendants, `_f1_x1` in place of `_c1`.
    pub births: u64,
    /// Events that came after their time had been passed on.
    pub late_events: u64,
    /// Events of counters in overflows that were not recorded.
    pub overflows: u64,
}

/// What a count of [`Losses`] counts, by its name in `kcollect.json`; a name that is not known
/// stands for itself, since the experiment may be of another version.
#[must_use]
pub fn counted(name: &str) -> &str {
    match name {
        "ring_full" => "ticks that found the ring full",
        "not_written" => "ticks that came after writing had failed",
        "unaccounted" => "ticks missing for no known cause",
        "absences" => "ticks of threads away from a CPU that found the ring full",
        "threads" => "accounts of threads, or changes in them",
        "sideband" => "records of names and mappings that the kernel could not deliver",
        "unnamed" => "ticks of processes without a name",
        "truncated_stacks" => "stacks cut at the kernel's depth limit",
        "missing_stacks" => "stacks that the kernel could not give",
        "made_up" => "ticks made up for firings that came late",
        "entries" => "ticks without their user side",
        "births" => "forks whose kind could not be told",
        "overflows" => "events of counters in overflows that were not recorded",
        "late_events" => "events that came too late",
        other => other,
    }
}

impl Losses {
    /// Is every tick in the experiment, with its process named? A stack may still be cut.
    #[must_use]
    pub fn none(&self) -> bool {
        self.ring_full == 0
            && self.not_written == 0
            && self.unaccounted == 0
            && self.absences == 0
            && self.threads == 0
            && self.sideband == 0
            && self.unnamed == 0
            && self.overflows == 0
    }

    /// All of it on one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "lost: {} ring full, {} not written, {} unaccounted, {} of absences, {} threads, {} side-band, {} of counters; \
             impaired: {} unnamed, {} stacks cut, {} stacks missing, {} ticks made up, {} entries, {} births, {} events late",
            self.ring_full,
            self.not_written,
            self.unaccounted,
            self.absences,
            self.threads,
            self.sideband,
            self.overflows,
            self.unnamed,
            self.truncated_stacks,
            self.missing_stacks,
            self.made_up,
            self.entries,
            self.births,
            self.late_events,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_says_what_it_counts() {
        let losses = serde_json::to_value(Losses::default()).unwrap();
        for name in losses.as_object().unwrap().keys() {
            assert_ne!(counted(name), name);
        }
    }
}
