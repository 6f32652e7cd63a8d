//! The description of a plan, for `-n`, `-v` and the experiment's header.

use std::time::Duration;

use experiment_format::directory::NameRequest;
use experiment_format::packet::SyncThreshold;
use host::signals::name_of as signal_name;
use user_collector::follow::Follow;

use crate::plan::{Archive, HeapTracing, Keep, Place, Plan};

/// Returns the description of a plan, a line for each decision, without full stops.
#[must_use]
pub fn describe(plan: &Plan) -> Vec<String> {
    let mut lines = data(plan);
    lines.extend(place(&plan.place));
    lines.extend(times(plan));
    lines.extend(bounds(plan));
    lines.push(format!("archived: {}", archived(plan.archive)));
    lines.extend(load(plan));
    lines.extend(plan.targets.iter().map(|target| match target.tid {
        Some(tid) => format!(
            "thread {tid} of process {} has a row in the summary",
            target.pid
        ),
        None => format!("process {} has a row in the summary", target.pid),
    }));
    lines
}

/// Returns what is recorded, and of which processes.
fn data(plan: &Plan) -> Vec<String> {
    let mut lines = vec![
        format!(
            "clock profiling of all CPUs, one tick every {}",
            plan.tick_interval
        ),
        if plan.record_idle {
            "ticks of idle CPUs are recorded".to_owned()
        } else {
            "ticks of idle CPUs are left out".to_owned()
        },
    ];
    let descendants = if plan.follow.descendants {
        ", and the processes that they fork"
    } else {
        ""
    };
    lines.push(match &plan.follow.follow {
        Follow::Off if plan.targets.is_empty() => "no process is followed".to_owned(),
        Follow::Off => format!("only the processes of -T are followed{descendants}"),
        Follow::Load => format!("the load and the processes of -T are followed{descendants}"),
        Follow::On => {
            format!("processes that were on a CPU at a tick are followed{descendants}")
        }
        Follow::All => "all processes are followed".to_owned(),
        Follow::Matching(pattern) => {
            format!("processes that match {pattern} are followed{descendants}")
        }
        Follow::Group(group) => {
            format!("processes of {group} are followed{descendants}")
        }
    });
    lines.extend(
        plan.tracing
            .lock_threshold
            .map(|threshold| match threshold {
                SyncThreshold::Given(Duration::ZERO) => {
                    "each wait for a lock of followed processes is recorded".to_owned()
                }
                threshold => format!(
                    "waits for locks of followed processes are recorded from {:?} on",
                    threshold.duration()
                ),
            }),
    );
    lines.extend(match plan.tracing.heap {
        HeapTracing::Off => None,
        HeapTracing::Growth => {
            Some("the growth of the memory of followed processes is recorded".to_owned())
        }
        HeapTracing::Blocks(0) => {
            Some("each block that followed processes allocate is recorded".to_owned())
        }
        HeapTracing::Blocks(bytes) => Some(format!(
            "blocks that followed processes allocate are recorded: one of {bytes} bytes"
        )),
    });
    lines.extend(plan.tracing.budget.map(|budget| {
        format!("less of a process is traced if its probes take more than {budget} of its CPU time")
    }));
    lines.extend(
        plan.tracing
            .io
            .then(|| "each system call of followed processes that does I/O is recorded".to_owned()),
    );
    lines
}

/// Returns where the experiment is made.
fn place(place: &Place) -> Vec<String> {
    let directory = place.directory.display();
    let name = match &place.name {
        NameRequest::Series { stem } => {
            format!("experiment {stem}.N.er, the next free N, in {directory}")
        }
        NameRequest::Exactly(name) => format!("experiment {name} in {directory}"),
    };
    let group = place.group.as_ref();
    let group = group.map(|group| format!("added to the group {}", group.display()));
    [Some(name), group].into_iter().flatten().collect()
}

/// Returns when data and samples are recorded.
fn times(plan: &Plan) -> Vec<String> {
    let mut lines = vec![match (plan.timing.start.is_zero(), plan.timing.end) {
        (true, None) => "recorded until Ctrl-C or until the load has exited".to_owned(),
        (false, None) => format!("data are recorded after {:?}", plan.timing.start),
        (true, Some(end)) => format!("recording ends after {end:?}"),
        (false, Some(end)) => format!(
            "data are recorded after {:?}, recording ends after {end:?}",
            plan.timing.start
        ),
    }];
    lines.push(match plan.timing.sample_period {
        Some(period) => format!("a sample of resource usage every {period:?}"),
        None => "no periodic samples of resource usage".to_owned(),
    });
    lines.extend(
        plan.sample_signal
            .map(|signal| format!("{} records a sample", signal_name(signal))),
    );
    lines.extend(plan.pause_signal.map(|pause| {
        let start = if pause.start_recording {
            "recording starts at once"
        } else {
            "recording starts paused"
        };
        format!("{} pauses and resumes; {start}", signal_name(pause.signal))
    }));
    lines
}

/// Returns what bounds the experiment and kcollect itself.
fn bounds(plan: &Plan) -> Vec<String> {
    let limit = plan
        .limit
        .map(|limit| format!("data are recorded up to {} MiB", limit >> 20));
    let rotate = plan
        .series
        .rotate
        .map(|period| format!("another experiment begins every {period:?}"));
    let keep = plan.series.keep.map(|keep| match keep {
        Keep::Bytes(bytes) => format!("the newest complete ones are kept, {} MiB", bytes >> 20),
        Keep::Age(age) => format!("those that were complete {age:?} ago are removed"),
    });
    let pack = plan
        .series
        .pack
        .then(|| "complete ones are packed in their directories".to_owned());
    let budget = plan
        .budget
        .map(|budget| format!("kcollect reduces detail when it takes more than {budget} of a CPU"));
    [limit, rotate, keep, pack, budget]
        .into_iter()
        .flatten()
        .collect()
}

/// Describes the load. None: the plan has no load.
fn load(plan: &Plan) -> Option<String> {
    if plan.load.is_empty() {
        return None;
    }
    let argv: Vec<_> = plan.load.iter().map(|arg| arg.to_string_lossy()).collect();
    let load = argv.join(" ");
    Some(if plan.timing.quiet.is_zero() {
        format!("load: {load}")
    } else {
        format!(
            "load: {load}; {:?} are recorded before it and after it",
            plan.timing.quiet
        )
    })
}

fn archived(what: Archive) -> &'static str {
    match what {
        Archive::Off => "nothing",
        Archive::LoadObjects => "the load objects of the kernel and of followed processes",
        Archive::UsedLoadObjects => {
            "the load objects of the kernel and of followed processes that appear in stacks"
        }
        Archive::Sources | Archive::All => {
            "the load objects of the kernel and of followed processes, and all their sources"
        }
        Archive::UsedSources => {
            "the load objects of the kernel and of followed processes, and the sources that appear in stacks"
        }
    }
}
