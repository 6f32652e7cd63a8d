/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The few kernel types that the programs use, by hand, with CO-RE.
 *
 * Not vmlinux.h: a dump is 130,000 lines of one kernel's choices, its names collide with ours, and
 * the object grows forty-fold. A type here names only the fields that are read; libbpf finds their
 * true offsets in the running kernel's BTF when it loads the program.
 */
#ifndef KCOLLECT_KERNEL_H
#define KCOLLECT_KERNEL_H

#include "integers.h"

typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

/* Numbers of the BPF system call's interface (include/uapi/linux/bpf.h), which never change. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
	BPF_NOEXIST = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

enum {
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

enum {
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_RING_SIZE = 1,
};

/* The registers as a perf_event program sees them: bpf_user_pt_regs_t, part of the stable ABI. */
#if defined(__TARGET_ARCH_x86)
struct tick_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct tick_regs {
	unsigned long regs[31], sp, pc, pstate;
};
#else
#error "kcollect runs on x86-64 and aarch64"
#endif

struct bpf_perf_event_data {
	struct tick_regs regs;
	__u64 sample_period;
	__u64 addr;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rq {
	unsigned int clock_update_flags;
	__u64 clock;
	__u64 prev_steal_time_rq;
};

/* Linux 6.12 and newer. */
struct rq___proxy_execution {
	struct task_struct *donor; /* whose time is used; the kernel may run another thread by it */
	struct task_struct *curr;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
	__u64 sum_exec_runtime;
	unsigned char sched_delayed;
};

/* Linux 6.17 and older: a whole run queue of a group is throttled. */
struct cfs_rq___group_throttling {
	unsigned int throttle_count;
};

struct sched_info {
	unsigned long long run_delay;
	unsigned long long last_arrival;
	unsigned long long last_queued;
};

struct thread_info {
	__u32 status;
};

struct task_io_accounting {
	__u64 rchar;
	__u64 wchar;
	__u64 syscr;
	__u64 syscw;
	__u64 read_bytes;
	__u64 write_bytes;
};

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct maple_tree {
	void *ma_root;
};

struct rw_semaphore {
	struct {
		__s64 counter;
	} count;
};

struct seqcount {
	__u32 sequence;
};

struct mm_struct {
	struct maple_tree mm_mt;
	struct rw_semaphore mmap_lock;
	struct seqcount mm_lock_seq; /* Linux 6.13 and newer, and Debian's 6.12 */
	unsigned long start_code;    /* of the program that runs, not of libraries */
	unsigned long end_code;
	struct {
		void *vdso;
	} context;
	struct uprobes_state uprobes_state;
};

/* Linux 6.4 to 6.12. */
struct mm_struct___plain_sequence {
	int mm_lock_seq;
};

struct super_block {
	__u32 s_dev;
};

/* Linux 6.11 and newer. */
struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
	struct super_block *i_sb;
	__u32 i_generation;
	__s64 i_mtime_sec;
	__u32 i_mtime_nsec;
};

struct timespec64 {
	__s64 tv_sec;
	long tv_nsec;
};

/* Linux 6.7 to 6.10. */
struct inode___private_time {
	struct timespec64 __i_mtime;
};

/* Linux 6.6 and older. */
struct inode___public_time {
	struct timespec64 i_mtime;
};

struct qstr {
	__u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct socket {
	struct sock *sk;
};

struct sock_common {
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	unsigned short sk_type;
	unsigned short sk_protocol;
};

struct unix_address;

struct unix_sock {
	struct unix_address *addr;
	struct sock *peer;
};

struct inet_bind_bucket {
	unsigned char fastreuse; /* the kernel has it with a sign */
};

struct inet_connection_sock {
	struct inet_bind_bucket *icsk_bind_hash;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	__u32 vm_lock_seq; /* Linux 6.4 and newer */
	unsigned long vm_pgoff;
	struct file *vm_file;
};

/* A function that was called with a return probe on it, the newest first. */
struct return_instance {
	unsigned long stack; /* where its return address is */
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
};
#endif

struct kernfs_node {
	__u64 id;
};

struct cgroup_root {
	int hierarchy_id; /* 0 is version 2 */
};

struct cgroup {
	int level; /* 0 is the root */
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1]; /* as many as the kernel has controllers */
	struct cgroup *dfl_cgrp;	       /* of version 2 */
};

typedef struct {
	unsigned int val;
} kuid_t;

struct cred {
	kuid_t euid;
};

typedef struct {
	unsigned long sig[1];
} sigset_t;

struct sigpending {
	sigset_t signal;
};

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	struct mm_struct *mm;
	struct uprobe_task *utask;
	unsigned int __state;
	unsigned int flags;
	unsigned int on_cpu; /* Linux 7.2 and newer: 8 bits */
	unsigned int on_rq;  /* likewise */
	unsigned int pid;
	unsigned int tgid;
	struct task_struct *real_parent;
	unsigned in_execve : 1;
	unsigned in_iowait : 1;
	unsigned frozen : 1;
	unsigned long jobctl;
	struct sched_entity se;
	struct sched_info sched_info;
	__u64 start_time;
	unsigned long nvcsw;
	unsigned long nivcsw;
	__u64 self_exec_id;
	unsigned long min_flt;
	unsigned long maj_flt;
	struct task_io_accounting ioac;
	const struct cred *cred;
	struct sigpending pending; /* signals of the thread alone */
	char comm[16];
	void *worker_private;
	struct css_set *cgroups;
	struct files_struct *files;
	struct thread_struct thread;
};

