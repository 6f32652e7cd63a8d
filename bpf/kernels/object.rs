//! What the compiled BPF object asks of the kernel: relocations, external functions, and the
//! places that its programs are attached to.

use anyhow::{Context as _, Result, bail};
use libbpf_sys::bpf_core_relo;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionIndex};

use crate::btf::{Types, kind};

/// Bytes of an instruction.
pub(crate) const INSTRUCTION: usize = 8;

/// A relocation, and the instruction that it changes.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// The function that has the instruction.
    pub(crate) function: String,
    pub(crate) raw: bpf_core_relo,
    /// The instruction, and the second half of one of 64 bits.
    pub(crate) instructions: [[u8; INSTRUCTION]; 2],
}

/// The object of one processor.
#[derive(Debug)]
pub(crate) struct BpfObject {
    pub(crate) types: Types,
    /// The same types, as libbpf reads them.
    pub(crate) btf: Vec<u8>,
    pub(crate) relocations: Vec<Relocation>,
    /// Functions of the kernel, by the numbers of their types.
    pub(crate) kfuncs: Vec<u32>,
    /// Programs and their sections: `tp_btf/sched_switch`.
    pub(crate) programs: Vec<(String, String)>,
}

impl BpfObject {
    /// The object as it was built for `amd64` or `arm64`, by Debian's names.
    pub(crate) fn of(architecture: &str) -> Result<BpfObject> {
        let elf: &[u8] = match architecture {
            "amd64" => include_bytes!(concat!(env!("OUT_DIR"), "/x86/kcollect.o")),
            "arm64" => include_bytes!(concat!(env!("OUT_DIR"), "/arm64/kcollect.o")),
            other => bail!("there is no object for {other}"),
        };
        BpfObject::parse(elf)
    }

    fn parse(elf: &[u8]) -> Result<BpfObject> {
        let file = object::File::parse(elf)?;
        let section = |name: &str| -> Result<&[u8]> {
            let found = file.section_by_name(name);
            let found = found.with_context(|| format!("the object has no section {name}"))?;
            Ok(found.data()?)
        };
        let btf = section(".BTF")?.to_vec();
        let types = Types::parse(&btf)?;
        let relocations = relocations(&file, &types, section(".BTF.ext")?)?;
        let externals = types.by_name(kind::DATASEC, ".ksyms");
        let externals = externals.map_or(&[][..], |id| &types.get(id).words);
        let kfuncs = externals.chunks_exact(3).map(|words| words[0]);
        let kfuncs = kfuncs.filter(|id| types.get(*id).kind() == kind::FUNC);
        let kfuncs = kfuncs.collect();
        let functions = file.symbols().filter(|symbol| symbol.is_global());
        let mut programs = Vec::new();
        for symbol in functions.filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
            if let Some(index) = symbol.section_index() {
                let section = file.section_by_index(index)?.name()?;
                programs.push((symbol.name()?.to_owned(), section.to_owned()));
            }
        }
        programs.sort();
        Ok(BpfObject {
            types,
            btf,
            relocations,
            kfuncs,
            programs,
        })
    }
}

/// Parses .BTF.ext (struct `btf_ext_header` and what it describes, include/uapi/linux/btf.h).
fn relocations(file: &object::File<'_>, types: &Types, ext: &[u8]) -> Result<Vec<Relocation>> {
    let word = |at: usize| -> Result<u32> {
        let bytes = ext.get(at..at + 4).context(".BTF.ext is cut off")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    let header = word(4)? as usize;
    let mut at = header + word(24)? as usize;
    let end = at + word(28)? as usize;
    let size = word(at)? as usize;
    at += 4;
    let mut found = Vec::new();
    while at < end {
        let name = types.string(word(at)?);
        let section = file.section_by_name(name);
        let section = section.with_context(|| format!("the object has no section {name}"))?;
        let code = section.data()?;
        let relocated = word(at + 4)?;
        at += 8;
        for _ in 0..relocated {
            let raw = bpf_core_relo {
                insn_off: word(at)?,
                type_id: word(at + 4)?,
                access_str_off: word(at + 8)?,
                kind: word(at + 12)?,
            };
            at += size;
            let from = raw.insn_off as usize;
            let mut instructions = [[0; INSTRUCTION]; 2];
            for (index, one) in instructions.iter_mut().enumerate() {
                let from = from + index * INSTRUCTION;
                if let Some(bytes) = code.get(from..from + INSTRUCTION) {
                    one.copy_from_slice(bytes);
                }
            }
            found.push(Relocation {
                function: function_at(file, section.index(), u64::from(raw.insn_off)),
                raw,
                instructions,
            });
        }
    }
    Ok(found)
}

fn function_at(file: &object::File<'_>, section: SectionIndex, offset: u64) -> String {
    let symbols = file.symbols().filter(|symbol| {
        symbol.kind() == object::SymbolKind::Text
            && symbol.section_index() == Some(section)
            && (symbol.address()..symbol.address() + symbol.size()).contains(&offset)
    });
    let names = symbols.filter_map(|symbol| symbol.name().ok());
    names.last().unwrap_or("?").to_owned()
}
