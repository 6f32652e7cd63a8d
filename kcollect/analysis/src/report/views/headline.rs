//! The sentences above the first tables: how busy the CPUs were, who suffered most and because of
//! whom, and whether anything was throttled. Each figure is one of the tables below, or a sum of
//! some.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::microstate::Microstate::{System, Trap, User, WaitCpu};
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::context::ViewContext;
use super::exact::ExactProcess;
use super::suffered::{Place, PlaceWaits, Waits, is_passed_on, largest_waker};
use super::waiting::recorders;
use crate::filter::Selection;
use crate::load::exact::{ExactSums, sum};
use crate::model::{FunctionId, Model, ThreadId, TickRow, WaitReason};
use crate::wakers::{Waker, Wakers};

/// Less than this is not mentioned.
const MIN_TIME: Nanos = Nanos::from_millis(10);

/// What the sentences say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    /// The number of CPUs.
    pub(super) cpus: usize,
    /// The length of the recording.
    pub(super) length: Nanos,
    /// Whether only some processes or threads are selected.
    pub(super) selected: bool,
    /// The times of all processes but kcollect's.
    pub(super) times: ExactSums,
    /// The process that was throttled most.
    pub(super) throttled: Option<(String, Nanos)>,
    /// What threads suffered. None: the experiment has no causes.
    pub(super) waits: Option<WaitFacts>,
}

/// What threads suffered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct WaitFacts {
    /// Whether it was recorded who woke whom.
    pub(super) wakers_watched: bool,
    /// The time of suffered waits of all, without those for a CPU.
    pub(super) suffered: Nanos,
    /// The blocked time that is undecided.
    pub(super) undecided: Nanos,
    /// The part of it that has ended. A thread that is idle for the whole recording has none.
    pub(super) undecided_ended: Nanos,
    /// Who suffered most.
    pub(super) sufferer: Option<Sufferer>,
}

/// The processes of one name that suffered most.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sufferer {
    /// Their name.
    pub(super) process: String,
    /// The time of their suffered waits, without those for a CPU.
    pub(super) suffered: Nanos,
    /// The cause of most of it.
    pub(super) cause: Cause,
    /// The time of this cause.
    pub(super) of_cause: Nanos,
    /// The function in which they waited most for it.
    pub(super) function: Option<String>,
    /// Who ended at least half of these waits.
    pub(super) waker: Option<WakerFacts>,
}

/// Who ended waits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WakerFacts {
    /// The thread, if it was one alone. None: several threads of the process.
    pub(super) tid: Option<u64>,
    /// The name of its process.
    pub(super) process: String,
    /// What the thread did for more than half of the time meanwhile, and the function.
    pub(super) meanwhile: Option<(Activity, Option<String>)>,
}

/// What a thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Activity {
    /// It was on a CPU.
    OnCpu,
    /// It waited.
    Waiting(WaitReason),
}

/// Returns the sentences.
pub(super) fn sentences(facts: &Facts) -> Vec<String> {
    let mut sentences = vec![cpu_sentence(facts)];
    sentences.extend(facts.waits.as_ref().map(wait_sentence));
    sentences.push(throttled_sentence(facts));
    sentences
}

/// Seconds, with as many decimals as make a short time more than zero.
fn seconds(time: Nanos) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{seconds:.1} s")
    }
}

/// Returns a part of a time, as a part of a sentence.
fn part_of(part: Nanos, whole: Nanos) -> String {
    if part == whole {
        "all of it".to_owned()
    } else {
        format!("{} of it", seconds(part))
    }
}

