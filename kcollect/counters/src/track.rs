//! `kcollect track`: the counters of a process or of a command, by thread.
//!
//! Rows come in the order of time: a tick of each thread every so often, births, forks, execs and
//! ends as they happen. The figures of a tick are of its time alone; those of an end are of the
//! whole life, or since it was followed. The last row is the total of all, from the counters that
//! everybody shares: it is right even where a thread's row is not complete.
//!
//! What is tracked is not ours to end: on Ctrl-C it goes on, uncounted.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use host::exit::{Failure, Kind, load_code, spawn_code};
use host::load;
use host::machine::{self, now, online_cpus};
use host::output::Output;
use host::signals::{self, Signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::binding::{Begin, Inherit};
use super::event::Event;
use super::follow::{Follow, Own};
use super::gate::Gate;
use super::lives::Lives;
use super::records::Record;
use super::refusal::Refusal;
use super::retry::Patience;
use super::rows::{Row, What};
use super::sink::{Sink, Wish};
use super::style::{Of, Style};

/// How often it is looked what has happened, at least: a thread's own counters begin that much late
/// at most.
const ROUND: Duration = Duration::from_millis(20);

/// For how long the command is waited for when kcollect is told to end: on a terminal, Ctrl-C is
/// for both.
const FAREWELL: u64 = 200_000_000;

/// Who is tracked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A process that runs.
    Process(u32),
    /// A command and its arguments, from its first instruction.
    Command(Vec<OsString>),
}

/// What `kcollect track` was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who.
    pub who: Who,
    /// Processes that it forks too, and those that they fork.
    pub forks: bool,
    /// What, and how it is told.
    pub wish: Wish,
}

/// Tracks. Gives the exit code: the command's, or 0.
///
/// # Errors
/// A [`Failure`] with its cure: an event that cannot be counted, a process that is not there, a
/// file that cannot be written.
pub fn track(request: &Request, output: &mut Output) -> Result<u8, Failure> {
    let events = request.wish.events()?;
    let signals = Signals::listen(None, None).map_err(|error| software("signals", &error))?;
    let sink = Sink::open(&request.wish)?;
    let descriptors = machine::raise_descriptors();
    let cpus = online_cpus().map_err(|error| software("the CPUs", &error))?;
    let inherit = match request.forks {
        true => Inherit::All,
        false => Inherit::Threads,
    };
    let mut follow = Follow::new(events.clone(), cpus, inherit);
    let mut child = None;
    let mut start_ns = now();
    let roots = match &request.who {
        Who::Process(pid) => {
            check_leader(*pid)?;
            let bind = || follow.process(*pid, Begin::Now);
            let owns = Patience::USUAL
                .bind(bind)
                .map_err(|refusal| gone(refusal, *pid))?;
            owns.into_iter()
                .map(|(tid, own)| (*pid, tid, own))
                .collect()
        }
        Who::Command(words) => {
            if let Some((program, error)) = load::refused(words) {
                output.say(&format!("cannot start {}: {error}", program.display()));
                return Ok(spawn_code(&error));
            }
            let gate = Gate::start(words, descriptors).map_err(|error| software("fork", &error))?;
            let pid = gate.pid();
            let own = Patience::USUAL.bind(|| follow.root(pid, Begin::Exec))?;
            start_ns = now();
            match gate.open() {
                Ok(started) => child = Some(started),
                Err(error) => {
                    output.say(&format!("cannot start {}: {error}", words[0].display()));
                    return Ok(spawn_code(&error));
                }
            }
            vec![(pid, pid, own)]
        }
    };
    let mut lives = Lives::new(events.len(), follow.last_words(), request.forks);
    for (pid, tid, own) in roots {
        lives.root(pid, tid, own);
    }
    let mut tracking = Tracking {
        request,
        events: &events,
        start_ns,
        follow,
        lives,
        sink,
        signals,
        child,
        status: None,
        unread: 0,
    };
    tracking.run()?;
    tracking.close(output)?;
    Ok(tracking.status.map_or(0, load_code))
}

struct Tracking<'a> {
    request: &'a Request,
    events: &'a [Event],
    start_ns: u64,
    follow: Follow,
    lives: Lives<Own>,
    sink: Sink,
    signals: Signals,
    child: Option<Child>,
    status: Option<ExitStatus>,
    /// Threads without counters of their own.
    unread: u64,
}

