//! An experiment that `gprofng collect` recorded, as this crate's reader reads it.
//!
//! The figures are compared with those that `gprofng display` prints for the same experiment.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use experiment_format::log::ProfileDecl;
use experiment_format::map::MapEvent;
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::Value;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;

const LOOP: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";

fn gprofng(arguments: &[&str]) -> String {
    let output = Command::new("gprofng")
        .args(arguments)
        .output()
        .unwrap_or_else(|error| {
            panic!("cannot run gprofng: {error}; install the package binutils (Debian: gprofng)")
        });
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Records a shell that counts. The collector records few ticks, sometimes none: then it runs
/// again.
fn record(parent: &Path) -> PathBuf {
    for attempt in 0..5 {
        let path = parent.join(format!("sh.{attempt}.er"));
        gprofng(&[
            "collect",
            "app",
            "-p",
            "hi",
            "-o",
            path.to_str().unwrap(),
            "/bin/sh",
            "-c",
            LOOP,
        ]);
        if Experiment::open(&path)
            .unwrap()
            .ticks()
            .unwrap()
            .next()
            .is_some()
        {
            return path;
        }
    }
    panic!("gprofng collect took no tick in five runs");
}

#[test]
fn experiments_of_gprofng_collect_are_read() {
    let tmp = tempfile::tempdir().unwrap();
    let path = record(tmp.path());
    let experiment = Experiment::open(&path).unwrap();
    assert!(experiment.is_closed());
    let header = experiment.header();
    assert!(
        header.command_line.starts_with("/bin/sh -c i=0"),
        "{}",
        header.command_line
    );
    let [
        ProfileDecl::Clock {
            tick_us,
            states,
            packets,
        },
    ] = header.profiles.as_slice()
    else {
        panic!("{:?}", header.profiles);
    };
    assert_eq!(
        (*tick_us, *states, packets[0].kind),
        (997, NumStates::LinuxCollect, 8)
    );
    let samples = experiment.samples().unwrap();
    assert!(samples.len() >= 2 && samples.iter().all(|sample| sample.usage.is_some()));

    let (stacks, space) = (
        experiment.stacks().unwrap(),
        experiment.address_space().unwrap(),
    );
    let mut archives = experiment.archives();
    let (mut total, mut in_shell, mut frames) = (0, 0, 0);
    for tick in experiment.ticks().unwrap() {
        let tick = tick.unwrap();
        assert_eq!(Microstate::try_from(tick.state), Ok(Microstate::LinuxCpu));
        let at_ns = tick.shared.time_ns - experiment.start().tstamp_ns;
        total += u64::from(tick.ticks.unsigned_abs()) * u64::from(*tick_us);
        let stack = stacks.get(tick.shared.stack.unwrap()).unwrap();
        for frame in stack.frames {
            frames += 1;
            let found = archives.function_at(&space, frame, at_ns).unwrap();
            let object = found.and_then(|found| found.object);
            in_shell += u32::from(object.is_some_and(|object| object.ends_with("sh")));
        }
    }
    assert!(
        frames > 0 && in_shell > 0,
        "{in_shell} of {frames} frames are in the shell"
    );

    let mut packets = experiment.packets().unwrap();
    while let Some(packet) = packets.next_packet().unwrap() {
        assert_eq!(packet.bytes.len(), 56);
        assert_eq!(packet.field("MSTATE"), Some(Value::Integer(10)));
        assert_eq!(
            packet.field("lwpid"),
            Some(Value::Integer(header.pid.0.into()))
        );
    }
    assert_eq!(packets.invalid(), 0);

    let metrics = "e.totalcpu:name";
    let path = path.to_str().unwrap();
    let text = gprofng(&["display", "text", "-metrics", metrics, "-functions", path]);
    let seconds = format!(
        "{}.{:03}",
        total / 1_000_000,
        (total % 1_000_000 + 500) / 1000
    );
    let row = text.lines().find(|line| line.ends_with("<Total>")).unwrap();
    assert_eq!(
        row.split_whitespace().next(),
        Some(seconds.as_str()),
        "{text}"
    );
}

#[test]
fn functions_of_libraries_have_names() {
    let tmp = tempfile::tempdir().unwrap();
    let path = record(tmp.path());
    let experiment = Experiment::open(&path).unwrap();
    let maps = experiment.maps().unwrap();
    let (vaddr, size, name) = maps
        .iter()
        .find_map(|map| match map {
            MapEvent::Segment {
                vaddr,
                size,
                modes: 5,
                name,
                ..
            } if name.contains("/libc.so") => Some((*vaddr, *size, name.as_str())),
            _ => None,
        })
        .unwrap();
    let mut archives = experiment.archives();
    assert!(archives.functions(name).unwrap().unwrap().len() > 1000);
    let space = experiment.address_space().unwrap();
    let mut found = false;
    for address in (vaddr..vaddr + size).step_by(16) {
        let function = archives
            .function_at(&space, address, Nanos(u64::MAX / 2))
            .unwrap()
            .unwrap();
        assert_eq!(function.object, Some(name));
        found |= function.name == Some("malloc");
    }
    assert!(found, "no malloc in {name}");
}
