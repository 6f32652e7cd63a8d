//! What is packed comes back as it was, and nothing else is made of any bytes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use proptest::prelude::*;
use tar::{EntryType, Header};
use tempfile::TempDir;

use super::*;
use crate::directory::{ExperimentDir, NameRequest, OlderExperiment, TO_BE_PACKED};

const MOST: u64 = 1 << 30;

/// An experiment with long names, an empty file, a directory in a directory, and what is not
/// packed.
fn experiment(parent: &Path) -> PathBuf {
    let dir = parent.join("k.1.er");
    let long = "x".repeat(200);
    for inner in ["archives".to_owned(), format!("_{long}_PID_1.1.er")] {
        fs::create_dir_all(dir.join(&inner)).unwrap();
        fs::write(dir.join(inner).join(&long), vec![7; 100_000]).unwrap();
    }
    fs::write(dir.join("log.xml"), "<experiment/>").unwrap();
    fs::write(dir.join("a-first"), "before the log by name").unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    symlink("/etc/passwd", dir.join("link")).unwrap();
    dir
}

fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            let content = fs::read(&path).unwrap();
            found.push((path, content));
        }
    }
    found.sort();
    found
}

fn relative(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let all = files(dir).into_iter();
    all.map(|(path, content)| (path.strip_prefix(dir).unwrap().to_owned(), content))
        .collect()
}

