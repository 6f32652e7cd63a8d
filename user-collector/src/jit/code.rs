//! The machine code of functions that are made at run time, for disassembly.
//!
//! A jitdump has the bytes as they were made. Of a function that only a perf map names, they are in
//! the memory of its process, as long as it exists: they are read when the function is found, and
//! dropped if by then the function has ended. Memory that is not mapped for execution is not read:
//! perf maps name byte code too.
//!
//! Both places are files and offsets, and both may belong to a hostile process. A page of its
//! memory may be one that the process has to supply itself (`userfaultfd`), and then a reader waits
//! for as long as the process likes. So one thread reads for all processes ([`CodeReader`]).
//! Nothing waits for it but the end of a process, and that for [`LAST_WAIT`], once.
//!
//! What it refuses: code of processes that the user who called kcollect could not read, since the
//! experiment will be that user's; functions above [`MAX_FUNCTION_CODE_BYTES`]; and more than
//! [`MAX_PROCESS_CODE_BYTES`] of a process or [`MAX_TOTAL_CODE_BYTES`] of all. What is left out is
//! counted.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::files::InvokingUser;
use crate::space::{Mapping, mappings_between};

/// Largest function whose code is read, bytes.
pub const MAX_FUNCTION_CODE_BYTES: u64 = 1 << 20;
/// Most bytes of code of one process.
pub const MAX_PROCESS_CODE_BYTES: u64 = 32 << 20;
/// Most bytes of code of all processes.
pub const MAX_TOTAL_CODE_BYTES: u64 = 256 << 20;
/// How long the end of a process waits for its code. A thread that takes longer is not waited for
/// again.
pub const LAST_WAIT: Duration = Duration::from_millis(500);

/// Functions of one process that wait for the thread, at most.
const MAX_WAITING_FUNCTIONS: usize = 100_000;
/// Bytes of one process that are being read, at most: they are in memory.
const MAX_READING_BYTES: u64 = 4 << 20;
/// Functions of all processes that are being read, at most.
const MAX_READING_FUNCTIONS: usize = 1 << 12;

/// The thread that reads code. Clones are handles of the same one; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct CodeReader {
    requests: SyncSender<ReadRequest>,
    user: Arc<InvokingUser>,
    /// Bytes read of all processes.
    total: Arc<AtomicU64>,
    /// Whether the thread was waited for in vain.
    stuck: Arc<AtomicBool>,
}

#[derive(Debug)]
struct ReadRequest {
    file: Arc<File>,
    offset: u64,
    size: u64,
    wanted: WantedCode,
    answers: Sender<CodeAnswer>,
}

#[derive(Debug)]
struct CodeAnswer {
    wanted: WantedCode,
    /// None: it could not be read.
    code: Option<Vec<u8>>,
}

/// A function whose code is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedCode {
    /// When the function began, nanoseconds of the events' clock.
    pub(super) at: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    /// Where in the jitdump its code begins. None: it is in memory.
    pub(super) dumped: Option<u64>,
}

/// The code of a function that was made at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCode {
    /// When the function began, nanoseconds of the events' clock.
    pub at: u64,
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub code: Vec<u8>,
}

/// How much code was read of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CodeCounts {
    pub(super) functions: u64,
    pub(super) bytes: u64,
    pub(super) left_out: u64,
}

impl CodeReader {
    /// Starts the thread, which reads what this user may.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(user: InvokingUser) -> io::Result<CodeReader> {
        let (requests, queue) = sync_channel::<ReadRequest>(MAX_READING_FUNCTIONS);
        let run = move || {
            for request in queue {
                let mut code = vec![0; request.size as usize];
                let read = request.file.read_exact_at(&mut code, request.offset);
                // A process that does not want its code any more has ended.
                let _ = request.answers.send(CodeAnswer {
                    wanted: request.wanted,
                    code: read.is_ok().then_some(code),
                });
            }
        };
        thread::Builder::new()
            .name("jit-code".to_owned())
            .spawn(run)?;
        Ok(CodeReader {
            requests,
            user: Arc::new(user),
            total: Arc::default(),
            stuck: Arc::default(),
        })
    }
}

/// The code of one process, on its way from where it is to the experiment.
#[derive(Debug)]
pub(super) struct ProcessCode {
    reader: CodeReader,
    waiting: VecDeque<WantedCode>,
    /// Functions that the thread was asked for and has not answered,
    reading: u64,
    /// and their bytes.
    reading_bytes: u64,
    answers: (Sender<CodeAnswer>, Receiver<CodeAnswer>),
    /// Bytes that were requested so far.
    requested_bytes: u64,
    counts: CodeCounts,
}

/// Where code may be read now.
pub(super) struct CodePlaces<'a> {
    /// The jitdump, and how far it is written.
    pub(super) dump: Option<(&'a Arc<File>, u64)>,
    /// The memory of the process.
    pub(super) memory: Option<&'a Arc<File>>,
    /// What is mapped for execution.
    pub(super) mapped: &'a [Mapping],
}