/* aarch64 counts in the thread what x86-64 counts in a variable of the CPU. */
struct thread_info___counting {
	struct {
		__u32 count;
	} preempt;
};

struct task_struct___counting_thread {
	struct thread_info___counting thread_info;
};

/* Linux 7.2 and newer. */
struct task_struct___is_blocked {
	unsigned char is_blocked;
};

/* Linux 6.17 and newer. */
struct task_struct___blocked_on {
	struct mutex *blocked_on;
};

/* Linux 6.18 and newer: threads of a group are throttled one by one. */
struct task_struct___thread_throttling {
	bool throttled;
};

struct timerqueue_node {
	__s64 expires;
};

struct hrtimer {
	struct timerqueue_node node;
	void *function;
};

/* The timers of one clock of a CPU. */
struct hrtimer_clock_base {
	struct hrtimer *running;
};

struct hrtimer_cpu_base {
	struct hrtimer_clock_base clock_base[1]; /* as many as the kernel has clocks */
};

struct timer_list {
	void *function;
};

struct timer_base {
	struct timer_list *running_timer;
};

struct hw_perf_event {
	struct hrtimer hrtimer;
};

struct perf_event {
	struct hw_perf_event hw;
};

/* What the kernel has in place of bpf_perf_event_data. */
struct bpf_perf_event_data_kern {
	struct perf_event *event;
};

struct pt_regs {
#if defined(__TARGET_ARCH_x86)
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax;
	unsigned long ip, cs, flags, sp, ss;
#elif defined(__TARGET_ARCH_arm64)
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
	__u64 orig_x0;
	__s32 syscallno;
#endif
};

struct io_cqe {
	__u64 user_data;
	__s32 res;
	/* Until the request completes. */
	int fd;
};

struct io_rsrc_node {
	unsigned long file_ptr;
};

struct io_rsrc_data {
	unsigned int nr;
	struct io_rsrc_node **nodes;
};

/* Linux 6.13 and newer. */
struct io_file_table {
	struct io_rsrc_data data;
};

/* Linux 6.12 and older. */
struct io_fixed_file {
	unsigned long file_ptr;
};

struct io_file_table___array {
	struct io_fixed_file *files;
};

struct io_wq_work_node {
	struct io_wq_work_node *next;
};

struct io_wq_work {
	struct io_wq_work_node list;
};

struct io_wq_work_list {
	struct io_wq_work_node *first;
};

struct io_submit_state {
	struct io_wq_work_list compl_reqs;
};

/* A ring of io_uring. */
struct io_ring_ctx {
	struct io_file_table file_table;
	struct io_submit_state submit_state;
};

/* Linux 6.12 and older. */
struct io_ring_ctx___file_count {
	unsigned int nr_user_files;
};

/* A request of io_uring. */
struct io_kiocb {
	struct file *file;
	__u8 opcode;
	__u64 flags;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
	struct io_wq_work_node comp_list;
	struct io_wq_work work;
};

/* A thread of io_uring's own. */
struct io_worker {
	struct io_wq_work *cur_work;
};

/* What the requests that open begin with, and one that closes. */
struct io_open {
	__u32 file_slot;
};

struct io_accept {
	__u32 file_slot;
};

struct io_socket {
	__u32 file_slot;
};

struct io_close {
	int fd;
	__u32 file_slot;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

/* The kernel's own type, by which a word at any address is read. */
struct maple_range_64 {
	unsigned long pivot[15];
} __attribute__((preserve_access_index));

/* A pointer to memory of the kernel that can be read through. A word that is not mapped reads as 0.
 * Linux 6.2 and newer; bpf_ksym_exists tests for it. */
extern void *bpf_rdonly_cast(const void *address, __u32 type)
	__attribute__((section(".ksyms"), weak));

/* Opaque; kernels that have it recognise it in a map's value by this name. */
struct bpf_task_work {
	__u64 opaque;
} __attribute__((aligned(8)));

/* Complete: with an incomplete type, libbpf finds that the function below differs from the
 * kernel's. */
struct bpf_map {
	__u32 id;
};

/*
 * Kernel functions whose parameters differ between versions are declared once for each list of
 * parameters: libbpf strips what follows `___`, and sets only the declaration that agrees with the
 * kernel's types. bpf_ksym_exists() tells which. Callers test the newest first: an older function
 * may keep its name among the types when programs may not call it any more.
 */

/* Whether a program of a uprobe session runs at the return of the function. Linux 7.0 and newer. */
extern bool bpf_session_is_return(void *ctx) __attribute__((section(".ksyms"), weak));
/* Linux 6.13 to 6.19. */
extern bool bpf_session_is_return___no_context(void) __attribute__((section(".ksyms"), weak));

/* Linux 6.14 and newer. */
extern void bpf_local_irq_save(unsigned long *flags__irq_flag)
	__attribute__((section(".ksyms"), weak));
extern void bpf_local_irq_restore(unsigned long *flags__irq_flag)
	__attribute__((section(".ksyms"), weak));

/* Calls back in a thread when it returns to user mode. Linux 7.0 and newer. */
extern int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work,
					 void *map,
					 int (*callback)(struct bpf_map *map, void *key,
							 void *value))
	__attribute__((section(".ksyms"), weak));
/* Linux 6.18 and 6.19. */
extern int
bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work, void *map,
				   int (*callback)(struct bpf_map *map, void *key, void *value),
				   void *aux__prog) __attribute__((section(".ksyms"), weak));

#endif
