//! Reads what threads did at an instant: overflows of counters, and waits for locks.
//!
//! Waits have metrics like counters, gprofng's `sync` (their time) and `syncn` (their number).

use experiment_format::Error;
use experiment_format::ids::Pid;
use experiment_format::log::{CounterDecl, CounterUnit, ProfileDecl};
use experiment_format::packet::SyncEvent;
use experiment_format::stacks::StackUid;
use rustc_hash::FxHashMap;

use super::resolve::Addresses;
use super::{Context, Loader, MAX_TIME_NS};
use crate::model::{CounterInfo, CounterOverflow, LockWait, MAX_COUNTERS, StackId, TickRow};

/// An event as its packet has it.
struct Event {
    cpu: u32,
    /// Nanoseconds of the experiment's clock.
    time: u64,
    stack: Option<StackUid>,
    /// The thread, and its process if the packet has it.
    thread: (u64, Option<Pid>),
}

impl Loader {
    /// Reads the overflows of counters. Returns how many stacks are missing.
    pub(super) fn read_counters(
        &mut self,
        context: &Context<'_>,
        addresses: &mut Addresses,
        end: &mut u64,
    ) -> Result<u64, Error> {
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
        let (mut missing, mut impossible) = (0, 0);
        while let Some(packet) = packets.next_packet()? {
            let Some(record) = packet.counted() else {
                continue;
            };
            let (Some(counter), Some(value)) = (slots.get(&record.tag), record.value) else {
                continue;
            };
            let event = Event {
                cpu: record.cpu,
                time: record.time,
                stack: record.stack,
                thread: (record.thread, record.pid),
            };
            let values = [(*counter, value)];
            let row = self.add(context, addresses, &event, &values, &mut missing, end);
            impossible += u64::from(row.is_none());
        }
        self.skipped(context, "hwcounters", packets.invalid() + impossible);
        Ok(missing)
    }

    /// Reads the waits for locks. Returns how many stacks are missing.
    pub(super) fn read_waits(
        &mut self,
        context: &Context<'_>,
        addresses: &mut Addresses,
        end: &mut u64,
    ) -> Result<u64, Error> {
        let source = &self.model.experiment(context.id).source;
        if !source.header().profiles.iter().any(SyncEvent::is_table) {
            return Ok(0);
        }
        let mut packets = source.sync_packets()?;
        let [Some(time), Some(number)] = sync_metrics().map(|metric| self.counter(metric)) else {
            return Ok(0);
        };
        let (mut missing, mut impossible) = (0, 0);
        while let Some(packet) = packets.next_packet()? {
            let Some(record) = packet.waited() else {
                continue;
            };
            let event = Event {
                cpu: record.cpu,
                time: record.ended,
                stack: record.stack,
                thread: (record.thread, record.pid),
            };
            let nanos = record.ended - record.requested;
            let values = [(time, nanos), (number, 1)];
            match self.add(context, addresses, &event, &values, &mut missing, end) {
                Some(row) => self.model.waits.push(LockWait {
                    row,
                    nanos: i64::try_from(nanos).unwrap_or(i64::MAX),
                    object: record.object,
                    kind: record.kind,
                }),
                None => impossible += 1,
            }
        }
        self.skipped(context, "synctrace", packets.invalid() + impossible);
        Ok(missing)
    }

    /// Adds an event with its values by counter. Returns where and when it was. None: it is at an
    /// impossible time, or there is no room for a value in its counter's sum.
    fn add(
        &mut self,
        context: &Context<'_>,
        addresses: &mut Addresses,
        event: &Event,
        values: &[(u8, u64)],
        missing: &mut u64,
        end: &mut u64,
    ) -> Option<TickRow> {
        let time = event.time.saturating_sub(context.origin);
        if time >= MAX_TIME_NS {
            return None;
        }
        let mut left = self.left_counts;
        for (counter, value) in values {
            let left = &mut left[usize::from(*counter)];
            *left = left.checked_sub(*value)?;
        }
        self.left_counts = left;
        let at = event.time.saturating_sub(context.start);
        let stack = event.stack.map_or(Some(StackId::EMPTY), |uid| {
            self.resolver.stack(
                &mut self.model,
                &mut self.archives[context.founder.index()],
                addresses,
                context.stacks,
                uid,
                at,
            )
        });
        *missing += u64::from(stack.is_none());
        *end = (*end).max(time);
        let row = TickRow {
            time,
            stack: stack.unwrap_or(StackId::EMPTY),
            thread: self.thread(context.id, context.names, event.thread, time),
            experiment: context.id,
            cpu: self.cpu(event.cpu),
            ticks: 0,
            state: 0,
            detail: 0,
        };
        let counts = values.iter().map(|(counter, value)| CounterOverflow {
            row,
            counter: *counter,
            value: i64::try_from(*value).unwrap_or(i64::MAX),
        });
        self.model.counts.extend(counts);
        Some(row)
    }

    /// Says that records of a file were skipped.
    fn skipped(&mut self, context: &Context<'_>, file: &str, records: u64) {
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
        if known.is_none() && counters.len() >= MAX_COUNTERS {
            let warning = format!(
                "{}: left out, since at most {MAX_COUNTERS} counters are reported",
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

/// Returns the metrics of waits, as gprofng calls them: their time and their number.
fn sync_metrics() -> [CounterDecl; 2] {
    let metric = |name: &str, title: &str, unit| CounterDecl {
        tag: 0,
        name: name.to_owned(),
        title: title.to_owned(),
        interval: 1,
        unit,
    };
    [
        metric("sync", "Sync Wait", CounterUnit::Nanoseconds),
        metric("syncn", "Sync Wait Count", CounterUnit::Count),
    ]
}
