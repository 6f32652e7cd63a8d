//! The documents cannot go stale: their commands parse, their tables match the code, their links
//! have targets.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use counters::rows::RowKind;
use experiment_format::losses::Losses;
use host::exit::ExitKind;
use kcollect::cli::{self, Command, HostFacts};

const FACTS: HostFacts = HostFacts {
    max_sample_rate: Some(100_000),
    terminal_columns: Some(100),
    free_lock_time: std::time::Duration::from_micros(3),
};
/// Bytes of a picture, which every clone of the repository has to fetch.
const MAX_IMAGE_BYTES: u64 = 200_000;
/// The documents that ARCHITECTURE.md refers to for the details.
const DESIGN: &str = "docs/design/";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A document of the repository.
#[derive(Debug)]
struct Document {
    /// Its path in the repository.
    path: String,
    text: String,
}

impl Document {
    fn read(path: &str) -> io::Result<Document> {
        Ok(Document {
            path: path.to_owned(),
            text: fs::read_to_string(repository().join(path))?,
        })
    }

    /// The lines outside of fenced blocks.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut fenced = false;
        self.text.lines().filter(move |line| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
    }

    /// The commands typed at a prompt in fenced blocks.
    fn commands(&self) -> impl Iterator<Item = &str> {
        let mut fenced = false;
        self.text
            .lines()
            .filter(move |line| {
                fenced ^= line.starts_with("```");
                fenced
            })
            .filter_map(|line| line.strip_prefix("$ "))
    }

    /// The cells of a table's rows, found by its heading row.
    fn table(&self, heading: &str) -> Vec<[&str; 2]> {
        let rows: Vec<_> = self
            .text
            .lines()
            .skip_while(|line| *line != heading)
            .skip(2)
            .map_while(|line| {
                line.strip_prefix("| ")?
                    .strip_suffix(" |")?
                    .split_once(" | ")
            })
            .map(|(left, right)| [left, right])
            .collect();
        assert!(!rows.is_empty(), "{}: no table {heading}", self.path);
        rows
    }

    /// The targets of the inline links, without links to other sites and within this document.
    fn links(&self) -> Vec<&str> {
        let mut links = Vec::new();
        for line in self.prose() {
            let mut rest = line;
            while let Some((_, after)) = rest.split_once("](") {
                // A link that is not closed leads nowhere.
                let (link, after) = after.split_once(')').unwrap_or((after, ""));
                if !link.contains("://") {
                    links.push(link);
                }
                rest = after;
            }
        }
        links
    }

    /// The anchors of its headings, as GitHub makes them.
    fn anchors(&self) -> BTreeSet<String> {
        self.prose()
            .filter(|line| line.starts_with('#'))
            .map(|line| {
                line.trim_start_matches('#')
                    .trim()
                    .to_lowercase()
                    .chars()
                    .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                    .map(|c| if c == ' ' { '-' } else { c })
                    .collect()
            })
            .collect()
    }
}

/// All documents.
fn documents() -> io::Result<Vec<Document>> {
    let mut paths = Vec::new();
    for directory in ["", "docs/", DESIGN] {
        for entry in fs::read_dir(repository().join(directory))? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".md") {
                paths.push(format!("{directory}{name}"));
            }
        }
    }
    paths.iter().map(|path| Document::read(path)).collect()
}

