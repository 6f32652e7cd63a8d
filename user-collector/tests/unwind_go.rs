//! Programs of Go: their own table of functions says what the `.debug_frame` says that they are
//! stripped of, and more.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test reports by panicking"
)]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use proptest::prelude::*;
use tempfile::TempDir;
use user_collector::unwind::{
    Cfa, FrameInfo, FramePointer, TableSummary, UnwindRule, UnwindRules, UnwindSections,
    UnwindTable,
};

/// One program, three times.
struct Programs {
    /// With symbols and `.debug_frame`.
    whole: Vec<u8>,
    stripped: Vec<u8>,
    /// Stripped too, and loaded anywhere.
    pie: Vec<u8>,
}

const SOURCE: &str = r#"package main

import ("fmt"; "os"; "sort"; "time")

//go:noinline
func deep(n int) int { if n == 0 { return len(fmt.Sprint(time.Now())) }; return deep(n-1) + 1 }

func main() {
	done := make(chan int)
	go func() { done <- deep(9) }()
	words := os.Args
	sort.Strings(words)
	fmt.Println(<-done, words)
}
"#;

/// Nothing where there is no Go.
fn programs() -> Option<&'static Programs> {
    static PROGRAMS: OnceLock<Option<Programs>> = OnceLock::new();
    PROGRAMS
        .get_or_init(|| {
            let directory = TempDir::new().unwrap();
            let build = |flags: &[&str]| build(directory.path(), flags);
            Some(Programs {
                whole: build(&["-ldflags=-compressdwarf=false"])?,
                stripped: build(&["-ldflags=-s -w"])?,
                pie: build(&["-ldflags=-s -w", "-buildmode=pie"])?,
            })
        })
        .as_ref()
}

fn build(directory: &Path, flags: &[&str]) -> Option<Vec<u8>> {
    std::fs::write(directory.join("work.go"), SOURCE).unwrap();
    let output = Command::new("go")
        .arg("build")
        .args(flags)
        .args(["-o", "work", "work.go"])
        .env("GOCACHE", directory.join("cache"))
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0")
        .current_dir(directory)
        .output();
    match output {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "go build {flags:?}: {said}");
            Some(std::fs::read(directory.join("work")).unwrap())
        }
        Err(error) => {
            println!("left out, for there is no go: {error}");
            None
        }
    }
}

fn table(file: &[u8], rules: &mut UnwindRules) -> (UnwindTable, TableSummary) {
    let started = Instant::now();
    let (table, summary) = UnwindTable::of_elf(file, rules).unwrap();
    println!(
        "{} KiB of text: {} rows, {} pages, {} bytes in {:?}; {} functions, {} unknown; {} rules",
        summary.text >> 10,
        table.rows().len(),
        table.pages().len(),
        table.bytes(),
        started.elapsed(),
        summary.go_functions,
        summary.go_unknown,
        rules.as_slice().len(),
    );
    (table, summary)
}

/// Names, addresses and lengths.
fn functions(file: &[u8]) -> Vec<(String, u64, u64)> {
    let file = object::File::parse(file).unwrap();
    let text = file
        .symbols()
        .filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0);
    text.map(|symbol| {
        let name = symbol.name().unwrap();
        let name = name.strip_suffix(".abi0").unwrap_or(name);
        (name.to_owned(), symbol.address(), symbol.size())
    })
    .collect()
}

/// How far above the stack pointer the caller's frame is, where it is known.
fn height(rule: Option<&UnwindRule>) -> Option<i32> {
    match rule? {
        UnwindRule::Frame(frame) => match frame.cfa {
            Cfa::Register {
                register: 7,
                offset,
            } => Some(offset),
            _ => None,
        },
        _ => None,
    }
}

/// Of these the two say different things, with reason.
const CHANGE_STACKS: [&str; 22] = [
    "runtime.goexit",
    "runtime.mstart",
    "runtime.rt0_go",
    "_rt0_amd64",
    "_rt0_amd64_linux",
    "runtime.mcall",
    "runtime.morestack",
    "gogo",
    "runtime.gogo",
    "runtime.clone",
    "runtime.systemstack",
    "runtime.asmcgocall",
    "runtime.nanotime1",
    "runtime.walltime",
    "runtime.vgetrandom1",
    "time.now",
    "runtime.sigfwd",
    "runtime.sigreturn",
    "runtime.sigreturn__sigaction",
    "runtime.callCgoMmap",
    "runtime.callCgoMunmap",
    "runtime.callCgoSigaction",
];

#[test]
fn heights_are_those_of_debug_frame() {
    let Some(programs) = programs() else { return };
    let mut rules = UnwindRules::new();
    let (own, summary) = table(&programs.whole, &mut rules);
    let sections = UnwindSections::of_elf(programs.whole.as_slice()).unwrap();
    assert!(matches!(sections.frames, FrameInfo::Debug { .. }));
    let (dwarf, dwarf_summary) = UnwindTable::of_sections(
        &UnwindSections {
            go: None,
            ..sections
        },
        &mut rules,
    )
    .unwrap();
    assert!(summary.go_functions >= dwarf_summary.fdes);
    assert_eq!(
        summary.fdes - summary.elsewhere,
        dwarf_summary.fdes - dwarf_summary.elsewhere
    );
    let mut pcs = 0;
    for (name, start, size) in functions(&programs.whole) {
        if CHANGE_STACKS.contains(&name.as_str()) || dwarf.lookup(&rules, start).is_none() {
            continue;
        }
        for pc in start..start + size {
            let (own, dwarf) = (own.lookup(&rules, pc), dwarf.lookup(&rules, pc));
            assert_eq!(
                height(own),
                height(dwarf),
                "{name} {pc:#x}: {own:?}, {dwarf:?}"
            );
            pcs += 1;
        }
    }
    assert!(pcs > 100_000, "only {pcs} compared");
}

