//! Which mappings a subexperiment gets.

use std::rc::Rc;

use experiment_format::address_space::RecordedAddressSpace;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::Pid;
use experiment_format::log::{LogHeader, ProfileDecl, StartTime, System};
use experiment_format::map::MapEvent;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use tempfile::TempDir;

use super::*;
use crate::space::MappedFile;

/// The code of a process whose experiment is in a directory of its own.
struct Made {
    parent: TempDir,
    writer: ExperimentWriter,
    code: WrittenCode,
    budget: ByteBudget,
    kernel: ObjectMaps,
}

impl Made {
    fn new() -> Made {
        let parent = tempfile::tempdir().unwrap();
        let request = NameRequest::Exactly("x.er".to_owned());
        let (founder, _) = ExperimentDir::create(parent.path(), &request, None).unwrap();
        let founder = Rc::new(founder);
        let header = LogHeader {
            system: System {
                arch: "x86_64".into(),
                ..System::default()
            },
            pid: Pid(7),
            profiles: vec![ProfileDecl::ThreadNames, ClockTick::table(10_000)],
            ..LogHeader::default()
        };
        let run = StartTime::default();
        let budget = ByteBudget::new(u64::MAX);
        let writer = ExperimentWriter::create_sub(&founder, "_x_PID_7.1.er", &header, run).unwrap();
        Made {
            parent,
            writer,
            code: WrittenCode::new(run.tstamp_ns, budget.clone(), false),
            budget,
            kernel: ObjectMaps::default(),
        }
    }

    /// Maps 16 bytes of a file at an address.
    fn map(&mut self, at: u64, start: u64) {
        self.change(
            at,
            MappingEvent::Map(Mapping {
                start,
                end: start + 16,
                offset: 0,
                file: MappedFile::named(format!("/{start}").as_bytes()),
            }),
        );
    }

    fn change(&mut self, at: u64, event: MappingEvent) {
        let at_ns = Nanos(at);
        let object = |mapping: &Mapping| Some((ObjectId(0), format!("/{}", mapping.start)));
        self.code
            .write_mappings(&mut self.writer, &[MappingChange { at_ns, event }], object)
            .unwrap();
    }

    fn stack(&mut self, frames: &[u64]) {
        let stack = (frames, StackEnd::Complete);
        self.code
            .stack(&mut self.writer, stack, &self.kernel)
            .unwrap();
    }

    fn functions(&mut self, changes: &[JitChange], code: &[Mapping]) {
        self.code
            .write_functions(&mut self.writer, changes, code)
            .unwrap();
    }

    /// Closes it, and returns what began (its address), and what ended (negative), as written.
    fn close(self) -> Vec<i64> {
        self.writer.close(Nanos(99)).unwrap();
        let path = self.parent.path().join("x.er/_x_PID_7.1.er");
        let maps = Experiment::open(&path).unwrap().maps().unwrap();
        let number = |event: MapEvent| match event {
            MapEvent::Segment { vaddr, .. } => vaddr as i64,
            MapEvent::Unmap { vaddr, .. } => -(vaddr as i64),
            other => panic!("{other:?}"),
        };
        maps.into_iter().map(number).collect()
    }
}

/// ```text
/// 100  |--------------x------|     a frame, and known again where it is mapped anew
/// 200  |----------------------     no frame
/// 300  |-----x                     a frame later
/// 400              |----------     a frame before it was known
/// ```
#[test]
fn those_are_written_that_stacks_are_in() {
    let mut made = Made::new();
    for start in [100, 200, 300] {
        made.map(1, start);
    }
    made.stack(&[0x8000_0000_0000_0100, 105, 405]);
    made.change(3, MappingEvent::Unmap(300));
    made.stack(&[107, 315, 405]);
    made.map(5, 400);
    made.change(6, MappingEvent::Unmap(100));
    made.map(7, 100);
    assert_eq!(made.close(), [100, 300, -300, 400, -100, 100]);
}

#[test]
fn of_a_process_with_very_many_all_are_written() {
    let mut made = Made::new();
    let many = MAX_KEPT_MAPS as u64 + 1;
    made.stack(&[16 * 3, 16 * 4]);
    for number in 1..=many {
        made.map(2, 16 * number);
    }
    made.change(3, MappingEvent::Unmap(16 * 5));
    made.map(4, 16 * (many + 1));
    let mut written = made.close();
    assert_eq!(written.len() as u64, many + 2);
    assert_eq!(written[..2], [16 * 3, 16 * 4]);
    written.sort_unstable();
    written.dedup();
    assert_eq!(written.len() as u64, many + 2);
}

