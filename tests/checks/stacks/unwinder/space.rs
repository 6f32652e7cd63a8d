//! What a process has mapped, and its stacks as both unwinders see them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use bpf_abi::unwind::{self, Registers, UnwindBy, UnwindEnd, Unwound};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};
use tests::workload::traced::{
    CopiedStack, Mapping, SIGNAL_FP, SIGNAL_PC, SIGNAL_SP, ThreadRegisters, Traced,
};
use user_collector::unwind::{FrameInfo, UnwindRule, UnwindRules, UnwindSections, UnwindTable};

/// More frames than any of the programs has.
const MAX_FRAMES: usize = 600;
/// `mov $15,%rax; syscall`: where a handler returns to, and what debuggers recognise it by.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

type Bytes = Arc<[u8]>;

/// A file with code.
pub(crate) struct File {
    pub(crate) name: String,
    data: Bytes,
    table: UnwindTable,
    has_frames: bool,
    /// Offset in the file, address: of the executable segments.
    segments: Vec<(Range<u64>, u64)>,
}

impl File {
    fn of(name: &str, data: Vec<u8>, rules: &mut UnwindRules) -> Result<File> {
        let sections = UnwindSections::of_elf(&data[..])?;
        let has_frames = sections.frames != FrameInfo::None;
        let (table, _) = UnwindTable::of_sections(&sections, rules)?;
        let segments = object::File::parse(&*data)?
            .segments()
            .filter(|segment| segment.permissions().executable())
            .map(|segment| {
                let (offset, size) = segment.file_range();
                (offset..offset + size, segment.address())
            })
            .collect();
        Ok(File {
            name: name.rsplit('/').next().unwrap_or(name).into(),
            data: data.into(),
            table,
            has_frames,
            segments,
        })
    }

    /// Returns what is added to the addresses of the file in this mapping.
    fn bias(&self, mapping: &Mapping) -> Option<u64> {
        let page = |offset: u64| offset & !0xfff;
        let (offsets, address) = self.segments.iter().find(|(offsets, _)| {
            page(offsets.start) <= mapping.offset && mapping.offset < offsets.end
        })?;
        let start = (address + mapping.offset).wrapping_sub(offsets.start);
        Some(mapping.range.start.wrapping_sub(start))
    }

    fn module(&self, mapping: &Mapping, bias: u64) -> Result<Module<Bytes>> {
        let file = object::File::parse(&*self.data)?;
        let range = |name| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let data = |name| {
            let section = file.section_by_name(name)?;
            let data = section.uncompressed_data().ok()?;
            // As Go leaves it: only its end.
            (data.len() > 4).then(|| Bytes::from(&*data))
        };
        let base_svma = file
            .segments()
            .map(|segment| segment.address() & !0xfff)
            .min()
            .unwrap_or(0);
        let sections = ExplicitModuleSectionInfo {
            base_svma,
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            debug_frame: data(".debug_frame"),
            ..ExplicitModuleSectionInfo::default()
        };
        Ok(Module::new(
            self.name.clone(),
            mapping.range.clone(),
            bias.wrapping_add(base_svma),
            sections,
        ))
    }

    pub(crate) fn symbol(&self, address: u64) -> String {
        let Ok(file) = object::File::parse(&*self.data) else {
            return String::new();
        };
        file.symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.address() != 0 && symbol.address() <= address)
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
            .max_by_key(object::ObjectSymbol::address)
            .and_then(|symbol| Some(symbol.name().ok()?.to_owned()))
            .unwrap_or_default()
    }
}

/// Returns whether the code at `pc` is one of the two instructions of [`RESTORER`].
fn is_restorer(traced: &Traced, pc: u64) -> bool {
    [pc, pc.wrapping_sub(7)]
        .into_iter()
        .any(|start| traced.bytes(start, RESTORER.len()) == RESTORER)
}

/// All files that were seen, and their rules.
#[derive(Default)]
pub(crate) struct Library {
    pub(crate) rules: UnwindRules,
    files: HashMap<PathBuf, Option<Rc<File>>>,
}

impl Library {
    fn file(&mut self, mapping: &Mapping, traced: &Traced) -> Option<Rc<File>> {
        let path = PathBuf::from(&mapping.path);
        if let Some(known) = self.files.get(&path) {
            return known.clone();
        }
        let size = (mapping.range.end - mapping.range.start) as usize;
        let data = match mapping.path.as_str() {
            "[vdso]" => Some(traced.bytes(mapping.range.start, size)),
            other => std::fs::read(other).ok(),
        };
        let file = data.and_then(|data| File::of(&mapping.path, data, &mut self.rules).ok());
        let file = file.map(Rc::new);
        self.files.insert(path, file.clone());
        file
    }
}