fn cpu_sentence(facts: &Facts) -> String {
    let times = &facts.times;
    let on_cpu = sum([User, System, Trap].map(|state| times.of(state)));
    let used = on_cpu.as_secs_f64() / facts.length.max(Nanos(1)).as_secs_f64();
    let by = if facts.selected {
        " by what is selected"
    } else {
        ""
    };
    let mut sentence = format!("{used:.1} of {} CPUs in use{by}", facts.cpus);
    if facts.cpus == 1 {
        sentence = format!("{used:.1} of 1 CPU in use{by}");
    }
    let waited = times.of(WaitCpu);
    if waited >= MIN_TIME && waited > on_cpu / 10 {
        let detail = &times.detail;
        let parts = [
            (detail.preempted_ns, "after they were preempted"),
            (detail.throttled_ns, "throttled by a quota"),
            (detail.stolen_ns, "while the hypervisor ran something else"),
            (times.after_wakeup(), "in a run queue after a wake-up"),
        ];
        let most = parts.into_iter().max_by_key(|(time, _)| *time);
        let (part, why) = most.unwrap_or_default();
        sentence += &format!(
            "; threads waited {} for a CPU, {} {why}",
            seconds(waited),
            part_of(part, waited)
        );
    }
    sentence + "."
}

fn wait_sentence(waits: &WaitFacts) -> String {
    let sufferer = waits.sufferer.as_ref();
    let mut sentence = match sufferer.filter(|sufferer| sufferer.suffered >= MIN_TIME) {
        Some(sufferer) => sufferer_sentence(sufferer),
        None => "Nobody suffered a wait of 10 ms or more".to_owned(),
    };
    if waits.undecided_ended >= MIN_TIME && waits.undecided_ended > waits.suffered {
        let undecided = seconds(waits.undecided);
        sentence += &format!(", as far as is known; {undecided} of blocked time are undecided");
        if !waits.wakers_watched {
            sentence += ": record with -W on, which watches who wakes whom";
        }
    }
    sentence + "."
}

fn sufferer_sentence(sufferer: &Sufferer) -> String {
    let mut sentence = format!(
        "{}'s threads suffered waits of {}: {} ",
        sufferer.process,
        seconds(sufferer.suffered),
        part_of(sufferer.of_cause, sufferer.suffered)
    );
    sentence += match sufferer.cause {
        Cause::Kernel => "for a lock of the kernel, memory or the like",
        Cause::Write => "for a write to be taken",
        Cause::Middle => "for another thread in the middle of work",
        _ => "for ",
    };
    if sentence.ends_with(' ') {
        sentence += sufferer.cause.title();
    }
    if let Some(function) = &sufferer.function {
        sentence += &format!(" in {function}");
    }
    if let Some(waker) = &sufferer.waker {
        sentence += &waker_words(waker, sufferer);
    }
    sentence
}

/// Returns who ended the waits, as a part of the sentence.
fn waker_words(waker: &WakerFacts, sufferer: &Sufferer) -> String {
    let verb = match sufferer.cause {
        Cause::Lock => "released mostly by",
        Cause::Answer => "given mostly by",
        _ => "ended mostly by",
    };
    let who = match waker.tid {
        Some(tid) => format!("thread {tid} ({})", waker.process),
        None if waker.process == sufferer.process => "other threads of its own".to_owned(),
        None => format!("threads of {}", waker.process),
    };
    let mut words = format!(", {verb} {who}");
    if let Some((activity, function)) = &waker.meanwhile {
        words += ", which meanwhile mostly ";
        words += &match activity {
            Activity::OnCpu => "was on a CPU".to_owned(),
            Activity::Waiting(reason) => format!("waited for {}", reason.title()),
        };
        if let Some(function) = function {
            words += &format!(" in {function}");
        }
    }
    words
}

fn throttled_sentence(facts: &Facts) -> String {
    let detail = &facts.times.detail;
    let stolen = format!("the hypervisor stole {}", seconds(detail.stolen_ns));
    let is_stolen = detail.stolen_ns >= MIN_TIME;
    if detail.throttled_ns < MIN_TIME {
        return if is_stolen {
            format!("Nothing was throttled; {stolen}.")
        } else {
            "Nothing was throttled.".to_owned()
        };
    }
    let mut sentence = format!(
        "Quotas throttled threads for {}",
        seconds(detail.throttled_ns)
    );
    if let Some((process, time)) = &facts.throttled {
        sentence += &format!(", {process} for {}", seconds(*time));
    }
    if is_stolen {
        sentence += &format!("; {stolen}");
    }
    sentence + "."
}

