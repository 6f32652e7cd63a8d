//! Which experiments a time takes, and what of them: `--last`, `--at`.

use std::path::Path;

use analysis::filter::{Filter, TimeRange};
use analysis::model::Model;
use analysis::view::gather;
use experiment_format::units::Nanos;
use serde_json::Value;

use super::experiment::{Later, made_later};
use super::{kcollect, printed, run, shown};

/// Makes `k.1.er` and `k.2.er`, of 20:04:30 to 20:04:34 without a gap, in which the program lives
/// until 20:04:33.5; and `k.3.er`, which begins at 20:04:40.
fn series(directory: &Path) {
    for (number, (seconds, program_exit_ns)) in
        (1..).zip([(0, 2_000_000_000), (2, 1_500_000_000), (10, 1_500_000_000)])
    {
        let later = Later {
            seconds,
            program_exit_ns: Nanos(program_exit_ns),
        };
        made_later(directory, &format!("k.{number}.er"), 10 * number, later);
    }
}

/// Returns the ticks of the function `compare`, the pids named sort, and the experiments.
fn found(directory: &Path, arguments: &[&str]) -> (i64, Vec<i64>, Vec<String>) {
    let json = |view: &[&str]| -> Value {
        let text = printed(directory, &[arguments, view, &["--json"]].concat());
        serde_json::from_str(&text[..=text.rfind('}').unwrap()]).unwrap()
    };
    let functions = json(&["functions", "-m", "e.user"]);
    let rows = |value: &Value| value["rows"].as_array().unwrap().clone();
    let compare = rows(&functions)
        .into_iter()
        .find(|row| row["name"] == "compare");
    let seconds = compare.map_or(0.0, |row| row["e.user"].as_f64().unwrap());
    let processes = json(&["processes", "-m", "e.total"]);
    let sorts = rows(&processes).into_iter();
    let sorts = sorts.filter(|row| row["name"] == "sort");
    let experiments = functions["period"]["experiments"].as_array();
    let names = experiments.into_iter().flatten();
    (
        (seconds / 0.010_007).round() as i64,
        sorts.map(|row| row["pid"].as_i64().unwrap()).collect(),
        names
            .map(|name| name.as_str().unwrap().to_owned())
            .collect(),
    )
}

#[test]
fn the_experiments_of_a_time_are_found_and_others_left_alone() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    // Not even read but for its log.
    std::fs::remove_file(tmp.path().join("k.3.er/profile")).unwrap();
    let at = |range: &str| found(tmp.path(), &["--at", range]);
    let names = |numbers: &[u32]| -> Vec<String> {
        numbers
            .iter()
            .map(|number| format!("k.{number}.er"))
            .collect()
    };
    // A process that lives over the moment of rotation is one.
    assert_eq!(at("20:04:30-20:04:34"), (30, vec![7], names(&[1, 2])));
    assert_eq!(at("20:04:31-20:04:33"), (20, vec![7], names(&[1, 2])));
    assert_eq!(at("20:04:32"), (20, vec![7], names(&[2])));
    assert_eq!(
        at("2026-11-20T20:04:30-20:04:32"),
        (10, vec![7], names(&[1]))
    );
}

#[test]
fn experiments_without_a_gap_are_one_recording() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    let of = |arguments: &[&str]| found(tmp.path(), arguments);
    let (both, none) = (["k.2.er", "k.1.er"], Vec::<String>::new());
    assert_eq!(of(&both), (30, vec![7], none.clone()));
    // Seconds since the start of the recording.
    let late = [&both[..], &["--time", "2-"]].concat();
    assert_eq!(of(&late), (20, vec![7], none.clone()));
    assert_eq!(of(&["k.1.er", "k.3.er"]), (40, vec![7, 7], none));
}

