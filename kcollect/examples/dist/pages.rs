//! The manual pages: kcollect(1), and one for each subcommand.
//!
//! Names, forms, descriptions, options, examples and exit codes are taken from the command line, so
//! that a page agrees with `--help`. What only a page has (files, environment, see also) is here.

use std::error::Error;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use host::exit::ExitKind;

/// A page's file name, and its text.
type Page = (String, Vec<u8>);

/// The parts of a page that the command line does not have.
struct PageExtras {
    /// The subcommand; kcollect itself has none.
    name: &'static str,
    status: &'static str,
    files: &'static [(&'static str, &'static str)],
    environment: &'static [(&'static str, &'static str)],
    see_also: &'static [&'static str],
}

const EXPERIMENT: (&str, &str) = (
    "ktest.N.er",
    "The experiment, a directory: the record of the whole machine, and in it one of each followed process. It can be read \
     while it is written, and on any machine.",
);
const GROUP: (&str, &str) = (
    "NAME.erg",
    "A group: a file with the names of experiments, one per line. Reports of a group are reports of all of them.",
);
const SETTINGS: (&str, &str) = (
    "/etc/kcollect.toml",
    "The settings of the service kcollect.service: the options of --config.",
);
const CACHE: (&str, &str) = (
    "/var/cache/kcollect",
    "The cache of unwind tables of programs and libraries, if root runs kcollect; for other users \
     $XDG_CACHE_HOME/kcollect or ~/.cache/kcollect. It may be deleted at any time.",
);
const RATE: (&str, &str) = (
    "/proc/sys/kernel/perf_event_max_sample_rate",
    "The limit for the shortest interval.",
);
const PATH: (&str, &str) = ("PATH", "The directories in which the command is found.");
const PAGER: (&str, &str) = (
    "PAGER",
    "The program that shows long text on a terminal; the default is less, with LESS=FRX if LESS is not set.",
);

const DEBUGINFOD: (&str, &str) = (
    "DEBUGINFOD_URLS",
    "Servers, separated by spaces, from which debug files and sources are fetched that this machine does not have, if the user is not \
     root or types --debuginfod.",
);
const DEBUGINFOD_LIMITS: (&str, &str) = (
    "DEBUGINFOD_MAXSIZE, DEBUGINFOD_MAXTIME, DEBUGINFOD_TIMEOUT",
    "Limits for each file: bytes, seconds, and seconds for each 100 kB. The defaults are 1 GiB, 600 and 90.",
);
const DEBUGINFOD_CACHE: (&str, &str) = (
    "DEBUGINFOD_CACHE_PATH",
    "Where fetched files are kept, for elfutils and gdb too; the default is $XDG_CACHE_HOME/debuginfod_client or \
     ~/.cache/debuginfod_client.",
);

const REPORT_STATUS: &str = "0 for success, 64 if the command line is wrong, 65 if the experiments hold nothing of what was asked for, \
     66 if an experiment does not exist or cannot be read, 73 and 74 if a file cannot be written. kcollect(1) lists all codes.";

