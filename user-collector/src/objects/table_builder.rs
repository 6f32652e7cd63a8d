//! The thread that builds unwind tables.
//!
//! It has a low priority, so that it does not slow what is measured, and nothing waits for it. It
//! takes the smallest of the requested files first: a program that has just begun needs its own
//! table, and not the table of a compiler's library that another process maps. The thread owns the
//! [`UnwindRules`], so that a rule has the same number in all tables. The other side keeps a copy,
//! to which it adds [`BuiltTable::new_rules`].

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::ids::Tid;
use nix::unistd::gettid;
use object::read::{ReadCache, ReadCacheOps};

use super::stored_table::TableKey;
use super::table_cache::TableCache;
use crate::unwind::{self, TableSummary, UnwindRule, UnwindRules, UnwindSections, UnwindTable};
use kcollect_elf::{ElfFile, ElfLimits, ElfSource, LoadSegment, build_id, load_segments};

/// The number of a load object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// What unwinding needs of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindInfo {
    /// Its unwind table.
    pub table: UnwindTable,
    /// The summary of the table.
    pub summary: TableSummary,
    /// Its segments, in the order of the file.
    pub segments: Vec<LoadSegment>,
    /// The file's own build id; empty when it has none.
    pub build_id: Box<[u8]>,
    /// Whether the table was found in the cache.
    pub from_cache: bool,
}

impl UnwindInfo {
    /// Returns the address that an offset in the file is linked for, as in [`UnwindTable`]; `None`
    /// where it is not loaded.
    ///
    /// A mapping begins with a page, and a segment may begin inside that page: the page's start has
    /// an address too. Where segments share a page, the executable segment decides the address.
    #[must_use]
    pub fn address_of(&self, file_offset: u64) -> Option<u64> {
        let of_kind = |executable: bool| {
            self.segments
                .iter()
                .filter(move |segment| segment.executable == executable)
                .find_map(|segment| segment.address_of(file_offset))
        };
        of_kind(true).or_else(|| of_kind(false))
    }
}

/// Why there is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableBuildError {
    /// The file has no unwind table.
    #[error(transparent)]
    Unwind(#[from] unwind::UnwindError),

    /// A panic of the thread.
    #[error(
        "the making of its unwind table panicked: {message}. This is a defect of kcollect; please report it"
    )]
    Panicked {
        /// The message of the panic.
        message: String,
    },

    /// The end of the thread.
    #[error(
        "the thread that makes unwind tables has ended. This is a defect of kcollect; please report it"
    )]
    Ended,
}

/// The result of [`TableBuilder::request`].
#[derive(Debug)]
pub struct BuiltTable {
    /// The file.
    pub id: ObjectId,
    /// Its table, or why it has no table.
    pub info: Result<UnwindInfo, TableBuildError>,
    /// The rules that are new since the last result, in the order of their numbers. Concatenated,
    /// the rules of all results are [`UnwindRules::as_slice`], from number 0 on. They have to be
    /// kept even if there is no table.
    pub new_rules: Vec<UnwindRule>,
    /// The time that it took.
    pub took: Duration,
}

/// The handle of the thread. Dropping it does not wait: the thread ends after the current file.
#[derive(Debug)]
pub struct TableBuilder {
    thread: Tid,
    requests: Sender<(ObjectId, ElfSource)>,
    results: Receiver<BuiltTable>,
    /// Objects that are requested and not taken yet.
    waiting: BTreeSet<ObjectId>,
}

