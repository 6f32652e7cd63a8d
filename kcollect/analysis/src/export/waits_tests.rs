//! Causes and wakers in the exports.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;

use super::made_waits::waits;
use super::*;

fn written(format: ExportFormat) -> Vec<u8> {
    let model = waits();
    let selected = Selected::new(&model, &Filter::default());
    let mut bytes = Vec::new();
    format
        .write(&selected, GroupBy::Name, "made.1.er", &mut bytes)
        .unwrap();
    bytes
}

#[test]
fn samples_of_pprof_have_cause_kind_and_waker() {
    let mut bytes = Vec::new();
    GzDecoder::new(written(ExportFormat::Pprof).as_slice())
        .read_to_end(&mut bytes)
        .unwrap();
    let mut found = BTreeMap::new();
    for (labels, milliseconds) in pprof::labelled(&bytes) {
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let key = ["comm", "cause", "kind", "waker"].map(label).join(" | ");
        *found.entry(key).or_insert(0) += milliseconds;
    }
    let found: Vec<_> = found.iter().map(|(key, ms)| (key.as_str(), *ms)).collect();
    assert_eq!(
        found,
        [
            ("client |  |  | ", 20),
            ("client | answer | suffered | server: worker (21)", 50),
            ("client | lock | suffered | thread 99", 40),
            ("client | new-work | idle | server (20)", 30),
            ("client | undecided | undecided | ", 20),
            ("server |  |  | ", 150),
        ]
    );
}

#[test]
fn markers_of_firefox_have_cause_kind_and_waker() {
    let profile: Value = serde_json::from_slice(&written(ExportFormat::Firefox)).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    let client = threads.iter().find(|one| one["name"] == "client").unwrap();
    let text = |value: &Value| {
        let at = value.as_u64().unwrap() as usize;
        client["stringArray"][at].as_str().unwrap().to_owned()
    };
    let data = client["markers"]["data"].as_array().unwrap().iter();
    let markers: Vec<_> = data
        .map(|data| match data["type"].as_str().unwrap() {
            "Blocked" => ["waitCause", "kind", "waker"]
                .map(|key| text(&data[key]))
                .join(" | "),
            other => other.to_owned(),
        })
        .collect();
    assert_eq!(
        markers,
        [
            "an answer | suffered | server: worker (21)",
            "Off-CPU",
            "a lock | suffered | thread 99",
            "new work | idle | server (20)",
            "not known | undecided | not known",
        ]
    );
}

#[test]
fn flows_of_perfetto_go_from_wakers_to_what_they_woke() {
    let flows = perfetto::flows(&written(ExportFormat::Perfetto));
    // The threads, by their tids, and the milliseconds of both ends.
    assert_eq!(flows, [((21, 50), (10, 50)), ((20, 130), (10, 130))]);
}
