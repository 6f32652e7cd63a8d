//! `kcollect report` shows the hot line of a recorded program and the functions inlined into it,
//! and has stock gprofng's times by line where gprofng can read the debug information.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use analysis::aggregate::{self, Shares, totals};
use analysis::filter::{Filter, Selection};
use analysis::load::lines::{self, LookupPaths};
use analysis::metric::BaseMetric;
use analysis::model::{Model, Sums};
use analysis::report::table::Cell;
use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::gprofng::script;
use tests::kcollect::{FinishedRecording, record};
use tests::machine::{Shared, work_cpu};

const SOURCE: &str = "#include <time.h>
static double cpu(void)
{
	struct timespec time;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}
static inline __attribute__((always_inline)) unsigned mix(unsigned x)
{
	for (unsigned i = 0; i < 200; i++) x = x * 2654435761u + i;	/* hot */
	return x;
}
static __attribute__((noinline)) unsigned work(unsigned x)
{
	for (int i = 0; i < 1000; i++)
		x += mix(x + i);	/* calls it */
	return x;
}
int main(void)
{
	unsigned x = 1;
	while (cpu() < 1.5)
		x = work(x);
	return x == 42;
}
";

/// Records a program with this source, compiled with these options. The checks run side by side,
/// so each has a program with a name of its own.
fn recorded(name: &str, options: &[&str]) -> Result<(TempDir, FinishedRecording)> {
    let directory = tempfile::tempdir()?;
    let program: PathBuf = directory.path().join(name);
    fs::write(directory.path().join(format!("{name}.c")), SOURCE)?;
    let compiled = Command::new("gcc")
        .args(options)
        .args(["-o", name, &format!("{name}.c")])
        .current_dir(directory.path())
        .status()?;
    ensure!(compiled.success(), "gcc: {compiled}");
    let cpu = work_cpu()?.to_string();
    let program = program.to_str().context("no text")?;
    let recorded = record(
        &["-p", "hi", "-F", &format!("={name}")],
        &["taskset", "-c", &cpu, program],
        Duration::from_secs(60),
    )?;
    Ok((directory, recorded))
}

/// Returns the number of the line with this text, from 1.
fn number(text: &str) -> Result<u32> {
    let at = SOURCE.lines().position(|line| line.contains(text));
    Ok(at.context("no such line")? as u32 + 1)
}

struct Found {
    model: Model,
    lines: Shares,
    functions: Shares,
    all: Sums,
}

impl Found {
    fn of(experiment: PathBuf) -> Result<Found> {
        let mut model = Model::load(&[experiment])?;
        // As gprofng counts.
        model.show_ticks();
        lines::add(&mut model, &LookupPaths::default());
        let totals = totals(&model, &Selection::new(&model, &Filter::default()));
        let count = model.lines.lines.len();
        let [lines] = aggregate::shares(&model, &totals, [count], |frame| {
            [Some(model.lines.of_frames[frame.index()])]
        });
        let functions = aggregate::functions(&model, &totals).functions;
        Ok(Found {
            lines,
            functions,
            all: totals.all,
            model,
        })
    }

    /// Returns user CPU time by line of the program's source, exclusive and inclusive,
    /// microseconds.
    fn by_line(&self, program: &str) -> BTreeMap<u32, (i64, i64)> {
        let source = format!("/{program}.c");
        let mut found: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
        let sums = self.lines.exclusive.iter().zip(&self.lines.inclusive);
        for (line, (exclusive, inclusive)) in self.model.lines.lines.iter().zip(sums) {
            let Some((file, number)) = line.at else {
                continue;
            };
            if self.model.lines.files[file as usize].ends_with(&source) {
                let of = found.entry(number).or_default();
                of.0 += user(exclusive);
                of.1 += user(inclusive);
            }
        }
        found
    }
}

fn user(sums: &Sums) -> i64 {
    BaseMetric::State(experiment_format::microstate::Microstate::User).of(sums)
}

#[test]
fn root_the_hot_line_is_the_inlined_one() -> Result<()> {
    let _machine = Shared::take()?;
    let (_directory, recorded) = recorded("hot_inlined", &["-g", "-O2"])?;
    let found = Found::of(recorded.experiment()?)?;
    let by_line = found.by_line("hot_inlined");
    let (hot, calls) = (number("/* hot */")?, number("/* calls it */")?);
    let all: i64 = by_line.values().map(|of| of.0).sum();
    let of = |line: u32| by_line.get(&line).copied().unwrap_or_default();
    ensure!(of(hot).0 * 2 > all, "line {hot} of {by_line:?}");
    // Its caller has its time too.
    ensure!(of(calls).1 >= of(hot).1, "line {calls} of {by_line:?}");

    // The inlined function is one, and has the time of its line.
    let mut functions = found.model.functions.iter();
    let mix = functions
        .position(|function| function.name == "mix")
        .context("mix is no function")?;
    let own = user(&found.functions.exclusive[mix]);
    ensure!(own == of(hot).0, "mix has {own} µs of {by_line:?}");

    // All lines together have what all functions have, but for what has no stack.
    let sum = |sums: &[Sums]| {
        let mut all = Sums::default();
        sums.iter().for_each(|sums| aggregate::add(&mut all, sums));
        all
    };
    ensure!(sum(&found.lines.exclusive) == sum(&found.functions.exclusive));
    ensure!(user(&sum(&found.lines.exclusive)) <= user(&found.all));
    Ok(())
}

/// Returns gprofng's times by line of the program's source, exclusive and inclusive, in thousandths
/// of seconds as it shows them.
fn stock(experiment: &Path, program: &str) -> Result<BTreeMap<u32, (i64, i64)>> {
    let output = script(&["metrics e.user:i.user:name", "lines"], experiment)?.content()?;
    let mut found = BTreeMap::new();
    for row in output.table(2).rows {
        let Some((_, place)) = row.name.split_once(", line ") else {
            continue;
        };
        let Some((line, file)) = place.split_once(" in ") else {
            continue;
        };
        if file == format!("\"{program}.c\"") {
            let of = |index: usize| (row.values[index] * 1000.0).round() as i64;
            found.insert(line.parse()?, (of(0), of(1)));
        }
    }
    Ok(found)
}

#[test]
fn root_times_by_line_are_those_of_gprofng() -> Result<()> {
    let _machine = Shared::take()?;
    // gprofng 2.40 reads DWARF 4, and loses lines where functions were inlined.
    let (_directory, recorded) = recorded(
        "hot_called",
        &[
            "-gdwarf-4",
            "-O0",
            "-fno-inline",
            "-Dalways_inline=noinline",
        ],
    )?;
    let experiment = recorded.experiment()?;
    let stock: BTreeMap<_, _> = stock(&experiment, "hot_called")?
        .into_iter()
        .filter(|(_, of)| *of != (0, 0))
        .collect();
    let ours = Found::of(experiment)?.by_line("hot_called").into_iter();
    let shown = |us: i64| {
        let text = Cell::Microseconds(us).plain();
        text.parse::<f64>()
            .map_or(0, |seconds| (seconds * 1000.0).round() as i64)
    };
    let ours = ours.map(|(line, (own, all))| (line, (shown(own), shown(all))));
    let ours: BTreeMap<_, _> = ours.filter(|(_, of)| *of != (0, 0)).collect();
    // The lines of the loop, of its call, and of the call before. Others may have no tick.
    ensure!(stock.len() >= 3, "{stock:?}");
    ensure!(ours == stock, "{ours:?}, and gprofng shows {stock:?}");
    Ok(())
}