impl TableBuilder {
    /// Starts the thread. Without a cache all tables are built.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(mut cache: Option<TableCache>) -> io::Result<TableBuilder> {
        TableBuilder::start_with(move |rules, source| match source {
            ElfSource::File(file) => build(ReadCache::new(file), rules, cache.as_mut()),
            ElfSource::Bytes(bytes) => {
                build(ReadCache::new(Cursor::new(bytes)), rules, cache.as_mut())
            }
        })
    }

    fn start_with<B>(mut build: B) -> io::Result<TableBuilder>
    where
        B: FnMut(&mut UnwindRules, ElfSource) -> Result<UnwindInfo, unwind::UnwindError>
            + Send
            + 'static,
    {
        let (requests, queue) = channel();
        let (done, results) = channel();
        let (send_id, thread_id) = channel();
        let work = move || {
            // The thread that started this one waits for it.
            let _ = send_id.send(Tid::from_raw(gettid().as_raw()));
            let mut rules = UnwindRules::new();
            let mut sent_rules = 0;
            let mut queue = Queue::new(queue);
            while let Some((id, source)) = queue.next() {
                let started = Instant::now();
                // After a panic, at worst a rule has two numbers.
                let built = catch_unwind(AssertUnwindSafe(|| build(&mut rules, source)));
                let info = match built {
                    Ok(built) => built.map_err(TableBuildError::Unwind),
                    Err(panic) => Err(TableBuildError::Panicked {
                        message: message(&*panic),
                    }),
                };
                let result = BuiltTable {
                    id,
                    info,
                    new_rules: rules.as_slice()[sent_rules..].to_vec(),
                    took: started.elapsed(),
                };
                sent_rules = rules.as_slice().len();
                if done.send(result).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("unwind-tables".to_owned())
            .spawn(work)?;
        Ok(TableBuilder {
            thread: thread_id.recv().map_err(io::Error::other)?,
            requests,
            results,
            waiting: BTreeSet::new(),
        })
    }

    /// Returns the thread's number.
    #[must_use]
    pub fn thread(&self) -> Tid {
        self.thread
    }

    /// Requests the table of a file, once. Results come in any order.
    ///
    /// A file stays open while it waits: hundreds of requests at once need as many descriptors.
    pub fn request(&mut self, id: ObjectId, source: ElfSource) {
        self.waiting.insert(id);
        // That the thread has ended is reported when the result is taken.
        let _ = self.requests.send((id, source));
    }

    /// Returns the results that are ready. Never waits.
    pub fn take(&mut self) -> Vec<BuiltTable> {
        let mut ready = Vec::new();
        loop {
            match self.results.try_recv() {
                Ok(built) => ready.push(self.taken(built)),
                Err(TryRecvError::Empty) => return ready,
                Err(TryRecvError::Disconnected) => {
                    ready.extend(mem::take(&mut self.waiting).into_iter().map(ended));
                    return ready;
                }
            }
        }
    }

    /// The results that are ready. If no result is ready but some are requested, waits at most
    /// `at_most` for one.
    pub fn wait(&mut self, at_most: Duration) -> Vec<BuiltTable> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        match self.results.recv_timeout(at_most) {
            Ok(built) => {
                let mut ready = vec![self.taken(built)];
                ready.extend(self.take());
                ready
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => self.take(),
        }
    }

    /// Returns the number of requests whose results were not taken yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn taken(&mut self, built: BuiltTable) -> BuiltTable {
        self.waiting.remove(&built.id);
        built
    }
}

/// The requests, the smallest file first; of equal sizes the earlier object.
struct Queue {
    requests: Receiver<(ObjectId, ElfSource)>,
    by_size: BTreeMap<(u64, ObjectId), ElfSource>,
}

impl Queue {
    fn new(requests: Receiver<(ObjectId, ElfSource)>) -> Queue {
        Queue {
            requests,
            by_size: BTreeMap::new(),
        }
    }

    /// Waits for the next request; `None` when no more requests can come.
    fn next(&mut self) -> Option<(ObjectId, ElfSource)> {
        if self.by_size.is_empty() {
            let (id, source) = self.requests.recv().ok()?;
            self.by_size.insert((source.size(), id), source);
        }
        for (id, source) in self.requests.try_iter() {
            self.by_size.insert((source.size(), id), source);
        }
        let ((_, id), source) = self.by_size.pop_first()?;
        Some((id, source))
    }
}

