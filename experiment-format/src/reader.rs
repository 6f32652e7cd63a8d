//! The reader of an experiment, written by kcollect or by `gprofng collect`.
//!
//! No file is trusted. Every number of a file is checked before it is used, and sizes before memory
//! is allocated. What is wrong is an error with file and offset. What is only unfinished, because
//! the collector still runs or was killed, is no error: complete packets, records and events are
//! read, the rest is left out.
//!
//! `log.xml` is read when the experiment is opened. The other files are read on demand; `profile`,
//! which can be large, packet by packet (`packets`).

mod packets;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Result;
use crate::address_space::RecordedAddressSpace;
use crate::archive::ARCHIVES;
use crate::directory::{self, free_bytes};
use crate::dynamic_code::{self, DynamicCodes};
use crate::error::Error;
use crate::file::open_regular;
use crate::functions::Archives;
use crate::log::decode::{self, Log};
use crate::log::{LAST_SAMPLE, LogEvent, LogHeader, ProfileDecl, StartTime, WordSize};
use crate::map::{self, MapEvent};
use crate::packed::{packed_file, read_log, unpack};
use crate::packet::walk::PacketWalk;
use crate::packet::{
    HeapEvent, IoEvent, PacketLayout, SyncEvent, counter, heap, io_call, sync, tick,
};
use crate::stacks::table::StackTable;
use crate::units::Nanos;
use crate::usage::{USAGE_BYTES, UsageRecord};
pub use packets::{ClockRecords, Packet, Packets};

/// Files larger than this are not read into memory.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// An open experiment.
#[derive(Debug)]
pub struct Experiment {
    path: PathBuf,
    /// The path by which it was opened, if that is not its directory.
    named: Option<PathBuf>,
    header: LogHeader,
    start: StartTime,
    events: Vec<LogEvent>,
    /// The names of the directories in a packed experiment, if only its log was read.
    packed_directories: Option<Vec<OsString>>,
    /// Holds the lock that keeps it from being removed (`--keep`). None for a subexperiment.
    _in_use: Option<File>,
    /// The directory into which a packed experiment was unpacked. It is removed on drop.
    _unpacked: Option<TempDir>,
}

/// A sample: its event, and its usage record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The time, nanoseconds since the start of the experiment.
    pub at_ns: Nanos,
    /// Its label.
    pub label: String,
    /// The usage; None if the collector ended before the record was written.
    pub usage: Option<UsageRecord>,
}

impl Experiment {
    /// Opens the experiment at `path`, a founder or a subexperiment; or one that is packed
    /// ([`crate::packed`]), which is unpacked into a directory for temporary files.
    ///
    /// # Errors
    ///
    /// A `log.xml` that is missing, damaged or without a start; data of a big-endian machine, or of
    /// a format before version 12. A packed experiment that can't be unpacked, or that takes more
    /// than half of the free space.
    pub fn open(path: &Path) -> Result<Experiment> {
        // First, or else what is read may be packed and removed meanwhile.
        let in_use = lock(path);
        let Some(file) = packed_file(path) else {
            return Ok(Experiment {
                _in_use: in_use,
                ..Experiment::open_directory(path)?
            });
        };
        let parent = std::env::temp_dir();
        let made = tempfile::Builder::new().prefix("kcollect-").tempdir();
        let made = made.map_err(|error| Error::io("make a directory in", &parent, error))?;
        let most = free_bytes(made.path())? / 2;
        let directory = unpack(&file, made.path(), most, &mut |_| {})?;
        if file != path {
            link_archives(path, &directory)?;
        }
        Ok(Experiment {
            named: Some(path.to_owned()),
            _in_use: in_use,
            _unpacked: Some(made),
            ..Experiment::open_directory(&directory)?
        })
    }

