//! The licences of the parts of the program: `copyright`, in Debian's machine-readable form, and
//! `THIRD-PARTY`, with the text of each licence.
//!
//! A part is a crate that is compiled into the program, or a C library that is linked into it; no
//! tool for crates finds the latter. A licence that is not in [`KNOWN`] and a part without a
//! licence text are errors, so that a new dependency is looked at. Which licences a dependency may
//! have at all is in `deny.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Licences by their SPDX names: Debian's name, and Debian's file with the text.
const KNOWN: [(&str, &str, Option<&str>); 16] = [
    ("0BSD", "0BSD", None),
    ("Apache-2.0", "Apache-2.0", Some("Apache-2.0")),
    (
        "Apache-2.0 WITH LLVM-exception",
        "Apache-2.0-with-LLVM-exception",
        None,
    ),
    ("BSD-2-Clause", "BSD-2-clause", None),
    ("BSD-3-Clause", "BSD-3-clause", None),
    ("CC0-1.0", "CC0-1.0", Some("CC0-1.0")),
    ("CDDL-1.0", "CDDL-1.0", None),
    ("GPL-2.0-only", "GPL-2", Some("GPL-2")),
    ("GPL-2.0-or-later", "GPL-2+", Some("GPL-2")),
    (
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "GPL-3+-with-GCC-exception-3.1",
        Some("GPL-3"),
    ),
    ("ISC", "ISC", None),
    ("LGPL-2.1-or-later", "LGPL-2.1+", Some("LGPL-2.1")),
    ("LGPL-2.1-only", "LGPL-2.1", Some("LGPL-2.1")),
    ("LGPL-3.0-or-later", "LGPL-3+", Some("LGPL-3")),
    ("MIT", "Expat", None),
    ("Zlib", "Zlib", None),
];

/// Licences that are left out of a choice, which then has another one of [`KNOWN`].
const LEFT_OUT: [&str; 3] = ["BSL-1.0", "MIT-0", "Unlicense"];

/// The C libraries that are linked: the name after -l, the name for people, the licence, the
/// holder.
const LIBRARIES: [(&str, &str, &str, &str); 5] = [
    (
        "c",
        "The GNU C library",
        "LGPL-2.1-or-later",
        "The GNU C library's authors",
    ),
    (
        "gcc_eh",
        "The unwinder of GCC",
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "Free Software Foundation, Inc.",
    ),
    (
        "elf",
        "libelf of elfutils",
        "GPL-2.0-or-later OR LGPL-3.0-or-later",
        "Red Hat, Inc., and others",
    ),
    ("z", "zlib", "Zlib", "Jean-loup Gailly and Mark Adler"),
    (
        "zstd",
        "Zstandard",
        "BSD-3-Clause OR GPL-2.0-only",
        "Meta Platforms, Inc. and affiliates",
    ),
];

/// Sources of other projects that a crate contains and compiles: the crate, the directory, the
/// licence, the holder.
const VENDORED: [(&str, &str, &str, &str); 2] = [
    (
        "libbpf-sys",
        "libbpf",
        "LGPL-2.1-only OR BSD-2-Clause",
        "The libbpf authors",
    ),
    (
        "zstd-sys",
        "zstd",
        "BSD-3-Clause OR GPL-2.0-only",
        "Meta Platforms, Inc. and affiliates",
    ),
];

const OURS: &str = "GPL-2.0-only OR Apache-2.0";

const EXPAT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the \"Software\"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
";

/// A part of the program that other projects wrote.
pub(super) struct Part {
    /// The name for people.
    name: String,
    /// The name of its files in `copyright`.
    files: String,
    /// The licence as an SPDX expression.
    licence: String,
    holders: Vec<String>,
    texts: Vec<String>,
}

/// Returns all parts. `libraries` are the C libraries of the build machine, each with its package:
/// `elf=libelf-dev`.
pub(super) fn parts(target: &str, libraries: &[String]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let linked = crates_in(target)?;
    for package in metadata(target)?["packages"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let name = package["name"].as_str().unwrap_or_default();
        let version = package["version"].as_str().unwrap_or_default();
        // The packages of this workspace have no source.
        if !package["source"].is_null() && linked.contains(&format!("{name} v{version}")) {
            parts.extend(of_crate(package, name, version)?);
        }
    }
    parts.push(Part {
        name: "The Rust standard library".to_owned(),
        files: "rust/*".to_owned(),
        licence: "MIT OR Apache-2.0".to_owned(),
        holders: vec!["The Rust Project Developers".to_owned()],
        texts: vec![expat(&["The Rust Project Developers".to_owned()])],
    });
    for library in libraries {
        parts.push(of_library(library)?);
    }
    Ok(parts)
}

