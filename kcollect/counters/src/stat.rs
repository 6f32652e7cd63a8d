//! `kcollect stat`: counters by CPU, with all threads that run there.
//!
//! Each CPU has a set of counters, which is read at every tick. A row has what was counted since
//! the row before, and the last row has the total, which is the sum of all rows. CPUs that go
//! offline or online have rows of their own, and the counts of a CPU that went offline stay in the
//! total.
//!
//! No other program is locked out: on Linux counters of CPUs and of threads exist side by side, and
//! where the hardware has too few the kernel multiplexes them, which the rows show.
//!
//! Signals are handled as in a recording ([`host::signals`]); [`crate::track`] has the reasons.

use std::collections::BTreeMap;
use std::time::Duration;

use host::exit::{ExitKind, Failure};
use host::machine::{self, now, online_cpus};
use host::output::Output;
use host::signals::{self, Signals};
use types::units::Nanos;

use crate::names::event::PerfEvent;
use crate::perf::bound_set::BoundSet;
use crate::perf::counter::Start;
use crate::perf::reading::{CounterValue, SetReading};
use crate::perf::refusal::Refusal;
use crate::perf::retry::RetryPolicy;
use crate::perf::set::{CounterSet, CounterTarget, SetRequest};
use crate::rows::format::{RowFormat, RowSubject};
use crate::rows::writer::{CountOptions, RowWriter};
use crate::rows::{CountRow, RowKind};
use crate::run::{internal_error, wait_for_signals};

/// The options of `kcollect stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatOptions {
    /// The time between two ticks.
    pub period: Duration,
    /// What is counted, and how rows are printed.
    pub counting: CountOptions,
}

/// The counters of a CPU.
struct CpuCounters {
    bound: BoundSet,
    /// The numbers of the events in `bound`. Some events are counted on one CPU for all.
    events: Vec<usize>,
    last: SetReading,
    /// The time stolen from the CPU until its last row.
    stolen_ns: Option<Nanos>,
}

/// A run of `kcollect stat`.
struct StatRun<'a> {
    options: &'a CountOptions,
    events: &'a [PerfEvent],
    start_ns: Nanos,
    cpus: BTreeMap<u32, CpuCounters>,
    total: Vec<CounterValue>,
    total_stolen_ns: Option<Nanos>,
    /// The time stolen from each CPU until the last tick.
    stolen_ns: BTreeMap<u32, Nanos>,
    writer: RowWriter,
}

/// Counts until a signal or the last tick. Returns the exit code 0.
///
/// # Errors
/// A [`Failure`] with its hint: an event that cannot be counted, a file that cannot be written.
pub fn stat(options: &StatOptions, output: &mut Output) -> Result<u8, Failure> {
    let counting = &options.counting;
    let events = counting.events()?;
    let mut signals = Signals::listen(None, None, signals::SignalRequest::Stop)
        .map_err(|error| Failure::of_system("signals", &error))?;
    let writer = RowWriter::open(counting)?;
    machine::raise_descriptors();
    let mut run = StatRun {
        options: counting,
        events: &events,
        start_ns: now(),
        cpus: BTreeMap::new(),
        total: vec![CounterValue::default(); events.len()],
        total_stolen_ns: None,
        stolen_ns: machine::stolen_ns(),
        writer,
    };
    run.add_online_cpus(false)?;
    run.start_ns = now();
    if counting.header {
        let format = run.format();
        run.writer.header(&format)?;
    }
    let period_ns = Nanos::from(options.period);
    let mut due_ns = run.start_ns + period_ns;
    let mut ticks = 0;
    while counting.ticks.is_none_or(|limit| ticks < limit) && !run.writer.is_closed() {
        wait_for_signals(&signals, due_ns.saturating_sub(now()).into())?;
        if signals.take().contains(&signals::SignalRequest::Stop) {
            run.tick()?;
            break;
        }
        let time_ns = now();
        if time_ns < due_ns {
            continue;
        }
        run.remove_offline_cpus()?;
        run.tick()?;
        run.add_online_cpus(true)?;
        ticks += 1;
        due_ns += period_ns * (1 + (time_ns - due_ns) / period_ns);
    }
    let cpus = run.cpus.len() as u64;
    run.print(&CountRow {
        stolen_ns: run.total_stolen_ns,
        ..CountRow::of_cpu(now(), None, RowKind::Total(cpus), Some(run.total.clone()))
    })?;
    run.writer.flush()?;
    if counting.verbose {
        output.say(&format!("{cpus} CPUs, {ticks} ticks"));
    }
    Ok(0)
}