    /// Opens the experiment at `path` only to read its log and the names of its subexperiments. If
    /// it is packed, nothing else can be read.
    ///
    /// # Errors
    ///
    /// As [`Experiment::open`].
    pub fn open_log(path: &Path) -> Result<Experiment> {
        let in_use = lock(path);
        let opened = match packed_file(path) {
            None => Experiment::open_directory(path)?,
            Some(file) => {
                let log = read_log(&file, MAX_FILE_BYTES)?;
                Experiment {
                    packed_directories: Some(log.directories),
                    ..Experiment::of_log(path, &file, &log.bytes)?
                }
            }
        };
        Ok(Experiment {
            _in_use: in_use,
            ..opened
        })
    }

    /// Opens one of this experiment's [`Experiment::subexperiments`].
    ///
    /// # Errors
    ///
    /// As [`Experiment::open`].
    pub fn open_subexperiment(&self, path: &Path) -> Result<Experiment> {
        let named = self.named.as_ref().zip(path.file_name());
        Ok(Experiment {
            named: named.map(|(named, name)| named.join(name)),
            ..Experiment::open_directory(path)?
        })
    }

    fn open_directory(path: &Path) -> Result<Experiment> {
        let log_path = path.join("log.xml");
        let bytes = read_file(&log_path)?.ok_or_else(|| {
            let why = "no such file, so this directory is no experiment";
            Error::io(
                "open",
                &log_path,
                io::Error::new(io::ErrorKind::NotFound, why),
            )
        })?;
        Experiment::of_log(path, &log_path, &bytes)
    }

    /// Returns the experiment at `path` whose log is `bytes`, read from `log_path`.
    fn of_log(path: &Path, log_path: &Path, bytes: &[u8]) -> Result<Experiment> {
        let Log {
            header,
            run,
            events,
        } = decode::decode(log_path, bytes)?;
        decode::check(log_path, &header)?;
        let Some(start) = run else {
            let what = "the log does not show a start".to_owned();
            return Err(Error::Malformed {
                path: log_path.to_owned(),
                offset: bytes.len() as u64,
                what,
            });
        };
        Ok(Experiment {
            path: path.to_owned(),
            named: None,
            header,
            start,
            events,
            packed_directories: None,
            _in_use: None,
            _unpacked: None,
        })
    }

    /// Its directory. A packed experiment's directory exists as long as this.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path as it was named: for a packed experiment the file, or the directory that it is
    /// packed in.
    pub fn named(&self) -> &Path {
        self.named.as_deref().unwrap_or(&self.path)
    }

    /// Returns the header: what was known when recording started.
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Returns the start of the recording.
    pub fn start(&self) -> StartTime {
        self.start
    }

    /// Returns the events after the start, in the file's order.
    pub fn events(&self) -> &[LogEvent] {
        &self.events
    }

    /// Returns what follows `key` in the first comment that begins with it (`unit: `): in the
    /// header, or in a later event.
    pub fn comment(&self, key: &str) -> Option<&str> {
        let later = self.events.iter().filter_map(|event| match event {
            LogEvent::Comment { text, .. } => Some(text),
            _ => None,
        });
        let mut comments = self.header.comments.iter().chain(later);
        comments.find_map(|text| text.strip_prefix(key))
    }

