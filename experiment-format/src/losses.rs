//! Counts of what an experiment does not have or has only in part, by cause.
//!
//! Each loss is counted where it happens: in the kernel by the statistics of a CPU, in user space
//! where events are put in order and written. The counts are in `kcollect.json`, in the
//! header of every report and in the summary; zeros are counts too. [`describe`] turns them into
//! one line that says what was lost, out of how many, and whether it matters.

use serde::Serialize;

/// Counts of what is lost or impaired, by cause. A field's name is its key in `kcollect.json`.
#[derive(Debug, Default, Serialize)]
pub struct Losses {
    /// Ticks that found the ring buffer full.
    pub ring_full: u64,
    /// Ticks that came after writing had failed.
    pub not_written: u64,
    /// Ticks that the kernel counted and the experiment does not hold, for no known cause.
    pub unaccounted: i64,
    /// Ticks of off-CPU threads that found the ring buffer full.
    pub off_cpu: u64,
    /// Thread records that found the ring buffer full.
    pub thread_records: u64,
    /// Times that the kernel had no memory to track a thread.
    pub untracked_threads: u64,
    /// Side-band records that the kernel could not deliver.
    pub sideband: u64,
    /// Ticks of processes without a name.
    pub unnamed_ticks: u64,
    /// Kernel stacks cut at the kernel's depth limit.
    pub truncated_stacks: u64,
    /// Kernel stacks that were not readable.
    pub missing_stacks: u64,
    /// Ticks added for timers that fired late by one or more intervals.
    pub late_ticks: u64,
    /// Returns to user mode that were not reported: ticks without their user stack.
    pub user_returns: u64,
    /// Events that arrived after later ones had been passed on.
    pub late_events: u64,
    /// Counter overflows that were not recorded.
    pub overflows: u64,
    /// Traced waits for locks that were not recorded.
    pub lock_waits: u64,
    /// Traced system calls that were not recorded.
    pub io_calls: u64,
    /// Context switches to threads whose system calls were not recorded meanwhile.
    pub unseen_calls: u64,
    /// Allocated and freed blocks that were not recorded.
    pub blocks: u64,
    /// Intervals of processes that were not chosen yet, beyond a limit: they are in the founder.
    pub not_held: u64,
    /// Stack copies for which there was no memory until a table was ready.
    pub dropped_copies: u64,
    /// Mappings that were too many of one process, or beyond a limit of bytes.
    pub unwritten_mappings: u64,
    /// JIT functions that were beyond a limit of bytes.
    pub unwritten_functions: u64,
    /// JIT functions for which there was no memory, or that were too many.
    pub jit_functions: u64,
    /// Processes whose files of JIT functions were not read to their end.
    pub jit_files: u64,
    /// JIT functions whose machine code was beyond a limit.
    pub jit_code: u64,
    /// Processes that exited before the last part of their JIT files was read, because too many
    /// files were open.
    pub unread_at_exit: u64,
    /// How often a thread had a name that is not in its experiment, because it had too many.
    pub thread_names: u64,
    /// Processes whose stacks had more addresses than are kept for `-A used…`.
    pub unkept_addresses: u64,
    /// Processes without a row of their own in the summary.
    pub merged_processes: u64,
    /// The totals that the counts are a share of.
    #[serde(skip)]
    pub recorded: RecordedTotals,
}

/// Totals of what was recorded. The names are the keys of `kcollect.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordedTotals {
    /// Ticks of CPUs.
    pub ticks: u64,
    /// Ticks of threads, on and off CPU.
    pub thread_ticks: u64,
    /// Packets of threads' ticks, each with one stack.
    pub thread_packets: u64,
}

/// The total that a count is a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    Ticks,
    ThreadTicks,
    Stacks,
    /// Events whose total is not known.
    Unknown,
}

