//! A mounted tracefs for the numbers of tracepoints: most machines have none mounted.

use std::fs;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A mounted tracefs, until it is dropped.
#[derive(Debug)]
pub struct Tracefs {
    directory: TempDir,
}

impl Tracefs {
    /// Mounts a tracefs.
    ///
    /// # Errors
    /// When the kernel has none, or not for us.
    pub fn mount() -> Result<Self> {
        let directory = TempDir::new()?;
        mount(
            Some("tracefs"),
            directory.path(),
            Some("tracefs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .context("cannot mount a tracefs")?;
        Ok(Self { directory })
    }

    /// Returns the number of a tracepoint, `SYSTEM/EVENT`.
    ///
    /// # Errors
    /// When there is no such tracepoint.
    pub fn id(&self, tracepoint: &str) -> Result<u64> {
        let path = self
            .directory
            .path()
            .join("events")
            .join(tracepoint)
            .join("id");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
    }
}