    /// Returns whether it was closed. If not, the collector still runs or was killed.
    pub fn is_closed(&self) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, LogEvent::Exit { .. }))
    }

    /// Returns whether all data are written: the experiment is closed, or its collector copies load
    /// objects and closes it next.
    pub fn has_all_data(&self) -> bool {
        self.events.iter().any(|event| match event {
            LogEvent::Exit { .. } => true,
            LogEvent::Sample { label, .. } => label == LAST_SAMPLE,
            _ => false,
        })
    }

    /// Returns the events of `warnings.xml`.
    ///
    /// # Errors
    ///
    /// A damaged file.
    pub fn warnings(&self) -> Result<Vec<LogEvent>> {
        let path = self.path.join("warnings.xml");
        let bytes = read_file(&path)?.unwrap_or_default();
        Ok(decode::decode(&path, &bytes)?.events)
    }

    /// The text of `notes`; empty if the file does not exist.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn notes(&self) -> Result<String> {
        let bytes = read_file(&self.path.join("notes"))?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the content of a file that is not of the format; None if there is no such file. See
    /// [`crate::writer::ExperimentWriter::side_file`].
    ///
    /// # Errors
    ///
    /// A system error, or a file above 256 MiB.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        read_file(&self.path.join(name))
    }

    /// Returns the events of `map.xml`, in the file's order.
    ///
    /// # Errors
    ///
    /// A damaged file.
    pub fn maps(&self) -> Result<Vec<MapEvent>> {
        let path = self.path.join("map.xml");
        map::decode(&path, &read_file(&path)?.unwrap_or_default())
    }

    /// Returns the address space, over time.
    ///
    /// # Errors
    ///
    /// A damaged `map.xml`.
    pub fn address_space(&self) -> Result<RecordedAddressSpace> {
        Ok(RecordedAddressSpace::new(self.maps()?))
    }

    /// Returns the machine code of its dynamic functions, as far as it was recorded.
    ///
    /// # Errors
    ///
    /// A system error, or a file above 256 MiB.
    pub fn dynamic_codes(&self) -> Result<DynamicCodes> {
        let bytes = read_file(&self.path.join(dynamic_code::FILE))?;
        Ok(DynamicCodes::parse(bytes.unwrap_or_default()))
    }

    /// Returns all call stacks.
    ///
    /// # Errors
    ///
    /// A system error. Of a damaged file, the stacks that can be found are returned.
    pub fn stacks(&self) -> Result<StackTable> {
        let path = self.path.join("data.frameinfo");
        match open_regular(&path)? {
            Some(file) => StackTable::read(PacketWalk::new(file, &path), self.header.word_size),
            None => Ok(StackTable::default()),
        }
    }

    /// Returns the packets of `profile`.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn packets(&self) -> Result<Packets> {
        self.packets_in(tick::FILE, |profile| {
            matches!(profile, ProfileDecl::Clock { .. })
        })
    }

    /// Returns the packets of `hwcounters`: overflows of the counters of [`ProfileDecl::Counters`].
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn counter_packets(&self) -> Result<Packets> {
        self.packets_in(counter::FILE, |profile| {
            matches!(profile, ProfileDecl::Counters { .. })
        })
    }

    /// Returns the packets of `synctrace`: waits for locks, of [`SyncEvent::table`].
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn sync_packets(&self) -> Result<Packets> {
        self.packets_in(sync::FILE, SyncEvent::is_table)
    }

    /// Returns the packets of `iotrace`: calls that do I/O, of [`IoEvent::table`].
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn io_packets(&self) -> Result<Packets> {
        self.packets_in(io_call::FILE, IoEvent::is_table)
    }

    /// Returns the packets of `heaptrace`: memory that was allocated or freed, of
    /// [`HeapEvent::table`].
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn heap_packets(&self) -> Result<Packets> {
        self.packets_in(heap::FILE, HeapEvent::is_table)
    }

    /// Returns the packets of a file that the tables of a kind declare.
    fn packets_in(&self, file: &str, of_kind: impl Fn(&ProfileDecl) -> bool) -> Result<Packets> {
        let tables = self.header.profiles.iter().filter(|table| of_kind(table));
        let layouts = tables
            .flat_map(ProfileDecl::packets)
            .map(|packet| (packet.kind, PacketLayout::new(packet)))
            .collect();
        self.packets_of(file, layouts)
    }

    /// Returns the packets of a file that have a layout.
    fn packets_of(&self, file: &str, layouts: HashMap<u16, PacketLayout>) -> Result<Packets> {
        let path = self.path.join(file);
        let walk = open_regular(&path)?.map(|file| PacketWalk::new(file, &path));
        Ok(Packets::new(walk, layouts))
    }

    /// Returns the clock ticks of `profile`, in the file's order: one record for a clock packet,
    /// and one for each state with ticks of a tick array. Other packets are skipped.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn ticks(&self) -> Result<ClockRecords> {
        Ok(ClockRecords::new(self.packets()?))
    }

    /// Returns the usage records, in order. A partial one at the end is left out.
    ///
    /// # Errors
    ///
    /// A system error, or records of a 32-bit process, which have another layout.
    pub fn usage(&self) -> Result<Vec<UsageRecord>> {
        let path = self.path.join("overview");
        let bytes = read_file(&path)?.unwrap_or_default();
        if self.header.word_size == WordSize::Bits32 && !bytes.is_empty() {
            let what = "usage records of a 32-bit process are not read".to_owned();
            return Err(Error::Malformed {
                path,
                offset: 0,
                what,
            });
        }
        let records = bytes.as_chunks::<USAGE_BYTES>().0;
        Ok(records.iter().map(UsageRecord::decode).collect())
    }

    /// Returns the samples, in the order of their events.
    ///
    /// # Errors
    ///
    /// As [`Experiment::usage`].
    pub fn samples(&self) -> Result<Vec<Sample>> {
        let records = self.usage()?;
        let sample = |event: &LogEvent| match event {
            LogEvent::Sample { at_ns, id, label } => Some(Sample {
                at_ns: *at_ns,
                label: label.clone(),
                usage: records.get(*id as usize).cloned(),
            }),
            _ => None,
        };
        Ok(self.events.iter().filter_map(sample).collect())
    }

    /// The load objects. A subexperiment uses the founder's.
    pub fn archives(&self) -> Archives {
        let own = self.path.join(ARCHIVES);
        if own.is_dir() {
            return Archives::new(own);
        }
        Archives::new(self.path.join("..").join(ARCHIVES))
    }

    /// Returns the directories of the subexperiments, in gprofng's order, in which it numbers them
    /// as Process 2, 3, …
    ///
    /// They are named `_*.er`. One with an empty `data.frameinfo` is left out, as gprofng does.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn subexperiments(&self) -> Result<Vec<PathBuf>> {
        let failed = |error| Error::io("list", &self.path, error);
        let is_named = |name: &OsString| {
            let bytes = name.as_encoded_bytes();
            bytes.starts_with(b"_") && bytes.ends_with(b".er")
        };
        let mut names = Vec::new();
        if let Some(packed) = &self.packed_directories {
            names.extend(packed.iter().filter(|name| is_named(name)).cloned());
        } else {
            for entry in std::fs::read_dir(&self.path).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name();
                let path = self.path.join(&name);
                let frames = std::fs::metadata(path.join("data.frameinfo"));
                let has_frames = !frames.is_ok_and(|frames| frames.len() == 0);
                if is_named(&name) && path.is_dir() && has_frames {
                    names.push(name);
                }
            }
        }
        names.sort_by(|a, b| natural_order(a.as_encoded_bytes(), b.as_encoded_bytes()));
        Ok(names.into_iter().map(|name| self.path.join(name)).collect())
    }
}