impl ProcessCode {
    pub(super) fn new(reader: &CodeReader) -> ProcessCode {
        ProcessCode {
            reader: reader.clone(),
            waiting: VecDeque::new(),
            reading: 0,
            reading_bytes: 0,
            answers: channel(),
            requested_bytes: 0,
            counts: CodeCounts::default(),
        }
    }

    /// Returns the user for whom code is read.
    pub(super) fn user(&self) -> &InvokingUser {
        &self.reader.user
    }

    /// Notes that the code of a function is wanted.
    pub(super) fn want(&mut self, wanted: WantedCode) {
        if wanted.size > MAX_FUNCTION_CODE_BYTES || self.waiting.len() >= MAX_WAITING_FUNCTIONS {
            self.counts.left_out += 1;
        } else {
            self.waiting.push_back(wanted);
        }
    }

    /// The jitdump is another one, or written anew: what it had is gone.
    pub(super) fn forget_dump(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|wanted| wanted.dumped.is_none());
        self.counts.left_out += (before - self.waiting.len()) as u64;
    }

    /// Returns whether functions wait whose code is in memory.
    pub(super) fn wants_memory(&self) -> bool {
        self.waiting.iter().any(|wanted| wanted.dumped.is_none())
    }

    /// Has the thread read what waits, as far as it can be read now and the limits allow.
    pub(super) fn request(&mut self, places: &CodePlaces<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(wanted) = self.waiting.pop_front() else {
                return;
            };
            let size = wanted.size;
            let (file, offset) = match (wanted.dumped, places) {
                (
                    Some(offset),
                    CodePlaces {
                        dump: Some((dump, written)),
                        ..
                    },
                ) => {
                    if offset.saturating_add(size) > *written {
                        self.waiting.push_back(wanted);
                        continue;
                    }
                    (*dump, offset)
                }
                (
                    None,
                    CodePlaces {
                        memory: Some(memory),
                        mapped,
                        ..
                    },
                ) => {
                    if !is_executable(mapped, wanted.address, size) {
                        // Without any mapping, the process has ended.
                        self.counts.left_out += u64::from(mapped.is_empty());
                        continue;
                    }
                    (*memory, wanted.address)
                }
                _ => {
                    self.counts.left_out += 1;
                    continue;
                }
            };
            let total = &self.reader.total;
            if self.requested_bytes + size > MAX_PROCESS_CODE_BYTES
                || total.load(Ordering::Relaxed) + size > MAX_TOTAL_CODE_BYTES
            {
                self.counts.left_out += 1;
                continue;
            }
            let request = ReadRequest {
                file: Arc::clone(file),
                offset,
                size,
                wanted,
                answers: self.answers.0.clone(),
            };
            let busy = self.reading_bytes >= MAX_READING_BYTES;
            if busy || self.reader.requests.try_send(request).is_err() {
                self.waiting.push_front(wanted);
                return;
            }
            total.fetch_add(size, Ordering::Relaxed);
            self.requested_bytes += size;
            self.reading += 1;
            self.reading_bytes += size;
        }
    }

    /// Returns the code that was read since the last time. `is_current` says that a function that
    /// began then at an address has not ended.
    pub(super) fn take(&mut self, is_current: impl Fn(u64, u64) -> bool) -> Vec<FunctionCode> {
        let answers: Vec<_> = self.answers.1.try_iter().collect();
        let answers = answers.into_iter();
        answers
            .filter_map(|answer| self.finish(answer, &is_current))
            .collect()
    }

    /// The same, after waiting for all that is being read.
    pub(super) fn take_last(&mut self, is_current: impl Fn(u64, u64) -> bool) -> Vec<FunctionCode> {
        let until = Instant::now() + LAST_WAIT;
        let mut all = self.take(&is_current);
        while self.reading > 0 && !self.reader.stuck.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.1.recv_timeout(left) {
                Ok(answer) => all.extend(self.finish(answer, &is_current)),
                Err(_) => self.reader.stuck.store(true, Ordering::Relaxed),
            }
        }
        all
    }

    fn finish(
        &mut self,
        CodeAnswer { wanted, code }: CodeAnswer,
        is_current: impl Fn(u64, u64) -> bool,
    ) -> Option<FunctionCode> {
        let WantedCode {
            at,
            address,
            size,
            dumped,
        } = wanted;
        self.reading -= 1;
        self.reading_bytes -= size;
        let code = code.filter(|_| dumped.is_some() || is_current(at, address));
        let Some(code) = code else {
            self.counts.left_out += 1;
            return None;
        };
        self.counts.functions += 1;
        self.counts.bytes += size;
        Some(FunctionCode { at, address, code })
    }

    pub(super) fn counts(&self) -> CodeCounts {
        CodeCounts {
            left_out: self.counts.left_out + self.waiting.len() as u64 + self.reading,
            ..self.counts
        }
    }
}