/// A cause of losses.
#[derive(Debug)]
struct Cause {
    /// The key in `kcollect.json`.
    name: &'static str,
    /// Whether data is absent. Otherwise it is there, with something missing from it.
    lost: bool,
    /// The noun for what is counted, singular and plural.
    noun: [&'static str; 2],
    /// The end of the sentence that begins with the noun.
    what: &'static str,
    whole: Whole,
}

const TICK: [&str; 2] = ["tick", "ticks"];
const KERNEL_STACK: [&str; 2] = ["kernel stack", "kernel stacks"];

/// Every cause, in the order in which they are shown.
const CAUSES: [Cause; 29] = [
    Cause {
        name: "ring_full",
        lost: true,
        noun: TICK,
        what: "found the ring buffer full",
        whole: Whole::Ticks,
    },
    Cause {
        name: "not_written",
        lost: true,
        noun: TICK,
        what: "came after writing had failed",
        whole: Whole::Ticks,
    },
    Cause {
        name: "unaccounted",
        lost: true,
        noun: TICK,
        what: "missing for no known cause",
        whole: Whole::Ticks,
    },
    Cause {
        name: "off_cpu",
        lost: true,
        noun: TICK,
        what: "of off-CPU threads found the ring buffer full",
        whole: Whole::ThreadTicks,
    },
    Cause {
        name: "thread_records",
        lost: true,
        noun: ["thread record", "thread records"],
        what: "dropped, so exact times of threads are incomplete",
        whole: Whole::Unknown,
    },
    Cause {
        name: "untracked_threads",
        lost: true,
        noun: ["time", "times"],
        what: "the kernel had no memory to track a thread, so its times begin later",
        whole: Whole::Unknown,
    },
    Cause {
        name: "sideband",
        lost: true,
        noun: ["side-band record", "side-band records"],
        what: "dropped by the kernel, so names and mappings may be missing",
        whole: Whole::Unknown,
    },
    Cause {
        name: "overflows",
        lost: true,
        noun: ["counter overflow", "counter overflows"],
        what: "not recorded",
        whole: Whole::Unknown,
    },
    Cause {
        name: "lock_waits",
        lost: true,
        noun: ["wait for a lock", "waits for locks"],
        what: "not recorded, because there were too many",
        whole: Whole::Unknown,
    },
    Cause {
        name: "io_calls",
        lost: true,
        noun: ["traced system call", "traced system calls"],
        what: "not recorded, because the ring buffer was full",
        whole: Whole::Unknown,
    },
    Cause {
        name: "unseen_calls",
        lost: true,
        noun: ["time", "times"],
        what: "the kernel left calls of a thread untraced, because others were preempted while theirs were traced",
        whole: Whole::Unknown,
    },
    Cause {
        name: "blocks",
        lost: true,
        noun: [
            "change of an allocated block",
            "changes of allocated blocks",
        ],
        what: "not recorded, because the ring buffer or the table of blocks was full",
        whole: Whole::Unknown,
    },
    Cause {
        name: "unnamed_ticks",
        lost: false,
        noun: TICK,
        what: "of processes without a name",
        whole: Whole::Ticks,
    },
    Cause {
        name: "truncated_stacks",
        lost: false,
        noun: KERNEL_STACK,
        what: "cut at the kernel's depth limit",
        whole: Whole::Stacks,
    },
    Cause {
        name: "missing_stacks",
        lost: false,
        noun: KERNEL_STACK,
        what: "not readable",
        whole: Whole::Stacks,
    },
    Cause {
        name: "late_ticks",
        lost: false,
        noun: TICK,
        what: "added for timers that fired late",
        whole: Whole::Ticks,
    },
    Cause {
        name: "user_returns",
        lost: false,
        noun: ["return to user mode", "returns to user mode"],
        what: "not reported, so their ticks have no user stack",
        whole: Whole::ThreadTicks,
    },
    Cause {
        name: "late_events",
        lost: false,
        noun: ["event", "events"],
        what: "arrived too late to be put in order",
        whole: Whole::Unknown,
    },
    Cause {
        name: "not_held",
        lost: false,
        noun: ["interval", "intervals"],
        what: "of processes that were not chosen yet were too many: they are in the founder, without user stacks",
        whole: Whole::Unknown,
    },
    Cause {
        name: "dropped_copies",
        lost: false,
        noun: ["stack copy", "stack copies"],
        what: "dropped for want of memory, so user stacks are cut",
        whole: Whole::Unknown,
    },
    Cause {
        name: "unwritten_mappings",
        lost: false,
        noun: ["mapping", "mappings"],
        what: "beyond the limit of one process (65536, 128 MB) or -L, so code there has no names",
        whole: Whole::Unknown,
    },
    Cause {
        name: "unwritten_functions",
        lost: false,
        noun: ["JIT function", "JIT functions"],
        what: "beyond the limit of one process (128 MB) or -L, so they have no names",
        whole: Whole::Unknown,
    },
    Cause {
        name: "jit_functions",
        lost: false,
        noun: ["JIT function", "JIT functions"],
        what: "beyond the limits of number and memory (1000000 and 128 MB of one process, 256 MB of all), so they have no names",
        whole: Whole::Unknown,
    },
    Cause {
        name: "jit_files",
        lost: false,
        noun: ["process", "processes"],
        what: "whose map of JIT functions was too long to be read to its end, so functions have no names",
        whole: Whole::Unknown,
    },
    Cause {
        name: "jit_code",
        lost: false,
        noun: ["JIT function", "JIT functions"],
        what: "whose machine code was beyond a limit (32 MB of one process, 256 MB of all, -L), so it is not shown",
        whole: Whole::Unknown,
    },
    Cause {
        name: "unread_at_exit",
        lost: false,
        noun: ["process", "processes"],
        what: "exited before the last names of its JIT functions were read, because too many files were open: raise the limit (ulimit -n)",
        whole: Whole::Unknown,
    },
    Cause {
        name: "thread_names",
        lost: false,
        noun: ["tick or event", "ticks and events"],
        what: "of threads that changed their name too often, and are shown under an earlier one",
        whole: Whole::Unknown,
    },
    Cause {
        name: "unkept_addresses",
        lost: false,
        noun: ["process", "processes"],
        what: "in more code than is kept for -A used: all that it maps is archived, and sources may be missing",
        whole: Whole::Unknown,
    },
    Cause {
        name: "merged_processes",
        lost: false,
        noun: ["process", "processes"],
        what: "too many for a row each: they are one row of the summary; reports have all",
        whole: Whole::Unknown,
    },
];

/// Losses below this share of what was recorded do not affect reports noticeably. The text says it
/// too.
const NEGLIGIBLE_SHARE: f64 = 0.01;

impl Cause {
    fn of(name: &str) -> Option<&'static Cause> {
        CAUSES.iter().find(|cause| cause.name == name)
    }

