//! The owner of a founder's directory, another user than the writer, replaces the files of
//! subexperiments. None of the replacements is written to.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod followed;
mod synthetic;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use experiment_format::Error;
use experiment_format::directory::{ExperimentDir, NameRequest, Owner};
use experiment_format::microstate::Microstate;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;

use followed::{founder, function, header, name, sub, ticks};
use synthetic::run;

/// Adds content for each file of a subexperiment.
fn fill(sub: &mut ExperimentWriter, n: u32) {
    sub.map(&function(0x10_0000 + 256 * u64::from(n), &format!("f{n}")))
        .unwrap();
    let stack = sub
        .stack(&[u64::from(n), 2, 3], StackEnd::Complete)
        .unwrap();
    sub.tick(&ticks(stack, n, Microstate::Sleep, 1)).unwrap();
    sub.sample(Nanos(n.into()), "x", &UsageRecord::default())
        .unwrap();
    sub.note("a note").unwrap();
    sub.warning(Nanos(n.into()), "a warning").unwrap();
}

#[test]
fn root_everything_belongs_to_the_owner_of_the_founder() {
    let tmp = tempfile::tempdir().unwrap();
    let request = NameRequest::Exactly("founder.er".into());
    let (dir, _) = ExperimentDir::create(
        tmp.path(),
        &request,
        Some(Owner {
            uid: 1234,
            gid: 4321,
        }),
    )
    .unwrap();
    let dir = Rc::new(dir);
    let mut sub = ExperimentWriter::create_sub(&dir, &name(5), &header(5), run(1)).unwrap();
    fill(&mut sub, 1);
    sub.flush().unwrap();
    fill(&mut sub, 2);
    sub.flush().unwrap();
    let path = dir.path().join(name(5));
    let stat = |path: &Path| {
        let stat = fs::metadata(path).unwrap();
        (stat.uid(), stat.gid(), stat.permissions().mode() & 0o7777)
    };
    assert_eq!(stat(&path), (1234, 4321, 0o700));
    assert_eq!(fs::read_dir(&path).unwrap().count(), 7);
    for file in fs::read_dir(&path).unwrap() {
        assert_eq!(stat(&file.unwrap().path()), (1234, 4321, 0o600));
    }
    // A file that took the name, and the inode number, may be another user's.
    std::os::unix::fs::chown(path.join("profile"), Some(4), None).unwrap();
    fill(&mut sub, 3);
    assert!(matches!(sub.flush(), Err(Error::Replaced { .. })));
}

/// Returns a subexperiment that was flushed once and has waiting content for each file.
fn hostile() -> (tempfile::TempDir, ExperimentWriter, PathBuf) {
    let tmp = tempfile::tempdir().unwrap();
    let founder = founder(tmp.path());
    let mut sub = sub(&founder, 5);
    fill(&mut sub, 1);
    sub.flush().unwrap();
    fill(&mut sub, 2);
    let path = founder.dir().path().join(name(5));
    (tmp, sub, path)
}

fn is_refused(sub: &mut ExperimentWriter) {
    let error = sub.flush().unwrap_err();
    assert!(matches!(error, Error::Replaced { .. }), "{error}");
}

#[test]
fn another_directory_is_left_alone() {
    let (tmp, mut sub, path) = hostile();
    let moved = tmp.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    let waits = sub.buffered();
    // A link, even to the true directory; another directory; a file.
    symlink(&moved, &path).unwrap();
    is_refused(&mut sub);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    is_refused(&mut sub);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "x").unwrap();
    is_refused(&mut sub);
    fs::remove_file(&path).unwrap();
    let gone = sub.flush().unwrap_err();
    assert!(matches!(gone, Error::Io { .. }), "{gone}");
    assert_eq!(sub.buffered(), waits);
    // The true directory again.
    fs::rename(&moved, &path).unwrap();
    sub.close(Nanos(1)).unwrap();
    assert_eq!(Experiment::open(&path).unwrap().samples().unwrap().len(), 2);
}

#[test]
fn another_file_is_left_alone() {
    let files = [
        "log.xml",
        "map.xml",
        "profile",
        "data.frameinfo",
        "overview",
        "notes",
        "warnings.xml",
    ];
    for name in files {
        let (tmp, mut sub, path) = hostile();
        let (file, moved) = (path.join(name), tmp.path().join("moved"));
        let outside = tmp.path().join("outside");
        fs::write(&outside, "precious").unwrap();
        fs::rename(&file, &moved).unwrap();
        let before = fs::read(&moved).unwrap();
        for put in [
            |from: &Path, to: &Path| symlink(from, to).unwrap(),
            |from: &Path, to: &Path| fs::hard_link(from, to).unwrap(),
            |from: &Path, to: &Path| fs::copy(from, to).map(drop).unwrap(),
            |_: &Path, to: &Path| nix::unistd::mkfifo(to, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            |_: &Path, to: &Path| drop(std::os::unix::net::UnixListener::bind(to).unwrap()),
        ] {
            put(&outside, &file);
            is_refused(&mut sub);
            assert_eq!(fs::read_to_string(&outside).unwrap(), "precious", "{name}");
            fs::remove_file(&file).unwrap();
        }
        fs::create_dir(&file).unwrap();
        is_refused(&mut sub);
        fs::remove_dir(&file).unwrap();
        // The true file, but with a second name.
        fs::hard_link(&moved, &file).unwrap();
        is_refused(&mut sub);
        assert_eq!(fs::read(&moved).unwrap(), before, "{name}");
        fs::remove_file(&moved).unwrap();
        sub.close(Nanos(1)).unwrap();
        let experiment = Experiment::open(&path).unwrap();
        assert!(experiment.is_closed());
        assert_eq!(experiment.ticks().unwrap().count(), 2, "{name}");
        assert_eq!(experiment.usage().unwrap().len(), 2, "{name}");
    }
}

#[test]
fn a_file_is_not_made_over_an_existing_one() {
    let tmp = tempfile::tempdir().unwrap();
    let founder = founder(tmp.path());
    let mut sub = sub(&founder, 5);
    fill(&mut sub, 1);
    let path = founder.dir().path().join(name(5));
    let outside = tmp.path().join("outside");
    symlink(&outside, path.join("profile")).unwrap();
    assert!(sub.flush().is_err());
    assert!(!outside.exists());
    fs::remove_file(path.join("profile")).unwrap();
    sub.flush().unwrap();
    let experiment = Experiment::open(&path).unwrap();
    assert_eq!(experiment.ticks().unwrap().count(), 1);
    assert_eq!(experiment.usage().unwrap().len(), 1);
}
