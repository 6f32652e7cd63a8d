//! The page's table of traced events, against a plain sum of them.

use std::collections::BTreeMap;

use analysis::view::{EventKind, PageEvent, PageSubject, Payload, SubjectKind};
use anyhow::{Context as _, Result, ensure};
use experiment_format::units::Nanos;
use serde_json::Value;

use super::generated::Dice;
use super::truth::Selection;

/// The number of [`EventKind`]s.
const KINDS: usize = 7;

/// Count, nanoseconds and bytes by kind of event.
type Sums = [[u64; 3]; KINDS];

/// Adds locks, files and functions, and events that are about them.
pub(super) fn add_events(payload: &mut Payload) {
    use EventKind::{Allocated, FailedCall, Live, OtherCall, Read, Wait, Write};
    let kinds: [(SubjectKind, &[EventKind]); 3] = [
        (SubjectKind::Lock, &[Wait]),
        (SubjectKind::File, &[Read, Write, OtherCall, FailedCall]),
        (SubjectKind::Memory, &[Allocated, Live]),
    ];
    let mut dice = Dice::new(5);
    for (kind, of) in kinds {
        for number in 0..4_u32 {
            let subject = payload.subjects.len() as u32;
            payload.subjects.push(PageSubject {
                kind,
                name: format!("</script>{number}\u{202e}").into(),
                process: format!("server{number}").into(),
                called: ["lock".into(), "work".into()],
            });
            for _ in 0..200 {
                payload.events.push(PageEvent {
                    time_ns: Nanos(dice.below(payload.duration_ns.0 + 1)),
                    thread: dice.below(payload.threads.len() as u64) as u32,
                    subject,
                    kind: of[dice.below(of.len() as u64) as usize],
                    count: 1 + dice.below(3),
                    took_ns: Nanos(dice.below(1 << 30)),
                    bytes: dice.below(1 << 40),
                });
            }
        }
    }
}

/// Returns the sums of a selection, which states and CPUs do not change, by the names of what they
/// are about.
pub(super) fn sums(
    payload: &Payload,
    selection: &Selection,
    kind: SubjectKind,
) -> BTreeMap<String, Sums> {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    for event in &payload.events {
        let subject = &payload.subjects[event.subject as usize];
        let process = payload.threads[event.thread as usize].process;
        let processes = selection.processes.as_ref();
        let selected = processes.is_none_or(|some| some.contains(&process))
            && selection.has_time(payload, event.time_ns.0 as i64);
        if subject.kind == kind && selected {
            let sums = sums.entry(String::from_utf8_lossy(&subject.process).into_owned());
            let sums = &mut sums.or_default()[event.kind as usize];
            for (sum, more) in sums
                .iter_mut()
                .zip([event.count, event.took_ns.0, event.bytes])
            {
                *sum += more;
            }
        }
    }
    sums
}

/// Returns what the page's `traced` has returned, in the same form.
pub(super) fn shown(value: &Value) -> Result<BTreeMap<String, Sums>> {
    let rows = value.as_array().context("no rows")?;
    let each = rows.iter().map(|row| {
        let of = |column: &str, kind: usize| row[column][kind].as_f64().map(|value| value as u64);
        let mut sums = Sums::default();
        for (kind, sums) in sums.iter_mut().enumerate() {
            for (sum, column) in sums.iter_mut().zip(["count", "ns", "bytes"]) {
                *sum = of(column, kind).with_context(|| format!("{column} of {row}"))?;
            }
        }
        ensure!(
            row["name"]
                .as_str()
                .is_some_and(|name| name.contains("\\x")),
            "{row}"
        );
        Ok((row["process"].as_str().unwrap_or_default().to_owned(), sums))
    });
    each.collect()
}