/// Returns the crates that are compiled into the program, without those that only build or test it.
fn crates_in(target: &str) -> Result<BTreeSet<String>> {
    let tree = cargo(&[
        "tree",
        "--locked",
        "-p",
        "kcollect",
        "--target",
        target,
        "-e",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ])?;
    let names = tree.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some(format!("{} {}", fields.next()?, fields.next()?))
    });
    Ok(names.collect())
}

fn metadata(target: &str) -> Result<Value> {
    let text = cargo(&[
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        target,
    ])?;
    Ok(serde_json::from_str(&text)?)
}

fn cargo(args: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn of_crate(package: &Value, name: &str, version: &str) -> Result<Vec<Part>> {
    let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
    let directory = manifest.parent().unwrap_or(Path::new("."));
    // Older manifests separate a choice by a slash.
    let licence = package["license"].as_str().unwrap_or_default();
    let licence = licence.replace('/', " OR ");
    let authors = package["authors"].as_array().into_iter().flatten();
    // Without mail addresses.
    let authors = authors.filter_map(|author| author.as_str()?.split(" <").next());
    let mut authors: Vec<_> = authors.map(str::to_owned).collect();
    if authors.is_empty() {
        authors.push(format!("The authors of {name}"));
    }
    let mut part = Part {
        name: format!("{name} {version}"),
        files: format!("cargo/{name}-{version}/*"),
        licence,
        holders: Vec::new(),
        texts: texts_in(directory)?,
    };
    part.holders = holders(&part.texts);
    if part.holders.is_empty() {
        part.holders = authors;
    }
    if part.texts.is_empty() {
        part.texts.push(without_text(&part)?);
    }
    let mut parts = vec![part];
    for (_, inner, licence, holder) in VENDORED.iter().filter(|(owner, ..)| *owner == name) {
        let texts = texts_in(&directory.join(inner))?;
        if texts.is_empty() {
            return Err(format!("{name} {version} has no licence text of {inner}").into());
        }
        parts.push(Part {
            name: format!("{inner}, in {name} {version}"),
            files: format!("cargo/{name}-{version}/{inner}/*"),
            licence: (*licence).to_owned(),
            holders: vec![(*holder).to_owned()],
            texts,
        });
    }
    Ok(parts)
}

fn of_library(argument: &str) -> Result<Part> {
    let (library, package) = argument
        .split_once('=')
        .ok_or_else(|| format!("{argument} is not LIBRARY=PACKAGE"))?;
    let (_, name, licence, holder) = LIBRARIES
        .iter()
        .find(|(known, ..)| *known == library)
        .ok_or_else(|| format!("the licence of lib{library} is not known"))?;
    let read = |file: PathBuf| {
        fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
    };
    // A package's copyright file refers to Debian's copies of the licences, which only Debian has.
    let copyright = read(Path::new("/usr/share/doc").join(package).join("copyright"))?;
    let common = debian(licence)?.1.into_iter().filter_map(|at| KNOWN[at].2);
    let common = common.map(|name| read(Path::new("/usr/share/common-licenses").join(name)));
    let common = common.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Part {
        name: (*name).to_owned(),
        files: format!("debian/{package}/*"),
        licence: (*licence).to_owned(),
        holders: vec![(*holder).to_owned()],
        texts: std::iter::once(copyright).chain(common).collect(),
    })
}

/// Returns the licence texts in a directory, in the order of their file names.
fn texts_in(directory: &Path) -> Result<Vec<String>> {
    const BEGIN: [&str; 6] = [
        "license",
        "licence",
        "copying",
        "copyright",
        "notice",
        "unlicense",
    ];
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_lowercase();
        if path.is_file() && BEGIN.iter().any(|begin| name.starts_with(begin)) {
            files.push(path);
        }
    }
    files.sort();
    let texts = files.iter().map(|file| {
        let bytes = fs::read(file)?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
    });
    texts.collect()
}

/// Returns the holders in lines that begin with `Copyright`, without the holders of the licence
/// texts themselves and without patterns to fill in.
fn holders(texts: &[String]) -> Vec<String> {
    const OF_LICENCES: [&str; 6] = [
        "[yyyy]",
        "{yyyy}",
        "<year>",
        "Free Software Foundation",
        "notice",
        "copyright law",
    ];
    let mut holders = Vec::new();
    for line in texts.iter().flat_map(|text| text.lines()) {
        let line = line.trim().trim_end_matches('.');
        let Some(rest) = line.strip_prefix("Copyright ") else {
            continue;
        };
        let marked = ["(c) ", "(C) ", "© "]
            .iter()
            .find_map(|mark| rest.strip_prefix(mark));
        let dated = rest.starts_with(|letter: char| letter.is_ascii_digit());
        let of_licence = OF_LICENCES.iter().any(|part| line.contains(part));
        let holder = marked.unwrap_or(rest).to_owned();
        if (marked.is_some() || dated) && !of_licence && !holders.contains(&holder) {
            holders.push(holder);
        }
    }
    holders
}

