//! An experiment that is packed into a file reads like its directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::packed::pack_in_place;

use super::experiment::{SUB, made};

fn kcollect(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .env_remove("DEBUGINFOD_URLS")
        .env("TMPDIR", directory.join("temporary"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

/// Returns what a command prints on both streams, with the packed experiment's name replaced by the
/// directory's.
fn printed(directory: &Path, arguments: &[&str]) -> String {
    let output = kcollect(directory, arguments);
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(output.status.success(), "{arguments:?}: {text}");
    text.replace("ktest.3.er.zst", "ktest.3.er")
}

/// Returns the exit status of a command, and what it prints on standard error.
fn refused(directory: &Path, arguments: &[&str]) -> (i32, String) {
    let output = kcollect(directory, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

/// Makes `ktest.3.er`, packs it, and keeps the directory as `kept/ktest.3.er`.
fn packed() -> tempfile::TempDir {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path();
    for name in ["temporary", "kept"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    made(path);
    printed(path, &["pack", "ktest.3.er"]);
    fs::rename(path.join("ktest.3.er"), path.join("kept/ktest.3.er")).unwrap();
    tmp
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn reports_are_the_same() {
    let tmp = packed();
    let (here, kept) = (tmp.path(), tmp.path().join("kept"));
    fs::create_dir(kept.join("temporary")).unwrap();
    for view in [
        "triage",
        "functions",
        "calltree",
        "objects",
        "threads",
        "processes",
        "cpus",
        "overview",
        "samples",
        "statistics",
        "header",
        "experiments",
    ] {
        for format in ["--json", "--csv"] {
            let report = |directory, name| printed(directory, &["report", name, view, format]);
            assert_eq!(
                report(here, "ktest.3.er.zst"),
                report(&kept, "ktest.3.er"),
                "{view}"
            );
        }
    }
    // The newest one here, and a time in this directory.
    let report =
        |directory: &Path, more: &[&str]| printed(directory, &[&["report"], more].concat());
    assert_eq!(report(here, &[]), report(&kept, &[]));
    let last = ["--last", "1h", "processes", "--json"];
    assert_eq!(report(here, &last), report(&kept, &last));
    let filtered = ["ktest.3.er.zst", "functions", "--process", "sort"];
    assert!(report(here, &filtered).contains("compare"));
    assert!(is_empty(&here.join("temporary")));
}

#[test]
fn pictures_and_exports_are_the_same() {
    let tmp = packed();
    let (here, kept) = (tmp.path(), tmp.path().join("kept"));
    fs::create_dir(kept.join("temporary")).unwrap();
    for (command, file) in [
        (&["flame"][..], "ktest.3.svg"),
        (&["export", "--to", "folded"], "ktest.3.folded"),
        (&["export", "--to", "perfetto"], "ktest.3.perfetto-trace"),
    ] {
        for (directory, name) in [(here, "ktest.3.er.zst"), (&kept, "ktest.3.er")] {
            printed(directory, &[command, &[name]].concat());
        }
        let made = |directory: &Path| fs::read(directory.join(file));
        let [ours, other] = [here, &kept].map(|directory| made(directory).unwrap());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(".er.zst", ".er");
        assert!(text(&ours) == text(&other), "{file}");
    }
    // The page's data is compressed, and contains the name.
    printed(here, &["view", "ktest.3.er.zst"]);
    assert!(fs::metadata(here.join("ktest.3.html")).unwrap().len() > 10_000);
}

#[test]
fn packed_experiment_is_listed_once() {
    let tmp = packed();
    let row = |text: String| {
        text.lines()
            .find(|line| line.starts_with("ktest"))
            .map(str::to_owned)
    };
    let columns = |directory: &Path| -> Vec<String> {
        let row = row(printed(directory, &["list"])).unwrap();
        let columns = row.split_whitespace().map(str::to_owned);
        columns.collect()
    };
    let ours = columns(tmp.path());
    assert_eq!((&*ours[0], &*ours[4]), ("ktest.3.er", "complete"));
    // With its directory next to it the directory is shown.
    let (from, to) = (
        tmp.path().join("kept/ktest.3.er"),
        tmp.path().join("ktest.3.er"),
    );
    fs::rename(from, to).unwrap();
    let both = kcollect(tmp.path(), &["list"]).stdout;
    let both = String::from_utf8(both).unwrap();
    assert!(
        both.contains("ktest.3.er ") && !both.contains("ktest.3.er.zst"),
        "{both}"
    );
}

/// Makes `ktest.3.er` as [`packed`], and packs it in its directory.
fn packed_in_place() -> tempfile::TempDir {
    let tmp = packed();
    let path = tmp.path();
    fs::rename(
        path.join("ktest.3.er.zst"),
        path.join("kept/ktest.3.er.zst"),
    )
    .unwrap();
    printed(path, &["unpack", "kept/ktest.3.er.zst"]);
    let newest = NameRequest::Exactly("ktest.4.er".to_owned());
    let (newest, _) = ExperimentDir::create(path, &newest, None).unwrap();
    let older = newest.older_experiments().unwrap().pop().unwrap();
    pack_in_place(&older, &mut || Ok(())).unwrap();
    drop(older);
    let copies = fs::read_dir(path.join("ktest.3.er/archives")).unwrap();
    assert_eq!(copies.count(), 2);
    newest.remove_all().unwrap();
    fs::create_dir(path.join("kept/temporary")).unwrap();
    tmp
}

#[test]
fn experiment_packed_in_place_reads_as_before() {
    let tmp = packed_in_place();
    let (here, kept) = (tmp.path(), tmp.path().join("kept"));
    let report = |directory: &Path, view: &str| {
        printed(directory, &["report", "ktest.3.er", view, "--json"])
    };
    let views = ["triage", "functions", "objects", "processes", "experiments"];
    for view in views {
        assert_eq!(report(here, view), report(&kept, view), "{view}");
    }
    let last = ["report", "--last", "1h", "processes", "--json"];
    assert_eq!(printed(here, &last), printed(&kept, &last));
    let list: serde_json::Value =
        serde_json::from_str(&printed(here, &["list", "--json"])).unwrap();
    let row = &list["rows"][0];
    assert_eq!(row["experiment"], "ktest.3.er");
    assert_eq!(row["state"], "complete");
    // As after a kill, when not all is removed that is packed.
    fs::write(here.join("ktest.3.er/profile"), "the rest").unwrap();
    for view in views {
        assert_eq!(report(here, view), report(&kept, view), "{view}");
    }
    assert!(is_empty(&here.join("temporary")));
}

#[test]
fn experiment_packed_in_place_is_unpacked_whole() {
    let tmp = packed_in_place();
    let path = tmp.path();
    fs::create_dir(path.join("other")).unwrap();
    printed(path, &["unpack", "ktest.3.er", "-d", "other"]);
    printed(path, &["pack", "ktest.3.er", "-o", "other/file.er.zst"]);
    fs::create_dir(path.join("other/again")).unwrap();
    printed(path, &["unpack", "other/file.er.zst", "-d", "other/again"]);
    let diff = |other: &str| {
        let mut diff = Command::new("diff");
        diff.args(["-r", "kept/ktest.3.er", other]);
        diff.current_dir(path).output().unwrap()
    };
    for other in ["other/ktest.3.er", "other/again/ktest.3.er"] {
        let found = diff(other);
        let text = String::from_utf8_lossy(&found.stdout);
        assert!(found.status.success(), "{text}");
    }
    assert!(is_empty(&path.join("temporary")));
    // Not over itself, and not what is not packed.
    assert_eq!(refused(path, &["unpack", "ktest.3.er"]).0, 73);
    let not_packed = ["unpack", "kept/ktest.3.er", "-d", "other/again"];
    let (code, text) = refused(path, &not_packed);
    assert_eq!(code, 66, "{text}");
    insta::assert_snapshot!("not_packed", text);
}

#[test]
fn packed_file_is_private_and_unpacks_unchanged() {
    let tmp = packed();
    let file = tmp.path().join("ktest.3.er.zst");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let directory = printed(tmp.path(), &["unpack", "ktest.3.er.zst"]);
    assert_eq!(directory.trim_end(), "./ktest.3.er");
    for name in ["log.xml", "profile", "map.xml"] {
        for sub in ["", SUB] {
            let read = |top: &str| fs::read(tmp.path().join(top).join(sub).join(name)).unwrap();
            assert!(
                read("ktest.3.er") == read("kept/ktest.3.er"),
                "{sub}/{name}"
            );
        }
    }
    let (code, text) = refused(tmp.path(), &["unpack", "ktest.3.er.zst"]);
    assert_eq!(code, 73, "{text}");
    let (code, text) = refused(tmp.path(), &["unpack", "ktest.3.er.zst", "-d", "none"]);
    assert_eq!(code, 73, "{text}");
}

#[test]
fn errors_have_a_hint() {
    let tmp = packed();
    let bytes = fs::read(tmp.path().join("ktest.3.er.zst")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(tmp.path().join(name), bytes).unwrap();
    write("cut.er.zst", &bytes[..bytes.len() / 2]);
    write("none.er.zst", b"no experiment");
    write("kept/note.txt", b"");
    let sub = format!("kept/ktest.3.er/{SUB}");
    let mut text = String::new();
    for arguments in [
        &["report", "cut.er.zst"][..],
        &["report", "none.er.zst"],
        &["report", "missing.er.zst"],
        &["list"],
        &["unpack", "none.er.zst"],
        &["unpack", "kept/ktest.3.er"],
        &["pack"],
        &["pack", "missing.er"],
        &["pack", "ktest.3.er.zst"],
        &["pack", &sub],
        &["pack", "kept/ktest.3.er", "-o", "x.er"],
        &[
            "pack",
            "kept/ktest.3.er",
            "kept/ktest.3.er",
            "-o",
            "x.er.zst",
        ],
    ] {
        let (code, stderr) = refused(tmp.path(), arguments);
        text += &format!(
            "$ kcollect {}\n{stderr}exit status {code}\n\n",
            arguments.join(" ")
        );
    }
    insta::assert_snapshot!("packed_refused", text);
    let (code, text) = refused(
        tmp.path(),
        &["pack", "kept/ktest.3.er", "-o", "none/x.er.zst"],
    );
    assert_eq!(code, 73, "{text}");
    assert!(is_empty(&tmp.path().join("temporary")));
}
