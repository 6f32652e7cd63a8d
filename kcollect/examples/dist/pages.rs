//! The manual pages: kcollect(1), and one for each subcommand.
//!
//! Names, forms, descriptions, options and examples are the command line's own, and the exit codes
//! those of the code, so that a page says what `--help` says. What only a page has (files,
//! environment, see also) is here.

use std::error::Error;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use host::exit::ExitKind;

/// A page's file name, and its text.
type Page = (String, Vec<u8>);

/// What a page has besides what the command line says.
struct Beside {
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
    "A group: a file with the names of experiments, one a line. It is read as all of them.",
);
const CACHE: (&str, &str) = (
    "/var/cache/kcollect",
    "Unwind tables of programs and libraries, kept from one run to the next where root runs kcollect; for others \
     $XDG_CACHE_HOME/kcollect or ~/.cache/kcollect. It may be deleted at any time.",
);
const RATE: (&str, &str) = (
    "/proc/sys/kernel/perf_event_max_sample_rate",
    "How short the interval can be.",
);
const PATH: (&str, &str) = ("PATH", "Where the command is looked for.");
const PAGER: (&str, &str) = (
    "PAGER",
    "What long text on a terminal goes through; the default is less, with LESS=FRX where LESS is not set.",
);

const OF_REPORTS: &str = "0 if all went well, 64 if the command line is wrong, 65 if there is nothing that was asked for, \
     66 if an experiment does not exist or cannot be read, 73 and 74 if a file cannot be written. kcollect(1) has all of them.";

