//! Experiments as the tests make them.

use std::path::Path;

use experiment_format::Result;
use experiment_format::layout::{ExperimentDir, NameRequest};
use experiment_format::log::{Header, ProfileDecl, Run, System};
use experiment_format::microstate::NumStates;
use experiment_format::packet::PacketDecl;
use experiment_format::writer::ExperimentWriter;

/// A clock table of one kind of packets.
pub(crate) fn clock(tick_us: u32, states: NumStates, packet: PacketDecl) -> ProfileDecl {
    ProfileDecl::Clock {
        tick_us,
        states,
        packets: vec![packet],
    }
}

/// What has to be in a header, with these tables.
pub(crate) fn header(profiles: Vec<ProfileDecl>) -> Header {
    Header {
        system: System {
            arch: "x86_64".into(),
            ..System::default()
        },
        command_line: "kernel".into(),
        profiles,
        ..Header::default()
    }
}

/// An experiment that begins at an instant, of which all begin on one day.
pub(crate) fn run(tstamp: u64) -> Run {
    Run {
        tstamp,
        wall: 1_795_205_070,
        tm_zone: 0,
    }
}

/// Begins an experiment of a name that ends in `.er`, or the next of a series.
pub(crate) fn begin(
    parent: &Path,
    name: &str,
    header: &Header,
    tstamp: u64,
) -> Result<ExperimentWriter> {
    let request = match name.ends_with(".er") {
        true => NameRequest::Exactly(name.into()),
        false => NameRequest::Series { stem: name.into() },
    };
    let (dir, _) = ExperimentDir::create(parent, &request, None)?;
    ExperimentWriter::create(dir, header, run(tstamp))
}