#[test]
fn a_stripped_program_has_the_same_table() {
    let Some(programs) = programs() else { return };
    let mut rules = UnwindRules::new();
    let (whole, _) = table(&programs.whole, &mut rules);
    let (stripped, _) = table(&programs.stripped, &mut rules);
    assert!(stripped == whole, "they differ");
    // Without section headers.
    let mut file = programs.stripped.clone();
    file[40..48].fill(0);
    file[60..64].fill(0);
    let (bare, _) = table(&file, &mut rules);
    assert!(bare == whole, "they differ");
}

/// Its addresses are other ones; how its functions begin is not.
#[test]
fn a_program_that_is_loaded_anywhere() {
    let Some(programs) = programs() else { return };
    let mut rules = UnwindRules::new();
    let (pie, summary) = table(&programs.pie, &mut rules);
    assert!(summary.go_functions > 1000, "{summary:?}");
    let file = object::File::parse(&*programs.pie).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let (data, start) = (text.data().unwrap(), text.address());
    // mov %rsp,%rbp after a push: it is 16 above, and saved.
    let mut prologues = 0;
    for (at, window) in data.windows(4).enumerate() {
        let pc = start + at as u64;
        if pc.is_multiple_of(32) && window == [0x55, 0x48, 0x89, 0xe5] {
            prologues += 1;
            assert_eq!(height(pie.lookup(&rules, pc)), Some(8), "{pc:#x}");
            assert_eq!(height(pie.lookup(&rules, pc + 1)), Some(16), "{pc:#x}");
        }
    }
    println!("{prologues} prologues that push");
    let (whole, _) = table(&programs.whole, &mut rules);
    let share = |table: &UnwindTable| table.rows().len() as f64;
    let ratio = share(&pie) / share(&whole);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn where_stacks_begin_and_change() {
    let Some(programs) = programs() else { return };
    let mut rules = UnwindRules::new();
    let (table, _) = table(&programs.whole, &mut rules);
    let functions = functions(&programs.whole);
    let rules_of = |wanted: &str| -> Vec<UnwindRule> {
        let (_, start, size) = functions
            .iter()
            .find(|(name, ..)| name == wanted)
            .unwrap_or_else(|| panic!("no {wanted}"));
        let mut rules: Vec<UnwindRule> = (*start..start + size)
            .map(|pc| *table.lookup(&rules, pc).unwrap())
            .collect();
        rules.dedup();
        rules
    };
    for root in ["runtime.goexit", "runtime.mstart", "runtime.rt0_go"] {
        assert_eq!(rules_of(root), [UnwindRule::Stop], "{root}");
    }
    for leaves in [
        "runtime.mcall",
        "runtime.morestack",
        "gogo",
        "runtime.clone",
    ] {
        let rules = rules_of(leaves);
        assert_eq!(height(rules.first()), Some(8), "{leaves} {rules:?}");
        assert_eq!(rules.last(), Some(&UnwindRule::Stop), "{leaves} {rules:?}");
    }
    for detour in [
        "runtime.systemstack",
        "runtime.asmcgocall",
        "runtime.nanotime1",
    ] {
        let rules = rules_of(detour);
        assert_eq!(height(rules.first()), Some(8), "{detour} {rules:?}");
        assert!(
            rules.iter().any(UnwindRule::changes_stacks),
            "{detour} {rules:?}"
        );
        let back = rules.iter().rposition(|rule| height(Some(rule)) == Some(8));
        let away = rules.iter().position(UnwindRule::changes_stacks);
        assert!(away < back, "{detour} {rules:?}");
    }
    // The caller's frame pointer is saved where a function calls another.
    let saved = rules_of("main.deep");
    let saves = |rule: &UnwindRule| matches!(rule, UnwindRule::Frame(frame) if matches!(frame.fp, FramePointer::At { offset: -16, .. }));
    assert!(saved.iter().any(saves), "{saved:?}");
    assert!(!saves(&saved[0]), "{saved:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_tables_end_stacks_early(
        changes in proptest::collection::vec(
            (prop_oneof![0..128_usize, any::<prop::sample::Index>().prop_map(|index| index.index(1 << 19))], any::<u8>()),
            1..64,
        ),
    ) {
        if let Some(programs) = programs() {
            let sections = UnwindSections::of_elf(programs.stripped.as_slice()).unwrap();
            let go = sections.go.clone().unwrap();
            let mut damaged = go.table.to_vec();
            let length = damaged.len();
            for (place, byte) in changes {
                damaged[place % length] = byte;
            }
            let go = user_collector::unwind::GoFunctions { table: &damaged, ..go };
            let sections = UnwindSections { go: Some(go), ..sections };
            let mut rules = UnwindRules::new();
            if let Ok((table, _)) = UnwindTable::of_sections(&sections, &mut rules) {
                let text: u64 = sections.executable.iter().map(|range| range.end - range.start).sum();
                prop_assert!(table.rows().len() as u64 <= text + table.pages().len() as u64);
            }
        }
    }
}
