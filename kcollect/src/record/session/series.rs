//! One experiment after the other in one recording (`--rotate`), without a gap between them.
//!
//! At a rotation, the instant at which one ends and the next begins, the accounts of all threads
//! are closed and opened again, and what the kernel has counted is noted; no BPF program is loaded
//! again, and the tables of processes and mappings stay. Records wait in memory while the
//! experiment that ended is finished.
//!
//! The BPF programs have the instant of the rotation before it comes. What they see later belongs
//! to the next experiment: the account of a thread is closed at the rotation by its first context
//! switch after it, or by the iteration over all threads if that is earlier (bpf/c/rotation.h). So
//! nothing is missed.

use std::path::Path;

use experiment_format::directory::ExperimentDir;
use host::exit::Failure;
use host::machine;
use host::output::Output;

use super::archiving;
use super::control::Control;
use super::directory::{add_to_group, creation_failure};
use super::keep;
use super::recording::Recording;
use crate::plan::Plan;
use crate::record::input::event::Rotation;
use crate::record::packing::Packer;

/// The experiments of a recording that are complete, and the step to the next one.
#[derive(Debug)]
pub(super) struct Series<'a> {
    plan: &'a Plan,
    /// Packs experiments that are complete (`--pack`).
    packer: Option<Packer>,
}

impl<'a> Series<'a> {
    /// Starts the thread that packs, if the plan says so.
    pub(super) fn start(plan: &'a Plan) -> Result<Series<'a>, Failure> {
        let packer = plan
            .series
            .pack
            .then(|| Packer::start(plan.budget))
            .transpose();
        let packer = packer.map_err(|error| Failure::of_system("a thread", &error))?;
        Ok(Series { plan, packer })
    }

    /// Closes the experiment that has ended, and continues with the next one. All events of the
    /// ended experiment have been applied. If the next one can't be created, continues with this
    /// one.
    pub(super) fn rotate(
        &mut self,
        rotation: &Rotation,
        recording: &mut Recording<'_>,
        control: &mut Control,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let plan = self.plan;
        // One that was removed leaves its number free.
        let name = plan
            .place
            .name
            .series()
            .unwrap_or_else(|| plan.place.name.clone());
        let created = ExperimentDir::create(&plan.place.directory, &name, machine::sudo_user());
        let dir = match created {
            Ok((dir, _)) => dir,
            Err(error) => {
                let failure = creation_failure(&error);
                let text = format!("the next experiment can't be made: {failure}");
                output.say(&format!(
                    "{text}\nThe recording continues in {}.",
                    recording.path().display()
                ));
                recording.dispatcher().router.warn(rotation.at_ns, text);
                return Ok(());
            }
        };
        recording.dispatcher().returned(&rotation.returns);
        conclude(rotation, recording, control, output);
        let ended = recording.path().to_owned();
        let continued = recording.continue_in(dir, rotation, output);
        control.recording_into(recording.path());
        continued?;
        self.add_to_group(&ended)?;
        output.say(&format!(
            "{} is complete; the recording continues in {}",
            ended.display(),
            recording.path().display()
        ));
        recording.resume_below_limit()?;
        self.prune_and_pack_older(recording, output);
        Ok(())
    }

    /// Removes the oldest experiments of the series, and queues complete ones for packing.
    pub(super) fn prune_and_pack_older(
        &mut self,
        recording: &mut Recording<'_>,
        output: &mut Output,
    ) {
        if self.plan.series.keep.is_none() && self.packer.is_none() {
            return;
        }
        let current = recording.dispatcher().router.founder.dir();
        let mut older_experiments = match current.older_experiments() {
            Ok(older_experiments) => older_experiments,
            Err(error) => {
                return output.say(&format!("nothing is removed or packed: {error}"));
            }
        };
        if let Some(keep) = self.plan.series.keep {
            keep::remove_oldest(keep, &mut older_experiments, output);
        }
        if let Some(packer) = &self.packer {
            packer.report(output);
            packer.add(older_experiments);
        }
    }

    /// Adds a complete experiment to the group, if there is one (`-g`).
    pub(super) fn add_to_group(&self, experiment: &Path) -> Result<(), Failure> {
        match &self.plan.place.group {
            Some(group) => add_to_group(group, experiment),
            None => Ok(()),
        }
    }

    /// Ends packing. What is not packed yet stays as it is.
    pub(super) fn end_packing(&mut self, output: &mut Output) {
        if let Some(packer) = self.packer.take() {
            packer.end(output);
        }
    }
}

/// Writes all of the experiment that has ended but its end.
fn conclude(
    rotation: &Rotation,
    recording: &mut Recording<'_>,
    control: &mut Control,
    output: &mut Output,
) {
    recording.dispatcher().finish(rotation.at_ns);
    recording.follow_move();
    let mut summary = recording.summary(&rotation.totals, rotation.at_ns, output);
    archiving::finish(recording.dispatcher(), control, output);
    recording.write_summary(rotation.at_ns, Some(&mut summary));
}
