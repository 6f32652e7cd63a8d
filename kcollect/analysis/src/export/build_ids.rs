//! Build ids of load objects, from the copies in the experiment. Objects of which it has none have
//! none here.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use experiment_format::archive::archive_name;
use user_collector::elf::section_build_id;

use crate::report::model::{Model, ObjectKind};

/// For each load object, at its position in the model, the build id in hexadecimal digits; empty
/// where it is not known.
#[must_use]
pub(super) fn of(model: &Model) -> Vec<String> {
    let founders = model.experiments.iter().enumerate();
    let founders = founders.filter(|(index, info)| info.founder.index() == *index);
    let archives: Vec<_> = founders
        .map(|(_, info)| info.source.path().join("archives"))
        .collect();
    let objects = model.objects.iter().map(|object| {
        if object.kind != ObjectKind::File {
            return String::new();
        }
        let name = archive_name(&object.path);
        let mut files = archives
            .iter()
            .filter_map(|archive| open(&archive.join(&name)));
        let mut text = String::new();
        for byte in files
            .next()
            .map(|file| section_build_id(&file))
            .unwrap_or_default()
        {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    });
    objects.collect()
}

/// An ordinary file, and nothing that waits.
fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}