/// As in a program that generates code all the time.
#[test]
fn of_a_process_whose_stacks_are_in_no_file_all_are_written() {
    let mut made = Made::new();
    made.map(1, 100);
    let address = |number: usize| 0x10_0000 + number as u64;
    for number in 0..MAX_KEPT_ADDRESSES {
        made.stack(&[address(number)]);
    }
    assert!(made.code.maps.is_some());
    made.stack(&[address(MAX_KEPT_ADDRESSES)]);
    assert!(made.code.maps.is_none());
    made.map(4, 200);
    assert_eq!(made.close(), [100, 200]);
}

#[test]
fn beyond_a_limit_none_is_written_and_its_end_neither() {
    let mut made = Made::new();
    made.budget.set(1);
    made.stack(&[105, 205, 305]);
    for start in [100, 200] {
        made.map(2, start);
    }
    assert_eq!(made.code.end_bytes(), MAX_END_BYTES);
    made.change(3, MappingEvent::Unmap(200));
    made.change(4, MappingEvent::Unmap(100));
    made.map(5, 300);
    assert_eq!(made.code.unwritten_mappings, 2);
    assert_eq!(made.code.end_bytes(), 0);
    assert_eq!(made.close(), [100, -100]);
}

/// What runs has its name, though the functions before it were too many.
#[test]
fn functions_with_frames_are_written_before_others() {
    let mut made = Made::new();
    made.code.max_unused_bytes = 1000;
    let function = |number: u64, name: String| JitChange::Begin {
        at_ns: Nanos(2),
        address: 0x10_0000 + 0x1000 * number,
        size: 0x1000,
        name: name.into(),
        dump_offset: None,
    };
    // One runs before it is named, another one after that.
    made.stack(&[0x10_0000 + 0x1000 * 90]);
    let changes: Vec<_> = (0..100)
        .map(|number| function(number, format!("f{number}")))
        .collect();
    made.functions(&changes, &[]);
    let first = made.code.functions.len() as u64;
    assert!((2..50).contains(&first), "{first}");
    assert_eq!(made.code.unused_functions(), 100 - first);
    made.stack(&[0x10_0000 + 0x1000 * 95 + 8]);
    assert_eq!(made.code.unused_functions(), 99 - first);
    // The last name counts, and an end that nobody needs is not written.
    let end = |number: u64| JitChange::End {
        at_ns: Nanos(4),
        address: 0x10_0000 + 0x1000 * number,
    };
    let changes = [end(97), function(97, "later".into()), end(98)];
    made.functions(&changes, &[]);
    made.stack(&[0x10_0000 + 0x1000 * 97]);
    let has = |number: u64| made.code.has_function(0x10_0000 + 0x1000 * number);
    assert!(has(90) && has(95) && has(97) && !has(96) && !has(98));
    assert_eq!(made.code.unwritten_functions, 0);
    assert_eq!(made.code.unused_functions(), 99 - first);
}

/// Code that a process makes in a file has the names of its functions, also where it begins with
/// the mapping, and when that is reported once more.
#[test]
fn a_function_takes_the_place_of_its_file() {
    let mut made = Made::new();
    made.map(1, 100);
    made.stack(&[105]);
    let area = Mapping {
        start: 100,
        end: 116,
        offset: 0,
        file: MappedFile::named(b"//anon"),
    };
    let function = JitChange::Begin {
        at_ns: Nanos(2),
        address: 100,
        size: 8,
        name: "f".into(),
        dump_offset: None,
    };
    made.functions(&[function], &[area]);
    made.map(5, 100);
    made.stack(&[105]);
    made.writer.close(Nanos(99)).unwrap();
    let path = made.parent.path().join("x.er/_x_PID_7.1.er");
    let maps = Experiment::open(&path).unwrap().maps().unwrap();
    let kinds: Vec<_> = maps
        .iter()
        .map(|event| match event {
            MapEvent::Segment { .. } => "file",
            MapEvent::Unmap { .. } => "end",
            _ => "function",
        })
        .collect();
    assert_eq!(kinds, ["file", "end", "function"]);
    let space = RecordedAddressSpace::new(maps);
    let at = |at_ns| space.find(105, Nanos(at_ns)).map(|found| found.object);
    assert_eq!([at(4), at(50)], [Some("f"); 2]);
}
