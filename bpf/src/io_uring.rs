//! What differs between kernels in the tracepoints and types of `io_uring`: see
//! `c/io_uring.bpf.c`.

use std::ffi::OsStr;

use bpf_abi::layout::{CallTable, IO_CALLS, TracedCall};
use libbpf_rs::btf::types::{Enum, FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, BtfType, ReferencesType as _};

use crate::KernelTypes;
use crate::kernel_types::Feature;
use crate::skeleton::OpenKcollectSkel;

/// The tracepoint of an operation that is submitted, and what Linux 6.1 calls it.
const SUBMITTED: [&str; 2] = ["io_uring_submit_req", "io_uring_submit_sqe"];
/// The tracepoint of a completion.
const COMPLETED: &str = "io_uring_complete";
/// Number of its parameters where one of them is a pointer to what completed. The program's own
/// parameter, the ring and the request come before it.
const WITH_POINTER: usize = 4;
/// The tracepoint of a completion for which the queue has no space.
const OVERFLOWED: &str = "io_uring_cqe_overflow";
/// The tracepoint of a request that is cancelled because one that it is linked to has failed.
const LINK_FAILED: &str = "io_uring_fail_link";
/// Number of its parameters, with the program's own. Older kernels have more.
const TWO_REQUESTS: usize = 3;

/// Bits of the flags of a request: it will be issued again, and those that are linked to it post no
/// completions.
const REISSUE: &str = "REQ_F_REISSUE_BIT";
const SKIP_LINKED: &str = "REQ_F_SKIP_LINK_CQES_BIT";

/// Returns whether any operation of `io_uring` is among the traced calls.
pub(crate) fn is_traced(calls: &[TracedCall]) -> bool {
    let first = IO_CALLS * usize::from(u8::from(CallTable::IoUring));
    calls.iter().skip(first).any(|call| call.traced != 0)
}

/// Chooses whether the programs that trace operations are loaded: a kernel may be built without
/// `io_uring`.
///
/// # Errors
/// Errors of libbpf.
pub(crate) fn prepare(
    open: &mut OpenKcollectSkel<'_>,
    traced: bool,
    types: &KernelTypes,
) -> libbpf_rs::Result<()> {
    let types = types
        .btf()
        .filter(|_| traced && types.permits(Feature::IoUring));
    let found = types.and_then(tracepoints);
    let submit = &mut open.progs.kc_io_submit;
    submit.set_autoload(found.is_some());
    if let Some((submitted, _)) = found {
        submit.set_attach_target(0, Some(submitted.to_owned()))?;
    }
    open.progs.kc_io_complete.set_autoload(found.is_some());
    let types = types.filter(|_| found.is_some());
    let has = |name| types.and_then(|types| parameters(types, name));
    open.progs
        .kc_io_overflow
        .set_autoload(has(OVERFLOWED).is_some());
    open.progs
        .kc_io_fail_link
        .set_autoload(has(LINK_FAILED) == Some(TWO_REQUESTS));
    for map in [
        &mut open.maps.kc_io_requests,
        &mut open.maps.kc_io_posted,
        &mut open.maps.kc_io_files,
        &mut open.maps.kc_io_file_scratch,
    ] {
        map.set_autocreate(found.is_some())?;
    }
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.completion_is_pointer = found.is_some_and(|(_, pointer)| pointer);
        let flag = |name| types.and_then(|types| flag(types, name));
        rodata.reissue_flag = flag(REISSUE).unwrap_or_default();
        rodata.skip_linked_flag = flag(SKIP_LINKED).unwrap_or_default();
    }
    Ok(())
}

/// Whether the kernel has the tracepoints of operations.
pub(crate) fn is_traceable(types: &KernelTypes) -> bool {
    types.btf().and_then(tracepoints).is_some()
}

/// The tracepoint of an operation that is submitted, and whether the tracepoint of a completion
/// has a pointer to what completed.
fn tracepoints(btf: &Btf<'_>) -> Option<(&'static str, bool)> {
    let mut names = SUBMITTED.into_iter();
    let submitted = names.find(|name| parameters(btf, name).is_some())?;
    Some((submitted, parameters(btf, COMPLETED)? == WITH_POINTER))
}

/// Returns how many parameters a tracepoint has, with the program's own.
fn parameters(btf: &Btf<'_>, name: &str) -> Option<usize> {
    let declared = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))?;
    let function: Ptr<'_> = declared.referenced_type().try_into().ok()?;
    let function: BtfType<'_> = function.referenced_type();
    let function = FuncProto::try_from(function).ok()?;
    Some(function.len())
}

/// Returns a flag of a request by the name of its bit.
fn flag(btf: &Btf<'_>, name: &str) -> Option<u64> {
    let bit = btf.type_by_kind::<Enum<'_>>().find_map(|one| {
        let found = one.iter().find(|bit| bit.name == Some(OsStr::new(name)));
        found.map(|bit| bit.value)
    })?;
    1_u64.checked_shl(u32::try_from(bit).ok()?)
}
