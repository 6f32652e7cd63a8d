//! What kernels are known not to have, and why kcollect works all the same.

/// 6.12 is (6, 12).
pub(crate) type Version = (u32, u32);

/// The kernels that do not have something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Before(Version),
    From(Version),
    /// Only those from one version on, and before another, have it.
    Outside(Version, Version),
    /// Those for a processor by Debian's name, or `rt`.
    On(&'static str),
    Always,
    /// None of those in `btf/`, but kernels with other settings.
    Never,
}

/// Why an instruction with a relocation that does not resolve is never reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard {
    /// `bpf_core_field_exists` of the field itself.
    Itself,
    /// `bpf_core_field_exists` of another field.
    OnlyIf(&'static str),
    /// Likewise, in the functions of which this one is a callback.
    CalledOnlyIf(&'static str),
    /// Likewise, for a program that `src/load.rs` leaves out where the field is missing.
    LoadedOnlyIf(&'static str),
    /// It is reached only where a kernel has none of some other fields.
    Unless(&'static [&'static str]),
}

/// Where a program asks whether a field exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Here,
    Anywhere,
}

impl Guard {
    /// Returns whether it keeps a field from being read on a kernel. `asked` is what
    /// `bpf_core_field_exists` says there: in the function that has the instruction, or in any.
    pub(crate) fn holds(self, field: &str, asked: impl Fn(&str, Where) -> Option<bool>) -> bool {
        match self {
            Guard::Itself => asked(field, Where::Here) == Some(false),
            Guard::OnlyIf(other) => asked(other, Where::Here) == Some(false),
            Guard::CalledOnlyIf(other) | Guard::LoadedOnlyIf(other) => {
                asked(other, Where::Anywhere) == Some(false)
            }
            Guard::Unless(others) => others
                .iter()
                .any(|other| asked(other, Where::Here) == Some(true)),
        }
    }
}

/// Fields that some kernels do not have.
pub(crate) struct Fallback {
    /// As the object declares them: `cfs_rq___group_throttling.throttle_count`.
    pub(crate) fields: &'static [&'static str],
    pub(crate) missing: When,
    pub(crate) guard: Guard,
    pub(crate) reason: &'static str,
}

