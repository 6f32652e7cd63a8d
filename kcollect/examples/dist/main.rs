//! Writes what is handed out beside the program, for `make dist`: manual pages, completions of
//! shells, and whose the parts of the program are.
//!
//! It is an example because it needs the command line as clap knows it, and nothing of it belongs
//! into the program. What it writes depends on its arguments and on the sources alone; times and
//! owners are `scripts/dist.sh`'s to set.

mod completions;
mod licences;
mod pages;

use std::error::Error;
use std::fs;
use std::path::Path;

use kcollect::cli::args;

const USAGE: &str = "usage: dist DIRECTORY DATE TARGET [LIBRARY=PACKAGE...]";

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, date, target, libraries @ ..] = words.as_slice() else {
        return Err(USAGE.into());
    };
    let directory = Path::new(directory);

    let manual = directory.join("man");
    fs::create_dir_all(&manual)?;
    let command = args::command(None);
    for (name, page) in pages::all(&command, date)? {
        fs::write(manual.join(name), page)?;
    }

    let shells = directory.join("completions");
    fs::create_dir_all(&shells)?;
    completions::write(&command, &shells)?;

    let parts = licences::parts(target, libraries)?;
    fs::write(directory.join("copyright"), licences::copyright(&parts)?)?;
    fs::write(directory.join("THIRD-PARTY"), licences::texts(&parts)?)?;
    Ok(())
}