/// The suffered waits of the processes of one name.
#[derive(Debug, Clone, Default)]
struct NamedWaits {
    suffered: Nanos,
    /// The part of it without what is passed on: see [`is_passed_on`].
    own: Nanos,
    by_cause: BTreeMap<Cause, Nanos>,
}

/// Gathers what the sentences say: of the processes with exact times, kcollect's left out, and of
/// the waits of their ticks.
pub(super) fn facts(
    context: &ViewContext<'_>,
    processes: &[ExactProcess],
    waits: Option<&Waits<'_>>,
) -> Facts {
    let model = context.model;
    let filter = &context.options.filter;
    let founders = || model.founders();
    let cpus = founders().map(|(_, info)| info.source.header().system.cpus.len());
    let mut times = ExactSums::default();
    processes
        .iter()
        .for_each(|process| times.add(&process.times));
    let throttled = processes.iter().map(|process| {
        let time = process.times.detail.throttled_ns;
        (time, Reverse(&process.name))
    });
    Facts {
        cpus: cpus.max().unwrap_or_default(),
        length: sum(founders().map(|(id, _)| model.length_ns(id))),
        selected: filter.chooses_processes() || !filter.threads.is_empty(),
        times,
        throttled: throttled
            .max()
            .map(|(time, Reverse(name))| (name.clone(), time)),
        waits: waits.map(|waits| wait_facts(context, processes, waits)),
    }
}

fn wait_facts(
    context: &ViewContext<'_>,
    processes: &[ExactProcess],
    waits: &Waits<'_>,
) -> WaitFacts {
    let model = context.model;
    let mut by_name: BTreeMap<&str, NamedWaits> = BTreeMap::new();
    let (mut undecided, mut undecided_ended) = (Nanos::ZERO, Nanos::ZERO);
    for process in processes {
        let named = by_name.entry(&process.name).or_default();
        let times = &process.times;
        undecided = undecided.saturating_add(times.of_kind(WaitKind::Undecided));
        undecided_ended = undecided_ended.saturating_add(times.of_cause(Cause::Undecided));
        for cause in Cause::ALL {
            let time = process.suffered_for(cause);
            named.suffered = named.suffered.saturating_add(time);
            if !is_passed_on(cause) {
                named.own = named.own.saturating_add(time);
            }
            let of_cause = named.by_cause.entry(cause).or_default();
            *of_cause = of_cause.saturating_add(time);
        }
    }
    let all = by_name.values().map(|named| named.suffered);
    let suffered = sum(all);
    let own = by_name
        .iter()
        .max_by_key(|(name, named)| (named.own, Reverse(**name)));
    let own = own.filter(|(_, named)| named.own >= MIN_TIME);
    let most = || {
        by_name
            .iter()
            .max_by_key(|(name, named)| (named.suffered, Reverse(**name)))
    };
    let sufferer = own.or_else(most).and_then(|(name, named)| {
        let causes = named.by_cause.iter();
        let causes = causes.filter(|(cause, _)| own.is_none() || !is_passed_on(**cause));
        let (cause, time) = causes.max_by_key(|(cause, time)| (**time, Reverse(**cause)))?;
        let mut sufferer = Sufferer {
            process: (*name).to_owned(),
            suffered: named.suffered,
            cause: *cause,
            of_cause: *time,
            function: None,
            waker: None,
        };
        explain(context, waits, &mut sufferer);
        Some(sufferer)
    });
    WaitFacts {
        // The summary is not written yet when a recording ends.
        wakers_watched: model
            .wakers_watched()
            .unwrap_or_else(|| model.rows.iter().any(|row| row.waker != 0)),
        suffered,
        undecided,
        undecided_ended,
        sufferer,
    }
}