impl Tracking<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        if self.request.wish.header {
            let style = self.style();
            self.sink.header(&style)?;
        }
        let period = self
            .request
            .wish
            .period
            .map(|period| period.as_nanos() as u64);
        let mut due = period.map(|period| self.start_ns + period);
        let mut ticks = 0;
        let mut until = u64::MAX;
        loop {
            self.wait(due)?;
            let ended = self.ended()?;
            // With it all its threads have ended, and have told everything; its descendants have
            // not.
            self.round(ended && !self.request.forks)?;
            let time = now();
            if let (Some(next), Some(period)) = (due, period)
                && time >= next
            {
                let rows = self.lives.tick(now);
                self.print(&rows)?;
                ticks += 1;
                // The next one on the grid of the first, however late this one is.
                due = Some(next + (1 + (time - next) / period) * period);
            }
            self.sink.flush()?;
            let stopped = self.signals.take().contains(&signals::SignalRequest::Stop);
            if stopped && self.child.is_some() && self.status.is_none() {
                until = until.min(time + FAREWELL);
            } else if stopped {
                until = time;
            }
            let enough = self
                .request
                .wish
                .ticks
                .is_some_and(|wanted| ticks >= wanted);
            let over = self.lives.is_empty() && (self.child.is_none() || ended);
            let farewell = until != u64::MAX && (time >= until || ended);
            if enough || over || farewell || self.sink.is_gone() {
                return Ok(());
            }
        }
    }

    fn wait(&mut self, due: Option<u64>) -> Result<(), Failure> {
        let left = due.map(|due| Duration::from_nanos(due.saturating_sub(now())));
        let left = left.unwrap_or(ROUND).min(ROUND) + Duration::from_micros(999);
        let fds = self.signals.fds();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(software("waiting", &error.into())),
        }
    }

    /// Whether the command has ended. All that it said it has said then.
    fn ended(&mut self) -> Result<bool, Failure> {
        if let (Some(child), None) = (&mut self.child, self.status) {
            self.status = child
                .try_wait()
                .map_err(|error| software("the command", &error))?;
        }
        Ok(self.status.is_some())
    }

    /// Takes what was told, all of it or what is complete, and prints it.
    fn round(&mut self, all: bool) -> Result<(), Failure> {
        for (time, record) in self.follow.take(all) {
            if let Record::Fork { tid, .. } = &record
                && self.lives.opened_unborn(*tid)
            {
                self.follow.forget(*tid);
            }
            let follow = &self.follow;
            let rows = self.lives.take(time, &record, |id| follow.event_of(id));
            self.print(&rows)?;
        }
        for tid in self.lives.newcomers() {
            match self.follow.own(tid, Begin::Now) {
                Ok(own) => self.lives.adopt(tid, own),
                // It ended before it was heard of.
                Err(Refusal::NoThread { .. }) => {
                    let rows = self.lives.gone(tid, now());
                    self.print(&rows)?;
                }
                Err(_) => self.unread += 1,
            }
        }
        // Where records found no room, ends are among them.
        if self.lives.lost > 0 {
            for (pid, tid) in self.lives.living() {
                if !Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
                    let rows = self.lives.gone(tid, now());
                    self.print(&rows)?;
                }
            }
        }
        let rows = self.lives.overdue(now());
        self.print(&rows)
    }

    fn close(&mut self, output: &mut Output) -> Result<(), Failure> {
        self.round(true)?;
        let rows = self.lives.overdue(u64::MAX);
        self.print(&rows)?;
        let rows = self.lives.tick(now);
        self.print(&rows)?;
        let told = self.lives.told();
        let total = self.follow.total();
        let mut total = total.map_err(|error| software("the counters", &error))?;
        for ((total, told), event) in total.iter_mut().zip(&told).zip(self.events) {
            total.enabled_ns = told.enabled_ns;
            total.running_ns = told.running_ns;
            let silent = total.count.wrapping_sub(told.count).cast_signed();
            if silent != 0 && self.request.wish.verbose {
                output.say(&format!(
                    "{silent} of {} are in the total and in no row: of threads that live, from before they were heard of",
                    event.name
                ));
            }
        }
        let what = What::Total(self.lives.followed);
        self.print(&[Row::on(now(), None, what, Some(total))])?;
        self.sink.flush()?;
        let Lives { lost, unheard, .. } = self.lives;
        if lost > 0 {
            output.say(&format!(
                "{lost} records of threads found no room: rows are missing, the total is right"
            ));
        }
        if unheard > 0 {
            output.say(&format!(
                "of {unheard} threads the kernel did not say what they had counted; their rows are incomplete, the total is \
                 right"
            ));
        }
        if self.unread > 0 {
            output.say(&format!(
                "{} threads have no ticks: there is no counter of their own for them; ulimit -n may be too small",
                self.unread
            ));
        }
        Ok(())
    }

    fn print(&mut self, rows: &[Row]) -> Result<(), Failure> {
        let style = self.style();
        rows.iter().try_for_each(|row| self.sink.row(&style, row))
    }
}

impl<'a> Tracking<'a> {
    fn style(&self) -> Style<'a> {
        Style {
            of: Of::Threads,
            events: self.events,
            start_ns: self.start_ns,
            times: self.request.wish.times,
        }
    }
}

/// A thread's own number is in `/proc` as a process's is.
fn check_leader(pid: u32) -> Result<(), Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok();
    let leader = status.and_then(|status| {
        let mut lines = status.lines();
        let leader = lines.find_map(|line| line.strip_prefix("Tgid:"))?;
        leader.trim().parse::<u32>().ok()
    });
    match leader {
        Some(leader) if leader == pid => Ok(()),
        Some(leader) => Err(Failure::new(
            Kind::NoInput,
            format!("-p {pid}: {pid} is a thread of process {leader}"),
            format!("type -p {leader}"),
        )),
        None => Err(gone(Refusal::NoThread { tid: pid }, pid)),
    }
}

/// Of the process that was named it is said that it is gone, not of a thread.
fn gone(refusal: Refusal, pid: u32) -> Failure {
    match refusal {
        Refusal::NoThread { tid } if tid == pid => Failure::new(
            Kind::NoInput,
            format!("-p {pid}: no such process"),
            refusal.cure(),
        ),
        other => other.into(),
    }
}

fn software(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Kind::Software, format!("{what}: {error}"), "report it")
}