/// Returns a command without leading assignments (`NAME=value`) and `sudo`.
fn without_prefix(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some((word, after)) = rest.split_once(' ') {
        let assigns = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        });
        if word != "sudo" && !assigns {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

/// Takes the command apart as a shell does, as far as the examples need it, and makes sure that it
/// means something.
fn understand(line: &str) -> Result<Command, String> {
    let line = line.split(" #").next().unwrap_or(line).trim();
    assert!(
        !line.contains(['"', '\'', '$', '\\']),
        "more than words: {line}"
    );
    let words = without_prefix(line).split_whitespace().map(OsString::from);
    cli::parse(words, &FACTS).map_err(|error| format!("{line}: {error}"))
}

#[test]
fn the_commands_of_the_documents_are_understood() {
    let mut count = 0;
    for document in documents().unwrap() {
        let lines = document
            .commands()
            .filter(|line| without_prefix(line).starts_with("kcollect"));
        for line in lines {
            count += 1;
            match understand(line) {
                Ok(Command::Record(plan)) => assert_eq!(
                    plan.notices,
                    Vec::<String>::new(),
                    "{}: an example that has to be adjusted: {line}",
                    document.path
                ),
                Ok(_) => {}
                Err(error) => panic!("{}: {error}", document.path),
            }
        }
    }
    assert!(count > 50, "{count}");
}

#[test]
fn the_readme_has_examples_of_its_own() {
    let readme = Document::read("README.md").unwrap();
    let examples = readme.commands().filter(|line| line.contains("kcollect"));
    assert!(examples.count() > 8);
}

#[test]
fn the_readme_lists_the_tested_kernels() {
    let readme = Document::read("README.md").unwrap().text;
    let (_, rest) = readme
        .split_once("<!-- tested kernels -->\n")
        .expect("a mark");
    let (list, _) = rest.split_once('\n').expect("a line");
    let tested: Vec<_> = kcollect::doctor::tested::releases().collect();
    assert_eq!(list.split(", ").collect::<Vec<_>>(), tested);
}

#[test]
fn the_readme_speaks_of_root_before_the_first_command() {
    let readme = Document::read("README.md").unwrap().text;
    let (ahead, _) = readme.split_once("\n$ ").expect("a command");
    assert!(ahead.contains("whole machine") && ahead.contains("root"));
}

#[test]
fn relative_links_lead_somewhere() {
    let documents = documents().unwrap();
    for document in &documents {
        let directory = Path::new(&document.path).parent().expect("a file's parent");
        for link in document.links() {
            let (file, anchor) = match link.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (link, None),
            };
            let target = match file {
                "" => PathBuf::from(&document.path),
                file => normal(&directory.join(file)),
            };
            let place = repository().join(&target);
            assert!(place.exists(), "{}: {link}", document.path);
            if place.extension().is_some_and(|ending| ending == "png") {
                let bytes = fs::metadata(&place).expect("its size").len();
                assert!(bytes <= MAX_IMAGE_BYTES, "{link}: {bytes} bytes");
            }
            if let Some(anchor) = anchor {
                let there = documents
                    .iter()
                    .find(|other| Path::new(&other.path) == target);
                let there = there.unwrap_or_else(|| panic!("{}: {link}", document.path));
                assert!(
                    there.anchors().contains(anchor),
                    "{}: {link}",
                    document.path
                );
            }
        }
    }
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(normal.pop(), "{path:?} leaves the repository"),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn paths_in_backticks_exist() {
    let mut count = 0;
    for document in documents().unwrap() {
        let name = document.path.as_str();
        if !["ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&name) && !name.starts_with(DESIGN) {
            continue;
        }
        // Code between single backticks is at every second place.
        let code = document
            .prose()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for path in code {
            let is_path = path.contains('/')
                && !path.starts_with('/')
                && !path.contains([' ', '*', '{', '<'])
                && [".rs", ".c", ".h", "/"]
                    .iter()
                    .any(|end| path.ends_with(end));
            // What an experiment holds is not in the repository.
            if is_path && path != "archives/" {
                count += 1;
                assert!(repository().join(path).exists(), "{name}: {path}");
            }
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn the_examples_of_the_help_are_understood() {
    let help = cli::help(Some(100));
    let examples = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let commands: Vec<Command> = examples
        .take_while(|line| !line.is_empty())
        .map(|line| understand(line.trim().split("  ").next().unwrap()))
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(commands.len() > 4, "{commands:#?}");
}

#[test]
fn the_options_are_those_of_the_code() {
    let options_md = Document::read("docs/options.md").unwrap();
    let documented: Vec<String> = options_md
        .table("| option | meaning |")
        .iter()
        .map(|[option, _]| option.trim_matches('`').replace("\\|", "|"))
        .collect();
    let known = options(&cli::args::command(None));
    assert_eq!(documented, known);
}

#[test]
fn the_options_of_counting_are_those_of_the_code() {
    let counters_md = Document::read("docs/counters.md").unwrap();
    let documented: BTreeSet<String> = counters_md
        .table("| option of `track` and `stat` | meaning |")
        .iter()
        .map(|[option, _]| option.trim_matches('`').to_owned())
        .collect();
    let command = cli::args::command(None);
    let known: BTreeSet<_> = ["track", "stat"]
        .iter()
        .flat_map(|name| options(command.find_subcommand(name).unwrap()))
        .collect();
    assert_eq!(documented, known);
}

/// Each option of a command that prints reports, pictures or exports is in reports.md.
#[test]
fn the_options_of_reports_are_those_of_the_code() {
    let reports_md = Document::read("docs/reports.md").unwrap();
    let documented: BTreeSet<String> = reports_md
        .table("| option of reports | meaning |")
        .iter()
        .map(|[option, _]| option.trim_matches('`').replace("\\|", "|"))
        .collect();
    let command = cli::args::command(None);
    let known: BTreeSet<_> = ["report", "view", "flame", "export"]
        .iter()
        .flat_map(|name| options(command.find_subcommand(name).unwrap()))
        .filter(|option| option != "--help")
        .collect();
    assert_eq!(documented, known);
}

#[test]
fn the_rows_of_counting_are_those_of_the_code() {
    let counters_md = Document::read("docs/counters.md").unwrap();
    let documented = counters_md.table("| row | is |");
    let documented: BTreeSet<&str> = documented
        .iter()
        .flat_map(|[rows, _]| rows.split(", ").map(|row| row.trim_matches('`')))
        .collect();
    let known = RowKind::ALL_WORDS.iter().copied().collect();
    assert_eq!(documented, known);
}

/// As the documents write them.
fn options(command: &clap::Command) -> Vec<String> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_positional())
        .map(|argument| {
            let short = argument
                .get_short()
                .map_or(String::new(), |short| format!("-{short}, "));
            let long = argument.get_long().unwrap_or_default();
            let value = match argument.get_value_names() {
                Some(names) if argument.get_action().takes_values() => {
                    match argument.get_num_args() {
                        Some(count) if count.min_values() == 0 => format!(" [{}]", names.join(" ")),
                        _ => format!(" {}", names.join(" ")),
                    }
                }
                _ => String::new(),
            };
            format!("{short}--{long}{value}")
        })
        .collect()
}

#[test]
fn the_exit_codes_are_those_of_the_code() {
    let options_md = Document::read("docs/options.md").unwrap();
    let documented: Vec<_> = options_md
        .table("| status | meaning |")
        .iter()
        .map(|[code, meaning]| format!("{code} {meaning}"))
        .collect();
    let known: Vec<_> = ExitKind::ALL
        .iter()
        .map(|kind| format!("{} {}", kind.code(), kind.meaning()))
        .collect();
    assert_eq!(documented, known);
}

#[test]
fn the_targets_of_make_exist() {
    let makefile = fs::read_to_string(repository().join("Makefile")).expect("the Makefile");
    let readme = Document::read("README.md").unwrap();
    let targets = |document: &Document| -> Vec<String> {
        let lines = document.commands();
        lines
            .filter_map(|line| line.strip_prefix("make "))
            .filter_map(|rest| rest.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(targets(&readme), ["dist", "run", "test"]);
    for document in documents().unwrap() {
        for target in targets(&document) {
            assert!(
                makefile
                    .lines()
                    .any(|line| line.starts_with(&format!("{target}:"))),
                "{}: {target}",
                document.path
            );
        }
    }
}

#[test]
fn the_views_of_reports_are_those_of_the_code() {
    let views = analysis::report::views::View::ALL.map(|(_, name, shows)| (name, shows));
    let reports_md = Document::read("docs/reports.md").unwrap();
    let documented = reports_md.table("| view | shows |");
    assert_eq!(documented.len(), views.len());
    for ([name, _], (view, _)) in documented.into_iter().zip(views) {
        // Some have a function after them.
        let word = name.trim_matches('`').split(' ').next();
        assert_eq!(word, Some(view));
    }
}

#[test]
fn the_formats_of_exports_are_those_of_the_code() {
    let reports_md = Document::read("docs/reports.md").unwrap();
    let documented: Vec<_> = reports_md
        .table("| format | for |")
        .iter()
        .map(|[name, readers]| format!("{name} {readers}"))
        .collect();
    let formats = analysis::export::ExportFormat::ALL;
    let known = formats.map(|(_, name, _, readers)| format!("`{name}` {readers}"));
    assert_eq!(documented, known);
}

#[test]
fn the_losses_are_those_of_the_code() {
    let format_md = Document::read("docs/experiment-format.md").unwrap();
    let documented: BTreeSet<&str> = format_md
        .table("| loss | counts |")
        .iter()
        .map(|[name, _]| name.trim_matches('`'))
        .collect();
    let losses = serde_json::to_value(Losses::default()).expect("JSON");
    let known = losses.as_object().expect("an object").keys();
    assert_eq!(documented, known.map(String::as_str).collect());
}

/// Returns how comments begin in a file, by its name. None: it has none that are checked.
fn comment_marks(path: &Path) -> Option<&'static [&'static str]> {
    let name = path.file_name()?.to_str()?;
    let ending = path.extension().and_then(|ending| ending.to_str());
    match (name, ending) {
        (_, Some("rs")) => Some(&["//"]),
        (_, Some("c" | "h" | "js" | "css")) => Some(&["//", "/*", "* "]),
        (_, Some("sh" | "mk")) | ("Makefile" | "run" | "Cargo.toml" | "deny.toml", _) => {
            Some(&["#"])
        }
        _ => None,
    }
}

/// Adds the sources in a directory of the repository.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let built = path.ends_with("target") || path.ends_with(".git");
        if kind.is_dir() && !built {
            sources(&path, found)?;
        } else if kind.is_file() && comment_marks(&path).is_some() {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the columns of a line. A tab continues to the next multiple of eight.
fn columns(line: &str) -> usize {
    line.chars().fold(0, |column, character| match character {
        '\t' => (column / 8 + 1) * 8,
        _ => column + 1,
    })
}

/// rustfmt wraps comments with unstable options only. Tables and fenced blocks may be wider.
#[test]
fn comments_have_no_more_than_100_columns() {
    let mut files = Vec::new();
    sources(&repository(), &mut files).unwrap();
    assert!(files.len() > 400, "{} files", files.len());
    let mut wide = Vec::new();
    for file in files {
        let marks = comment_marks(&file).unwrap_or_default();
        let mut fenced = false;
        let bytes = fs::read(&file).unwrap();
        for (number, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
            let text = line.trim_start();
            let Some(comment) = marks.iter().find_map(|mark| text.strip_prefix(mark)) else {
                fenced = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            fenced ^= comment.starts_with("```");
            let free = fenced || comment.starts_with('|');
            if !free && columns(line) > 100 {
                wide.push(format!("{}:{}: {line}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}