fn packed(tmp: &TempDir, bytes: &[u8]) -> PathBuf {
    let file = tmp.path().join("k.1.er.zst");
    fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn unpacked_files_equal_the_packed_ones() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let dir = experiment(from.path());
    let mut seen = Vec::new();
    let bytes = pack(&dir, Vec::new(), &mut |bytes| seen.push(bytes)).unwrap();
    assert_eq!(seen.last(), Some(&200_035));
    let file = packed(&from, &bytes);
    let unpacked = unpack(&file, to.path(), MOST, &mut |_| {}).unwrap();
    assert_eq!(unpacked, to.path().join("k.1.er"));
    assert_eq!(relative(&unpacked), relative(&dir));
    let time = |dir: &Path| {
        fs::metadata(dir.join("log.xml"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let seconds = |dir| {
        time(dir)
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    assert_eq!(seconds(&unpacked), seconds(&dir));
    // It is not unpacked over it.
    assert!(unpack(&file, to.path(), MOST, &mut |_| {}).is_err());
}

#[test]
fn the_log_alone_has_its_sibling_directories() {
    let from = TempDir::new().unwrap();
    let bytes = pack(&experiment(from.path()), Vec::new(), &mut |_| {}).unwrap();
    let file = packed(&from, &bytes);
    let log = read_log(&file, MOST).unwrap();
    assert_eq!(log.bytes, b"<experiment/>");
    assert_eq!(log.directories.len(), 2);
    assert!(read_log(&file, 5).is_err());
    // That far, one that was cut can be read too.
    let cut = packed(&from, &bytes[..bytes.len() - 1]);
    assert!(read_log(&cut, MOST).is_ok());
    let to = TempDir::new().unwrap();
    assert!(unpack(&cut, to.path(), MOST, &mut |_| {}).is_err());
    let cut = packed(&from, &bytes[..bytes.len() / 20]);
    assert!(read_log(&cut, MOST).is_err());
}

#[test]
fn stock_tar_unpacks_it() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let dir = experiment(from.path());
    let bytes = pack(&dir, Vec::new(), &mut |_| {}).unwrap();
    let plain = zstd::decode_all(&bytes[..]).unwrap();
    let file = to.path().join("plain.tar");
    fs::write(&file, plain).unwrap();
    let mut tar = std::process::Command::new("tar");
    let done = tar.arg("-xf").arg(&file).current_dir(to.path()).status();
    assert!(done.unwrap().success());
    assert_eq!(relative(&to.path().join("k.1.er")), relative(&dir));
}

/// Packs entries of any kind.
fn made(entries: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
    let encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let mut tar = tar::Builder::new(encoder);
    for (kind, name, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        // The crate refuses some of these names.
        let field = &mut header.as_gnu_mut().unwrap().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        if *kind == EntryType::Symlink {
            header.set_link_name("/tmp").unwrap();
        }
        header.set_cksum();
        tar.append(&header, *content).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn outside_paths_and_special_files_are_refused() {
    const FILE: EntryType = EntryType::Regular;
    const DIR: EntryType = EntryType::Directory;
    let long = [b'x'; 2000];
    let mut errors = String::new();
    for entries in [
        &[][..],
        &[(FILE, "../k.1.er/log.xml", b"x".as_slice())],
        &[(FILE, "/tmp/k.1.er/log.xml", b"x")],
        &[(FILE, "k.1.er/../../x", b"x")],
        &[(FILE, "k.1/log.xml", b"x")],
        &[(FILE, ".er/log.xml", b"x")],
        &[(DIR, "k.1.er", b""), (FILE, "k.2.er/log.xml", b"x")],
        &[(EntryType::Symlink, "k.1.er/link", b"")],
        &[(EntryType::Link, "k.1.er/link", b"")],
        &[(EntryType::Char, "k.1.er/device", b"")],
        &[(EntryType::GNUSparse, "k.1.er/sparse", b"")],
        &[(EntryType::GNULongName, "x", &long)],
        &[(FILE, "k.1.er/a", b"x"), (FILE, "k.1.er/a", b"y")],
        &[(FILE, "k.1.er/a", b"x"), (DIR, "k.1.er/a/b", b"")],
    ] {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let file = packed(&from, &made(entries));
        let error = unpack(&file, to.path(), MOST, &mut |_| {}).unwrap_err();
        let text = error
            .to_string()
            .replace(from.path().to_str().unwrap(), "FROM");
        errors += &text.replace(to.path().to_str().unwrap(), "TO");
        errors += "\n";
        assert_eq!(fs::read_dir(from.path()).unwrap().count(), 1);
    }
    insta::assert_snapshot!(errors);
}

#[test]
fn no_more_is_written_than_there_is_space_for() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let bytes = pack(&experiment(from.path()), Vec::new(), &mut |_| {}).unwrap();
    let file = packed(&from, &bytes);
    let error = unpack(&file, to.path(), 150_000, &mut |_| {}).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    let written: usize = files(to.path())
        .iter()
        .map(|(_, content)| content.len())
        .sum();
    assert!(written <= 150_000, "{written}");
}

#[test]
fn names_tell_what_is_packed() {
    for (name, packed) in [
        ("k.1.er.zst", true),
        ("a/k.er.zst", true),
        (".er.zst", false),
        ("k.1.er", false),
        ("k.zst", false),
    ] {
        assert_eq!(is_packed(Path::new(name)), packed, "{name}");
    }
}

/// Makes experiments of a series that share a load object. Returns the last one.
fn series(parent: &Path) -> ExperimentDir {
    let made = [1, 2].map(|number| {
        let request = NameRequest::Exactly(format!("k.{number}.er"));
        let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
        let log = "<experiment>\n<collector>kcollect 0.1.0</collector>\n";
        fs::write(dir.path().join("log.xml"), log).unwrap();
        dir
    });
    let first = made[0].path();
    for inner in ["archives", "_x_PID_1.1.er"] {
        fs::create_dir(first.join(inner)).unwrap();
        fs::write(first.join(inner).join("file"), vec![7; 100_000]).unwrap();
    }
    fs::create_dir(made[1].path().join("archives")).unwrap();
    let link = made[1].path().join("archives/file");
    fs::hard_link(first.join("archives/file"), link).unwrap();
    let [_, last] = made;
    last
}

fn first_of(newest: &ExperimentDir) -> OlderExperiment {
    newest.older_experiments().unwrap().remove(0)
}

#[test]
fn in_place_the_shared_load_objects_stay() {
    let tmp = TempDir::new().unwrap();
    let newest = series(tmp.path());
    let dir = tmp.path().join("k.1.er");
    let before = relative(&dir);
    let written = first_of(&newest).written;
    // Of processes that were killed.
    for left in [".incomplete", "archives/.incomplete-copy"] {
        fs::write(dir.join(left), "a part").unwrap();
    }
    let stays = ["archives/file", PACKED];
    let done = pack_in_place(&first_of(&newest), &mut || Ok(())).unwrap();
    let PackedInPlace::Packed {
        before: whole,
        packed,
    } = done
    else {
        panic!("{done:?}");
    };
    assert!(whole > 100_000 && packed < 1000, "{whole} {packed}");
    let left: Vec<_> = files(&dir).into_iter().map(|(path, _)| path).collect();
    assert_eq!(left, stays.map(|name| dir.join(name)));
    assert_eq!(packed_file(&dir), Some(dir.join(PACKED)));
    // It is still one of the series, of the same time.
    let older = first_of(&newest);
    let seconds = |time: std::time::SystemTime| {
        let since = time.duration_since(std::time::UNIX_EPOCH);
        since.unwrap().as_secs()
    };
    assert_eq!(seconds(older.written), seconds(written));
    drop(older);
    let to = TempDir::new().unwrap();
    let unpacked = unpack_all(&dir, to.path(), MOST, &mut |_| {}).unwrap();
    assert_eq!(relative(&unpacked), before);
    // There is no space for the load objects.
    let to = TempDir::new().unwrap();
    let error = unpack_all(&dir, to.path(), 150_000, &mut |_| {}).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    assert!(first_of(&newest).remove().unwrap() && !dir.exists());
}

#[test]
fn in_place_what_a_killed_process_did_not_remove_is_removed() {
    let tmp = TempDir::new().unwrap();
    let newest = series(tmp.path());
    let dir = tmp.path().join("k.1.er");
    // Not recorded to be packed.
    assert!(!first_of(&newest).is_to_be_packed);
    let mut log = fs::read_to_string(dir.join("log.xml")).unwrap();
    log.push_str(&format!("{TO_BE_PACKED}/>\n"));
    fs::write(dir.join("log.xml"), log).unwrap();
    assert!(first_of(&newest).is_to_be_packed);
    pack_in_place(&first_of(&newest), &mut || Ok(())).unwrap();
    assert!(!first_of(&newest).is_to_be_packed);
    let (after, packed) = (relative(&dir), fs::read(dir.join(PACKED)).unwrap());
    fs::create_dir(dir.join("_x_PID_1.1.er")).unwrap();
    for left in ["profile", "_x_PID_1.1.er/profile"] {
        fs::write(dir.join(left), "left").unwrap();
    }
    assert!(first_of(&newest).is_to_be_packed);
    let done = pack_in_place(&first_of(&newest), &mut || Ok(()));
    assert_eq!(done.unwrap(), PackedInPlace::Before);
    assert_eq!(relative(&dir), after);
    assert_eq!(fs::read(dir.join(PACKED)).unwrap(), packed);
}

#[test]
fn in_place_what_is_read_stays() {
    let tmp = TempDir::new().unwrap();
    let newest = series(tmp.path());
    let dir = tmp.path().join("k.1.er");
    let before = relative(&dir);
    let reader = fs::File::open(&dir).unwrap();
    // In use before: nothing is begun.
    reader.lock_shared().unwrap();
    let mut read = || unreachable!("nothing is written");
    let done = pack_in_place(&first_of(&newest), &mut read);
    assert_eq!(
        (done.unwrap(), relative(&dir)),
        (PackedInPlace::InUse, before.clone())
    );
    reader.unlock().unwrap();
    // In use from the first write on.
    let mut read = || reader.lock_shared();
    let done = pack_in_place(&first_of(&newest), &mut read);
    assert_eq!(
        (done.unwrap(), relative(&dir)),
        (PackedInPlace::InUse, before)
    );
    reader.unlock().unwrap();
    let done = pack_in_place(&first_of(&newest), &mut || Ok(()));
    assert!(matches!(done.unwrap(), PackedInPlace::Packed { .. }));
    assert!(packed_file(&dir).is_some());
}

/// A recording that ends interrupts what is packed.
#[test]
fn in_place_an_interruption_is_no_reason_to_write_again() {
    let tmp = TempDir::new().unwrap();
    let newest = series(tmp.path());
    let dir = tmp.path().join("k.1.er");
    let before = relative(&dir);
    let mut writes = 0;
    let mut interrupt = || {
        writes += 1;
        Err(std::io::ErrorKind::Interrupted.into())
    };
    assert!(pack_in_place(&first_of(&newest), &mut interrupt).is_err());
    assert_eq!((writes, relative(&dir)), (1, before));
}

#[test]
fn in_place_a_failure_leaves_it_as_it_was() {
    let tmp = TempDir::new().unwrap();
    let newest = series(tmp.path());
    let dir = tmp.path().join("k.1.er");
    let before = relative(&dir);
    let full = || Err(std::io::ErrorKind::StorageFull.into());
    assert!(pack_in_place(&first_of(&newest), &mut { full }).is_err());
    assert_eq!(relative(&dir), before);
    assert!(pack_in_place(&first_of(&newest), &mut || Ok(())).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_damage_is_an_error_or_unpacks_inside(
        offset_share in 0.0..1.0f64, value in any::<u8>(), cut in prop::option::of(0.0..1.0f64),
    ) {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let bytes = pack(&experiment(from.path()), Vec::new(), &mut |_| {}).unwrap();
        let mut plain = zstd::decode_all(&bytes[..]).unwrap();
        let offset = (plain.len() as f64 * offset_share) as usize;
        plain[offset] = value;
        plain.truncate(cut.map_or(plain.len(), |cut| (plain.len() as f64 * cut) as usize));
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.write_all(&plain).unwrap();
        let file = packed(&from, &encoder.finish().unwrap());
        let inner = to.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let _ = unpack(&file, &inner, 300_000, &mut |_| {});
        prop_assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let unpacked = unpack(&packed(&from, &bytes), to.path(), MOST, &mut |_| {});
        prop_assert!(unpacked.is_err());
        prop_assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    }
}
