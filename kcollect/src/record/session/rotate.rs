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

use experiment_format::directory::{DirectoryState, ExperimentDir};
use host::exit::Failure;
use host::machine;
use host::output::Output;

use super::archiving;
use super::directory::{add_to_group, creation_failure, shown_path, writing_failure};
use super::keep;
use super::{Began, Session};
use crate::record::input::event::Rotation;
use crate::record::route::{Beginning, Router};
use crate::record::summary::OwnStart;

impl Session<'_> {
    /// Closes the experiment that has ended, and continues with the next one. All events of the
    /// ended experiment have been applied. If the next one can't be created, continues with this
    /// one.
    pub(super) fn next_experiment(
        &mut self,
        rotation: &Rotation,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let plan = self.plan;
        // One that was removed leaves its number free.
        let name = plan.name.series().unwrap_or_else(|| plan.name.clone());
        let created = ExperimentDir::create(&plan.directory, &name, machine::sudo_user());
        let dir = match created {
            Ok((dir, _)) => dir,
            Err(error) => {
                let failure = creation_failure(&error);
                let text = format!("the next experiment can't be made: {failure}");
                output.say(&format!(
                    "{text}\nThe recording continues in {}.",
                    self.path.display()
                ));
                self.dispatcher.router.warn(rotation.at_ns, text);
                return Ok(());
            }
        };
        self.dispatcher.returned(&rotation.returns);
        self.conclude(rotation, output);
        let next = shown_path(plan, &dir);
        let (kernel, threads) = self.dispatcher.router.take_carryover();
        let beginning = Beginning {
            at_ns: rotation.at_ns,
            threads,
        };
        let counters = self.inputs.counters.clone();
        let mut detail = |text: &str| output.detail(text);
        let beginning = (self.capture, beginning);
        let kernel = (kernel, Some(self.dispatcher.router.founder.dir()));
        let created = Router::create(dir, (plan, &counters), kernel, beginning, &mut detail);
        let router = created.map_err(|error| {
            self.concluded_ns = Some(rotation.at_ns);
            creation_failure(&error)
        })?;
        let closed = self
            .dispatcher
            .switch_router(router, rotation.at_ns, &mut detail);
        self.budget
            .on_rotation(rotation.at_ns, &mut self.dispatcher.router);
        self.began = Began {
            at_ns: rotation.at_ns,
            totals: rotation.totals.clone(),
            own: OwnStart::now(),
        };
        if rotation.recording {
            self.dispatcher.router.recording(rotation.at_ns, true);
        }
        self.dispatcher.sample(rotation.at_ns, "start");
        self.control.recording_into(&next);
        let ended = std::mem::replace(&mut self.path, next);
        closed.map_err(|error| writing_failure(&error))?;
        if let Some(group) = &plan.group {
            add_to_group(group, &ended)?;
        }
        output.say(&format!(
            "{} is complete; the recording continues in {}",
            ended.display(),
            self.path.display()
        ));
        if self.pause.limited {
            self.change_pause(|reasons| reasons.limited = false)?;
        }
        self.prune_and_pack_older(output);
        Ok(())
    }

    /// Removes the oldest experiments of the series, and queues complete ones for packing.
    pub(super) fn prune_and_pack_older(&mut self, output: &mut Output) {
        if self.plan.keep.is_none() && self.packer.is_none() {
            return;
        }
        let mut older_experiments = match self.dispatcher.router.founder.dir().older_experiments() {
            Ok(older_experiments) => older_experiments,
            Err(error) => {
                return output.say(&format!("nothing is removed or packed: {error}"));
            }
        };
        if let Some(keep) = self.plan.keep {
            keep::remove_oldest(keep, &mut older_experiments, output);
        }
        if let Some(packer) = &mut self.packer {
            packer.report(output);
            // The experiment that is recorded now links to the copies of the last one before it.
            for older in older_experiments.iter().rev().skip(1) {
                older.remove_double_copies();
            }
            packer.add(older_experiments);
        }
    }

    /// Writes all of the experiment but its end.
    fn conclude(&mut self, rotation: &Rotation, output: &mut Output) {
        self.dispatcher.finish(rotation.at_ns);
        if let DirectoryState::Moved(path) = self.dispatcher.router.directory_state() {
            self.path = path;
        }
        let path = self.path.display().to_string();
        let mut summary = self.summary(&path, &rotation.totals, rotation.at_ns);
        let router = &mut self.dispatcher.router;
        self.problems
            .add_to(&mut summary, &self.inputs, router, output);
        archiving::finish(&mut self.dispatcher, &mut self.control, output);
        self.write_summary(rotation.at_ns, Some(&mut summary));
    }
}
