//! Reads events: overflows of counters, waits for locks, system calls that do I/O, and allocations
//! of memory.
//!
//! Waits and calls have metrics like counters, by gprofng's names: `sync` is the time of waits and
//! `syncn` their number; calls have `ioreadtime`, `ioreadbytes`, `ioreadcnt` and the like.

use experiment_format::Error;
use experiment_format::calls::name_of;
use experiment_format::log::{CounterDecl, CounterUnit, ProfileDecl};
use experiment_format::packet::{
    HeapEvent, IoEvent, IoKind, IoRecord, SharedFields, SyncEvent, WEIGHT_OF_ONE,
};
use experiment_format::text::printable;
use rustc_hash::FxHashMap;

use super::live_memory::LiveMemory;
use super::{LoadContext, Loader, Progress};
use crate::model::{
    AllocationRow, CounterInfo, CounterRow, FileId, IoCallRow, LockWaitRow, MemoryPeak, SUM_SLOTS,
    TickRow,
};

impl Loader {
    /// Reads the overflows of counters.
    pub(super) fn read_counters(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let source = &self.model.experiment(context.id).source;
        let mut packets = source.counter_packets()?;
        let declared = source.header().profiles.iter();
        let declared = declared.filter_map(|profile| match profile {
            ProfileDecl::Counters { counters, .. } => Some(counters),
            _ => None,
        });
        let declared: Vec<_> = declared.flatten().cloned().collect();
        let slots: FxHashMap<u32, u8> = declared
            .into_iter()
            .filter_map(|counter| Some((counter.tag, self.counter(counter)?)))
            .collect();
        while let Some(packet) = packets.next_packet()? {
            let Some(record) = packet.counted() else {
                continue;
            };
            let (Some(counter), Some(value)) = (slots.get(&record.tag), record.value) else {
                continue;
            };
            self.add(context, progress, &record.shared, &[(*counter, value)]);
        }
        self.warn_of_skipped(context, progress, "hwcounters", packets.invalid());
        Ok(())
    }

    /// Reads the waits for locks.
    pub(super) fn read_waits(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let source = &self.model.experiment(context.id).source;
        if !source.header().profiles.iter().any(SyncEvent::is_table) {
            return Ok(());
        }
        let mut packets = source.sync_packets()?;
        let slots = SYNC_METRICS.map(|metric| self.counter(metric.declaration()));
        let [Some(time), Some(number)] = slots else {
            return Ok(());
        };
        while let Some(packet) = packets.next_packet()? {
            let Some(record) = packet.waited() else {
                continue;
            };
            let duration_ns = record.shared.time_ns - record.requested_ns;
            let values = [(time, duration_ns.0), (number, 1)];
            if let Some(row) = self.add(context, progress, &record.shared, &values) {
                self.model.waits.push(LockWaitRow {
                    row,
                    duration_ns: i64::try_from(duration_ns.0).unwrap_or(i64::MAX),
                    object: record.object,
                    kind: record.kind,
                });
            }
        }
        self.warn_of_skipped(context, progress, "synctrace", packets.invalid());
        Ok(())
    }

    /// Reads the system calls that do I/O.
    pub(super) fn read_io_calls(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let source = &self.model.experiment(context.id).source;
        if !source.header().profiles.iter().any(IoEvent::is_table) {
            return Ok(());
        }
        // System call numbers depend on the architecture.
        let names_known = source.header().system.arch == std::env::consts::ARCH;
        let mut packets = source.io_packets()?;
        let mut records = Vec::new();
        while let Some(packet) = packets.next_packet()? {
            records.extend(packet.called());
        }
        // The name of a descriptor follows from the calls on it before.
        records.sort_by_key(|record| record.shared.time_ns);
        let mut metrics: FxHashMap<&'static str, u8> = FxHashMap::default();
        for metric in IO_METRICS {
            if let Some(slot) = self.counter(metric.declaration()) {
                metrics.insert(metric.name, slot);
            }
        }
        let mut files = FileNames::default();
        for record in records {
            let name = files.of(&record);
            if record.names_only {
                continue;
            }
            let values: Vec<(u8, u64)> = io_values(&record)
                .into_iter()
                .filter_map(|(name, value)| Some((*metrics.get(name)?, value)))
                .collect();
            if let Some(row) = self.add(context, progress, &record.shared, &values) {
                let duration_ns = record.shared.time_ns - record.requested_ns;
                let file = self.file(&name);
                self.model.io_calls.push(IoCallRow {
                    row,
                    duration_ns: i64::try_from(duration_ns.0).unwrap_or(i64::MAX),
                    bytes: record.bytes,
                    kind: record.kind,
                    failed: record.failed,
                    file,
                    name: record.call.filter(|_| names_known).and_then(name_of),
                });
            }
        }
        self.warn_of_skipped(context, progress, "iotrace", packets.invalid());
        Ok(())
    }

