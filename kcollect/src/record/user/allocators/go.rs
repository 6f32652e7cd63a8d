//! The memory profiles of Go programs that are traced: read once in a second, from their memory.
//!
//! The blocks that a profile has when it is first read count as allocated then. A profile does not
//! say which thread allocated; blocks are attributed to the first thread of the process. The blocks
//! of a process's last second are missing, since nothing can be read once it has exited.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bpf_abi::RecordHeader;
use bpf_abi::unwind::UnwindEnd;
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use user_collector::allocators::{
    BlockChange, GoBlocks, GoProfile, GoProfileError, GoProfileSymbols,
};
use user_collector::files::TimedOpener;
use user_collector::process::process_directory;

use crate::record::activity::{ActivityKind, ThreadActivity, ThreadEvent};
use crate::record::processes::Processes;
use crate::record::route::Router;
use crate::record::user::UserSpace;
use crate::record::user::traced_calls::header_of;
use crate::record::user_stacks::user_stack::UserStack;

/// How often a profile is read, nanoseconds; less often if reading takes long.
const READ_NS: Nanos = Nanos::from_secs(1);
/// At most one part in this many of the time is spent reading.
const READING_PART: u32 = 50;

/// The memory profiles of the Go programs that are traced.
#[derive(Debug, Default)]
pub(super) struct GoHeaps {
    heaps: HashMap<Pid, GoHeap>,
    /// Processes that executed their program while they were recorded.
    executed: HashSet<Pid>,
    opener: TimedOpener,
    /// Programs that had a profile, and have exited.
    exited: u64,
    /// Programs that keep no profile.
    without: u64,
}

#[derive(Debug)]
struct GoHeap {
    symbols: GoProfileSymbols,
    blocks: GoBlocks,
    next_ns: Nanos,
    state: GoHeapState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoHeapState {
    /// It was not read yet.
    New,
    /// It is read.
    Known,
    /// It is not there, or has another form.
    None,
}

impl GoHeaps {
    /// Adds a process, whose symbols are at these addresses of its memory.
    pub(super) fn found(&mut self, pid: Pid, symbols: GoProfileSymbols) {
        let blocks = if self.executed.contains(&pid) {
            GoBlocks::of_new_program()
        } else {
            GoBlocks::default()
        };
        self.heaps.entry(pid).or_insert_with(|| GoHeap {
            symbols,
            blocks,
            next_ns: Nanos::ZERO,
            state: GoHeapState::New,
        });
    }

    /// Records that a process executed a program.
    pub(super) fn executed(&mut self, pid: Pid) {
        self.executed.insert(pid);
    }

    /// Returns whether a process has a profile, as far as that is known.
    pub(super) fn has(&self, pid: Pid) -> bool {
        let heap = self.heaps.get(&pid);
        heap.is_some_and(|heap| heap.state != GoHeapState::None)
    }

    /// Drops a process that exited. Returns the ends of its blocks, if it executed another program.
    pub(super) fn ended(&mut self, pid: Pid, at_ns: Nanos) -> Vec<BlockChange> {
        self.executed.remove(&pid);
        let Some(heap) = self.heaps.remove(&pid) else {
            return Vec::new();
        };
        self.exited += u64::from(heap.state == GoHeapState::Known);
        self.without += u64::from(heap.state == GoHeapState::None);
        heap.blocks.ends(at_ns)
    }

    /// Begins another experiment.
    pub(super) fn on_rotation(&mut self) {
        (self.exited, self.without) = (0, 0);
    }

    /// Returns how many programs had a profile, and how many had none.
    pub(super) fn counts(&self) -> (u64, u64) {
        let are = |state| {
            let heaps = self.heaps.values();
            heaps.filter(|heap| heap.state == state).count() as u64
        };
        (
            self.exited + are(GoHeapState::Known),
            self.without + are(GoHeapState::None),
        )
    }

    /// Reads the profiles that are due, or all of them. Returns the changes.
    fn read(&mut self, now_ns: Nanos, all: bool) -> Vec<(Pid, GoChange)> {
        let mut changes = Vec::new();
        for (pid, heap) in &mut self.heaps {
            if heap.state == GoHeapState::None || (heap.next_ns > now_ns && !all) {
                continue;
            }
            let begun = Instant::now();
            let (directory, symbols) = (process_directory(Path::new("/proc"), *pid), heap.symbols);
            let path = directory.join("mem");
            let read = self.opener.run(&directory, move || {
                let memory = File::open(path).map_err(|_| GoProfileError::Unreadable)?;
                let read = |address, into: &mut [u8]| memory.read_exact_at(into, address).is_ok();
                GoProfile::read(read, symbols)
            });
            heap.next_ns = now_ns + READ_NS.max(Nanos::from(begun.elapsed() * READING_PART));
            match read {
                Ok(Ok(profile)) if profile.rate > 0 => {
                    heap.state = GoHeapState::Known;
                    let of_process = heap.blocks.apply(profile, now_ns).into_iter();
                    changes.extend(of_process.map(|change| (*pid, change)));
                }
                // It exits, or is not initialized yet.
                Ok(Err(GoProfileError::Unreadable)) => {}
                _ => heap.state = GoHeapState::None,
            }
        }
        changes
    }
}

/// A change of the blocks, with the stack that allocated.
type GoChange = (Box<[u64]>, BlockChange);

impl UserSpace {
    /// Reads the memory profiles of Go programs that are due, or all of them.
    pub fn read_go_profiles(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        (now_ns, all): (Nanos, bool),
    ) {
        for (pid, change) in self.allocators.go.read(now_ns, all) {
            let process = processes.get(pid);
            let name = process.and_then(|process| process.name.as_deref());
            let header = header_of(pid, name.unwrap_or_default(), now_ns);
            self.go_change(router, processes, header, change);
        }
    }

    fn go_change(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        header: RecordHeader,
        (stack, change): GoChange,
    ) {
        let pid = Pid(header.pid);
        if !processes.may_follow(&self.policy, pid) {
            return;
        }
        let activity = ThreadActivity {
            header,
            instance: processes.known(pid).instance,
            kernel: Arc::default(),
            truncated: false,
            kind: ActivityKind::Event(ThreadEvent::Block(change)),
        };
        let stack = UserStack {
            // Return addresses, as addresses inside the call.
            frames: stack
                .iter()
                .map(|address| address.saturating_sub(1))
                .collect(),
            end: UnwindEnd::Complete,
            via_frame_pointer: false,
            via_scan: false,
        };
        let stack = (!change.freed).then(|| Arc::new(stack));
        self.activity_with_stack(router, processes, activity, stack);
    }
}