/// Returns the content of a file; None if there is no file.
fn read_file(path: &Path) -> Result<Option<Vec<u8>>> {
    let Some(file) = open_regular(path)? else {
        return Ok(None);
    };
    let too_large = || Error::Malformed {
        path: path.to_owned(),
        offset: MAX_FILE_BYTES,
        what: "the file is larger than 256 MiB".to_owned(),
    };
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    if length > MAX_FILE_BYTES {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // It may be growing.
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::io("read", path, error))?;
    match bytes.len() as u64 {
        ..=MAX_FILE_BYTES => Ok(Some(bytes)),
        _ => Err(too_large()),
    }
}

/// Compares names so that numbers in them count as numbers: `_f2` before `_f10`.
fn natural_order(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        let (Some(first), Some(second)) = (a.first(), b.first()) else {
            return a.len().cmp(&b.len());
        };
        if first.is_ascii_digit() && second.is_ascii_digit() {
            let (number, other) = (take_number(&mut a), take_number(&mut b));
            let order = number
                .len()
                .cmp(&other.len())
                .then_with(|| number.cmp(other));
            if order.is_ne() {
                return order;
            }
        } else if first != second {
            return first.cmp(second);
        } else {
            (a, b) = (&a[1..], &b[1..]);
        }
    }
}

