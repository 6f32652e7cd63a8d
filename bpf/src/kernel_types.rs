//! The types of the running kernel, which show its abilities.

use std::ffi::OsStr;
use std::fmt;

use libbpf_rs::btf::types::{Array, Enum, Func, FuncProto, MemberAttr, Struct, Typedef, Union};
use libbpf_rs::btf::{Btf, BtfType, HasSize as _, ReferencesType as _};

/// An environment variable with names of [`Feature`]s that are not used although the kernel has
/// them, separated by commas: so the second way is tested on a kernel that has the first.
const WITHOUT: &str = "KCOLLECT_WITHOUT";

/// The types of the running kernel (BTF): megabytes, which take milliseconds to read, so they are
/// read once and kept while the programs are loaded. Empty where the kernel has none.
pub struct KernelTypes {
    btf: Option<Btf<'static>>,
    /// The value of [`WITHOUT`].
    without: String,
}

/// Something that not every kernel has in the form that the programs know, with a fallback for
/// kernels that do not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A thread runs a callback when it returns to user mode (Linux 6.18).
    ReturnCallback,
    /// One program for the call and the return of a probed function (Linux 6.13).
    UprobeSession,
    /// The maple tree of an address space, in the layout of `c/maple.h`.
    MapleTree,
    /// The tracepoint of page faults in the kernel (x86).
    FaultTracepoint,
    /// The tracepoints of `io_uring`.
    IoUring,
    /// The run queue of a thread, with the scheduler's clock.
    RunQueues,
    /// The scheduler's own account of a thread's waits for a CPU (`CONFIG_SCHED_INFO`).
    SchedInfo,
}

impl Feature {
    fn name(self) -> &'static str {
        match self {
            Feature::ReturnCallback => "return-callback",
            Feature::UprobeSession => "uprobe-session",
            Feature::MapleTree => "maple-tree",
            Feature::FaultTracepoint => "fault-tracepoint",
            Feature::IoUring => "io-uring",
            Feature::RunQueues => "run-queues",
            Feature::SchedInfo => "sched-info",
        }
    }
}

impl KernelTypes {
    /// Reads them.
    #[must_use]
    pub fn read() -> KernelTypes {
        KernelTypes {
            btf: Btf::from_vmlinux().ok(),
            without: std::env::var(WITHOUT).unwrap_or_default(),
        }
    }

    /// Whether a feature may be used, if the kernel has it.
    pub(crate) fn permits(&self, feature: Feature) -> bool {
        self.without.split(',').all(|name| name != feature.name())
    }

    pub(crate) fn btf(&self) -> Option<&Btf<'static>> {
        self.btf.as_ref()
    }

    /// Number of parameters of a kernel function, by which its versions are told apart: a function
    /// may keep its name when its parameters change. None: the kernel has no such function.
    pub(crate) fn parameters(&self, function: &str) -> Option<usize> {
        let function = self.btf()?.type_by_name::<Func<'_>>(function)?;
        let prototype: BtfType<'_> = function.referenced_type();
        Some(FuncProto::try_from(prototype).ok()?.len())
    }

    /// Value of an enumerator of a named enumeration.
    pub(crate) fn enumerator(&self, enumeration: &str, name: &str) -> Option<i64> {
        let found = self.btf()?.type_by_name::<Enum<'_>>(enumeration)?;
        let value = found
            .iter()
            .find(|value| value.name == Some(OsStr::new(name)))?;
        Some(value.value)
    }

    /// Whether the kernel has a tracepoint.
    pub(crate) fn has_tracepoint(&self, name: &str) -> bool {
        let typedef = format!("btf_trace_{name}");
        let found = |btf: &Btf<'static>| btf.type_by_name::<Typedef<'_>>(&typedef).is_some();
        self.btf().is_some_and(found)
    }

    /// Size of a structure, bytes.
    pub(crate) fn size(&self, structure: &str) -> Option<usize> {
        Some(self.btf()?.type_by_name::<Struct<'_>>(structure)?.size())
    }

    /// Offset of a member of a structure, bytes. Members of anonymous structures and unions count.
    pub(crate) fn offset(&self, structure: &str, member: &str) -> Option<u32> {
        let structure = self.btf()?.type_by_name::<Struct<'_>>(structure)?;
        structure
            .iter()
            .find_map(|found| match (found.name, found.attr) {
                (Some(name), MemberAttr::Normal { offset }) if name == OsStr::new(member) => {
                    Some(offset / 8)
                }
                (None, MemberAttr::Normal { offset }) => {
                    let inner: BtfType<'_> = self.btf()?.type_by_id(found.ty)?;
                    let inner = Union::try_from(inner).ok()?;
                    let has = inner
                        .iter()
                        .any(|inner| inner.name == Some(OsStr::new(member)));
                    has.then_some(offset / 8)
                }
                _ => None,
            })
    }

    /// Offset in bytes and number of elements of an array in a structure.
    pub(crate) fn array(&self, structure: &str, member: &str) -> Option<(u32, usize)> {
        let declared = self.btf()?.type_by_name::<Struct<'_>>(structure)?;
        let found = declared
            .iter()
            .find(|found| found.name == Some(OsStr::new(member)))?;
        let array: BtfType<'_> = self.btf()?.type_by_id(found.ty)?;
        let elements = Array::try_from(array).ok()?.capacity();
        Some((self.offset(structure, member)?, elements))
    }
}

impl fmt::Debug for KernelTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelTypes")
            .field(&self.btf.as_ref().map(Btf::len))
            .finish()
    }
}