pub(crate) struct Loaded {
    pub(crate) range: Range<u64>,
    pub(crate) bias: u64,
    pub(crate) file: Rc<File>,
}

/// What a process has mapped, for both unwinders.
#[derive(Default)]
pub(crate) struct Space {
    pub(crate) loaded: Vec<Loaded>,
    hop: UnwinderX86_64<Bytes>,
    restorers: HashMap<u64, bool>,
    pub(crate) stack: CopiedStack,
}

/// The stack by framehop.
#[derive(Debug)]
pub(crate) struct Hopped {
    pub(crate) frames: Vec<u64>,
    pub(crate) complete: bool,
}

impl Space {
    pub(crate) fn of(traced: &Traced, library: &mut Library) -> Result<Space> {
        let mut space = Space::default();
        for mapping in traced.code()? {
            let Some(file) = library.file(&mapping, traced) else {
                continue;
            };
            let Some(bias) = file.bias(&mapping) else {
                continue;
            };
            space.hop.add_module(file.module(&mapping, bias)?);
            space.loaded.push(Loaded {
                range: mapping.range,
                bias,
                file,
            });
        }
        Ok(space)
    }

    pub(crate) fn at(&self, address: u64) -> Option<&Loaded> {
        self.loaded
            .iter()
            .find(|loaded| loaded.range.contains(&address))
    }

    pub(crate) fn rule<'r>(&self, rules: &'r UnwindRules, address: u64) -> Option<&'r UnwindRule> {
        let loaded = self.at(address)?;
        let inside = address.wrapping_sub(loaded.bias);
        loaded.file.table.lookup(rules, inside)
    }

    fn find(&self, rules: &UnwindRules, address: u64) -> UnwindBy {
        let Some(loaded) = self.at(address) else {
            return UnwindBy::Nothing(UnwindEnd::NoMapping);
        };
        if !loaded.file.has_frames {
            return UnwindBy::FramePointer;
        }
        let rule = self.rule(rules, address);
        UnwindBy::Rule(rule.unwrap_or(&UnwindRule::Absent).encode())
    }

    pub(crate) fn ours(
        &self,
        rules: &UnwindRules,
        state: &ThreadRegisters,
        traced: &Traced,
    ) -> Unwound {
        let stack = &self.stack;
        let start = Registers::innermost(state.pc, state.general);
        unwind::unwind(
            &start,
            MAX_FRAMES,
            |address| self.find(rules, address),
            |address| stack.word(address).or_else(|| traced.word(address)),
        )
    }

    pub(crate) fn theirs(
        &mut self,
        cache: &mut CacheX86_64,
        state: &ThreadRegisters,
        traced: &Traced,
    ) -> Hopped {
        let stack = &self.stack;
        let mut registers = UnwindRegsX86_64::new(state.pc, state.sp(), state.fp());
        let mut address = FrameAddress::InstructionPointer(state.pc);
        let mut frames = vec![state.pc];
        let mut read = |address| {
            let word = stack.word(address).or_else(|| traced.word(address));
            word.ok_or(())
        };
        while frames.len() < MAX_FRAMES {
            let here = address.address();
            let restorer = *self
                .restorers
                .entry(here)
                .or_insert_with(|| is_restorer(traced, here));
            // framehop evaluates no expression that reads memory, and has no signal frames: they
            // are read by the kernel's layout.
            if restorer {
                let sp = registers.sp();
                let saved = [SIGNAL_PC, SIGNAL_SP, SIGNAL_FP].map(|offset| read(sp + offset));
                let [Ok(pc), Ok(sp), Ok(fp)] = saved else {
                    return Hopped {
                        frames,
                        complete: false,
                    };
                };
                registers = UnwindRegsX86_64::new(pc, sp, fp);
                address = FrameAddress::InstructionPointer(pc);
                frames.push(pc);
                continue;
            }
            let back = self
                .hop
                .unwind_frame(address, &mut registers, cache, &mut read);
            match back {
                Ok(Some(back)) => match FrameAddress::from_return_address(back) {
                    Some(caller) => {
                        address = caller;
                        frames.push(back - 1);
                    }
                    None => {
                        return Hopped {
                            frames,
                            complete: true,
                        };
                    }
                },
                end => {
                    return Hopped {
                        frames,
                        complete: end == Ok(None),
                    };
                }
            }
        }
        Hopped {
            frames,
            complete: false,
        }
    }

    pub(crate) fn name(&self, rules: &UnwindRules, address: u64) -> String {
        let Some(loaded) = self.at(address) else {
            return format!("{address:#x}");
        };
        let inside = address.wrapping_sub(loaded.bias);
        let rule = loaded.file.table.lookup(rules, inside);
        format!(
            "{}`{} {inside:#x} {rule:?}",
            loaded.file.name,
            loaded.file.symbol(inside)
        )
    }
}
