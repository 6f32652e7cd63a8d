//! Makes the page and writes it to a file or serves it.
//!
//! The page holds kernel addresses and other users' command lines, like the experiment, and is as
//! private: see `private_file`.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use experiment_format::packed::directory_of;
use host::exit::{ExitKind, Failure};
use host::output::Output;

use super::serve::Server;
use super::{gather, page};
use crate::filter::Filter;
use crate::load::lines::LookupPaths;
use crate::model::{Model, TracedEvents};
use crate::private_file;
use crate::sources::Sources;

/// The page to be made, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewOptions {
    /// The experiments, of one recording.
    pub sources: Sources,
    /// The traced events that are shown instead of ticks.
    pub traced: Option<TracedEvents>,
    /// Where load objects and debug files are looked for.
    pub lookup: LookupPaths,
    /// Where the page goes.
    pub output: ViewOutput,
}

/// Where a page goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewOutput {
    /// Into this file. None: into the current directory, named after the experiment.
    File(Option<PathBuf>),
    /// To browsers of this machine at this port, until Ctrl-C. 0: at a free port.
    Serve(u16),
}

/// Makes a page, and says where it is.
///
/// # Errors
/// When the experiment can't be read, or the page not be written or served. When parts of it can't
/// be read, after that.
pub fn show(options: &ViewOptions, output: &mut Output) -> Result<(), Failure> {
    let sources = &options.sources;
    let loaded = sources.load(&Filter::default(), &options.lookup, options.traced)?;
    let (path, model) = (&loaded.found.paths[0], loaded.model);
    model
        .warnings
        .iter()
        .for_each(|warning| output.say(warning));
    if !is_one_recording(&model) {
        return Err(Failure::new(
            ExitKind::Usage,
            "a page is of one recording, and these are several",
            "name one of them, or all of a series; kcollect report shows several together",
        ));
    }
    let payload = gather(&model, &loaded.filter).map_err(|error| {
        Failure::new(
            ExitKind::NoInput,
            error.to_string(),
            "kcollect report shows the readable part of a damaged experiment",
        )
    })?;
    if payload.ticks.is_empty() {
        return Err(Failure::new(
            ExitKind::Empty,
            format!("{} has no ticks of threads of that time", path.display()),
            "record with -p on; kcollect list shows when experiments were recorded",
        ));
    }
    let complete = model.require_all();
    drop(model);
    let page = page(&payload).map_err(|error| {
        let hint = "kcollect report shows the readable part of a damaged experiment";
        Failure::new(ExitKind::NoInput, error.to_string(), hint)
    })?;
    match &options.output {
        ViewOutput::File(file) => {
            let file = file.clone().unwrap_or_else(|| called_like(path));
            let write = |mut to: &File| to.write_all(page.as_bytes());
            private_file::write(&file, path, write).map_err(|error| {
                Failure::new(
                    ExitKind::CantCreate,
                    format!("cannot write {}: {error}", file.display()),
                    "name another file with -o",
                )
            })?;
            output.result_line(&file.display().to_string());
        }
        ViewOutput::Serve(port) => serve(page, *port, output).map_err(|error| {
            Failure::new(
                ExitKind::Unavailable,
                format!("cannot serve at port {port} of 127.0.0.1: {error}"),
                "name another port or none, or write a file with -o",
            )
        })?,
    }
    complete
}

fn is_one_recording(model: &Model) -> bool {
    let mut firsts = model.founders().map(|(_, info)| info.first);
    let first = firsts.next();
    firsts.all(|other| Some(other) == first)
}

/// Returns `ktest.1.html` for `ktest.1.er`, in the current directory.
fn called_like(experiment: &Path) -> PathBuf {
    let experiment = directory_of(experiment);
    let name = experiment.file_name().unwrap_or("ktest.er".as_ref());
    Path::new(name).with_extension("html")
}

/// Serves the page until SIGINT (Ctrl-C). There is nothing to save, so other signals have their
/// default actions.
fn serve(page: String, port: u16, output: &mut Output) -> io::Result<()> {
    let (mut stop, stopped) = UnixStream::pair()?;
    ctrlc::set_handler(move || {
        // The other end is readable from the first byte on; a second signal needs none.
        let _ = stop.write_all(b"x");
    })
    .map_err(io::Error::other)?;
    let server = Server::bind(page, port)?;
    output.result(&server.url());
    server.run(stopped.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_called_like_its_experiment() {
        let names = [
            ("ktest.1.er", "ktest.1.html"),
            ("/tmp/a.er/", "a.html"),
            ("ktest.1.er/_a_PID_7.1.er", "_a_PID_7.1.html"),
        ];
        for (experiment, page) in names {
            assert_eq!(called_like(Path::new(experiment)), Path::new(page));
        }
    }
}
