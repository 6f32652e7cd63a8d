use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use experiment_format::ids::Pid;

use super::super::jitdump::tests::{header, load};
use super::*;
use crate::space::MappedFile;

const MS: u64 = 1_000_000;

struct Trial {
    _dir: tempfile::TempDir,
    path: PathBuf,
    watch: JitWatch,
    writes: u64,
}

/// Watches this process, whose perf map is at another place.
fn trial() -> Trial {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.map");
    let proc = ProcDir::open(Pid(std::process::id())).unwrap();
    let facts = ProcessFacts::read(&proc);
    let mut watch = JitWatch::open(proc, &facts, Nanos(100), &SharedJit::default()).unwrap();
    watch.map.path.clone_from(&path);
    Trial {
        _dir: dir,
        path,
        watch,
        writes: 0,
    }
}

/// Memory in which there may be functions.
fn anonymous() -> Mapping {
    Mapping {
        start: 0x1000,
        end: 0x2000,
        offset: 0,
        file: MappedFile::named(b"//anon"),
    }
}

impl Trial {
    fn append(&mut self, text: &[u8]) {
        let mut open = OpenOptions::new();
        let mut file = open.append(true).create(true).open(&self.path).unwrap();
        file.write_all(text).unwrap();
        self.stamp();
    }

    fn write(&mut self, text: &[u8]) {
        fs::write(&self.path, text).unwrap();
        self.stamp();
    }

    /// The clock of a file system may be too coarse to distinguish two writes of a test.
    fn stamp(&mut self) {
        self.writes += 1;
        let file = OpenOptions::new().append(true).open(&self.path).unwrap();
        let later = SystemTime::now() + Duration::from_secs(self.writes);
        file.set_modified(later).unwrap();
    }

    fn poll(&mut self, now_ns: Nanos) -> Vec<String> {
        shown(self.watch.poll(now_ns, &[anonymous()]))
    }
}

fn shown(changes: Vec<JitChange>) -> Vec<String> {
    let shown = changes.into_iter().map(|change| match change {
        JitChange::Begin { at_ns, name, .. } => format!("{at_ns}+{name}"),
        JitChange::End { at_ns, address } => format!("{at_ns}-{address:x}"),
    });
    shown.collect()
}

#[test]
fn a_map_is_read_as_it_grows() {
    let mut trial = trial();
    trial.append(b"10 8 a\n20 8 b\n30 8 ha");
    assert_eq!(trial.poll(Nanos(1000)), ["100+a", "100+b"]);
    assert!(trial.poll(Nanos(2000)).is_empty());
    trial.append(b"lf\n20 4 c\n");
    assert_eq!(trial.poll(Nanos(3000)), ["2000+half", "2000-20", "2001+c"]);
    assert_eq!(trial.watch.counts().functions, 4);
    assert_eq!(trial.watch.counts().rereadings, 0);
}

#[test]
fn a_map_that_comes_late_is_found_within_a_second() {
    let mut trial = trial();
    assert!(trial.poll(SECOND_NS).is_empty());
    trial.append(b"10 8 a\n");
    assert!(trial.poll(SECOND_NS + Nanos::from_millis(200)).is_empty());
    assert_eq!(trial.poll(SECOND_NS * 2), ["100+a"]);
}

#[test]
fn without_anonymous_memory_every_tenth_look_is_made() {
    let mut trial = trial();
    let mut poll = |at: u64, mapped: &[Mapping]| {
        let at_ns = Nanos::from_secs(at);
        !trial.watch.poll(at_ns, mapped).is_empty()
    };
    fs::write(&trial.path, "10 8 a\n").unwrap();
    let found = (1..20).find(|at| poll(*at, &[]));
    assert_eq!(found, Some(10));
    fs::write(&trial.path, "10 8 a\n30 8 longer\n").unwrap();
    assert!(poll(11, &[]), "a file that was found is read on");
}

#[test]
fn a_map_that_is_written_at_exit_is_found_by_the_last_poll() {
    let mut trial = trial();
    assert!(trial.poll(SECOND_NS).is_empty());
    trial.append(b"10 8 a\n");
    assert_eq!(
        shown(trial.watch.last_poll(SECOND_NS + Nanos(MS))),
        ["100+a"]
    );
}

