//! What reads bytes that anybody may have written, each as a function of the bytes alone.
//!
//! A target fails by a panic: its own, where something does not hold that has to, or one of what it
//! calls. It takes whatever bytes there are, and says nothing.

mod archive;
mod code;
mod experiment;
mod streams;

/// A target.
pub(crate) type Target = fn(&[u8]);

/// All of them, by the names of their corpora.
pub(crate) const TARGETS: [(&str, Target); 15] = [
    ("log", experiment::log),
    ("map", experiment::map),
    ("packets", experiment::packets),
    ("stacks", experiment::stacks),
    ("usage", experiment::usage),
    ("functions", experiment::functions),
    ("elf", code::elf),
    ("archive", archive::archive),
    ("frames", code::frames),
    ("go", code::go),
    ("perf_map", streams::perf_map),
    ("jitdump", streams::jitdump),
    ("sideband", streams::sideband),
    ("records", streams::records),
    ("facts", streams::facts),
];

/// The target of a name.
pub(crate) fn target(name: &str) -> Option<Target> {
    let found = TARGETS.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}