/// Finds where a sufferer's waits were, and who ended them, if that holds for at least half.
fn explain(context: &ViewContext<'_>, waits: &Waits<'_>, sufferer: &mut Sufferer) {
    let model = context.model;
    let is_of = |place: &Place<'_>| {
        place.process == sufferer.process && place.reason == WaitReason::Blocked(sufferer.cause)
    };
    let places: Vec<&(Place<'_>, PlaceWaits)> = waits
        .suffered
        .iter()
        .filter(|(place, _)| is_of(place))
        .collect();
    let whole_us: i64 = places.iter().map(|(_, waits)| waits.us).sum();
    let is_most = |us: i64| us > 0 && us * 2 >= whole_us;
    let mut by_function: FxHashMap<FunctionId, i64> = FxHashMap::default();
    let mut by_waker = FxHashMap::default();
    for (place, waits) in &places {
        if let Some((function, caller)) = place.function {
            let function = match sufferer.cause {
                Cause::Kernel => function,
                _ => caller.unwrap_or(function),
            };
            *by_function.entry(function).or_default() += waits.us;
        }
        for (waker, us) in &waits.wakers {
            *by_waker.entry(*waker).or_default() += us;
        }
    }
    sufferer.function = main_function(model, &by_function, whole_us / 2);
    // A disk's interrupt may come to any thread.
    if sufferer.cause == Cause::Device {
        return;
    }
    let recorders = recorders(context);
    let is_recorder = |waker| match waker {
        Waker::Thread(thread) => recorders.contains(&model.thread(thread).process),
        Waker::Other(_) => {
            let pid = waits.wakers.names(model, waker).pid;
            let mut recorders = recorders.iter();
            recorders.any(|recorder| Some(model.process(*recorder).pid) == pid)
        }
    };
    let mut by_process: BTreeMap<&str, i64> = BTreeMap::new();
    for (waker, us) in &by_waker {
        let name = waits.wakers.names(model, *waker).process;
        if !name.is_empty() && !is_recorder(*waker) {
            *by_process.entry(name).or_default() += us;
        }
    }
    let thread = largest_waker(&by_waker).filter(|(_, us)| is_most(*us));
    let thread = thread.and_then(|(waker, _)| match waker {
        Waker::Thread(thread) => Some((waker, thread)),
        Waker::Other(_) => None,
    });
    let process = by_process
        .into_iter()
        .max_by_key(|(name, us)| (*us, Reverse(*name)));
    let several = process.filter(|(_, us)| is_most(*us));
    sufferer.waker = match thread {
        Some((waker, thread)) => (!is_recorder(waker)).then(|| {
            let names = waits.wakers.names(model, waker);
            WakerFacts {
                tid: Some(names.tid),
                process: names.process.to_owned(),
                meanwhile: meanwhile(context, sufferer, &waits.wakers, thread),
            }
        }),
        None => several.map(|(name, _)| WakerFacts {
            tid: None,
            process: name.to_owned(),
            meanwhile: None,
        }),
    };
}

/// Returns the name of the function with most of the time, if that is more than `min_us`.
fn main_function(
    model: &Model,
    by_function: &FxHashMap<FunctionId, i64>,
    min_us: i64,
) -> Option<String> {
    let name = |function: &FunctionId| &*model.function(*function).name;
    let most = by_function
        .iter()
        .max_by_key(|(function, us)| (**us, Reverse(name(function))));
    let most = most.filter(|(_, us)| **us > min_us);
    most.map(|(function, _)| name(function).to_owned())
}

/// Returns when the ticks of a row were: from when to when, since the start of the recording.
fn span(model: &Model, row: &TickRow) -> (Nanos, Nanos) {
    let length = model.length_of_ticks(row);
    (row.time_ns.saturating_sub(length), row.time_ns)
}

