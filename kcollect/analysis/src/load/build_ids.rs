//! The build ids of load objects, from the copies in the experiment.

use std::path::PathBuf;

use experiment_format::copies::build_id_of_copy;

use crate::model::{Model, ObjectInfo, ObjectKind};

/// Returns the build id of each load object in hexadecimal digits, by its position in the model;
/// empty where there is no copy.
#[must_use]
pub(crate) fn of(model: &Model) -> Vec<String> {
    let archives = archives(model);
    let objects = model.objects.iter().map(|object| {
        let id = of_copies(&archives, object).next();
        hex::encode(id.unwrap_or_default())
    });
    objects.collect()
}

/// Returns by position in the model whether the experiments have copies of a load object that are
/// of different builds.
#[must_use]
pub(super) fn differ(model: &Model) -> Vec<bool> {
    let archives = archives(model);
    let objects = model.objects.iter().map(|object| {
        if archives.len() < 2 {
            return false;
        }
        let mut ids = of_copies(&archives, object);
        let first = ids.next();
        ids.any(|id| Some(id) != first)
    });
    objects.collect()
}

/// Returns the directories with the copies.
fn archives(model: &Model) -> Vec<PathBuf> {
    let archives = model
        .founders()
        .map(|(_, info)| info.source.path().join("archives"));
    archives.collect()
}

/// Returns the build ids of the copies of a load object.
fn of_copies(archives: &[PathBuf], object: &ObjectInfo) -> impl Iterator<Item = Box<[u8]>> {
    let is_file = object.kind == ObjectKind::File;
    let archives = archives.iter().filter(move |_| is_file);
    archives.filter_map(|archives| build_id_of_copy(archives, &object.path))
}