    /// The total that a count belongs to: what was recorded, and for losses also what was not.
    fn total(&self, count: i64, recorded: &RecordedTotals) -> Option<u64> {
        let recorded = match self.whole {
            Whole::Ticks => recorded.ticks,
            Whole::ThreadTicks => recorded.thread_ticks,
            Whole::Stacks => recorded.thread_packets,
            Whole::Unknown => return None,
        };
        let lost = if self.lost { count.unsigned_abs() } else { 0 };
        // Without the total, as from another version, the count stands alone.
        (recorded > 0).then(|| recorded.saturating_add(lost))
    }

    fn share(&self, count: i64, recorded: &RecordedTotals) -> Option<f64> {
        let total = self.total(count, recorded)?;
        Some(count as f64 / total as f64)
    }

    /// Returns `12 ticks (0.05 % of 24132) found the ring buffer full`.
    fn phrase(&self, count: i64, recorded: &RecordedTotals) -> String {
        let noun = self.noun[usize::from(count != 1)];
        let total = self.total(count, recorded);
        let share = total.map(|total| {
            let percent = 100.0 * count as f64 / total as f64;
            format!(" ({percent:.2} % of {total})")
        });
        format!("{count} {noun}{} {}", share.unwrap_or_default(), self.what)
    }
}

/// Returns what a count of this name means, such as `12 ticks (0.05 % of 24132) found the ring
/// buffer full`. A name from another version stands for itself.
#[must_use]
pub fn phrase(name: &str, count: i64, recorded: &RecordedTotals) -> String {
    match Cause::of(name) {
        Some(cause) => cause.phrase(count, recorded),
        None => format!("{count} {}", name.replace('_', " ")),
    }
}

/// Returns one line about counts by name: what is lost, what is impaired, out of how many, and
/// whether it matters.
#[must_use]
pub fn describe<'a>(
    counts: impl IntoIterator<Item = (&'a str, i64)>,
    recorded: &RecordedTotals,
) -> String {
    let (mut lost, mut impaired, mut zeros) = (Vec::new(), Vec::new(), 0_usize);
    let mut worst: f64 = 0.0;
    // How much reports differ by other causes is not known.
    let mut all_known = true;
    for (name, count) in counts {
        if count == 0 {
            zeros += 1;
            continue;
        }
        let cause = Cause::of(name);
        let list = match cause {
            Some(Cause { lost: false, .. }) => &mut impaired,
            _ => &mut lost,
        };
        list.push(phrase(name, count, recorded));
        let share = cause.and_then(|cause| cause.share(count, recorded));
        worst = worst.max(share.unwrap_or(0.0));
        all_known &= share.is_some();
    }
    let none_of = match zeros {
        1 => "none by 1 other cause".to_owned(),
        _ => format!("none by {zeros} other causes"),
    };
    if lost.is_empty() && impaired.is_empty() {
        return format!("lost: nothing; impaired: nothing ({zeros} causes)");
    }
    let part = |title: &str, list: &[String]| match list {
        [] => format!("{title}: nothing"),
        list => format!("{title}: {}", list.join(", ")),
    };
    let mut parts = vec![part("lost", &lost), part("impaired", &impaired)];
    if zeros > 0 {
        parts.push(none_of);
    }
    if worst >= NEGLIGIBLE_SHARE {
        let percent = 100.0 * worst;
        parts.push(format!(
            "shares in reports can be off by up to {percent:.1} %"
        ));
    } else if all_known {
        parts.push("below 1 %: reports are not affected".to_owned());
    }
    parts.join("; ")
}