pub(crate) const FALLBACKS: &[Fallback] = &[
    Fallback {
        fields: &["inode.i_mtime_sec"],
        missing: When::Before((6, 11)),
        guard: Guard::Itself,
        reason: "Linux 6.10 and older: times of files are in a struct timespec64",
    },
    Fallback {
        fields: &["inode.i_mtime_nsec"],
        missing: When::Before((6, 11)),
        guard: Guard::OnlyIf("inode.i_mtime_sec"),
        reason: "Linux 6.10 and older: times of files are in a struct timespec64",
    },
    Fallback {
        fields: &["inode___private_time.__i_mtime"],
        missing: When::Outside((6, 7), (6, 11)),
        guard: Guard::Itself,
        reason: "Linux 6.7 to 6.10 call it so",
    },
    Fallback {
        fields: &[
            "inode___private_time.__i_mtime.tv_sec",
            "inode___private_time.__i_mtime.tv_nsec",
        ],
        missing: When::Outside((6, 7), (6, 11)),
        guard: Guard::OnlyIf("inode___private_time.__i_mtime"),
        reason: "Linux 6.7 to 6.10 call it so",
    },
    Fallback {
        fields: &[
            "inode___public_time.i_mtime.tv_sec",
            "inode___public_time.i_mtime.tv_nsec",
        ],
        missing: When::From((6, 7)),
        guard: Guard::Unless(&["inode.i_mtime_sec", "inode___private_time.__i_mtime"]),
        reason: "Linux 6.6 and older call it so",
    },
    Fallback {
        fields: &["mm_struct.mm_lock_seq.sequence"],
        missing: When::Before((6, 12)),
        guard: Guard::Itself,
        reason: "Linux 6.11 and older: a plain number, or none before 6.4",
    },
    Fallback {
        fields: &["mm_struct___plain_sequence.mm_lock_seq"],
        missing: When::Outside((6, 4), (6, 12)),
        guard: Guard::Itself,
        reason: "Linux 6.4 to 6.11 have a plain number",
    },
    Fallback {
        fields: &["vm_area_struct.vm_lock_seq"],
        missing: When::Before((6, 4)),
        guard: Guard::Itself,
        reason: "without it, mappings that change while they are looked up are not noticed",
    },
    Fallback {
        fields: &["mm_struct.mmap_lock.count"],
        missing: When::On("rt"),
        guard: Guard::Itself,
        reason: "PREEMPT_RT has another lock: its writers are not noticed by it",
    },
    Fallback {
        fields: &["task_struct.se.sched_delayed"],
        missing: When::Before((6, 12)),
        guard: Guard::Itself,
        reason: "Linux 6.11 and older: a thread that blocks is off the run queue at once",
    },
    Fallback {
        fields: &["task_struct___thread_throttling.throttled"],
        missing: When::Before((6, 18)),
        guard: Guard::Itself,
        reason: "Linux 6.17 and older: the whole run queue of a group is throttled",
    },
    Fallback {
        fields: &["rq___proxy_execution.donor"],
        missing: When::Before((6, 12)),
        guard: Guard::Itself,
        reason: "Linux 6.11 and older: no thread runs by the time of another",
    },
    Fallback {
        fields: &["task_struct___blocked_on.blocked_on"],
        missing: When::Before((6, 17)),
        guard: Guard::Itself,
        reason: "Linux 6.16 and older: no thread that waits for a mutex is in the run queue",
    },
    Fallback {
        fields: &["task_struct___is_blocked.is_blocked"],
        missing: When::Before((7, 2)),
        guard: Guard::Itself,
        reason: "Linux 7.1 and older: the mutex itself tells",
    },
    Fallback {
        fields: &["rq.clock"],
        missing: When::Never,
        guard: Guard::LoadedOnlyIf("rq.clock"),
        reason: "without run queues, the scheduler's clock is known at each arrival of a thread",
    },
    Fallback {
        fields: &["sched_entity.cfs_rq", "cfs_rq.rq"],
        missing: When::Never,
        guard: Guard::Itself,
        reason: "without run queues, the scheduler's clock is known at each arrival of a thread",
    },
    Fallback {
        fields: &[
            "task_struct.sched_info.last_arrival",
            "task_struct.sched_info.last_queued",
            "task_struct.sched_info.run_delay",
        ],
        missing: When::Never,
        guard: Guard::Itself,
        reason: "built without CONFIG_SCHED_INFO: the programs add up waits for a CPU",
    },
    Fallback {
        fields: &["task_struct.se.cfs_rq"],
        missing: When::Never,
        guard: Guard::OnlyIf("sched_entity.cfs_rq"),
        reason: "without run queues, the scheduler's clock is known at each arrival of a thread",
    },
    Fallback {
        fields: &["rq.clock_update_flags"],
        missing: When::Never,
        guard: Guard::Itself,
        reason: "without it, a wake-up that preempts has the time of the context switch",
    },
    Fallback {
        fields: &["rq.prev_steal_time_rq"],
        missing: When::Always,
        guard: Guard::Itself,
        reason: "built without CONFIG_PARAVIRT_TIME_ACCOUNTING: stolen time counts as used",
    },
    Fallback {
        fields: &["io_file_table___array.files"],
        missing: When::From((6, 13)),
        guard: Guard::Itself,
        reason: "Linux 6.13 and newer: registered files are nodes",
    },
    Fallback {
        fields: &["io_ring_ctx___file_count.nr_user_files"],
        missing: When::From((6, 13)),
        guard: Guard::OnlyIf("io_file_table___array.files"),
        reason: "Linux 6.13 and newer: registered files are nodes",
    },
    Fallback {
        fields: &[
            "io_ring_ctx.file_table.data.nodes",
            "io_ring_ctx.file_table.data.nr",
            "io_rsrc_node.file_ptr",
        ],
        missing: When::Before((6, 13)),
        guard: Guard::Unless(&["io_file_table___array.files"]),
        reason: "Linux 6.12 and older: registered files are an array",
    },
    Fallback {
        fields: &["perf_event.hw.hrtimer.node.expires"],
        missing: When::Never,
        guard: Guard::OnlyIf("hrtimer.node.expires"),
        reason: "the clock's due time is unknown: boundaries stay where they are",
    },
    Fallback {
        fields: &[
            "return_instance.next",
            "return_instance.orig_ret_vaddr",
            "return_instance.stack",
        ],
        missing: When::Never,
        guard: Guard::CalledOnlyIf("task_struct.utask"),
        reason: "built without CONFIG_UPROBES: no return is probed",
    },
    Fallback {
        fields: &["uprobe_task.return_instances"],
        missing: When::Never,
        guard: Guard::OnlyIf("task_struct.utask"),
        reason: "built without CONFIG_UPROBES: no return is probed",
    },
    Fallback {
        fields: &["xol_area.vaddr"],
        missing: When::Never,
        guard: Guard::OnlyIf("mm_struct.uprobes_state.xol_area"),
        reason: "built without CONFIG_UPROBES: no return is probed",
    },
    Fallback {
        fields: &[
            "cgroup.kn",
            "cgroup.level",
            "cgroup.root",
            "cgroup_root.hierarchy_id",
            "cgroup_subsys_state.cgroup",
            "css_set.dfl_cgrp",
            "css_set.subsys",
            "kernfs_node.id",
        ],
        missing: When::Never,
        guard: Guard::OnlyIf("task_struct.cgroups"),
        reason: "built without CONFIG_CGROUPS",
    },
];