#[test]
fn a_map_that_is_rewritten_is_read_anew() {
    let mut trial = trial();
    trial.write(b"10 8 a\n20 8 b\n");
    assert_eq!(trial.poll(Nanos(1000)).len(), 2);
    // Shorter, of the same size, longer.
    trial.write(b"10 8 a\n");
    assert!(trial.poll(Nanos(2000)).is_empty());
    trial.write(b"10 8 c\n");
    assert_eq!(trial.poll(Nanos(3000)), ["2000-10", "2001+c"]);
    trial.write(b"8 4 new\n10 8 c\n");
    assert_eq!(trial.poll(Nanos(4000)), ["3000+new"]);
    assert_eq!(trial.watch.counts().rereadings, 3);
    // Another file of the name.
    fs::rename(&trial.path, trial.path.with_extension("old")).unwrap();
    trial.write(b"8 4 newer\n");
    assert_eq!(trial.poll(SECOND_NS * 2), ["4000-8", "4001+newer"]);
    assert_eq!(trial.watch.counts().rereadings, 4);
}

#[test]
fn a_round_is_short_and_the_last_one_is_not() {
    let mut trial = trial();
    let text: String = (0..300_000)
        .map(|index| format!("{:x} 8 function-{index}\n", index * 8))
        .collect();
    trial.append(text.as_bytes());
    let first = trial.watch.poll(Nanos(1000), &[anonymous()]).len();
    assert!(first < 300_000);
    let counts = trial.watch.counts();
    assert_eq!(counts.bytes, MAX_ROUND_BYTES);
    assert_eq!(counts.unread, text.len() as u64 - MAX_ROUND_BYTES);
    let rest = trial.watch.last_poll(Nanos(2000));
    assert_eq!(first + rest.len(), 300_000);
    assert_eq!(trial.watch.counts().unread, 0);
    // All of it was there when the file was found.
    assert!(rest.iter().all(|change| matches!(
        change,
        JitChange::Begin {
            at_ns: Nanos(100),
            ..
        }
    )));
}

#[test]
fn nothing_is_read_beyond_the_limit() {
    let mut trial = trial();
    trial.append(b"10 8 a\n20 8 b\n");
    trial.watch.counts.bytes = MAX_READ_BYTES - 7;
    assert_eq!(trial.poll(Nanos(1000)), ["100+a"]);
    assert!(matches!(
        trial.watch.refusal(),
        Some(JitRefusal::TooLong { .. })
    ));
    assert!(trial.poll(Nanos(2000)).is_empty());
}

#[test]
fn a_refusal_is_kept() {
    let mut trial = trial();
    std::os::unix::fs::symlink("/etc/shadow", &trial.path).unwrap();
    assert!(trial.poll(Nanos(1000)).is_empty());
    let text = trial.watch.refusal().unwrap().to_string();
    assert!(text.ends_with("perf.map: not a regular file"), "{text}");
}

#[test]
fn functions_of_the_dump_are_not_taken_from_the_map() {
    let mut trial = trial();
    trial.append(b"10 8 a\nbad\n");
    assert_eq!(trial.poll(Nanos(1000)), ["100+a"]);
    let pid = std::process::id();
    let dump = trial.path.with_file_name(format!("jit-{pid}.dump"));
    let mut bytes = header(0);
    // One of before the process, and one that is not yet.
    bytes.extend(load(Nanos(7), 0x40, &[1], b"early"));
    bytes.extend(load(Nanos(1500), 0x10, &[1; 8], b"b"));
    bytes.extend(load(Nanos::MAX, 0x50, &[1], b"late"));
    fs::write(&dump, bytes).unwrap();
    let other = dump.with_file_name("jit-1.dump");
    let mapped = |watch: &mut JitWatch, path: &Path| {
        shown(watch.mapped(Nanos(1200), 0x1000, 0x2000, path.as_os_str().as_bytes()))
    };
    assert!(mapped(&mut trial.watch, &other).is_empty());
    assert!(mapped(&mut trial.watch, &dump).is_empty());
    trial.append(b"10 8 hidden\n60 8 only\n39 10 hidden\n");
    assert_eq!(
        trial.poll(Nanos(2000)),
        ["100+early", "1500-10", "1501+b", "2000+late", "1501+only"]
    );
    assert_eq!(trial.watch.counts().bad, 1);
    assert_eq!(
        shown(trial.watch.executed(Nanos(3000), &SharedJit::default()).0).len(),
        4
    );
}

#[test]
fn a_refused_function_leaves_the_code_of_the_one_before_it() {
    let mut trial = trial();
    let pid = std::process::id();
    let dump = trial.path.with_file_name(format!("jit-{pid}.dump"));
    let mut bytes = header(0);
    bytes.extend(load(Nanos(1500), 0x10, &[1; 8], b"b"));
    let code_offset = bytes.len() as u64 - 8;
    bytes.extend(load(Nanos(1600), 0x80, &[], b"without code"));
    fs::write(&dump, bytes).unwrap();
    trial
        .watch
        .mapped(Nanos(1200), 0x1000, 0x2000, dump.as_os_str().as_bytes());
    let changes = trial.watch.poll(Nanos(2000), &[anonymous()]);
    let [JitChange::Begin { dump_offset, .. }] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!(*dump_offset, Some(code_offset));
}