fn ended(id: ObjectId) -> BuiltTable {
    BuiltTable {
        id,
        info: Err(TableBuildError::Ended),
        new_rules: Vec::new(),
        took: Duration::ZERO,
    }
}

/// Builds the table of a file, or loads it from the cache. What was read of the file is freed
/// before a table is loaded or stored: for a compiler's library each is megabytes, and both would
/// be most of this process's memory.
fn build<F: ReadCacheOps>(
    mut file: ReadCache<F>,
    rules: &mut UnwindRules,
    cache: Option<&mut TableCache>,
) -> Result<UnwindInfo, unwind::UnwindError> {
    let sections = UnwindSections::of_elf(&file)?;
    let segments = load_segments(&ElfFile::read(&file, ElfLimits::PROGRAM)?)?;
    let build_id = build_id(&file);
    let module = |(table, summary), from_cache| UnwindInfo {
        table,
        summary,
        segments,
        build_id: build_id.clone(),
        from_cache,
    };
    let Some(cache) = cache.filter(|_| TableCache::is_for(&sections)) else {
        return Ok(module(UnwindTable::of_sections(&sections, rules)?, false));
    };
    let key = TableKey::of(&sections);
    file.clear();
    if let Some(found) = cache.load(&build_id, key, rules) {
        return Ok(module(found, true));
    }
    // The file may have been written to since: the key has to be of the sections that are used.
    let sections = UnwindSections::of_elf(&file)?;
    let key = TableKey::of(&sections);
    let (table, summary) = UnwindTable::of_sections(&sections, rules)?;
    file.clear();
    cache.store(&build_id, key, (&table, &summary), rules);
    Ok(module((table, summary), false))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("for no reason").to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use kcollect_elf::ElfError;

    const LONG: Duration = Duration::from_secs(60);

    fn this() -> ElfSource {
        ElfSource::File(File::open("/proc/self/exe").unwrap())
    }

    fn empty() -> UnwindInfo {
        UnwindInfo {
            table: UnwindTable::default(),
            summary: TableSummary::default(),
            segments: Vec::new(),
            build_id: Box::default(),
            from_cache: false,
        }
    }

    /// Waits for this many results.
    fn results(builder: &mut TableBuilder, count: usize) -> Vec<BuiltTable> {
        let mut all = Vec::new();
        while all.len() < count {
            let some = builder.wait(LONG);
            assert!(!some.is_empty(), "no result");
            all.extend(some);
        }
        assert_eq!((all.len(), builder.waiting()), (count, 0));
        all
    }

    #[test]
    fn rules_of_all_answers_are_the_rules() {
        let mut builder = TableBuilder::start(None).unwrap();
        assert!(builder.take().is_empty());
        assert!(builder.wait(LONG).is_empty());
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        for (id, source) in [
            this(),
            ElfSource::Bytes(b"nothing".to_vec()),
            ElfSource::Bytes(bytes.clone()),
        ]
        .into_iter()
        .enumerate()
        {
            builder.request(ObjectId(id as u32), source);
        }
        assert_eq!(builder.waiting(), 3);
        let mut results = results(&mut builder, 3);
        let rules: Vec<UnwindRule> = results
            .iter()
            .flat_map(|built| built.new_rules.clone())
            .collect();
        let mut expected = UnwindRules::new();
        let (table, summary) = UnwindTable::of_elf(&bytes, &mut expected).unwrap();
        assert!(rules == expected.as_slice());
        results.sort_by_key(|built| built.id);
        let ids: Vec<ObjectId> = results.iter().map(|built| built.id).collect();
        assert_eq!(ids, [0, 1, 2].map(ObjectId));
        let [first, nothing, again] = results.try_into().unwrap();
        let first = first.info.unwrap();
        assert_eq!((&first.table, &first.summary), (&table, &summary));
        assert_eq!(
            nothing.info,
            Err(TableBuildError::Unwind(ElfError::NotElf.into()))
        );
        assert_eq!(again.info, Ok(first));
    }

    #[test]
    fn addresses_of_places_in_the_file() {
        let mut module = empty();
        let segment = |offset, address, executable| LoadSegment {
            offset,
            size: 0x1000,
            address,
            executable,
        };
        module.segments = vec![
            segment(0x0, 0x40_0000, false),
            segment(0xff0, 0x41_0ff0, false),
            segment(0x1800, 0x50_1800, true),
        ];
        assert_eq!(module.address_of(0xfef), Some(0x40_0fef));
        assert_eq!(module.address_of(0x1000), Some(0x50_1000));
        assert_eq!(module.address_of(0x27ff), Some(0x50_27ff));
        assert_eq!(module.address_of(0x2800), None);
    }

    #[test]
    fn a_panic_is_of_one_file() {
        let mut builder = TableBuilder::start_with(|rules, source| match source {
            ElfSource::File(_) => panic!("a defect"),
            ElfSource::Bytes(_) => {
                rules.number(UnwindRule::Unsupported(unwind::Unsupported::Offset));
                Ok(empty())
            }
        })
        .unwrap();
        builder.request(ObjectId(7), this());
        let panicked = results(&mut builder, 1).remove(0);
        let message = "a defect".to_owned();
        assert!(panicked.info == Err(TableBuildError::Panicked { message }));
        builder.request(ObjectId(8), ElfSource::Bytes(Vec::new()));
        let built = results(&mut builder, 1).remove(0);
        assert_eq!((panicked.new_rules.len(), built.new_rules.len()), (3, 1));
        assert!(built.info.is_ok());
    }

    /// A panic that panics again when it is thrown away: the one way to end the thread from inside.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("the end of the thread");
            }
        }
    }

    #[test]
    fn the_end_of_the_thread_is_reported() {
        let mut builder = TableBuilder::start_with(|_, _| std::panic::panic_any(Bomb)).unwrap();
        builder.request(ObjectId(1), this());
        builder.request(ObjectId(2), this());
        let ended = results(&mut builder, 2);
        assert_eq!([ended[0].id, ended[1].id], [ObjectId(1), ObjectId(2)]);
        for built in ended {
            assert_eq!(built.info, Err(TableBuildError::Ended));
        }
        builder.request(ObjectId(3), this());
        assert_eq!(
            results(&mut builder, 1)[0].info,
            Err(TableBuildError::Ended)
        );
    }

    #[test]
    fn small_files_come_first() {
        let (proceed, wait) = channel::<()>();
        let mut builder = TableBuilder::start_with(move |_, _| {
            let _ = wait.recv();
            Ok(empty())
        })
        .unwrap();
        for (id, size) in [(1, 0), (2, 300), (3, 100), (4, 200), (5, 100)] {
            builder.request(ObjectId(id), ElfSource::Bytes(vec![0; size]));
        }
        drop(proceed);
        let order: Vec<u32> = results(&mut builder, 5)
            .iter()
            .map(|built| built.id.0)
            .collect();
        assert_eq!(order[..], [1, 3, 5, 4, 2]);
    }

    #[test]
    fn taking_and_dropping_never_block() {
        let (blocked, wait) = channel::<()>();
        let mut builder = TableBuilder::start_with(move |_, _| {
            let _ = wait.recv();
            Ok(empty())
        })
        .unwrap();
        builder.request(ObjectId(1), ElfSource::Bytes(Vec::new()));
        let before = Instant::now();
        assert!(builder.take().is_empty());
        assert!(builder.wait(Duration::from_millis(10)).is_empty());
        drop(builder);
        assert!(before.elapsed() < Duration::from_secs(10));
        drop(blocked);
    }
}