/// Returns what the thread that ended a sufferer's waits did in more than half of their time, and
/// in which function. None: several things, or it is not known.
fn meanwhile(
    context: &ViewContext<'_>,
    sufferer: &Sufferer,
    wakers: &Wakers,
    thread: ThreadId,
) -> Option<(Activity, Option<String>)> {
    let model = context.model;
    let selection = Selection::new(model, &context.options.filter);
    let is_of_waits = |row: &&TickRow| {
        row.wait_reason() == Some(WaitReason::Blocked(sufferer.cause))
            && wakers.of(row) == Some(Waker::Thread(thread))
            && model.process(model.thread(row.thread).process).name == sufferer.process
            && selection.passes(row)
    };
    let waits = model.rows.iter().filter(is_of_waits);
    let waits = merged(waits.map(|row| span(model, row)).collect());
    let mut by_activity: BTreeMap<Activity, Nanos> = BTreeMap::new();
    let mut functions: BTreeMap<Activity, FxHashMap<FunctionId, i64>> = BTreeMap::new();
    for row in model.rows.iter().filter(|row| row.thread == thread) {
        let Some(activity) = activity(row) else {
            continue;
        };
        let time = overlap(&waits, span(model, row));
        let all = by_activity.entry(activity).or_default();
        *all = all.saturating_add(time);
        if let Some((function, caller)) = model.waits_at(row.stack) {
            let functions = functions.entry(activity).or_default();
            let us = (time / Nanos::from_micros(1)) as i64;
            *functions.entry(caller.unwrap_or(function)).or_default() += us;
        }
    }
    let whole = sum(waits.iter().map(|(start, end)| end.saturating_sub(*start)));
    let (activity, time) = by_activity.into_iter().max_by_key(|(_, time)| *time)?;
    let is_known = match activity {
        Activity::Waiting(reason) => reason.kind() != WaitKind::Undecided,
        Activity::OnCpu => true,
    };
    if !is_known || time <= whole / 2 {
        return None;
    }
    let min_us = (time / Nanos::from_micros(2)) as i64;
    let function = functions.get(&activity);
    let function = function.and_then(|functions| main_function(model, functions, min_us));
    Some((activity, function))
}

/// Returns what a thread did in a row. None: it was stopped.
fn activity(row: &TickRow) -> Option<Activity> {
    if let Some(reason) = row.wait_reason() {
        return Some(Activity::Waiting(reason));
    }
    let mut on_cpu = [User, System, Trap].iter();
    let is_on_cpu = on_cpu.any(|state| *state as usize == row.slot());
    is_on_cpu.then_some(Activity::OnCpu)
}