/// A field that is read at its address, as wide as the object declares it, though it is narrower or
/// wider in some kernels.
pub(crate) struct Width {
    pub(crate) field: &'static str,
    /// Its bytes in those kernels.
    pub(crate) bytes: u32,
    pub(crate) reason: &'static str,
}

pub(crate) const WIDTHS: &[Width] = &[Width {
    field: "io_kiocb.flags",
    bytes: 4,
    reason: "32 bits before Linux 6.10 or so, of which only bits that exist are tested",
}];

/// A function of the kernel, in all its prototypes.
pub(crate) struct Kfunc {
    /// The name without flavour and `_impl`.
    pub(crate) family: &'static str,
    pub(crate) since: Version,
    pub(crate) reason: &'static str,
}

pub(crate) const KFUNCS: &[Kfunc] = &[
    Kfunc {
        family: "bpf_local_irq_save",
        since: (6, 14),
        reason: "Linux 6.13 and older: no thread is preempted in a program",
    },
    Kfunc {
        family: "bpf_local_irq_restore",
        since: (6, 14),
        reason: "Linux 6.13 and older: no thread is preempted in a program",
    },
    Kfunc {
        family: "bpf_rdonly_cast",
        since: (6, 2),
        reason: "Linux 6.1: each word is read by a call",
    },
    Kfunc {
        family: "bpf_session_is_return",
        since: (6, 13),
        reason: "Linux 6.12 and older: no sessions, each return is probed",
    },
    Kfunc {
        family: "bpf_task_work_schedule_resume",
        since: (6, 18),
        reason: "Linux 6.17 and older: user stacks are captured at switch-out",
    },
];

/// A tracepoint that a program is attached to.
pub(crate) struct Tracepoint {
    /// Its names, of which a kernel has one.
    pub(crate) names: &'static [&'static str],
    /// The types of its arguments.
    pub(crate) prototypes: &'static [&'static str],
    pub(crate) missing: Option<(When, &'static str)>,
}