#[test]
fn a_time_that_is_not_there_is_reported() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    std::fs::create_dir(tmp.path().join("empty")).unwrap();
    let mut text = String::new();
    for arguments in [
        &["--at", "20:04:32-20:04:41", "functions", "-m", "e.user"][..],
        &["--last", "5s", "functions", "-m", "e.user", "."],
        &["--last", "5s", ".", "functions", "-m", "e.user"],
        &["--at", "20:04:36", "functions"],
        &["--at", "2026-11-20T21:00-22:00"],
        &["--at", "half past eight"],
        &["--last", "0"],
        &["--last", "2h", "empty"],
        &["--last", "2h", "nowhere"],
        &["empty"],
        &["--last", "2h", "--time", "2-"],
        &["--last", "2h", "--compare", "k.1.er", "k.2.er"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("periods", text);
}

#[test]
fn two_times_are_compared() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    let mut text = String::new();
    for arguments in [
        &[
            "--compare",
            "--at",
            "20:04:30-20:04:32",
            "--at",
            "20:04:32-20:04:34",
        ][..],
        &[
            "--compare",
            "--at",
            "20:04:30-20:04:32",
            "--at",
            "20:04:32-20:04:42",
            ".",
            "processes",
        ],
        &["--compare", "--at", "20:04:30-20:04:32"],
        &["--compare", "--at", "20:04:30-20:04:32", "--last", "1s"],
        &[
            "--compare",
            "--at",
            "20:04:30-20:04:32",
            "--at",
            "20:04:36-20:04:38",
        ],
        &["--at", "20:04:30-20:04:32", "--at", "20:04:32-20:04:34"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("compared", text);
    let arguments = [
        "--at",
        "20:04:30-20:04:32",
        "--at",
        "20:04:32-20:04:34",
        "--json",
    ];
    let json = printed(tmp.path(), &[&["--compare"], &arguments[..]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let periods = json["periods"].as_array().unwrap();
    let experiments = periods.iter().map(|period| &period["experiments"][0]);
    assert!(experiments.eq(["k.1.er", "k.2.er"]), "{json:#}");
}

#[test]
fn overlapping_experiments_are_reported() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    let later = Later {
        seconds: 10,
        program_exit_ns: Nanos(1_500_000_000),
    };
    made_later(tmp.path(), "other.er", 7, later);
    let text = printed(tmp.path(), &["--last", "4s", "functions", "-m", "e.user"]);
    insta::assert_snapshot!("recorded_twice", text);
}

#[test]
fn a_page_is_of_a_series_and_of_a_time() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    let paths = ["k.1.er", "k.2.er"].map(|name| tmp.path().join(name));
    let model = Model::load(&paths).unwrap();
    let page = |time| {
        let filter = Filter {
            time,
            ..Filter::default()
        };
        let payload = gather(&model, &filter).unwrap();
        let ticks: u32 = payload.ticks.iter().map(|tick| tick.ticks).sum();
        let first = payload.ticks.iter().map(|tick| tick.time_ns).min();
        (payload.title, payload.duration_ns, ticks, first)
    };
    // Of `compare` 10 and 20; of the rest 23 and of the kernel's thread 92 in each.
    let title = "k.1.er to k.2.er".to_owned();
    let (all, late) = (
        page(None),
        page(Some(TimeRange::SinceStart(
            Nanos(2_000_000_000)..Nanos::MAX,
        ))),
    );
    assert_eq!(
        all,
        (
            title.clone(),
            Nanos::from_secs(4),
            30 + 2 * 115,
            Some(Nanos::from_millis(100))
        )
    );
    assert_eq!(
        late,
        (
            title,
            Nanos::from_secs(4),
            20 + 115,
            Some(Nanos::from_millis(2100))
        )
    );

    let view = |arguments: &[&str]| {
        let output = kcollect(tmp.path(), &[&["view"], arguments].concat());
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    assert_eq!(
        view(&["--at", "20:04:31-20:04:33"]),
        (0, "k.1.html\n".to_owned())
    );
    let (code, several) = view(&["k.1.er", "k.3.er"]);
    assert_eq!(code, 64, "{several}");
    insta::assert_snapshot!("page_of_several", several);
}

#[test]
fn an_experiment_with_an_impossible_time_hides_no_other() {
    let tmp = tempfile::tempdir().unwrap();
    series(tmp.path());
    let log = tmp.path().join("k.3.er/log.xml");
    let text = std::fs::read_to_string(&log).unwrap();
    let damaged = text.replace("time=\"1795205080\"", "time=\"9223372036854775807\"");
    assert_ne!(text, damaged);
    std::fs::write(&log, damaged).unwrap();
    let output = run(tmp.path(), &["--last", "3s", "functions", "-m", "e.user"]);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(66), "{text}");
    insta::assert_snapshot!("impossible_time", text);
}