const BESIDE: [Beside; 8] = [
    Beside {
        name: "",
        status: "Where kcollect has no trouble of its own, its status is the load's: its exit status, 126 if it cannot be run, 127 \
                 if there is no such program, 128 and the number of the signal that ended it. Otherwise:",
        files: &[EXPERIMENT, GROUP, CACHE, RATE],
        environment: &[
            ("PATH", "Where the load is looked for."),
            (
                "SUDO_UID, SUDO_GID",
                "To whom the experiment belongs, where root runs kcollect. Files that this user may not read are not copied into it.",
            ),
            (
                "XDG_CACHE_HOME, HOME",
                "Where the cache is, for other users than root.",
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
    Beside {
        name: "doctor",
        status: "0 if kcollect can start, or else the status of the start that it foresees: 69 if the machine lacks something, 77 if \
                 a privilege is missing. kcollect(1) has all of them.",
        files: &[
            RATE,
            (
                "/sys/kernel/btf/vmlinux",
                "The kernel's description of its own types, without which nothing can be recorded.",
            ),
        ],
        environment: &[],
        see_also: &["capabilities(7)"],
    },
    Beside {
        name: "report",
        status: OF_REPORTS,
        files: &[EXPERIMENT, GROUP],
        environment: &[PAGER],
        see_also: &["gp-display-text(1)"],
    },
    Beside {
        name: "view",
        status: OF_REPORTS,
        files: &[
            EXPERIMENT,
            ("ktest.N.html", "The page, readable by its owner alone."),
        ],
        environment: &[],
        see_also: &[],
    },
    Beside {
        name: "flame",
        status: OF_REPORTS,
        files: &[EXPERIMENT, GROUP, ("ktest.N.svg", "The picture.")],
        environment: &[],
        see_also: &[],
    },
    Beside {
        name: "export",
        status: OF_REPORTS,
        files: &[EXPERIMENT, GROUP],
        environment: &[],
        see_also: &[],
    },
    Beside {
        name: "track",
        status: "Where kcollect has no trouble of its own, the status is the command's, as in kcollect(1): 64 if the command line is \
                 wrong, 66 if there is no such process, 69 if an event cannot be counted, 77 if a privilege is missing.",
        files: &[],
        environment: &[PATH],
        see_also: &["perf-stat(1)"],
    },
    Beside {
        name: "stat",
        status: "0 if all went well, 64 if the command line is wrong, 69 if an event cannot be counted, 73 and 74 if the rows cannot \
                 be written, 77 if a privilege is missing. kcollect(1) has all of them.",
        files: &[],
        environment: &[],
        see_also: &["perf-stat(1)"],
    },
];

/// The pages, by the names of their files. `date` is of the last change.
pub(super) fn all(kcollect: &Command, date: &str) -> Result<Vec<Page>, Box<dyn Error>> {
    let mut kcollect = kcollect.clone();
    kcollect.build();
    let forms = forms(&kcollect);
    let subs: Vec<_> = kcollect.get_subcommands().cloned().collect();
    let mut pages = Vec::new();
    for command in std::iter::once(kcollect).chain(subs) {
        let name = command.get_name();
        let name = if name == "kcollect" { "" } else { name };
        let beside = BESIDE
            .iter()
            .find(|beside| beside.name == name)
            .ok_or_else(|| format!("nothing is known of kcollect {name} for its page"))?;
        let name = format!("{}.1", title(beside.name));
        pages.push((name, page(command, &forms, beside, date)?));
    }
    Ok(pages)
}

/// What a page is called.
fn title(sub: &str) -> String {
    match sub {
        "" => "kcollect".to_owned(),
        sub => format!("kcollect-{sub}"),
    }
}

/// All forms of the command, as the help has them: a line each.
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
    beside: &Beside,
    date: &str,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let title = title(beside.name);
    let extra = command.get_after_help().map(ToString::to_string);
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let has_options = command.get_arguments().next().is_some();
    let command = match forms_of(forms, beside.name) {
        own if own.is_empty() => command,
        own => command.override_usage(own.join("\n")),
    };
    let is_top = beside.name.is_empty();
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
    status(&mut roff, beside);
    list(&mut roff, "ENVIRONMENT", beside.environment);
    list(&mut roff, "FILES", beside.files);
    after_help(&mut roff, &extra.unwrap_or_default());
    see_also(&mut roff, beside);
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Those of the subcommand, or of none.
fn forms_of(forms: &[String], sub: &str) -> Vec<String> {
    if sub.is_empty() {
        return forms.to_vec();
    }
    let begin = format!("kcollect {sub}");
    let own = forms.iter().filter(|form| form.starts_with(&begin));
    own.cloned().collect()
}

/// One line for apropos(1).
fn in_short(is_top: bool, about: &str) -> String {
    if is_top {
        return "profiles the whole machine, kernel and user".to_owned();
    }
    // Some say further on how a load of that name is written.
    let about = about.split(" (").next().unwrap_or_default();
    let mut letters = about.chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// One section, with the headings of the help within.
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

/// clap_mangen sets headings in capitals, which are for sections.
fn sentence(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let at = lower.find(|letter: char| letter.is_ascii_alphabetic());
    match at {
        Some(at) => lower[..at].to_owned() + &lower[at..=at].to_uppercase() + &lower[at + 1..],
        None => lower,
    }
}

fn status(roff: &mut Roff, beside: &Beside) {
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(beside.status)]);
    if beside.name.is_empty() {
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

/// The examples of the help, and what it says below them. Its other sections are of tables that the
/// page has already.
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
        // A tag without text is one with the next tag.
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

fn see_also(roff: &mut Roff, beside: &Beside) {
    roff.control("SH", ["SEE ALSO"]);
    let pages = BESIDE
        .iter()
        .filter(|other| other.name != beside.name)
        .map(|other| format!("{}(1)", title(other.name)));
    let pages = pages.chain(beside.see_also.iter().map(|page| (*page).to_owned()));
    let pages: Vec<_> = pages.collect();
    let last = pages.len() - 1;
    for (at, page) in pages.iter().enumerate() {
        let (name, section) = page.split_once('(').unwrap_or((page, ""));
        let comma = if at == last { "" } else { "," };
        roff.text([bold(name), roman(format!("({section}{comma}"))]);
    }
}
