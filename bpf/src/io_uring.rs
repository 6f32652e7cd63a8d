//! What differs between kernels in the tracepoints of `io_uring`: see `c/io_uring.bpf.c`.

use bpf_abi::layout::{CallTable, IO_CALLS, TracedCall};
use libbpf_rs::btf::types::{FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, BtfType, ReferencesType as _};

use crate::KernelTypes;
use crate::skeleton::OpenKcollectSkel;

/// The tracepoint of an operation that is handed over, and what Linux 6.1 calls it.
const SUBMITTED: [&str; 2] = ["io_uring_submit_req", "io_uring_submit_sqe"];
/// That of a completion.
const COMPLETED: &str = "io_uring_complete";
/// The parameters of the latter where one of them is a pointer to what completed: the program's
/// own, the ring and the request are before it.
const WITH_POINTER: usize = 4;

/// Returns whether any operation of `io_uring` is among the traced calls.
pub(crate) fn is_traced(calls: &[TracedCall]) -> bool {
    let first = IO_CALLS * usize::from(u8::from(CallTable::IoUring));
    calls.iter().skip(first).any(|call| call.traced != 0)
}

/// Chooses whether the programs that trace operations are loaded: a kernel may be built without
/// `io_uring`.
///
/// # Errors
/// Those of libbpf.
pub(crate) fn prepare(
    open: &mut OpenKcollectSkel<'_>,
    traced: bool,
    types: &KernelTypes,
) -> libbpf_rs::Result<()> {
    let found = types.btf().filter(|_| traced).and_then(tracepoints);
    let submit = &mut open.progs.kc_io_submit;
    submit.set_autoload(found.is_some());
    if let Some((submitted, _)) = found {
        submit.set_attach_target(0, Some(submitted.to_owned()))?;
    }
    open.progs.kc_io_complete.set_autoload(found.is_some());
    for map in [
        &mut open.maps.kc_io_requests,
        &mut open.maps.kc_io_files,
        &mut open.maps.kc_io_file_scratch,
    ] {
        map.set_autocreate(found.is_some())?;
    }
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.completion_is_pointer = found.is_some_and(|(_, pointer)| pointer);
    }
    Ok(())
}

/// Returns the tracepoint of an operation that is handed over, and whether that of a completion
/// has a pointer to what completed.
fn tracepoints(btf: &Btf<'_>) -> Option<(&'static str, bool)> {
    let parameters = |name: &str| {
        let declared = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))?;
        let function: Ptr<'_> = declared.referenced_type().try_into().ok()?;
        let function: BtfType<'_> = function.referenced_type();
        let function = FuncProto::try_from(function).ok()?;
        Some(function.len())
    };
    let mut names = SUBMITTED.into_iter();
    let submitted = names.find(|name| parameters(name).is_some())?;
    Some((submitted, parameters(COMPLETED)? == WITH_POINTER))
}