impl Losses {
    /// The counts by name, in the order of [`describe`].
    #[must_use]
    pub fn counts(&self) -> [(&'static str, i64); CAUSES.len()] {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        [
            ("ring_full", count(self.ring_full)),
            ("not_written", count(self.not_written)),
            ("unaccounted", self.unaccounted),
            ("off_cpu", count(self.off_cpu)),
            ("thread_records", count(self.thread_records)),
            ("untracked_threads", count(self.untracked_threads)),
            ("sideband", count(self.sideband)),
            ("overflows", count(self.overflows)),
            ("lock_waits", count(self.lock_waits)),
            ("io_calls", count(self.io_calls)),
            ("unseen_calls", count(self.unseen_calls)),
            ("blocks", count(self.blocks)),
            ("unnamed_ticks", count(self.unnamed_ticks)),
            ("truncated_stacks", count(self.truncated_stacks)),
            ("missing_stacks", count(self.missing_stacks)),
            ("late_ticks", count(self.late_ticks)),
            ("user_returns", count(self.user_returns)),
            ("late_events", count(self.late_events)),
            ("not_held", count(self.not_held)),
            ("dropped_copies", count(self.dropped_copies)),
            ("unwritten_mappings", count(self.unwritten_mappings)),
            ("unwritten_functions", count(self.unwritten_functions)),
            ("jit_functions", count(self.jit_functions)),
            ("jit_files", count(self.jit_files)),
            ("jit_code", count(self.jit_code)),
            ("unread_at_exit", count(self.unread_at_exit)),
            ("thread_names", count(self.thread_names)),
            ("unkept_addresses", count(self.unkept_addresses)),
            ("merged_processes", count(self.merged_processes)),
        ]
    }

    /// Whether every tick is in the experiment, with its process named. A stack may still be cut.
    #[must_use]
    pub fn none(&self) -> bool {
        self.ring_full == 0
            && self.not_written == 0
            && self.unaccounted == 0
            && self.off_cpu == 0
            && self.thread_records == 0
            && self.untracked_threads == 0
            && self.sideband == 0
            && self.unnamed_ticks == 0
            && self.overflows == 0
            && self.lock_waits == 0
            && self.io_calls == 0
            && self.unseen_calls == 0
            && self.blocks == 0
    }

    /// All counts on one line: see [`describe`].
    #[must_use]
    pub fn line(&self) -> String {
        describe(self.counts(), &self.recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_says_what_it_counts() {
        let losses = serde_json::to_value(Losses::default()).unwrap();
        let counts = Losses::default().counts();
        let mut names: Vec<_> = counts.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, CAUSES.each_ref().map(|cause| cause.name));
        names.sort_unstable();
        let mut keys: Vec<_> = losses.as_object().unwrap().keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, names);
    }

    #[test]
    fn the_line_says_out_of_how_many_and_whether_it_matters() {
        let recorded = RecordedTotals {
            ticks: 9_988,
            thread_ticks: 24_120,
            thread_packets: 20_000,
        };
        let none = Losses::default();
        assert!(none.none());
        assert_eq!(none.line(), "lost: nothing; impaired: nothing (29 causes)");
        let mut losses = Losses {
            ring_full: 12,
            missing_stacks: 1,
            recorded,
            ..Losses::default()
        };
        assert!(!losses.none());
        assert_eq!(
            losses.line(),
            "lost: 12 ticks (0.12 % of 10000) found the ring buffer full; \
             impaired: 1 kernel stack (0.01 % of 20000) not readable; \
             none by 27 other causes; below 1 %: reports are not affected"
        );
        losses.missing_stacks = 1640;
        losses.sideband = 1;
        assert_eq!(
            losses.line(),
            "lost: 12 ticks (0.12 % of 10000) found the ring buffer full, \
             1 side-band record dropped by the kernel, so names and mappings may be missing; \
             impaired: 1640 kernel stacks (8.20 % of 20000) not readable; \
             none by 26 other causes; shares in reports can be off by up to 8.2 %"
        );
        // Of another version: a new name, and no totals.
        assert_eq!(
            describe([("new_cause", 3)], &RecordedTotals::default()),
            "lost: 3 new cause; impaired: nothing"
        );
    }
}
