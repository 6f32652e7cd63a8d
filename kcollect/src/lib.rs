//! kcollect profiles the whole machine, kernel and user, and writes what it saw as an experiment
//! that gprofng opens.
//!
//! In the order of a run: [`cli`] turns what was typed into a plan; [`session`] opens the
//! [`sources`] (a clock and a side-band for each CPU, by `bpf` and [`perf`], emptied by the
//! [`reader`]), puts their events in [`order`], and hands them to the [`kernel`]'s founder
//! experiment; [`summary`] says what came of it. [`report`] reads it again, by whomever and
//! wherever, [`symbol`] says of its addresses which lines they are, [`picture`] draws it,
//! [`export`] writes it for other tools. [`counters`] counts, without recording. [`doctor`] says
//! beforehand what is missing, [`exit`] how a run ends.

pub mod cli;
pub mod counters;
pub mod doctor;
pub mod dry_run;
pub mod exit;
pub mod export;
pub mod kernel;
pub mod load;
pub mod losses;
pub mod machine;
pub mod order;
pub mod output;
pub mod perf;
pub mod picture;
pub mod precedence;
pub mod privileges;
pub mod reader;
pub mod report;
pub mod seccomp;
pub mod session;
pub mod signals;
pub mod sources;
pub mod summary;
pub mod symbol;
pub mod user;

use std::ffi::OsString;

use bpf::{Programs, Settings, UserStackCapture};
use cli::{Command, Machine, Plan};
use doctor::{Finding, Root};
use exit::{Failure, Kind};
use output::Output;

/// Does what the command line says. Gives the exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> u8 {
    let mut output = Output::standard();
    let done = match cli::parse(argv, &Machine::read()) {
        Ok(Command::Record(plan)) => return record(&plan, output),
        Ok(Command::Doctor { json }) => return doctor(json, &mut output).code(),
        Ok(Command::Report(request)) => {
            let done = report::report(&request, &mut output);
            return ended(done, &mut output);
        }
        Ok(Command::Flame(request)) => {
            let done = picture::flame::flame(&request, &mut output);
            return ended(done, &mut output);
        }
        Ok(Command::Export(request)) => {
            let done = export::export(&request, &mut output);
            return ended(done, &mut output);
        }
        Ok(Command::View(request)) => {
            let done = picture::show(&request, &mut output);
            return ended(done, &mut output);
        }
        Ok(Command::Track(request)) => {
            let done = counters::track::track(&request, &mut output);
            return done.unwrap_or_else(|failure| refuse(&mut output, &failure));
        }
        Ok(Command::Stat(wish)) => {
            let done = counters::stat::stat(&wish, &mut output);
            return done.unwrap_or_else(|failure| refuse(&mut output, &failure));
        }
        Ok(Command::Counters { json }) => {
            let listing = counters::listing(&Root::machine());
            Ok(match json {
                true => listing.json(),
                false => listing.text(output.width()).trim_end().to_owned(),
            })
        }
        Ok(Command::Version) => Ok(concat!("kcollect ", env!("CARGO_PKG_VERSION")).to_owned()),
        Ok(Command::Help(text)) => Ok(text),
        Err(error) => Err(Failure::from(error)),
    };
    match done {
        Ok(text) => {
            output.result(&text);
            Kind::Ok.code()
        }
        Err(failure) => refuse(&mut output, &failure),
    }
}

fn ended(done: Result<(), Failure>, output: &mut Output) -> u8 {
    match done {
        Ok(()) => Kind::Ok.code(),
        Err(failure) => refuse(output, &failure),
    }
}

fn refuse(output: &mut Output, failure: &Failure) -> u8 {
    output.say(&failure.to_string());
    failure.kind.code()
}

fn record(plan: &Plan, mut output: Output) -> u8 {
    match Output::new(plan.output.as_deref(), plan.verbose) {
        Ok(wanted) => output = wanted,
        Err(error) => {
            let path = plan.output.as_deref().unwrap_or("".as_ref());
            let failure = Failure::new(
                Kind::CantCreate,
                format!("cannot append to {}: {error}", path.display()),
                "name a file that can be written with -O",
            );
            return refuse(&mut output, &failure);
        }
    }
    let counters = match counters::requests(&plan.counters, &Root::machine()) {
        Ok(counters) => counters,
        Err(error) => return refuse(&mut output, &error.into()),
    };
    plan.notices.iter().for_each(|notice| output.say(notice));
    if plan.dry_run {
        output.result(&dry_run::describe(plan).join("\n"));
        return Kind::Ok.code();
    }
    session::record(plan, &counters, &mut output)
        .unwrap_or_else(|failure| refuse(&mut output, &failure))
}

fn doctor(json: bool, output: &mut Output) -> Kind {
    let mut findings = doctor::examine(&Root::machine());
    if doctor::first_obstacle(&findings).is_none() {
        let emission = UserStackCapture::probe();
        findings.push(bpf_finding(emission));
        findings.push(Finding::ok("user stacks", format!("captured {emission}")));
    }
    output.result(&match json {
        true => doctor::json(&findings),
        false => doctor::table(&findings, output.width()),
    });
    doctor::exit_kind(&findings)
}

/// What no file can tell: whether this kernel takes our programs.
fn bpf_finding(emission: UserStackCapture) -> Finding {
    const NAME: &str = "BPF programs";
    let settings = Settings {
        period_ns: 1_000_000_000,
        record_idle: false,
        max_kernel_frames: 127,
        page_fault: (0, 0),
        cpu_ids: 1,
        user_stacks: Some(emission),
        hit_intervals: None,
    };
    match Programs::load(&settings) {
        Ok(_) => Finding::ok(NAME, "the kernel loads and verifies them"),
        Err(error) => {
            let kind = if error.is_permission() {
                Kind::NoPerm
            } else {
                Kind::Unavailable
            };
            Finding::fail(
                NAME,
                kind,
                error.to_string(),
                "report this, with the kernel's version",
            )
        }
    }
}
