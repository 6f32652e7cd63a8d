//! The structures and numbers that C and Rust share, byte by byte, with the comments of the C
//! headers in `bpf/abi/c`: `build.rs` generates them from there.
//!
//! Structures that are read as they are, such as [`CpuStats`], are used by other crates. Records
//! are for the decoder of [`Record`](crate::Record) alone: a number in them may be any. Every
//! structure can be made of bytes and turned into bytes, so none has padding.

use crate::CpuCounts;

#[expect(missing_docs, reason = "the headers describe what a name does not say")]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/layout.rs"));
}

pub use generated::*;

impl CpuStats {
    /// Returns its counts alone.
    #[must_use]
    pub fn counts(&self) -> CpuCounts {
        CpuCounts {
            user: self.user,
            kernel: self.kernel,
            idle: self.idle,
            stolen: self.stolen,
            unsent: self.unsent,
            lost: self.lost,
            late: self.late,
            off_cpu_lost: self.off_cpu_lost,
            thread_records_lost: self.thread_records_lost,
            threads_untracked: self.threads_untracked,
            user_returns_lost: self.user_returns_lost,
            raced_look_ups: self.raced_look_ups,
            lock_waits_lost: self.lock_waits_lost,
            lock_waits_skipped: self.lock_waits_skipped,
            lock_waits_skipped_ns: self.lock_waits_skipped_ns,
            io_calls_lost: self.io_calls_lost,
            blocks_lost: self.blocks_lost,
            calls_unseen: self.calls_unseen,
            programs_ns: self.programs_ns,
        }
    }

    /// What an offline CPU has counted, without its clock and its grid.
    #[must_use]
    pub fn without_clock(self) -> CpuStats {
        CpuStats {
            origin_ns: 0,
            in_idle: 0,
            next_ns: 0,
            offset_ns: 0,
            offset_stale: 0,
            begun_ns: 0,
            busy: 0,
            home_ns: 0,
            steal_at: 0,
            steal_ns: 0,
            switch_steal_ns: 0,
            ignored_execution: 0,
            index_at_rotation: 0,
            last_pid: 0,
            last_tid: 0,
            settling: 0,
            in_programs: 0,
            arrived_ns: 0,
            ..self
        }
    }
}

impl CodeFile {
    /// The kernel's code for user mode, which is in no file.
    pub const VDSO: CodeFile = CodeFile {
        inode: 0,
        modified_ns: 0,
        device: 0,
        generation: 0,
    };
}
