//! Synthetic experiments.

use std::path::Path;

use experiment_format::Result;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::log::{LogHeader, ProfileDecl, StartTime, System};
use experiment_format::units::Nanos;
use experiment_format::writer::ExperimentWriter;

/// Returns a header of these tables with no more than what is required.
pub(crate) fn header(profiles: Vec<ProfileDecl>) -> LogHeader {
    LogHeader {
        system: System {
            arch: "x86_64".into(),
            ..System::default()
        },
        command_line: "kernel".into(),
        profiles,
        ..LogHeader::default()
    }
}

/// Returns a start at an instant of the clock; the day is always the same.
pub(crate) fn run(tstamp: u64) -> StartTime {
    StartTime {
        tstamp_ns: Nanos(tstamp),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    }
}

/// Begins an experiment. A name that ends in `.er` is exact, any other the stem of a series.
pub(crate) fn begin(
    parent: &Path,
    name: &str,
    header: &LogHeader,
    tstamp: u64,
) -> Result<ExperimentWriter> {
    let request = if name.ends_with(".er") {
        NameRequest::Exactly(name.into())
    } else {
        NameRequest::Series { stem: name.into() }
    };
    let (dir, _) = ExperimentDir::create(parent, &request, None)?;
    ExperimentWriter::create(dir, header, run(tstamp))
}
