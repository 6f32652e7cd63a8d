//! The machine as the experiment's header describes it.

use experiment_format::log::{Cpu, System};
use host::machine::{online_cpus, page_size};
use procfs::Current as _;

/// The machine for the experiment's header. What can't be found is left empty.
#[must_use]
pub(super) fn describe() -> System {
    let name = nix::sys::utsname::uname().ok();
    let cpus = procfs::CpuInfo::current().ok();
    let pages =
        procfs::Meminfo::current().map_or(0, |memory| memory.mem_total) / page_size() as u64;
    System {
        hostname: name.map_or_else(String::new, |name| {
            name.nodename().to_string_lossy().into_owned()
        }),
        arch: std::env::consts::ARCH.to_owned(),
        page_size: page_size() as u32,
        pages,
        cpus: online_cpus()
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .map(|(position, id)| Cpu {
                id,
                mhz: cpus.as_ref().map_or(0, |cpus| megahertz(cpus, position)),
            })
            .collect(),
    }
}

fn megahertz(cpus: &procfs::CpuInfo, position: usize) -> u32 {
    let field = cpus.get_field(position, "cpu MHz");
    field
        .and_then(|text| text.parse::<f64>().ok())
        .map_or(0, |mhz| mhz.round() as u32)
}

/// The kernel's name, release and version, for a comment.
#[must_use]
pub(super) fn kernel() -> String {
    let name = nix::sys::utsname::uname();
    name.map_or_else(
        |_| "unknown kernel".to_owned(),
        |name| {
            [name.sysname(), name.release(), name.version()]
                .map(|part| part.to_string_lossy().into_owned())
                .join(" ")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_describes_itself() {
        let system = describe();
        assert!(!system.cpus.is_empty());
        assert!(system.pages > 0);
        assert!(!kernel().is_empty());
    }
}
