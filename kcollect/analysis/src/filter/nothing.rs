//! The failure of filters that nothing passes: an empty report would look like an idle machine.

use experiment_format::text::printable;
use host::exit::{ExitKind, Failure};

use super::{Filter, ProcessFilter, Selection, nearest};
use crate::load::exact::ExactTimes;
use crate::model::{Model, ProcessInfo};

/// Checks that a filter leaves something of one of the models.
///
/// # Errors
/// When nothing passes it.
pub fn require(models: &[&Model], filter: &Filter) -> Result<(), Failure> {
    let all = *filter == Filter::default();
    if all || models.iter().any(|model| leaves_something(model, filter)) {
        Ok(())
    } else {
        Err(nothing_passes(models, filter))
    }
}

fn leaves_something(model: &Model, filter: &Filter) -> bool {
    let selection = Selection::new(model, filter);
    model.rows.iter().any(|row| selection.passes(row))
        || model
            .counts
            .iter()
            .any(|count| selection.passes_event(&count.row))
        || filter.only_of_threads() && has_exact_times(model, filter)
}

/// Returns whether exact times of a thread pass, which may have no ticks.
fn has_exact_times(model: &Model, filter: &Filter) -> bool {
    model.experiments.iter().any(|info| {
        // Damage is reported where the times are shown.
        let times = ExactTimes::read(&info.source).ok().flatten();
        times.unwrap_or_default().threads.iter().any(|thread| {
            let process = ProcessInfo {
                pid: thread.pid,
                name: thread.process.clone(),
                ..ProcessInfo::default()
            };
            let among = filter.threads.contains(&thread.tid.into());
            filter.takes(&process) && (filter.threads.is_empty() || among)
        })
    })
}

/// Returns the failure for a filter that nothing passes, with the processes that were perhaps
/// meant.
#[must_use]
pub fn nothing_passes(models: &[&Model], filter: &Filter) -> Failure {
    let processes = || models.iter().flat_map(|model| &model.processes);
    let unknown = filter
        .processes
        .iter()
        .find(|condition| !processes().any(|process| condition.is(process)));
    let none = "no tick passes the filters";
    let no_group = filter.groups.iter().find(|(kind, names)| {
        let is = |group: &str| names.iter().any(|name| kind.is(group, name));
        !processes().any(|process| process.groups.get(*kind).is_some_and(is))
    });
    if let (None, Some((kind, names))) = (unknown, no_group) {
        let (kind, names) = (kind.name(), names.join(" or "));
        return Failure::new(
            ExitKind::Empty,
            format!("{none}: no followed process is of {kind} {names}"),
            format!("kcollect report --by {kind} shows all"),
        );
    }
    match unknown {
        None if !filter.wakers.is_empty() => Failure::new(
            ExitKind::Empty,
            none,
            "what woke threads is recorded with -W on; kcollect report waits shows who did",
        ),
        None => Failure::new(
            ExitKind::Empty,
            none,
            "use fewer filters; kcollect report overview shows what was recorded",
        ),
        Some(ProcessFilter::Name(pattern)) => {
            let names = processes().map(|process| process.name.as_str());
            let near = nearest(names.filter(|name| !name.is_empty()), pattern.text());
            let near: Vec<_> = near.iter().map(|name| printable(name.as_bytes())).collect();
            let near = if near.is_empty() {
                String::new()
            } else {
                format!("similar names are {}; ", near.join(", "))
            };
            Failure::new(
                ExitKind::Empty,
                format!(
                    "{none}: no process has a name that matches {}",
                    pattern.text()
                ),
                format!("{near}kcollect report processes shows all"),
            )
        }
        Some(ProcessFilter::Pid(pid)) => Failure::new(
            ExitKind::Empty,
            format!("{none}: no process {pid} was recorded"),
            "kcollect report processes shows all",
        ),
        Some(ProcessFilter::Number(number)) => Failure::new(
            ExitKind::Empty,
            format!("{none}: there is no experiment %{number}"),
            "kcollect report experiments shows all",
        ),
    }
}