const EXTRAS: [PageExtras; 11] = [
    PageExtras {
        name: "",
        status: "If kcollect itself does not fail, its status is the load's: its exit status, 126 if it cannot be executed, 127 \
                 if there is no such program, 128 plus the number of the signal that ended it. Otherwise:",
        files: &[EXPERIMENT, GROUP, SETTINGS, CACHE, RATE],
        environment: &[
            ("PATH", "The directories in which the load is found."),
            (
                "SUDO_UID, SUDO_GID",
                "The owner of the experiment if root runs kcollect. Files that this user may not read are not copied into it.",
            ),
            (
                "XDG_CACHE_HOME, HOME",
                "The place of the cache for users other than root.",
            ),
            (
                "NOTIFY_SOCKET, WATCHDOG_USEC",
                "The socket of systemd, and how often it expects a sign of life there.",
            ),
        ],
        see_also: &[
            "gprofng(1)",
            "gp-display-text(1)",
            "perf-record(1)",
            "sysexits(3)",
            "proc(5)",
        ],
    },
    PageExtras {
        name: "doctor",
        status: "0 if a recording can start, otherwise the status with which it would fail: 69 if the machine is missing something, 77 if \
                 a privilege is missing. kcollect(1) lists all codes.",
        files: &[
            RATE,
            (
                "/sys/kernel/btf/vmlinux",
                "The kernel's description of its types (BTF), which recording requires.",
            ),
        ],
        environment: &[],
        see_also: &["capabilities(7)"],
    },
    PageExtras {
        name: "report",
        status: REPORT_STATUS,
        files: &[EXPERIMENT, GROUP],
        environment: &[PAGER, DEBUGINFOD, DEBUGINFOD_LIMITS, DEBUGINFOD_CACHE],
        see_also: &["gp-display-text(1)"],
    },
    PageExtras {
        name: "view",
        status: REPORT_STATUS,
        files: &[
            EXPERIMENT,
            ("ktest.N.html", "The page, readable by its owner alone."),
        ],
        environment: &[DEBUGINFOD, DEBUGINFOD_LIMITS, DEBUGINFOD_CACHE],
        see_also: &[],
    },
    PageExtras {
        name: "flame",
        status: REPORT_STATUS,
        files: &[EXPERIMENT, GROUP, ("ktest.N.svg", "The picture.")],
        environment: &[DEBUGINFOD, DEBUGINFOD_LIMITS, DEBUGINFOD_CACHE],
        see_also: &[],
    },
    PageExtras {
        name: "export",
        status: REPORT_STATUS,
        files: &[EXPERIMENT, GROUP],
        environment: &[DEBUGINFOD, DEBUGINFOD_LIMITS, DEBUGINFOD_CACHE],
        see_also: &[],
    },
    PageExtras {
        name: "list",
        status: REPORT_STATUS,
        files: &[EXPERIMENT],
        environment: &[],
        see_also: &[],
    },
    PageExtras {
        name: "pack",
        status: "0 for success, 64 if the command line is wrong, 66 if there is no such experiment or it cannot be read, 73 if \
                 the file cannot be written. kcollect(1) lists all codes.",
        files: &[EXPERIMENT],
        environment: &[],
        see_also: &["zstd(1)", "tar(1)"],
    },
    PageExtras {
        name: "unpack",
        status: "0 for success, 64 if the command line is wrong, 66 if a file is no packed experiment or is damaged, 73 if its \
                 directory cannot be made. kcollect(1) lists all codes.",
        files: &[EXPERIMENT],
        environment: &[],
        see_also: &["zstd(1)", "tar(1)"],
    },
    PageExtras {
        name: "track",
        status: "If kcollect itself does not fail, the status is the command's, as in kcollect(1). Otherwise 64 if the command line is \
                 wrong, 66 if there is no such process, 69 if an event cannot be counted, 77 if a privilege is missing.",
        files: &[],
        environment: &[PATH],
        see_also: &["perf-stat(1)"],
    },
    PageExtras {
        name: "stat",
        status: "0 for success, 64 if the command line is wrong, 69 if an event cannot be counted, 73 and 74 if the rows cannot \
                 be written, 77 if a privilege is missing. kcollect(1) lists all codes.",
        files: &[],
        environment: &[],
        see_also: &["perf-stat(1)"],
    },
];

/// Returns the pages with their file names. `date` is the date of the last change.
pub(super) fn all(kcollect: &Command, date: &str) -> Result<Vec<Page>, Box<dyn Error>> {
    let mut kcollect = kcollect.clone();
    kcollect.build();
    let forms = forms(&kcollect);
    let subs: Vec<_> = kcollect.get_subcommands().cloned().collect();
    let mut pages = Vec::new();
    for command in std::iter::once(kcollect).chain(subs) {
        let name = command.get_name();
        let name = if name == "kcollect" { "" } else { name };
        let extras = EXTRAS
            .iter()
            .find(|extras| extras.name == name)
            .ok_or_else(|| format!("pages.rs has no extras for kcollect {name}"))?;
        let name = format!("{}.1", title(extras.name));
        pages.push((name, page(command, &forms, extras, date)?));
    }
    Ok(pages)
}

/// Returns the title of a page.
fn title(sub: &str) -> String {
    match sub {
        "" => "kcollect".to_owned(),
        sub => format!("kcollect-{sub}"),
    }
}

/// Returns all forms of the command, as in the help: one per line.
fn forms(kcollect: &Command) -> Vec<String> {
    let usage = kcollect
        .get_overridden_usage()
        .map(ToString::to_string)
        .unwrap_or_default();
    usage.lines().map(|line| line.trim().to_owned()).collect()
}

