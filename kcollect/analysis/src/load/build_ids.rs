//! Build ids of load objects, read from the copies in the experiment.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use experiment_format::archive::archive_name;
use user_collector::elf::section_build_id;

use crate::model::{Model, ObjectKind};

/// Returns the build id of each load object in hexadecimal digits, by its position in the model;
/// empty where there is no copy.
#[must_use]
pub(crate) fn of(model: &Model) -> Vec<String> {
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
        let id = files.next().map(|file| section_build_id(&file));
        hex::encode(id.unwrap_or_default())
    });
    objects.collect()
}

/// Opens a regular file, without waiting for a pipe or following a link.
fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}