    /// Reads the memory that was allocated and freed.
    pub(super) fn read_memory(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let source = &self.model.experiment(context.id).source;
        if !source.header().profiles.iter().any(HeapEvent::is_table) {
            return Ok(());
        }
        let mut packets = source.heap_packets()?;
        let mut records = Vec::new();
        while let Some(packet) = packets.next_packet()? {
            records.extend(packet.allocated());
        }
        records.sort_by_key(|record| record.shared.time_ns);
        let slots = HEAP_METRICS.map(|metric| self.counter(metric.declaration()));
        let LiveMemory { live, peak, .. } = LiveMemory::of(&records);
        for (record, live) in records.iter().zip(live) {
            let Some(live_bytes) = live else {
                continue;
            };
            // What is sampled stands for several.
            let allocations = (record.weight.saturating_add(WEIGHT_OF_ONE / 2)) / WEIGHT_OF_ONE;
            let live_allocations = if live_bytes > 0 { allocations } else { 0 };
            let values = [record.bytes, allocations, live_bytes, live_allocations];
            let values: Vec<(u8, u64)> = slots
                .iter()
                .zip(values)
                .filter_map(|(slot, value)| Some(((*slot)?, value)))
                .collect();
            if let Some(row) = self.add(context, progress, &record.shared, &values) {
                self.model.allocations.push(AllocationRow {
                    row,
                    bytes: record.bytes,
                    own_bytes: record.own_bytes,
                    weight: record.weight,
                    live_bytes,
                });
            }
        }
        if let Some((time_ns, bytes)) = peak {
            self.model.memory_peaks.push(MemoryPeak {
                experiment: context.id,
                bytes,
                time_ns: time_ns.saturating_sub(context.origin_ns),
            });
        }
        self.warn_of_skipped(context, progress, "heaptrace", packets.invalid());
        Ok(())
    }

    /// Returns the file of a name.
    fn file(&mut self, name: &str) -> FileId {
        if let Some(known) = self.files.get(name) {
            return *known;
        }
        let file = FileId(self.model.files.len() as u32);
        self.model.files.push(name.to_owned());
        self.files.insert(name.to_owned(), file);
        file
    }

    /// Adds an event with its values by counter. Returns its row, which has no ticks. None: the
    /// event is impossible, and counted as such.
    fn add(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
        shared: &SharedFields,
        values: &[(u8, u64)],
    ) -> Option<TickRow> {
        let added = self.left_counts_after(values).and_then(|left| {
            let row = self.row(context, progress, shared)?;
            self.left_counts = left;
            Some(row)
        });
        progress.impossible += u64::from(added.is_none());
        let row = added?;
        let counts = values.iter().map(|(counter, value)| CounterRow {
            row,
            counter: *counter,
            value: i64::try_from(*value).unwrap_or(i64::MAX),
        });
        self.model.counts.extend(counts);
        Some(row)
    }

    /// Returns how much each counter may still count after these values. None: a value is too
    /// large.
    fn left_counts_after(&self, values: &[(u8, u64)]) -> Option<[u64; SUM_SLOTS]> {
        let mut left = self.left_counts;
        for (counter, value) in values {
            let left = &mut left[usize::from(*counter)];
            *left = left.checked_sub(*value)?;
        }
        Some(left)
    }

    /// Warns of the records of a file that were skipped: those that cannot be decoded, and the
    /// impossible ones since the last file.
    fn warn_of_skipped(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
        file: &str,
        invalid: u64,
    ) {
        let records = invalid + std::mem::take(&mut progress.impossible);
        if records > 0 {
            let source = &self.model.experiment(context.id).source;
            let path = source.path().join(file);
            self.model.leave_out(format!(
                "{}: {records} damaged records were skipped",
                path.display()
            ));
        }
    }

    /// Returns the position of a counter by its name, which several experiments may share. None:
    /// there are too many counters.
    fn counter(&mut self, declared: CounterDecl) -> Option<u8> {
        let counters = &mut self.model.counters;
        let known = counters
            .iter()
            .position(|counter| counter.name == declared.name);
        if known.is_none() && counters.len() >= SUM_SLOTS {
            let warning = format!(
                "{}: left out, since at most {SUM_SLOTS} counters are reported",
                declared.name
            );
            if !self.model.warnings.contains(&warning) {
                self.model.leave_out(warning);
            }
            return None;
        }
        let slot = known.unwrap_or_else(|| {
            counters.push(CounterInfo {
                name: declared.name,
                title: declared.title,
                unit: declared.unit,
            });
            counters.len() - 1
        });
        u8::try_from(slot).ok()
    }
}