/// Returns the same spans in order, with those that overlap as one.
fn merged(mut spans: Vec<(Nanos, Nanos)>) -> Vec<(Nanos, Nanos)> {
    spans.sort_unstable();
    let mut merged: Vec<(Nanos, Nanos)> = Vec::new();
    for (start, end) in spans {
        match merged.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Returns how much of a span is in others, which are in order and do not overlap.
fn overlap(spans: &[(Nanos, Nanos)], (start, end): (Nanos, Nanos)) -> Nanos {
    let first = spans.partition_point(|(_, last)| *last <= start);
    let within = spans[first..].iter().take_while(|(from, _)| *from < end);
    sum(within.map(|(from, to)| end.min(*to).saturating_sub(start.max(*from))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::exact::DetailTimes;

    fn ms(time: u64) -> Nanos {
        Nanos::from_millis(time)
    }

    /// Ten seconds of two CPUs, on which threads were for some time, and waited for one.
    fn machine(on_cpu: Nanos, wait: Nanos, detail: DetailTimes) -> Facts {
        let mut times = ExactSums {
            detail,
            ..ExactSums::default()
        };
        times.states[User as usize] = on_cpu;
        times.states[WaitCpu as usize] = wait;
        Facts {
            cpus: 2,
            length: ms(10_000),
            times,
            waits: Some(WaitFacts {
                wakers_watched: true,
                ..WaitFacts::default()
            }),
            ..Facts::default()
        }
    }

    fn busy() -> Facts {
        machine(ms(14_000), Nanos::ZERO, DetailTimes::default())
    }

    /// The sentence about a process, of a time that it suffered for one cause and one in all.
    fn about(cause: Cause, of_cause: u64, suffered: u64, waker: Option<WakerFacts>) -> String {
        let mut facts = busy();
        facts.waits = Some(WaitFacts {
            wakers_watched: true,
            suffered: ms(suffered),
            sufferer: Some(Sufferer {
                process: "mariadbd".to_owned(),
                suffered: ms(suffered),
                cause,
                of_cause: ms(of_cause),
                function: Some("commit".to_owned()),
                waker,
            }),
            ..WaitFacts::default()
        });
        sentences(&facts)[1].clone()
    }

    fn thread(meanwhile: Option<(Activity, Option<&str>)>) -> Option<WakerFacts> {
        Some(WakerFacts {
            tid: Some(1211),
            process: "mariadbd".to_owned(),
            meanwhile: meanwhile
                .map(|(activity, function)| (activity, function.map(str::to_owned))),
        })
    }

    #[test]
    fn an_idle_machine() {
        let idle = machine(ms(20), ms(1), DetailTimes::default());
        let expected = [
            "0.0 of 2 CPUs in use.",
            "Nobody suffered a wait of 10 ms or more.",
            "Nothing was throttled.",
        ];
        assert_eq!(sentences(&idle), expected);
        let one = Facts {
            cpus: 1,
            selected: true,
            waits: None,
            ..idle
        };
        let expected = [
            "0.0 of 1 CPU in use by what is selected.",
            "Nothing was throttled.",
        ];
        assert_eq!(sentences(&one), expected);
    }

    #[test]
    fn a_lock_convoy() {
        let device = Activity::Waiting(WaitReason::Blocked(Cause::Device));
        let waker = thread(Some((device, Some("fsync"))));
        assert_eq!(
            about(Cause::Lock, 38_200, 41_000, waker),
            "mariadbd's threads suffered waits of 41.0 s: 38.2 s of it for a lock in commit, \
             released mostly by thread 1211 (mariadbd), which meanwhile mostly waited for block I/O \
             in fsync."
        );
        let several = Some(WakerFacts {
            tid: None,
            process: "mariadbd".to_owned(),
            meanwhile: None,
        });
        assert_eq!(
            about(Cause::Lock, 38_200, 41_000, several),
            "mariadbd's threads suffered waits of 41.0 s: 38.2 s of it for a lock in commit, \
             released mostly by other threads of its own."
        );
    }

    #[test]
    fn a_disk_a_child_a_server_a_full_pipe_and_memory() {
        let start = "mariadbd's threads suffered waits of 2.0 s: all of it for ";
        assert_eq!(
            about(Cause::Device, 2_000, 2_000, None),
            format!("{start}block I/O in commit.")
        );
        assert_eq!(
            about(Cause::Child, 2_000, 2_000, None),
            format!("{start}a child process in commit.")
        );
        let server = Some(WakerFacts {
            tid: None,
            process: "server".to_owned(),
            meanwhile: None,
        });
        assert_eq!(
            about(Cause::Answer, 2_000, 2_000, server),
            format!("{start}an answer in commit, given mostly by threads of server.")
        );
        let reader = thread(Some((Activity::OnCpu, Some("deflate"))));
        assert_eq!(
            about(Cause::Write, 2_000, 2_000, reader),
            format!(
                "{start}a write to be taken in commit, ended mostly by thread 1211 (mariadbd), \
                 which meanwhile mostly was on a CPU in deflate."
            )
        );
        let starved = thread(Some((Activity::Waiting(WaitReason::Cpu), None)));
        assert_eq!(
            about(Cause::Kernel, 2_000, 2_000, starved),
            format!(
                "{start}a lock of the kernel, memory or the like in commit, ended mostly by thread \
                 1211 (mariadbd), which meanwhile mostly waited for a CPU."
            )
        );
    }

    #[test]
    fn a_neighbour_that_preempts() {
        let detail = DetailTimes {
            preempted_ns: ms(9_000),
            ..DetailTimes::default()
        };
        assert_eq!(
            sentences(&machine(ms(20_000), ms(12_000), detail))[0],
            "2.0 of 2 CPUs in use; threads waited 12.0 s for a CPU, 9.0 s of it after they were \
             preempted."
        );
        // A tenth of the time on a CPU is not worth mentioning.
        let few = sentences(&machine(ms(20_000), ms(2_000), detail));
        assert_eq!(few[0], "2.0 of 2 CPUs in use.");
        let woken = sentences(&machine(ms(1_000), ms(500), DetailTimes::default()));
        assert_eq!(
            woken[0],
            "0.1 of 2 CPUs in use; threads waited 0.50 s for a CPU, all of it in a run queue \
             after a wake-up."
        );
    }

    #[test]
    fn a_quota_and_a_hypervisor() {
        let throttled = DetailTimes {
            throttled_ns: ms(3_000),
            ..DetailTimes::default()
        };
        let mut facts = machine(ms(5_000), ms(3_100), throttled);
        facts.throttled = Some(("nginx".to_owned(), ms(2_900)));
        let said = sentences(&facts);
        assert_eq!(
            [&*said[0], &*said[2]],
            [
                "0.5 of 2 CPUs in use; threads waited 3.1 s for a CPU, 3.0 s of it throttled by a \
                 quota.",
                "Quotas throttled threads for 3.0 s, nginx for 2.9 s."
            ]
        );
        facts.times.detail.stolen_ns = ms(50);
        assert_eq!(
            sentences(&facts)[2],
            "Quotas throttled threads for 3.0 s, nginx for 2.9 s; the hypervisor stole 0.05 s."
        );
        facts.times.detail.throttled_ns = Nanos::ZERO;
        assert_eq!(
            sentences(&facts)[2],
            "Nothing was throttled; the hypervisor stole 0.05 s."
        );
    }

    #[test]
    fn undecided_time_is_named_where_it_is_more_than_what_was_suffered() {
        let mut facts = busy();
        let mut waits = WaitFacts {
            undecided: ms(50_000),
            undecided_ended: ms(20_000),
            ..WaitFacts::default()
        };
        facts.waits = Some(waits.clone());
        assert_eq!(
            sentences(&facts)[1],
            "Nobody suffered a wait of 10 ms or more, as far as is known; 50.0 s of blocked time are \
             undecided: record with -W on, which watches who wakes whom."
        );
        waits.wakers_watched = true;
        facts.waits = Some(waits.clone());
        assert_eq!(
            sentences(&facts)[1],
            "Nobody suffered a wait of 10 ms or more, as far as is known; 50.0 s of blocked time are \
             undecided."
        );
        waits.suffered = ms(30_000);
        facts.waits = Some(waits);
        assert_eq!(
            sentences(&facts)[1],
            "Nobody suffered a wait of 10 ms or more."
        );
    }

    #[test]
    fn spans_overlap_once() {
        let spans = |list: &[(u64, u64)]| -> Vec<(Nanos, Nanos)> {
            list.iter()
                .map(|(start, end)| (Nanos(*start), Nanos(*end)))
                .collect()
        };
        let all = merged(spans(&[(50, 60), (10, 20), (15, 30), (30, 35), (70, 70)]));
        assert_eq!(all, spans(&[(10, 35), (50, 60), (70, 70)]));
        let of = |start, end| overlap(&all, (Nanos(start), Nanos(end)));
        assert_eq!(of(0, 100), Nanos(35));
        assert_eq!(of(20, 55), Nanos(20));
        assert_eq!(of(35, 50), Nanos::ZERO);
        assert_eq!(of(60, 60), Nanos::ZERO);
    }
}
