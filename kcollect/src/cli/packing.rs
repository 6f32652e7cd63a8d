//! The arguments of `kcollect pack` and `kcollect unpack`.

use std::path::PathBuf;

use analysis::packing::{PackOptions, UnpackOptions};
use experiment_format::packed::{SUFFIX, is_packed};

use super::CliError;
use super::filters::not_an_experiment;

/// Returns the request to pack.
pub(super) fn pack(
    experiments: Vec<PathBuf>,
    file: Option<PathBuf>,
) -> Result<PackOptions, CliError> {
    let is_directory = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "er");
    if let Some(packed) = experiments.iter().find(|path| is_packed(path)) {
        return Err(CliError::new(
            format!("{} is packed already", packed.display()),
            "kcollect unpack unpacks it; kcollect report reads it as it is",
        ));
    }
    if let Some(other) = experiments.iter().find(|path| !is_directory(path)) {
        return Err(not_an_experiment(other));
    }
    let is_sub = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b"_")
    };
    if let Some(sub) = experiments.iter().find(is_sub) {
        return Err(CliError::new(
            format!("{} is a part of an experiment", sub.display()),
            "name the experiment that it is in, which has its load objects",
        ));
    }
    if let Some(file) = &file {
        if !is_packed(file) {
            return Err(CliError::new(
                format!("-o {}: the name does not end in {SUFFIX}", file.display()),
                format!("type -o NAME{SUFFIX}"),
            ));
        }
        if experiments.len() > 1 {
            return Err(CliError::new(
                format!("-o: there are {} experiments", experiments.len()),
                "name one of them, or leave -o out: each gets a file of its own",
            ));
        }
    }
    Ok(PackOptions { experiments, file })
}

/// Returns the request to unpack.
pub(super) fn unpack(
    files: Vec<PathBuf>,
    directory: Option<PathBuf>,
) -> Result<UnpackOptions, CliError> {
    let is_experiment =
        |path: &PathBuf| is_packed(path) || path.extension().is_some_and(|ending| ending == "er");
    if let Some(other) = files.iter().find(|path| !is_experiment(path)) {
        return Err(CliError::new(
            format!("{}: the name does not end in {SUFFIX}", other.display()),
            "name a file that kcollect pack made, or an experiment that --pack packed",
        ));
    }
    Ok(UnpackOptions {
        files,
        directory: directory.unwrap_or_else(|| PathBuf::from(".")),
    })
}
