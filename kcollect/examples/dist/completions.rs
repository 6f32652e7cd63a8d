//! Completions for bash, zsh and fish.
//!
//! clap has all values as text, since kcollect words their errors itself; so their keywords are
//! listed here. A shell accepts other values, such as numbers, too.

use std::io;
use std::path::Path;

use analysis::export::ExportFormat;
use analysis::export::folded::GroupBy;
use clap::{Command, ValueHint};
use clap_complete::Shell;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// The keywords of kcollect's options, by clap's names of the options.
const KEYWORDS: [(&str, &[&str]); 5] = [
    ("interval", &["on", "hi", "lo", "off"]),
    ("follow", &["on", "all", "off"]),
    ("skip_idle", &["on", "off"]),
    ("sample", &["on", "off"]),
    (
        "pack",
        &["on", "off", "usedldobjects", "src", "usedsrc", "all"],
    ),
];

/// Writes the completions into a directory, under the names that the shells look for.
pub(super) fn write(kcollect: &Command, directory: &Path) -> io::Result<()> {
    let mut kcollect = kcollect.clone();
    for (option, keywords) in KEYWORDS {
        kcollect = kcollect.mut_arg(option, |option| option.value_parser(keywords.to_vec()));
    }
    let below = GroupBy::ALL.map(|(_, name)| name);
    let formats = ExportFormat::ALL.map(|(_, name, ..)| name);
    kcollect = kcollect
        .mut_arg("load", |load| {
            load.value_hint(ValueHint::CommandWithArguments)
        })
        .mut_arg("directory", |option| option.value_hint(ValueHint::DirPath))
        .mut_subcommand("flame", |flame| {
            flame.mut_arg("by", |by| by.value_parser(below))
        })
        .mut_subcommand("export", |export| {
            export
                .mut_arg("by", |by| by.value_parser(below))
                .mut_arg("to", |to| to.value_parser(formats))
        })
        .mut_subcommand("report", |report| {
            report
                .mut_arg("words", |words| words.value_hint(ValueHint::AnyPath))
                .mut_arg("search_path", |path| path.value_hint(ValueHint::DirPath))
        })
        .mut_subcommand("track", |track| {
            track.mut_arg("command", |command| {
                command.value_hint(ValueHint::CommandWithArguments)
            })
        });
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut kcollect, "kcollect", directory)?;
    }
    Ok(())
}
