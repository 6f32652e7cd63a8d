use std::io::Write as _;

use super::super::code_reader::locked;
use super::*;
use crate::space::MappedFile;

fn reader() -> CodeReader {
    CodeReader::start(root()).unwrap()
}

fn root() -> InvokingUser {
    InvokingUser {
        uid: 0,
        groups: Vec::new(),
    }
}

fn wanted(at_ns: Nanos, address: u64, size: u64, dump_offset: Option<u64>) -> WantedCode {
    WantedCode {
        at_ns,
        address,
        size,
        dump_offset,
    }
}

fn mapping(start: u64, end: u64, path: &[u8]) -> Mapping {
    Mapping {
        start,
        end,
        offset: 0,
        file: MappedFile::named(path),
    }
}

fn dump(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}

fn in_dump(file: &Arc<File>, written: u64) -> CodeSources<'_> {
    CodeSources {
        dump: Some((file, written)),
        memory: None,
        mapped: &[],
    }
}

fn shown(code: &[FunctionCode]) -> Vec<String> {
    let shown = code.iter().map(
        |FunctionCode {
             at_ns,
             address,
             code,
         }| { format!("{at_ns} {address:x} {}", String::from_utf8_lossy(code)) },
    );
    shown.collect()
}

#[test]
fn code_of_a_dump_is_read_once_it_is_written() {
    let file = dump(b"..abc.defg");
    let mut code = ProcessCode::new(&reader());
    code.want(wanted(Nanos(1), 0x10, 3, Some(2)));
    code.want(wanted(Nanos(2), 0x20, 4, Some(6)));
    code.request(&in_dump(&file, 9));
    // The function may have ended: the dump still has its code.
    assert_eq!(shown(&code.take_last(|_, _| false)), ["1 10 abc"]);
    assert_eq!(code.counts().left_out, 1);
    code.request(&in_dump(&file, 10));
    assert_eq!(shown(&code.take_last(|_, _| false)), ["2 20 defg"]);
    let counts = code.counts();
    assert_eq!((counts.functions, counts.bytes, counts.left_out), (2, 7, 0));
}

#[test]
fn a_dump_that_is_written_anew_has_none_of_it() {
    let mut code = ProcessCode::new(&reader());
    code.want(wanted(Nanos(1), 0x10, 3, Some(0)));
    code.drop_waiting_for_dump();
    code.request(&in_dump(&dump(b"xyz"), 3));
    assert!(code.take_last(|_, _| true).is_empty());
    assert_eq!(code.counts().left_out, 1);
}

#[test]
fn memory_is_read_where_it_is_executable_and_the_function_lives() {
    static CODE: [u8; 6] = *b"nopret";
    let begin = CODE.as_ptr().addr() as u64;
    let memory = Arc::new(File::open("/proc/self/mem").unwrap());
    let take = |path: &[u8], end: u64, lives: bool| {
        let mapped = [
            mapping(begin, begin + 2, path),
            mapping(begin + 2, end, path),
        ];
        let mut code = ProcessCode::new(&reader());
        code.want(wanted(Nanos(5), begin, 6, None));
        assert!(code.wants_memory());
        code.request(&CodeSources {
            dump: None,
            memory: Some(&memory),
            mapped: &mapped,
        });
        let taken = code.take_last(|at_ns, address| lives && (at_ns, address) == (Nanos(5), begin));
        (taken.len(), code.counts().left_out)
    };
    assert_eq!(take(b"//anon", begin + 6, true), (1, 0));
    assert_eq!(take(b"//anon", begin + 6, false), (0, 1));
    // Byte code and the text of a file are not read.
    assert_eq!(take(b"//anon", begin + 5, true), (0, 0));
    assert_eq!(take(b"/lib/x.so", begin + 6, true), (0, 0));
}

#[test]
fn memory_that_is_gone_is_left_out() {
    let mut code = ProcessCode::new(&reader());
    let memory = Arc::new(File::open("/proc/self/mem").unwrap());
    let mapped = [mapping(0x1000, 0x2000, b"//anon")];
    code.want(wanted(Nanos(5), 0x1000, 16, None));
    code.request(&CodeSources {
        dump: None,
        memory: Some(&memory),
        mapped: &mapped,
    });
    assert!(code.take_last(|_, _| true).is_empty());
    assert_eq!(code.counts().left_out, 1);
}

#[test]
fn a_process_and_all_processes_have_limits() {
    let file = dump(&[0; 16]);
    let reader = reader();
    let mut code = ProcessCode::new(&reader);
    code.want(wanted(Nanos(1), 0x10, MAX_FUNCTION_CODE_BYTES + 1, Some(0)));
    assert_eq!(code.counts().left_out, 1);
    code.requested_bytes = MAX_PROCESS_CODE_BYTES - 5;
    code.want(wanted(Nanos(1), 0x10, 4, Some(0)));
    code.want(wanted(Nanos(2), 0x20, 4, Some(0)));
    code.request(&in_dump(&file, 16));
    assert_eq!(code.take_last(|_, _| true).len(), 1);
    assert_eq!(code.counts().left_out, 2);
    reader.use_up();
    let mut other = ProcessCode::new(&reader);
    other.want(wanted(Nanos(1), 0x10, 4, Some(0)));
    other.request(&in_dump(&file, 16));
    assert_eq!(other.counts().left_out, 1);
}

#[test]
fn a_reader_that_does_not_answer_is_waited_for_a_few_times() {
    let reader = CodeReader::without_thread(root());
    let file = dump(&[0; 16]);
    let begun = Instant::now();
    for _ in 0..20 {
        let mut code = ProcessCode::new(&reader);
        code.want(wanted(Nanos(1), 0x10, 4, Some(0)));
        code.request(&in_dump(&file, 16));
        assert!(code.take_last(|_, _| true).is_empty());
        assert_eq!(code.counts().left_out, 1);
    }
    assert!(begun.elapsed() < 10 * LAST_WAIT);
}

#[test]
fn a_process_whose_read_blocks_is_not_read_any_more_and_others_are() {
    let reader = CodeReader::without_thread(root());
    let file = dump(b"abcd");
    let mut blocked = ProcessCode::new(&reader);
    blocked.want(wanted(Nanos(1), 0x10, 4, Some(0)));
    blocked.request(&in_dump(&file, 4));
    let long_ago = Instant::now().checked_sub(MAX_READ_TIME).unwrap();
    *locked(&blocked.reads.read_began) = Some(long_ago);
    // One function waits, and another comes later.
    blocked.want(wanted(Nanos(2), 0x20, 4, Some(0)));
    assert!(blocked.take(|_, _| true).is_empty());
    blocked.want(wanted(Nanos(3), 0x30, 4, Some(0)));
    assert_eq!(blocked.counts().left_out, 3);

    // The thread that was started for the blocked one reads it.
    let mut other = ProcessCode::new(&reader);
    other.want(wanted(Nanos(9), 0x90, 4, Some(0)));
    other.request(&in_dump(&file, 4));
    assert_eq!(shown(&other.take_last(|_, _| true)), ["9 90 abcd"]);
    let begun = Instant::now();
    assert!(blocked.take_last(|_, _| true).is_empty());
    assert!(begun.elapsed() < LAST_WAIT);
    let counts = blocked.counts();
    assert_eq!((counts.functions, counts.left_out), (0, 3));
}
