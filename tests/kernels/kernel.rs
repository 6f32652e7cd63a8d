//! The kernels: Debian's for clouds, as `scripts/kernels.sh` has unpacked them, a directory for
//! each series.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail};

/// The series, oldest first: the floor, and the one between it and the newest.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// What a disk needs, each after those that it needs itself. One that the kernel has built in is no
/// file.
const MODULES: [&str; 6] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
];

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The image that is booted.
    pub(crate) image: PathBuf,
    /// Modules that it needs, in order.
    pub(crate) modules: Vec<PathBuf>,
}

/// Returns all kernels in the directory that `KERNELS` names.
///
/// # Errors
/// When one is not there.
pub(crate) fn all() -> Result<Vec<Kernel>> {
    let directory = env::var_os("KERNELS")
        .map(PathBuf::from)
        .context("KERNELS names no directory: run `make test-kernels`")?;
    SERIES
        .iter()
        .map(|series| Kernel::of(&directory.join(series)))
        .collect()
}

impl Kernel {
    fn of(package: &Path) -> Result<Self> {
        let boot = package.join("boot");
        let missing = || {
            format!(
                "no kernel in {}: run `make test-kernels`",
                package.display()
            )
        };
        for entry in fs::read_dir(&boot).with_context(missing)? {
            let image = entry?.path();
            let name = image.file_name().and_then(|name| name.to_str());
            let Some(release) = name.and_then(|name| name.strip_prefix("vmlinuz-")) else {
                continue;
            };
            // Newer packages are for systems where /lib is a link.
            let modules = ["lib/modules", "usr/lib/modules"].map(|path| package.join(path));
            let modules = modules.iter().find(|path| path.is_dir());
            let modules =
                modules.with_context(|| format!("no modules in {}", package.display()))?;
            let drivers = modules.join(release).join("kernel/drivers");
            let files = files(&drivers)?;
            let module = |name: &&str| {
                let named = |path: &&PathBuf| {
                    path.file_name()
                        .and_then(|file| file.to_str()?.split('.').next())
                        == Some(name)
                };
                files.iter().find(named).cloned()
            };
            return Ok(Self {
                release: release.to_owned(),
                modules: MODULES.iter().filter_map(module).collect(),
                image,
            });
        }
        bail!(missing())
    }
}

/// Returns the files below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(files(&entry.path())?),
            false => found.push(entry.path()),
        }
    }
    Ok(found)
}