/// Returns whether all of this is mapped for execution, without a file.
fn is_executable(mapped: &[Mapping], address: u64, size: u64) -> bool {
    let Some(end) = address.checked_add(size) else {
        return false;
    };
    let mut next = address;
    for mapping in mappings_between(mapped, address, end) {
        if mapping.start > next || !super::is_anonymous(&mapping.file) {
            return false;
        }
        next = mapping.end;
    }
    next >= end
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::space::{FileIdentity, MappedFile};

    fn reader() -> CodeReader {
        CodeReader::start(root()).unwrap()
    }

    fn root() -> InvokingUser {
        InvokingUser {
            uid: 0,
            groups: Vec::new(),
        }
    }

    fn wanted(at: u64, address: u64, size: u64, dumped: Option<u64>) -> WantedCode {
        WantedCode {
            at,
            address,
            size,
            dumped,
        }
    }

    fn mapping(start: u64, end: u64, path: &[u8]) -> Mapping {
        Mapping {
            start,
            end,
            offset: 0,
            file: Arc::new(MappedFile {
                path: path.into(),
                build_id: Box::default(),
                identity: FileIdentity::default(),
            }),
        }
    }

    fn dump(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    }

    fn in_dump(file: &Arc<File>, written: u64) -> CodePlaces<'_> {
        CodePlaces {
            dump: Some((file, written)),
            memory: None,
            mapped: &[],
        }
    }

    fn shown(code: &[FunctionCode]) -> Vec<String> {
        let shown = code.iter().map(|FunctionCode { at, address, code }| {
            format!("{at} {address:x} {}", String::from_utf8_lossy(code))
        });
        shown.collect()
    }

    #[test]
    fn code_of_a_dump_is_read_once_it_is_written() {
        let file = dump(b"..abc.defg");
        let mut code = ProcessCode::new(&reader());
        code.want(wanted(1, 0x10, 3, Some(2)));
        code.want(wanted(2, 0x20, 4, Some(6)));
        code.request(&in_dump(&file, 9));
        // The function need not live any more: the dump has it.
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
        code.want(wanted(1, 0x10, 3, Some(0)));
        code.forget_dump();
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
            code.want(wanted(5, begin, 6, None));
            assert!(code.wants_memory());
            code.request(&CodePlaces {
                dump: None,
                memory: Some(&memory),
                mapped: &mapped,
            });
            let taken = code.take_last(|at, address| lives && (at, address) == (5, begin));
            (taken.len(), code.counts().left_out)
        };
        assert_eq!(take(b"//anon", begin + 6, true), (1, 0));
        assert_eq!(take(b"//anon", begin + 6, false), (0, 1));
        // Byte code, and the text of a file, are not for this.
        assert_eq!(take(b"//anon", begin + 5, true), (0, 0));
        assert_eq!(take(b"/lib/x.so", begin + 6, true), (0, 0));
    }

    #[test]
    fn memory_that_is_gone_is_left_out() {
        let mut code = ProcessCode::new(&reader());
        let memory = Arc::new(File::open("/proc/self/mem").unwrap());
        let mapped = [mapping(0x1000, 0x2000, b"//anon")];
        code.want(wanted(5, 0x1000, 16, None));
        code.request(&CodePlaces {
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
        code.want(wanted(1, 0x10, MAX_FUNCTION_CODE_BYTES + 1, Some(0)));
        assert_eq!(code.counts().left_out, 1);
        code.requested_bytes = MAX_PROCESS_CODE_BYTES - 5;
        code.want(wanted(1, 0x10, 4, Some(0)));
        code.want(wanted(2, 0x20, 4, Some(0)));
        code.request(&in_dump(&file, 16));
        assert_eq!(code.take_last(|_, _| true).len(), 1);
        assert_eq!(code.counts().left_out, 2);
        reader.total.store(MAX_TOTAL_CODE_BYTES, Ordering::Relaxed);
        let mut other = ProcessCode::new(&reader);
        other.want(wanted(1, 0x10, 4, Some(0)));
        other.request(&in_dump(&file, 16));
        assert_eq!(other.counts().left_out, 1);
    }

    #[test]
    fn a_reader_that_does_not_answer_is_waited_for_once() {
        let (requests, queue) = sync_channel(MAX_READING_FUNCTIONS);
        let reader = CodeReader {
            requests,
            user: Arc::new(root()),
            total: Arc::default(),
            stuck: Arc::default(),
        };
        let file = dump(&[0; 16]);
        let begun = Instant::now();
        for _ in 0..20 {
            let mut code = ProcessCode::new(&reader);
            code.want(wanted(1, 0x10, 4, Some(0)));
            code.request(&in_dump(&file, 16));
            assert!(code.take_last(|_, _| true).is_empty());
            assert_eq!(code.counts().left_out, 1);
        }
        assert!(begun.elapsed() < 10 * LAST_WAIT);
        drop(queue);
    }
}