fn page(
    command: Command,
    forms: &[String],
    extras: &PageExtras,
    date: &str,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let title = title(extras.name);
    let extra = command.get_after_help().map(ToString::to_string);
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let has_options = command.get_arguments().next().is_some();
    let command = match forms_of(forms, extras.name) {
        own if own.is_empty() => command,
        own => command.override_usage(own.join("\n")),
    };
    let is_top = extras.name.is_empty();
    let man = Man::new(command)
        .title(title.to_uppercase())
        .date(date)
        .source(format!("kcollect {}", env!("CARGO_PKG_VERSION")))
        .manual("kcollect");

    let mut page = Vec::new();
    man.render_title(&mut page)?;
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{title} - {}", in_short(is_top, &about)))]);
    roff.to_writer(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if has_options {
        page.extend(options(&man)?);
    }
    if is_top {
        man.render_subcommands_section(&mut page)?;
    }

    let mut roff = Roff::new();
    status(&mut roff, extras);
    list(&mut roff, "ENVIRONMENT", extras.environment);
    list(&mut roff, "FILES", extras.files);
    after_help(&mut roff, &extra.unwrap_or_default());
    see_also(&mut roff, extras);
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Returns the forms of a subcommand, or all of them.
fn forms_of(forms: &[String], sub: &str) -> Vec<String> {
    if sub.is_empty() {
        return forms.to_vec();
    }
    let begin = format!("kcollect {sub}");
    let own = forms.iter().filter(|form| form.starts_with(&begin));
    own.cloned().collect()
}

/// Returns one line for apropos(1).
fn in_short(is_top: bool, about: &str) -> String {
    if is_top {
        return "profiles the whole machine, kernel and user".to_owned();
    }
    let mut letters = about.chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// Returns the section of options, with the headings of the help as its subsections.
fn options(man: &Man) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut text = Vec::new();
    man.render_options_section(&mut text)?;
    let text = String::from_utf8(text)?;
    let text = text.replace(".SH OPTIONS\n", "");
    let mut section = Roff::new();
    section.control("SH", ["OPTIONS"]);
    let mut section = section.render();
    for line in text.lines() {
        match line.strip_prefix(".SH ") {
            Some(heading) => section.push_str(&format!(".SS {}\n", sentence(heading))),
            None => section.push_str(&format!("{line}\n")),
        }
    }
    Ok(section.into_bytes())
}

/// Returns a heading in sentence case. clap_mangen writes all headings in capitals, which manual
/// pages use for sections.
fn sentence(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let at = lower.find(|letter: char| letter.is_ascii_alphabetic());
    match at {
        Some(at) => lower[..at].to_owned() + &lower[at..=at].to_uppercase() + &lower[at + 1..],
        None => lower,
    }
}

fn status(roff: &mut Roff, extras: &PageExtras) {
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(extras.status)]);
    if extras.name.is_empty() {
        for kind in ExitKind::ALL {
            roff.control("TP", []);
            roff.text([bold(kind.code().to_string())]);
            roff.text([roman(kind.meaning())]);
        }
    }
}

fn list(roff: &mut Roff, heading: &str, rows: &[(&str, &str)]) {
    if !rows.is_empty() {
        roff.control("SH", [heading]);
    }
    for (name, meaning) in rows {
        roff.control("TP", []);
        roff.text([italic(*name)]);
        roff.text([roman(*meaning)]);
    }
}

/// Writes the examples of the help and the notes below them. The help's other sections are on the
/// page already.
fn after_help(roff: &mut Roff, help: &str) {
    let mut lines = help.lines();
    if !lines.any(|line| line == "Examples:") {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let (typed, meaning) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        roff.control("TP", []);
        roff.text([bold(typed)]);
        // A tag without text would be joined with the next tag.
        let meaning = match meaning.trim() {
            "" => "\u{a0}",
            meaning => meaning,
        };
        roff.text([roman(meaning)]);
    }
    let rest: Vec<_> = lines.collect();
    if rest.iter().any(|line| line.ends_with(':')) || rest.is_empty() {
        return;
    }
    roff.control("SH", ["NOTES"]);
    for line in rest {
        match line {
            "" => roff.control("PP", []),
            line => roff.text([roman(line)]),
        };
    }
}

fn see_also(roff: &mut Roff, extras: &PageExtras) {
    roff.control("SH", ["SEE ALSO"]);
    let pages = EXTRAS
        .iter()
        .filter(|other| other.name != extras.name)
        .map(|other| format!("{}(1)", title(other.name)));
    let pages = pages.chain(extras.see_also.iter().map(|page| (*page).to_owned()));
    let pages: Vec<_> = pages.collect();
    let last = pages.len() - 1;
    for (at, page) in pages.iter().enumerate() {
        let (name, section) = page.split_once('(').unwrap_or((page, ""));
        let comma = if at == last { "" } else { "," };
        roff.text([bold(name), roman(format!("({section}{comma}"))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let command = kcollect::cli::args::command(None);
        let pages = all(&command, "2026-01-01").unwrap();
        assert_eq!(pages.len(), 1 + command.get_subcommands().count());
    }
}