/// A metric of traced events.
struct EventMetric {
    /// gprofng's name.
    name: &'static str,
    title: &'static str,
    unit: CounterUnit,
}

impl EventMetric {
    const fn time(name: &'static str, title: &'static str) -> EventMetric {
        let unit = CounterUnit::Nanoseconds;
        EventMetric { name, title, unit }
    }

    const fn number(name: &'static str, title: &'static str) -> EventMetric {
        let unit = CounterUnit::Count;
        EventMetric { name, title, unit }
    }

    fn declaration(&self) -> CounterDecl {
        CounterDecl {
            tag: 0,
            name: self.name.to_owned(),
            title: self.title.to_owned(),
            interval: 1,
            unit: self.unit,
        }
    }
}

const SYNC_METRICS: [EventMetric; 2] = [
    EventMetric::time("sync", "Sync Wait"),
    EventMetric::number("syncn", "Sync Wait Count"),
];

const HEAP_METRICS: [EventMetric; 4] = [
    EventMetric::number("heapallocbytes", "Bytes Allocated"),
    EventMetric::number("heapalloccnt", "Allocations"),
    EventMetric::number("heapleakbytes", "Bytes Not Freed"),
    EventMetric::number("heapleakcnt", "Allocations Not Freed"),
];

const IO_METRICS: [EventMetric; 10] = [
    EventMetric::time("ioreadtime", "Read Time"),
    EventMetric::number("ioreadbytes", "Bytes Read"),
    EventMetric::number("ioreadcnt", "Read Count"),
    EventMetric::time("iowritetime", "Write Time"),
    EventMetric::number("iowritebytes", "Bytes Written"),
    EventMetric::number("iowritecnt", "Write Count"),
    EventMetric::time("ioothertime", "Other I/O Time"),
    EventMetric::number("ioothercnt", "Other I/O Count"),
    EventMetric::time("ioerrortime", "I/O Error Time"),
    EventMetric::number("ioerrorcnt", "I/O Error Count"),
];

/// Returns the metrics in which a call counts, with their values. A call that failed is an error,
/// whatever it was to do.
fn io_values(record: &IoRecord) -> Vec<(&'static str, u64)> {
    let duration_ns = record.shared.time_ns - record.requested_ns;
    match record.kind {
        _ if record.failed => vec![("ioerrortime", duration_ns.0), ("ioerrorcnt", 1)],
        IoKind::Read => vec![
            ("ioreadtime", duration_ns.0),
            ("ioreadbytes", record.bytes),
            ("ioreadcnt", 1),
        ],
        IoKind::Write => vec![
            ("iowritetime", duration_ns.0),
            ("iowritebytes", record.bytes),
            ("iowritecnt", 1),
        ],
        IoKind::Open | IoKind::Close | IoKind::Other => {
            vec![("ioothertime", duration_ns.0), ("ioothercnt", 1)]
        }
    }
}

/// The names of the files that the descriptors of an experiment's process are of, by the rules of
/// gprofng: an open records a name, or that the descriptor is a duplicate.
struct FileNames {
    open: FxHashMap<i32, String>,
}

impl Default for FileNames {
    fn default() -> FileNames {
        let standard = [(0, "<stdin>"), (1, "<stdout>"), (2, "<stderr>")];
        let standard = standard.map(|(number, name)| (number, name.to_owned()));
        FileNames {
            open: standard.into_iter().collect(),
        }
    }
}

impl FileNames {
    /// Returns the name of the file that a call is of, and notes what the call changes.
    fn of(&mut self, record: &IoRecord) -> String {
        let known = |number| self.open.get(&number).cloned();
        match record.kind {
            IoKind::Open => {
                let recorded_name = record.name.as_deref().map(printable);
                let duplicate = || record.duplicated.and_then(known);
                let name = recorded_name.or_else(duplicate);
                let name = name.unwrap_or_else(|| UNNAMED.to_owned());
                if !record.failed {
                    self.open.insert(record.descriptor, name.clone());
                }
                name
            }
            IoKind::Close => {
                let name = known(record.descriptor).unwrap_or_else(|| UNNAMED.to_owned());
                if !record.failed {
                    self.open.remove(&record.descriptor);
                }
                name
            }
            IoKind::Other if record.descriptor < 0 => NO_DESCRIPTOR.to_owned(),
            _ => known(record.descriptor).unwrap_or_else(|| UNNAMED.to_owned()),
        }
    }
}

/// The name of the file of a descriptor that was not seen being opened.
const UNNAMED: &str = "<unknown>";
/// The name of the file of a call without a descriptor.
const NO_DESCRIPTOR: &str = "<paths>";
