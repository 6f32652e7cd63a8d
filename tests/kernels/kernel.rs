//! The kernels: Debian's, as `scripts/kernels.sh` has unpacked them, a directory for each.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

/// What a disk needs, each after those that it needs itself. One that the kernel has built in is no
/// file.
const MODULES: [&str; 10] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "crc16",
    "mbcache",
    "jbd2",
    "ext4",
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

/// The kernels that `KERNEL_NAMES` lists, oldest first, in the directory that `KERNELS` names.
///
/// # Errors
/// When one is missing.
pub(crate) fn all() -> Result<Vec<Kernel>> {
    let variable =
        |name| env::var(name).with_context(|| format!("{name}: run `make test-kernels`"));
    let (directory, names) = (variable("KERNELS")?, variable("KERNEL_NAMES")?);
    names
        .split_whitespace()
        .map(|name| Kernel::of(&Path::new(&directory).join(name)))
        .collect()
}

impl Kernel {
    /// Whether it is one with PREEMPT_RT.
    pub(crate) fn is_real_time(&self) -> bool {
        self.release.contains("-rt-")
    }

    fn of(package: &Path) -> Result<Self> {
        // Newer packages are for systems where /lib is a link.
        let modules = ["lib/modules", "usr/lib/modules"].map(|path| package.join(path));
        let release = modules
            .iter()
            .filter_map(|path| fs::read_dir(path).ok()?.next()?.ok())
            .next()
            .with_context(|| {
                let place = package.display();
                format!("no kernel in {place}: run `make test-kernels`")
            })?;
        let name = release.file_name().to_string_lossy().into_owned();
        // Since Linux 7.1 Debian's images are next to their modules.
        let images = [
            release.path().join("vmlinuz"),
            package.join("boot").join(format!("vmlinuz-{name}")),
        ];
        let image = images
            .into_iter()
            .find(|path| path.is_file())
            .with_context(|| format!("no image in {}", package.display()))?;
        let files = files(&release.path().join("kernel"))?;
        let module = |name: &&str| {
            let named = |path: &&PathBuf| {
                path.file_name()
                    .and_then(|file| file.to_str()?.split('.').next())
                    == Some(name)
            };
            files.iter().find(named).cloned()
        };
        Ok(Self {
            release: name,
            modules: MODULES.iter().filter_map(module).collect(),
            image,
        })
    }
}

/// Returns the files below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?)
        } else {
            found.push(entry.path())
        }
    }
    Ok(found)
}
