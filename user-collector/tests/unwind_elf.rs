//! Unwind tables of the machine's own files, against gimli's evaluation of the same frame
//! information.
//!
//! Both sides leave a frame of an invented machine, whose registers and memory are a hash of their
//! number and address: two answers that agree there agree everywhere. Our side is read from the
//! encoded rules, as the BPF side reads them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

use std::borrow::Cow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, Encoding, EndianSlice, EvaluationResult, Expression,
    LittleEndian, Location, RegisterRule, UnwindContext, UnwindSection, Value, X86_64,
};
use kcollect_elf::ElfError;
use user_collector::unwind::{
    FrameInfo, FramePointer, FrameRule, MAX_PADDING_BYTES, TableSummary, UnwindError, UnwindRule,
    UnwindRules, UnwindSections, UnwindTable,
};
use zerocopy::IntoBytes as _;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The caller's registers, after a step of the unwinder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Left {
    sp: u64,
    fp: Option<u64>,
    bx: Option<u64>,
    /// Nothing: there is no caller.
    ra: Option<u64>,
    signal: bool,
}

fn hash(value: u64) -> u64 {
    let value = (value ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (value ^ (value >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn register(number: u64, pc: u64) -> u64 {
    // Small enough that no sum of gimli's overflows.
    if number == 16 { pc } else { hash(number) >> 16 }
}

fn memory(address: u64) -> u64 {
    hash(address) >> 16
}

/// One row as gimli has it.
struct UnwindRow {
    start: u64,
    end: u64,
    cfa: CfaRule<usize>,
    sp: Option<RegisterRule<usize>>,
    fp: Option<RegisterRule<usize>>,
    bx: Option<RegisterRule<usize>>,
    ra: Option<RegisterRule<usize>>,
    encoding: Encoding,
    signal: bool,
}

struct Oracle<'a> {
    section: EhFrame<Slice<'a>>,
    rows: Vec<UnwindRow>,
}

impl<'a> Oracle<'a> {
    fn new(data: &'a [u8], address: u64) -> Oracle<'a> {
        let section = EhFrame::new(data, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(address);
        let mut context = UnwindContext::new();
        let mut rows = vec![];
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
            let mut table = fde.rows(&section, &bases, &mut context).unwrap();
            while let Some(row) = table.next_row().unwrap() {
                if row.start_address() < row.end_address() {
                    rows.push(UnwindRow {
                        start: row.start_address(),
                        end: row.end_address(),
                        cfa: row.cfa().clone(),
                        sp: row.register(X86_64::RSP),
                        fp: row.register(X86_64::RBP),
                        bx: row.register(X86_64::RBX),
                        ra: row.register(X86_64::RA),
                        encoding: fde.cie().encoding(),
                        signal: fde.is_signal_trampoline(),
                    });
                }
            }
        }
        rows.sort_by_key(|row| row.start);
        Oracle { section, rows }
    }

    fn evaluate(
        &self,
        expression: Expression<Slice<'a>>,
        encoding: Encoding,
        pc: u64,
        cfa: Option<u64>,
    ) -> u64 {
        let mut evaluation = expression.evaluation(encoding);
        if let Some(cfa) = cfa {
            evaluation.set_initial_value(cfa);
        }
        let mut result = evaluation.evaluate().unwrap();
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister {
                    register: number, ..
                } => evaluation
                    .resume_with_register(Value::Generic(register(number.0.into(), pc)))
                    .unwrap(),
                EvaluationResult::RequiresMemory { address, .. } => evaluation
                    .resume_with_memory(Value::Generic(memory(address)))
                    .unwrap(),
                other => panic!("{other:?}"),
            };
        }
        match evaluation.as_result()[0].location {
            Location::Address { address } => address,
            ref other => panic!("{other:?}"),
        }
    }

    fn leave(&self, pc: u64) -> Option<Left> {
        let after = self.rows.partition_point(|row| row.start <= pc);
        let row = self.rows[..after].last().filter(|row| pc < row.end)?;
        let at = |expression: &gimli::UnwindExpression<usize>, cfa| {
            self.evaluate(
                expression.get(&self.section).unwrap(),
                row.encoding,
                pc,
                cfa,
            )
        };
        let cfa = match &row.cfa {
            CfaRule::RegisterAndOffset {
                register: number,
                offset,
            } => register(number.0.into(), pc).wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => at(expression, None),
        };
        let restore = |number: u64, rule: &Option<RegisterRule<usize>>| match rule {
            Some(RegisterRule::Undefined) => None,
            None | Some(RegisterRule::SameValue) => Some(register(number, pc)),
            Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(*offset)),
            Some(RegisterRule::Offset(offset)) => Some(memory(cfa.wrapping_add_signed(*offset))),
            Some(RegisterRule::Register(other)) => Some(register(other.0.into(), pc)),
            Some(RegisterRule::Expression(expression)) => Some(memory(at(expression, Some(cfa)))),
            other => panic!("{other:?}"),
        };
        let sp = if row.sp.is_none() {
            cfa
        } else {
            restore(7, &row.sp).unwrap()
        };
        Some(Left {
            sp,
            fp: restore(6, &row.fp),
            bx: restore(3, &row.bx),
            ra: restore(16, &row.ra),
            signal: row.signal,
        })
    }
}

/// Leaves a frame by an encoded rule; nothing where the rule is unsupported.
fn leave(rule: &UnwindRule, pc: u64) -> Option<Left> {
    let encoded = rule.encode();
    let bytes = encoded.as_bytes();
    let short = i64::from(i16::from_le_bytes([bytes[4], bytes[5]]));
    let small = |at: usize| i64::from(bytes[at].cast_signed());
    let offset = i64::from(i32::from_le_bytes(bytes[0..4].try_into().unwrap()));
    let [kind, base, fp_kind, fp_base, ra_kind, ra_base] = bytes[10..16].try_into().unwrap();
    let from = register(base.into(), pc).wrapping_add_signed(offset);
    let cfa = match kind {
        1 => return Some(Left::default()),
        3 => from,
        4 => memory(from).wrapping_add_signed(small(6)),
        5 => from + 8 * u64::from(i64::try_from(pc & 15).unwrap() >= small(6)),
        _ => return None,
    };
    let at = |base: u8, offset: i64| {
        let base = if base == 255 {
            cfa
        } else {
            register(base.into(), pc)
        };
        memory(base.wrapping_add_signed(offset))
    };
    let (ra, signal) = match ra_kind {
        0 => (at(ra_base, 8 * small(7)), false),
        1 => (at(ra_base, 8 * small(7)), true),
        _ => (register(ra_base.into(), pc), false),
    };
    let fp = match fp_kind {
        0 => Some(register(6, pc)),
        1 => Some(at(fp_base, short)),
        _ => None,
    };
    let bx = match bytes[9] {
        254 => Some(register(3, pc)),
        253 => None,
        base => Some(at(base, 8 * small(8))),
    };
    Some(Left {
        sp: cfa,
        fp,
        bx,
        ra: Some(ra),
        signal,
    })
}

/// The caller's frame pointer is known to be unknown.
fn lost(rule: &UnwindRule) -> bool {
    matches!(
        rule,
        UnwindRule::Frame(FrameRule {
            fp: FramePointer::Lost,
            ..
        })
    )
}

/// Compares all rows of a file, and returns the counts.
fn compare(path: &Path) -> TableSummary {
    compare_bytes(path, &std::fs::read(path).unwrap())
}

fn compare_bytes(path: &Path, file: &[u8]) -> TableSummary {
    let mut rules = UnwindRules::new();
    let started = std::time::Instant::now();
    // The oracle has .eh_frame alone.
    let mut sections = UnwindSections::of_elf(file).unwrap();
    sections.thread_starts.clear();
    sections.debug_frames = Cow::default();
    let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
    let took = started.elapsed();
    let FrameInfo::Eh { data, address } = sections.frames else {
        panic!("{}: no .eh_frame", path.display())
    };
    let oracle = Oracle::new(data, address);

    let (mut compared, mut without_bx) = (0_u64, 0_u64);
    for (index, &UnwindRow { start, end, .. }) in oracle.rows.iter().enumerate() {
        if !sections
            .executable
            .iter()
            .any(|range| range.contains(&start))
        {
            continue;
        }
        for pc in [start - 1, start, start + 1, end - 1, end] {
            compared += 1;
            let ours = table.lookup(&rules, pc);
            match (oracle.leave(pc), ours) {
                (None, None) => {}
                (None, Some(_)) => {
                    let before = oracle.rows[..=index]
                        .iter()
                        .rev()
                        .find(|row| row.end <= pc)
                        .unwrap();
                    assert!(
                        pc - before.end < MAX_PADDING_BYTES,
                        "{}: {pc:#x} is a hole",
                        path.display()
                    );
                    assert_eq!(ours, table.lookup(&rules, before.end - 1));
                }
                (Some(Left { ra: None, .. }), ours) => {
                    assert_eq!(ours, Some(&UnwindRule::Stop), "{pc:#x}")
                }
                (Some(theirs), Some(rule)) => {
                    if let Some(ours) = leave(rule, pc) {
                        assert_eq!(ours.fp.is_none(), lost(rule));
                        let theirs = Left {
                            fp: theirs.fp.filter(|_| ours.fp.is_some()),
                            bx: theirs.bx.filter(|_| ours.bx.is_some()),
                            ..theirs
                        };
                        without_bx += u64::from(ours.bx.is_none());
                        assert_eq!(ours, theirs, "{}: {pc:#x} {rule:?}", path.display());
                    }
                }
                (Some(_), None) => panic!("{}: {pc:#x} is not in the table", path.display()),
            }
        }
    }
    println!(
        "{}: {compared} pcs compared; {} bytes of table, {} MB of text: {:.0} bytes/MB, {} rules, {took:?}\n{summary:?}",
        path.display(),
        table.bytes(),
        summary.text / 1_000_000,
        table.bytes() as f64 / (summary.text as f64 / 1e6),
        rules.as_slice().len(),
    );
    assert!(compared > 0);
    assert!(without_bx * 200 < compared, "{without_bx}");
    assert_eq!(
        (summary.bad_fdes, summary.malformed_fdes, summary.unread),
        (0, 0, 0)
    );
    assert!(
        summary.rows.unsupported() * 200 < table.rows().len() as u64,
        "{}: 0.5 % unsupported",
        path.display()
    );
    summary
}

/// The file that is mapped here under such a name.
fn mapped(name: &str) -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        line.split_ascii_whitespace()
            .nth(5)
            .filter(|path| path.contains(name))
    });
    path.unwrap_or_else(|| panic!("{name} is not mapped here"))
        .into()
}

