//! The readers of untrusted bytes, each as a function of the bytes alone.
//!
//! A target fails by a panic: its own, when an assertion does not hold, or one of the code that it
//! calls. It accepts any bytes and returns nothing.

mod archive;
mod code;
mod directory;
mod experiment;
mod packed;
mod streams;

/// A function that reads an input's bytes, and panics on a bug.
pub(crate) type Target = fn(&[u8]);

/// All targets, by the names of their corpora.
pub(crate) const TARGETS: [(&str, Target); 19] = [
    ("log", experiment::log),
    ("map", experiment::map),
    ("directory", directory::directory),
    ("packed", packed::packed),
    ("packets", experiment::packets),
    ("stacks", experiment::stacks),
    ("usage", experiment::usage),
    ("dynamic_code", experiment::dynamic_code),
    ("functions", experiment::functions),
    ("elf", code::elf),
    ("names", code::names),
    ("archive", archive::archive),
    ("frames", code::frames),
    ("go", code::go),
    ("perf_map", streams::perf_map),
    ("jitdump", streams::jitdump),
    ("sideband", streams::sideband),
    ("records", streams::records),
    ("facts", streams::facts),
];

/// Returns the target of a name.
pub(crate) fn target(name: &str) -> Option<Target> {
    let found = TARGETS.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}