#[test]
fn a_broken_dump_is_a_refusal() {
    let mut trial = trial();
    let pid = std::process::id();
    let dump = trial.path.with_file_name(format!("jit-{pid}.dump"));
    fs::write(&dump, [7; 100]).unwrap();
    trial
        .watch
        .mapped(Nanos::ZERO, 1, 2, dump.as_os_str().as_bytes());
    assert!(trial.poll(Nanos(1000)).is_empty());
    assert!(matches!(
        trial.watch.refusal(),
        Some(JitRefusal::JitDump { .. })
    ));
}

#[test]
fn a_file_that_is_mapped_over_functions_ends_them() {
    let mut trial = trial();
    trial.append(b"1000 8 a\n2000 8 b\n");
    assert_eq!(trial.poll(Nanos(1000)).len(), 2);
    let changes = trial
        .watch
        .mapped(Nanos(1500), 0x1000, 0x1800, b"/lib/x.so");
    assert_eq!(shown(changes), ["1500-1000"]);
}

#[test]
fn names_of_dumps() {
    assert_eq!(dump_number(b"/tmp/jit-12.dump"), Some(12));
    for path in [
        &b"jit-12.dump"[..],
        b"/tmp/jit-.dump",
        b"/tmp/jit-+1.dump",
        b"/tmp/jit-1.dump.x",
        b"/jit-1/x",
    ] {
        assert_eq!(dump_number(path), None, "{path:?}");
    }
}

/// A map of this process under another number, of which `bytes` bytes were written at a fork.
fn parent_map(text: &str, bytes: Option<u64>) -> (ParentMap, PathBuf) {
    let own = own_map_of_tests();
    fs::write(own.path(), text).unwrap();
    let path = own.path();
    (ParentMap { bytes, ..own }, path)
}

/// A number that no process has.
fn own_map_of_tests() -> ParentMap {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let own_pid = u32::MAX - 16 * std::process::id() - next;
    let proc = ProcDir::open(Pid(std::process::id())).unwrap();
    let start_ticks = ProcessFacts::read(&proc).start_ticks.unwrap();
    ParentMap {
        own_pid: Pid(own_pid),
        start_ticks,
        bytes: None,
    }
}

#[test]
fn child_has_what_its_parents_map_had_at_the_fork() {
    let mut trial = trial();
    let text = "10 8 a\n20 8 b\n20 8 later\n";
    let (map, path) = parent_map(text, Some(14));
    let inherited = trial.watch.inherit(&[map], &[], Nanos(50));
    fs::remove_file(path).unwrap();
    assert_eq!(shown(inherited), ["100+a", "100+b"]);
    // Its own take their place.
    trial.append(b"24 8 own\n");
    assert_eq!(trial.poll(Nanos(1000)), ["101-20", "102+own"]);
}

#[test]
fn later_generations_maps_take_the_place_of_older_ones() {
    let mut trial = trial();
    let (oldest, first) = parent_map("10 8 a\n20 8 b\n", None);
    let (parent, second) = parent_map("20 8 c\n", None);
    let inherited = trial.watch.inherit(&[oldest, parent], &[], Nanos(50));
    fs::remove_file(first).unwrap();
    fs::remove_file(second).unwrap();
    assert_eq!(shown(inherited), ["100+a", "102+c"]);
}

#[test]
fn map_that_is_older_than_the_parent_is_not_inherited() {
    let mut trial = trial();
    let (map, path) = parent_map("10 8 a\n", None);
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(trial.watch.inherit(&[map], &[], Nanos(50)).is_empty());
    fs::remove_file(path).unwrap();
}

#[test]
fn child_has_what_its_parents_dump_had_before_the_fork() {
    let mut trial = trial();
    let path = trial._dir.path().join("jit-1.dump");
    let dump = [
        header(0),
        load(Nanos(40), 0x1000, &[0xc3; 16], b"before"),
        load(Nanos(60), 0x1000, &[0xc3; 16], b"later"),
    ];
    fs::write(&path, dump.concat()).unwrap();
    let mut mapping = anonymous();
    mapping.file = MappedFile::named(path.as_os_str().as_bytes());
    let inherited = trial.watch.inherit(&[], &[mapping], Nanos(50));
    assert_eq!(shown(inherited), ["100+before"]);
}