#[test]
fn table_of_this_program() {
    compare(Path::new("/proc/self/exe"));
}

#[test]
fn table_of_libc() {
    let summary = compare(&mapped("/libc.so"));
    assert_eq!(
        (
            summary.rows.signal,
            summary.rows.plt > 0,
            summary.rows.stop > 0
        ),
        (1, true, true)
    );
}

#[test]
fn table_of_the_dynamic_linker() {
    compare(&mapped("/ld-linux"));
}

/// No file has it, so it is read from memory.
#[test]
fn table_of_the_vdso() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return;
    };
    let (start, end) = line
        .split_once(' ')
        .and_then(|(range, _)| range.split_once('-'))
        .unwrap();
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
    let mut image = vec![0; usize::try_from(end - start).unwrap()];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut image, start).unwrap();
    compare_bytes(Path::new("[vdso]"), &image);
}

/// Larger files, and those that an environment variable names, separated by colons.
#[test]
fn tables_of_other_files() {
    let named = std::env::var_os("UNWIND_FILES").unwrap_or_default();
    let usual = [
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/bin/python3",
    ]
    .map(PathBuf::from);
    for path in usual.into_iter().chain(std::env::split_paths(&named)) {
        if path.is_file() {
            compare(&path);
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let good = std::fs::read(mapped("/libc.so")).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        UnwindTable::of_elf(&file, &mut UnwindRules::new())
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(
        UnwindTable::of_elf(b"", &mut UnwindRules::new()).unwrap_err(),
        ElfError::NotElf.into()
    );
    assert_eq!(with(0, b"#!/b"), ElfError::NotElf.into());
    assert_eq!(with(4, &[1]), ElfError::Class { class: 1 }.into());
    assert_eq!(with(5, &[2]), ElfError::ByteOrder { order: 2 }.into());
    assert_eq!(with(18, &[183, 0]), UnwindError::Machine { machine: 183 });
    assert!(matches!(
        with(32, &[0xff; 8]),
        UnwindError::Elf(ElfError::Headers {
            headers: "program",
            ..
        })
    ));
    assert!(matches!(
        with(40, &[0xff; 8]),
        UnwindError::Elf(ElfError::Headers {
            headers: "section",
            ..
        })
    ));
    let cut = UnwindTable::of_elf(&good[..0x1000], &mut UnwindRules::new()).unwrap_err();
    assert!(
        matches!(
            cut,
            UnwindError::Elf(ElfError::Outside {
                name: "an executable segment",
                ..
            })
        ),
        "{cut}"
    );
}