/// Splits off the digits that `name` begins with. Returns them without leading zeros.
fn take_number<'a>(name: &mut &'a [u8]) -> &'a [u8] {
    let end = name
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(name.len());
    let (digits, rest) = name.split_at(end);
    *name = rest;
    let zeros = digits
        .iter()
        .position(|digit| *digit != b'0')
        .unwrap_or(digits.len());
    &digits[zeros..]
}

/// Links the load objects of an experiment that is packed in its directory into the unpacked
/// experiment.
fn link_archives(packed: &Path, unpacked: &Path) -> Result<()> {
    let link = || {
        let archives = packed.canonicalize()?.join(ARCHIVES);
        std::os::unix::fs::symlink(archives, unpacked.join(ARCHIVES))
    };
    match link() {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("unpack", packed, error))
        }
        _ => Ok(()),
    }
}

/// Opens the directory of an experiment and notes that it is in use. None for a subexperiment:
/// there may be thousands of them.
fn lock(path: &Path) -> Option<File> {
    let name = path.file_name()?;
    if name.as_bytes().starts_with(b"_") {
        return None;
    }
    let dir = File::open(path).ok()?;
    directory::note_use(dir.as_fd());
    Some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = [
            "_f10.er",
            "_f2.er",
            "_f2_x1.er",
            "_a.er",
            "_f02.er",
            "_f.er",
        ];
        names.sort_by(|a, b| natural_order(a.as_bytes(), b.as_bytes()));
        assert_eq!(
            names,
            [
                "_a.er",
                "_f.er",
                "_f2.er",
                "_f02.er",
                "_f2_x1.er",
                "_f10.er"
            ]
        );
    }

    #[test]
    fn a_directory_without_a_log_is_no_experiment() {
        let tmp = tempfile::tempdir().unwrap();
        let error = Experiment::open(tmp.path()).unwrap_err().to_string();
        assert!(error.contains("log.xml"), "{error}");
    }

    #[test]
    fn a_log_without_a_start_is_no_experiment() {
        let tmp = tempfile::tempdir().unwrap();
        let log = "<experiment version=\"12.4\"/>\n<system arch=\"x86_64\"/>\n";
        std::fs::write(tmp.path().join("log.xml"), log).unwrap();
        let error = Experiment::open(tmp.path()).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("log.xml");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Experiment::open(tmp.path()).is_err());
    }

    #[test]
    fn subexperiments_are_the_directories_that_gprofng_takes() {
        let tmp = tempfile::tempdir().unwrap();
        let path = |name: &str| tmp.path().join(name);
        let log = "<experiment version=\"12.4\"/>\n<system arch=\"x86_64\"/>\n\
                   <event kind=\"run\" tstamp=\"1.000000000\"/>\n\n";
        std::fs::write(path("log.xml"), log).unwrap();
        for name in [
            "_f10.er",
            "_f2.er",
            "_sshd_PID_1264.1.er",
            "M_r1.er",
            "foo.er",
            "_no",
            "_e.er",
        ] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("_file.er"), "").unwrap();
        std::fs::write(path("_e.er/data.frameinfo"), "").unwrap();
        std::fs::write(path("_f2.er/data.frameinfo"), "x").unwrap();
        let found = Experiment::open(tmp.path())
            .unwrap()
            .subexperiments()
            .unwrap();
        let expected = ["_f2.er", "_f10.er", "_sshd_PID_1264.1.er"].map(path);
        assert_eq!(found, expected);
    }
}
