//! Writes the files that `make dist` ships next to the program: manual pages, shell completions,
//! and the licences of all parts of the program.
//!
//! It is an example because it needs the clap command of the program, and the program does not need
//! it. Its output depends only on its arguments and on the sources; `scripts/dist.sh` sets times
//! and owners.

mod completions;
mod licences;
mod pages;

use std::error::Error;
use std::fs;
use std::path::Path;

use kcollect::cli::args;

const USAGE: &str = "usage: dist DIRECTORY DATE TARGET [LIBRARY=PACKAGE...]";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, date, target, libraries @ ..] = args.as_slice() else {
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
