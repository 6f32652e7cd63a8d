//! The types of the running kernel, which show its abilities.

use std::ffi::OsStr;
use std::fmt;

use libbpf_rs::btf::types::{
    Array, DataSec, Enum, Func, FuncProto, MemberAttr, Struct, Typedef, Union,
};
use libbpf_rs::btf::{Btf, BtfType, HasSize as _, ReferencesType as _, TypeId};

/// Members of a structure or union: name, place and type.
type Members<'a> = Box<dyn Iterator<Item = (Option<&'a OsStr>, MemberAttr, TypeId)> + 'a>;

/// An environment variable with names of [`Feature`]s that are not used although the kernel has
/// them, separated by commas: so the second way is tested on a kernel that has the first.
const WITHOUT: &str = "KCOLLECT_WITHOUT";

/// The section of the kernel's variables of which each CPU has its own.
const PER_CPU: &str = ".data..percpu";

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
    /// The context in which a thread is woken.
    Wakers,
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
            Feature::Wakers => "wakers",
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
        let members = structure.iter().map(|it| (it.name, it.attr, it.ty));
        self.offset_among(Box::new(members), member)
    }

    fn offset_among<'a>(&self, mut members: Members<'a>, wanted: &str) -> Option<u32> {
        members.find_map(|(name, attr, ty)| {
            let MemberAttr::Normal { offset } = attr else {
                return None;
            };
            if let Some(name) = name {
                return (name == OsStr::new(wanted)).then_some(offset / 8);
            }
            let inner: BtfType<'_> = self.btf()?.type_by_id(ty)?;
            let within = match Union::try_from(inner) {
                Ok(union) => {
                    let members = union.iter().map(|it| (it.name, it.attr, it.ty));
                    self.offset_among(Box::new(members), wanted)
                }
                Err(inner) => {
                    let members = Struct::try_from(inner).ok()?;
                    let members = members.iter().map(|it| (it.name, it.attr, it.ty));
                    self.offset_among(Box::new(members), wanted)
                }
            };
            Some(offset / 8 + within?)
        })
    }

    /// Distance from a CPU's run queue to another variable of the CPU, bytes, modulo 2^64.
    pub(crate) fn distance_from_run_queue(&self, variable: &str) -> Option<u64> {
        let btf = self.btf()?;
        let variables = btf.type_by_name::<DataSec<'_>>(PER_CPU)?;
        let offset = |name: &str| {
            let found = variables.iter().find(|variable| {
                let variable = btf.type_by_id::<BtfType<'_>>(variable.ty);
                variable.and_then(|variable| variable.name()) == Some(OsStr::new(name))
            });
            found.map(|variable| u64::from(variable.offset))
        };
        Some(offset(variable)?.wrapping_sub(offset("runqueues")?))
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
