//! A BPF program on each context switch that does nothing: the minimum cost of a profiler of
//! switches.
//!
//! It is attached as kcollect's is (`tp_btf/sched_switch`), so that the difference between the two
//! is what kcollect does there, and the rest is what the kernel takes for calling it. Its two
//! instructions are written here: no compiler.

use std::io::Error;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use anyhow::{Context, Result};
use libbpf_sys::{
    BPF_ALU64, BPF_EXIT, BPF_JMP, BPF_K, BPF_MOV, BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP,
    bpf_insn, bpf_prog_load, bpf_prog_load_opts, bpf_raw_tracepoint_open,
    libbpf_find_vmlinux_btf_id,
};

/// The attached program. It is freed when this value is dropped, and with the process at the
/// latest.
#[derive(Debug)]
pub(crate) struct Empty {
    // A link holds its program.
    _link: OwnedFd,
}

impl Empty {
    pub(crate) fn attach() -> Result<Self> {
        // SAFETY: the name is a C string that is only read.
        let id = unsafe { libbpf_find_vmlinux_btf_id(c"sched_switch".as_ptr(), BPF_TRACE_RAW_TP) };
        let id = code(id).context("the kernel's BTF has no sched_switch")?;
        let mut options = bpf_prog_load_opts {
            sz: size_of::<bpf_prog_load_opts>() as u64,
            expected_attach_type: BPF_TRACE_RAW_TP,
            attach_btf_id: id.cast_unsigned(),
            ..Default::default()
        };
        let program = [
            instruction(BPF_ALU64 | BPF_MOV | BPF_K),
            instruction(BPF_JMP | BPF_EXIT),
        ];
        // SAFETY: all pointers are to values that outlive the call, and the count is the number of
        // instructions.
        let program = unsafe {
            bpf_prog_load(
                BPF_PROG_TYPE_TRACING,
                c"empty".as_ptr(),
                c"GPL".as_ptr(),
                program.as_ptr(),
                program.len() as u64,
                &raw mut options,
            )
        };
        let program = owned(program).context("cannot load an empty program")?;
        // SAFETY: without a name the kernel takes what the program says it is for; the descriptor
        // is open.
        let link = unsafe { bpf_raw_tracepoint_open(ptr::null(), raw(&program)) };
        let _link = owned(link).context("cannot attach an empty program to sched_switch")?;
        Ok(Self { _link })
    }
}

/// Returns an instruction on register 0 with the number 0: it becomes 0, or is returned.
fn instruction(code: u32) -> bpf_insn {
    bpf_insn {
        code: code as u8,
        ..Default::default()
    }
}

fn raw(file: &OwnedFd) -> RawFd {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

/// Returns the number that a function of libbpf returned, or its error, which is below zero.
fn code(returned: i32) -> Result<i32, Error> {
    if returned < 0 {
        return Err(Error::from_raw_os_error(-returned));
    }
    Ok(returned)
}

fn owned(returned: i32) -> Result<OwnedFd, Error> {
    let file = code(returned)?;
    // SAFETY: the kernel has just opened it, and nothing else refers to it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}
