//! The traced events of the page: those that the reports add up.

use analysis::filter::Filter;
use analysis::model::Model;
use analysis::view::gather;
use experiment_format::text::printable;

use super::{files, heap, locks};

/// Returns the events of the page, a line for each: what happened when, how often, for how long,
/// with how many bytes, and to what.
fn events(traced: impl Fn(&std::path::Path)) -> String {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let model = Model::load(&[tmp.path().join("ktest.1.er")]).unwrap();
    let payload = gather(&model, &Filter::default()).unwrap();
    let mut events = payload.events;
    events.sort_by_key(|event| (event.time_ns, event.kind));
    let lines = events.iter().map(|event| {
        let subject = &payload.subjects[event.subject as usize];
        let thread = &payload.threads[event.thread as usize];
        let texts = [
            &subject.name,
            &subject.process,
            &subject.called[0],
            &subject.called[1],
        ];
        let texts = texts.map(|text| printable(text));
        format!(
            "{:9} thread {} {:?} ×{} {} ns {} bytes: {}\n",
            event.time_ns.0,
            thread.tid,
            event.kind,
            event.count,
            event.took_ns.0,
            event.bytes,
            texts.join(" | ")
        )
    });
    lines.collect()
}

#[test]
fn the_page_has_the_traced_events() {
    let text = [
        events(locks::traced),
        events(files::traced),
        events(heap::traced),
    ];
    insta::assert_snapshot!("page_events", text.join("\n"));
}