/// Returns the licence text of a crate that names its licence and contains no text.
fn without_text(part: &Part) -> Result<String> {
    let choices: Vec<_> = part.licence.split(" OR ").collect();
    if choices.contains(&"MIT") {
        return Ok(expat(&part.holders));
    }
    if choices.contains(&"0BSD") {
        return Ok("Under the licence 0BSD, which has no conditions.\n".to_owned());
    }
    Err(format!(
        "{} is under {} and has no text of it",
        part.name, part.licence
    )
    .into())
}

fn expat(holders: &[String]) -> String {
    let holders = holders.iter().map(|holder| format!("Copyright {holder}\n"));
    holders.collect::<String>() + "\n" + EXPAT
}

/// Returns a licence expression with Debian's names, and the positions of its licences in
/// [`KNOWN`].
fn debian(licence: &str) -> Result<(String, Vec<usize>)> {
    let mut names = Vec::new();
    let mut used = Vec::new();
    let licence = licence.trim();
    for choice in licence
        .split(" OR ")
        .filter(|choice| !LEFT_OUT.contains(choice))
    {
        let mut all = Vec::new();
        for one in choice.split(" AND ") {
            let at = KNOWN
                .iter()
                .position(|(spdx, ..)| *spdx == one)
                .ok_or_else(|| format!("the licence {one} (in {licence}) is not known"))?;
            all.push(KNOWN[at].1);
            used.push(at);
        }
        names.push(all.join(" and "));
    }
    if names.is_empty() {
        Err(format!("the licence {licence:?} is not known").into())
    } else {
        Ok((names.join(" or "), used))
    }
}

/// Returns Debian's file `copyright`.
pub(super) fn copyright(parts: &[Part]) -> Result<String> {
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: kcollect\n\
         Upstream-Contact: kcollect maintainers\n\
         Comment: The program contains the libraries below. Some of them are only under the\n \
         Apache License 2.0, and one under the CDDL 1.0, which are considered incompatible\n \
         with the GPL 2. The program as a whole is therefore distributed with kcollect's\n \
         own part under the Apache License 2.0. The texts are in the files LICENSE-APACHE,\n \
         LICENSE-GPL and THIRD-PARTY.\n",
    );
    let mut used = BTreeSet::new();
    let ours = Part {
        name: "kcollect".to_owned(),
        files: "*".to_owned(),
        licence: OURS.to_owned(),
        holders: vec!["The kcollect maintainers".to_owned()],
        texts: Vec::new(),
    };
    for part in std::iter::once(&ours).chain(parts) {
        let (licence, of_it) =
            debian(&part.licence).map_err(|error| format!("{}: {error}", part.name))?;
        used.extend(of_it);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\nFiles: {}\nCopyright: {}\nLicense: {licence}\n",
            part.files,
            part.holders.join("\n "),
        );
    }
    for at in used {
        let (_, name, common) = KNOWN[at];
        let _ = match common {
            Some(common) => writeln!(
                text,
                "\nLicense: {name}\n On Debian systems the text is in /usr/share/common-licenses/{common}."
            ),
            None => writeln!(
                text,
                "\nLicense: {name}\n The text of each part is in the file THIRD-PARTY alongside this one."
            ),
        };
    }
    Ok(text)
}

/// Returns `THIRD-PARTY`: each text once, under the names of all parts that have it.
pub(super) fn texts(parts: &[Part]) -> Result<String> {
    let mut owners: BTreeMap<&str, Vec<&Part>> = BTreeMap::new();
    for part in parts {
        for text in &part.texts {
            owners
                .entry(text.trim_matches('\n'))
                .or_default()
                .push(part);
        }
    }
    let mut texts: Vec<_> = owners.into_iter().collect();
    texts.sort_by_key(|(text, owners)| (owners[0].name.to_lowercase(), *text));
    let mut all =
        String::from("The parts of kcollect that other projects wrote, and their licences.\n");
    let rule = "=".repeat(80);
    for (text, owners) in texts {
        let _ = write!(all, "\n{rule}\n");
        for owner in owners {
            let _ = writeln!(all, "{}: {}", owner.name, owner.licence);
        }
        let _ = write!(all, "{rule}\n\n{text}\n");
    }
    Ok(all)
}