pub(crate) const TRACEPOINTS: &[Tracepoint] = &[
    Tracepoint {
        names: &["sched_switch"],
        prototypes: &["1 bytes, struct task_struct *, struct task_struct *, 4 bytes"],
        missing: None,
    },
    Tracepoint {
        names: &["sched_wakeup"],
        prototypes: &["struct task_struct *"],
        missing: None,
    },
    Tracepoint {
        names: &["sched_waking"],
        prototypes: &["struct task_struct *"],
        missing: None,
    },
    Tracepoint {
        names: &["sched_wakeup_new"],
        prototypes: &["struct task_struct *"],
        missing: None,
    },
    Tracepoint {
        names: &["task_rename"],
        prototypes: &["struct task_struct *, const char *"],
        missing: None,
    },
    Tracepoint {
        names: &["cpu_idle"],
        prototypes: &["4 bytes, 4 bytes"],
        missing: None,
    },
    Tracepoint {
        names: &["task_newtask"],
        prototypes: &["struct task_struct *, 8 bytes"],
        missing: None,
    },
    Tracepoint {
        names: &["page_fault_kernel"],
        prototypes: &["8 bytes, struct pt_regs *, 8 bytes"],
        missing: Some((
            When::On("arm64"),
            "only x86-64 has it: the kernel's stack tells page faults",
        )),
    },
    Tracepoint {
        names: &["sys_enter"],
        prototypes: &["struct pt_regs *, 8 bytes"],
        missing: None,
    },
    Tracepoint {
        names: &["sys_exit"],
        prototypes: &["struct pt_regs *, 8 bytes"],
        missing: None,
    },
    Tracepoint {
        names: &["io_uring_submit_req", "io_uring_submit_sqe"],
        prototypes: &["struct io_kiocb *", "struct io_kiocb *, 1 bytes"],
        missing: None,
    },
    Tracepoint {
        names: &["io_uring_complete"],
        prototypes: &[
            "void *, void *, 8 bytes, 4 bytes, 4 bytes, 8 bytes, 8 bytes",
            "struct io_ring_ctx *, void *, struct io_uring_cqe *",
        ],
        missing: None,
    },
    Tracepoint {
        names: &["io_uring_cqe_overflow"],
        prototypes: &["void *, 8 bytes, 4 bytes, 4 bytes, void *"],
        missing: None,
    },
    Tracepoint {
        names: &["io_uring_fail_link"],
        prototypes: &["struct io_kiocb *, struct io_kiocb *"],
        missing: None,
    },
];

/// What is looked up by name.
pub(crate) struct Named {
    /// Its names, of which a kernel has one.
    pub(crate) names: &'static [&'static str],
    pub(crate) missing: Option<(When, &'static str)>,
}

pub(crate) const ENUMERATORS: &[Named] = &[
    Named {
        names: &["REQ_F_REISSUE_BIT"],
        missing: None,
    },
    Named {
        names: &["REQ_F_SKIP_LINK_CQES_BIT"],
        missing: None,
    },
    Named {
        names: &["BPF_TRACE_UPROBE_SESSION"],
        missing: Some((
            When::Before((6, 13)),
            "Linux 6.12 and older: no sessions, each return is probed",
        )),
    },
];

/// In the section of variables of which each CPU has its own.
pub(crate) const PER_CPU_VARIABLES: &[Named] = &[
    Named {
        names: &["runqueues"],
        missing: None,
    },
    Named {
        names: &["__preempt_count", "pcpu_hot"],
        missing: Some((When::On("arm64"), "the count is in the thread")),
    },
    Named {
        names: &["hrtimer_bases"],
        missing: None,
    },
    Named {
        names: &["timer_bases"],
        missing: None,
    },
    Named {
        names: &["steal_time"],
        missing: Some((When::On("arm64"), "stolen time counts as used")),
    },
];