impl StatRun<'_> {
    /// Opens counters on CPUs that are new, with a row for each if `print`.
    fn add_online_cpus(&mut self, print: bool) -> Result<(), Failure> {
        let online = online_cpus().map_err(|error| Failure::of_system("the CPUs", &error))?;
        let mut refused = None;
        for cpu in online {
            if self.cpus.contains_key(&cpu) {
                continue;
            }
            match RetryPolicy::DEFAULT.run(|| self.bind(cpu)) {
                Ok(Some(counters)) => {
                    let time_ns = counters.last.time_ns;
                    self.cpus.insert(cpu, counters);
                    if print {
                        self.print(&CountRow::of_cpu(time_ns, Some(cpu), RowKind::Online, None))?;
                    }
                }
                Ok(None) => {}
                // It went offline after it was listed.
                Err(Refusal::Offline { .. }) => {}
                Err(refusal) => drop(refused.get_or_insert(refusal)),
            }
        }
        match refused {
            Some(refusal) => Err(refusal.into()),
            None if self.cpus.is_empty() => Err(Failure::new(
                ExitKind::Unavailable,
                "no CPU counts these events",
                "kcollect -h lists what this machine can count",
            )),
            None => Ok(()),
        }
    }

    /// Opens the counters of a CPU. None: the CPU counts none of the events.
    fn bind(&self, cpu: u32) -> Result<Option<CpuCounters>, Refusal> {
        let mut set = CounterSet::new();
        let mut events = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            if event.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu)) {
                set.add(SetRequest::new(event.clone()));
                events.push(number);
            }
        }
        if events.is_empty() {
            return Ok(None);
        }
        let bound = set.bind(CounterTarget::Cpu(cpu), Start::Now)?;
        let mut last = SetReading::zero(events.len());
        last.time_ns = now();
        Ok(Some(CpuCounters {
            bound,
            events,
            last,
            stolen_ns: self.stolen_ns.get(&cpu).copied(),
        }))
    }

    /// Closes the counters of CPUs that went offline. Their counts can still be read.
    fn remove_offline_cpus(&mut self) -> Result<(), Failure> {
        let online = online_cpus().map_err(|error| Failure::of_system("the CPUs", &error))?;
        let offline: Vec<_> = self
            .cpus
            .keys()
            .filter(|cpu| !online.contains(cpu))
            .copied()
            .collect();
        for cpu in offline {
            self.read(cpu, RowKind::Offline)?;
            self.cpus.remove(&cpu);
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Failure> {
        self.stolen_ns = machine::stolen_ns();
        for cpu in self.cpus.keys().copied().collect::<Vec<_>>() {
            self.read(cpu, RowKind::Tick)?;
        }
        self.writer.flush()
    }

    /// Prints a row of a CPU: what it counted since its last row.
    fn read(&mut self, number: u32, kind: RowKind) -> Result<(), Failure> {
        let Some(cpu) = self.cpus.get_mut(&number) else {
            return Ok(());
        };
        let reading = cpu.bound.read();
        let reading = reading.map_err(|error| internal_error(&format!("CPU {number}"), &error))?;
        let since = reading.minus(&cpu.last);
        let since =
            since.map_err(|error| internal_error(&format!("CPU {number}"), &error.to_string()))?;
        // Counters from before a CPU went offline do not count when it is online again.
        let stopped = since
            .values
            .iter()
            .all(|value| value.enabled_ns == Nanos::ZERO);
        cpu.last = reading;
        let now_ns = self.stolen_ns.get(&number).copied();
        let stolen_ns = (now_ns.zip(cpu.stolen_ns)).map(|(now, last)| now.saturating_sub(last));
        cpu.stolen_ns = now_ns.or(cpu.stolen_ns);
        if let Some(stolen_ns) = stolen_ns {
            *self.total_stolen_ns.get_or_insert(Nanos::ZERO) += stolen_ns;
        }
        let mut values = vec![CounterValue::default(); self.events.len()];
        for (number, value) in cpu.events.iter().zip(&since.values) {
            values[*number] = *value;
            self.total[*number] = self.total[*number].plus(*value);
        }
        if stopped {
            self.cpus.remove(&number);
        }
        self.print(&CountRow {
            stolen_ns,
            ..CountRow::of_cpu(since.time_ns, Some(number), kind, Some(values))
        })
    }

    fn print(&mut self, row: &CountRow) -> Result<(), Failure> {
        let format = self.format();
        self.writer.row(&format, row)
    }
}

impl<'a> StatRun<'a> {
    fn format(&self) -> RowFormat<'a> {
        RowFormat {
            subject: RowSubject::Cpus,
            events: self.events,
            start_ns: self.start_ns,
            times: self.options.times,
        }
    }
}
