//! `kcollect stat`: counters by CPU, whoever runs there.
//!
//! A set on each CPU, read every so often: rows have what was counted in between, the last one has
//! the total, which is the sum of all rows. CPUs that go and come are told, and what was counted
//! until a CPU went stays in the total.
//!
//! Nobody is shut out: on Linux counters of a CPU and counters of a thread live beside each other,
//! and where the hardware has too few of them they take turns, which the rows say.

use std::collections::BTreeMap;
use std::time::Duration;

use host::exit::{Failure, Kind};
use host::machine::{self, now, online_cpus};
use host::output::Output;
use host::signals::{self, Signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::binding::Begin;
use super::bound::Bound;
use super::event::Event;
use super::refusal::Refusal;
use super::retry::Patience;
use super::rows::{Row, What};
use super::sample::{Sample, Value};
use super::set::{Set, Target, Wanted};
use super::sink::{Sink, Wish};
use super::style::{Of, Style};

/// A CPU's counters.
struct Cpu {
    bound: Bound,
    /// Which events they are of: some events are counted on one CPU for all.
    numbers: Vec<usize>,
    last: Sample,
}

struct Counting<'a> {
    wish: &'a Wish,
    events: &'a [Event],
    start_ns: u64,
    cpus: BTreeMap<u32, Cpu>,
    total: Vec<Value>,
    sink: Sink,
}

/// Counts until it is told to end, or has told often enough. Gives the exit code 0.
///
/// # Errors
/// A [`Failure`] with its cure: an event that cannot be counted, a file that cannot be written.
pub fn stat(wish: &Wish, output: &mut Output) -> Result<u8, Failure> {
    let events = wish.events()?;
    let mut signals = Signals::listen(None, None).map_err(|error| software("signals", &error))?;
    let sink = Sink::open(wish)?;
    machine::raise_descriptors();
    let mut counting = Counting {
        wish,
        events: &events,
        start_ns: now(),
        cpus: BTreeMap::new(),
        total: vec![Value::default(); events.len()],
        sink,
    };
    counting.come(false)?;
    counting.start_ns = now();
    if wish.header {
        let style = counting.style();
        counting.sink.header(&style)?;
    }
    let period = wish.period.unwrap_or(Duration::from_secs(5)).as_nanos() as u64;
    let mut due = counting.start_ns + period;
    let mut ticks = 0;
    while wish.ticks.is_none_or(|wanted| ticks < wanted) && !counting.sink.is_gone() {
        wait(&signals, due)?;
        if signals.take().contains(&signals::SignalRequest::Stop) {
            counting.tick()?;
            break;
        }
        let time = now();
        if time < due {
            continue;
        }
        counting.go()?;
        counting.tick()?;
        counting.come(true)?;
        ticks += 1;
        due += (1 + (time - due) / period) * period;
    }
    let many = counting.cpus.len() as u64;
    let total = Row::on(now(), None, What::Total(many), Some(counting.total.clone()));
    counting.print(&total)?;
    counting.sink.flush()?;
    if wish.verbose {
        output.say(&format!("{many} CPUs, {ticks} ticks"));
    }
    Ok(0)
}

impl Counting<'_> {
    /// Begins on CPUs that are new.
    fn come(&mut self, told: bool) -> Result<(), Failure> {
        let online = online_cpus().map_err(|error| software("the CPUs", &error))?;
        let mut refused = None;
        for cpu in online {
            if self.cpus.contains_key(&cpu) {
                continue;
            }
            match Patience::USUAL.bind(|| self.bind(cpu)) {
                Ok(Some(bound)) => {
                    let time_ns = bound.last.time_ns;
                    self.cpus.insert(cpu, bound);
                    if told {
                        self.print(&Row::on(time_ns, Some(cpu), What::Online, None))?;
                    }
                }
                Ok(None) => {}
                // It went while we looked.
                Err(Refusal::Offline { .. }) => {}
                Err(refusal) => drop(refused.get_or_insert(refusal)),
            }
        }
        match refused {
            Some(refusal) => Err(refusal.into()),
            None if self.cpus.is_empty() => Err(Failure::new(
                Kind::Unavailable,
                "no CPU counts these events",
                "see kcollect -h for where they are counted",
            )),
            None => Ok(()),
        }
    }

    /// None of a CPU that counts none of the events.
    fn bind(&self, cpu: u32) -> Result<Option<Cpu>, Refusal> {
        let mut set = Set::new();
        let mut numbers = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            if event.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu)) {
                set.add(Wanted::new(event.clone()));
                numbers.push(number);
            }
        }
        if numbers.is_empty() {
            return Ok(None);
        }
        let bound = set.bind(Target::Cpu(cpu), Begin::Now)?;
        let mut last = Sample::zero(numbers.len());
        last.time_ns = now();
        Ok(Some(Cpu {
            bound,
            numbers,
            last,
        }))
    }

    /// Ends with CPUs that have gone. What they counted can still be read.
    fn go(&mut self) -> Result<(), Failure> {
        let online = online_cpus().map_err(|error| software("the CPUs", &error))?;
        let gone: Vec<_> = self
            .cpus
            .keys()
            .filter(|cpu| !online.contains(cpu))
            .copied()
            .collect();
        for cpu in gone {
            self.read(cpu, What::Offline)?;
            self.cpus.remove(&cpu);
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Failure> {
        for cpu in self.cpus.keys().copied().collect::<Vec<_>>() {
            self.read(cpu, What::Tick)?;
        }
        self.sink.flush()
    }

    /// A row of a CPU: what it counted since its last one.
    fn read(&mut self, number: u32, what: What) -> Result<(), Failure> {
        let Some(cpu) = self.cpus.get_mut(&number) else {
            return Ok(());
        };
        let sample = cpu.bound.sample();
        let sample = sample.map_err(|error| software(&format!("CPU {number}"), &error))?;
        let since = sample.minus(&cpu.last);
        let since =
            since.map_err(|error| software(&format!("CPU {number}"), &error.to_string()))?;
        // It went and came back in between: the counters that were there before count no more.
        let dead = since.values.iter().all(|value| value.enabled_ns == 0);
        cpu.last = sample;
        let mut values = vec![Value::default(); self.events.len()];
        for (number, value) in cpu.numbers.iter().zip(&since.values) {
            values[*number] = *value;
            self.total[*number] = self.total[*number].plus(*value);
        }
        if dead {
            self.cpus.remove(&number);
        }
        self.print(&Row::on(since.time_ns, Some(number), what, Some(values)))
    }

    fn print(&mut self, row: &Row) -> Result<(), Failure> {
        let style = self.style();
        self.sink.row(&style, row)
    }
}

impl<'a> Counting<'a> {
    fn style(&self) -> Style<'a> {
        Style {
            of: Of::Cpus,
            events: self.events,
            start_ns: self.start_ns,
            times: self.wish.times,
        }
    }
}

fn wait(signals: &Signals, due: u64) -> Result<(), Failure> {
    let left = Duration::from_nanos(due.saturating_sub(now())) + Duration::from_micros(999);
    let mut fds: Vec<_> = signals
        .fds()
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(software("waiting", &error)),
    }
}

fn software(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Kind::Software, format!("{what}: {error}"), "report it")
}
