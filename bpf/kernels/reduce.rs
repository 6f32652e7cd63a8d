//! Makes a small file of a kernel's types: those that the object asks for.

use std::collections::{BTreeMap, BTreeSet};

use crate::btf::{Type, Types, kind};
use crate::expected::{ENUMERATORS, PER_CPU_VARIABLES, TRACEPOINTS};
use crate::in_place::essential;
use crate::object::BpfObject;

/// An enum that lists what a file was made with, whether the kernel has it (1) or not (0). So what
/// a kernel has not is told apart from what was left out.
pub(crate) const MANIFEST: &str = "kcollect_included";

/// The names that are looked up in the kernel's types.
pub(crate) fn needed_names(object: &BpfObject) -> BTreeSet<String> {
    let types = &object.types;
    let mut names = BTreeSet::new();
    for relocation in &object.relocations {
        structs_within(types, relocation.raw.type_id, &mut names);
    }
    for id in &object.kfuncs {
        let name = essential(types.name(*id));
        let family = name.strip_suffix("_impl").unwrap_or(name);
        names.insert(family.to_owned());
        names.insert(format!("{family}_impl"));
    }
    for (_, section) in &object.programs {
        if let Some(name) = section
            .strip_prefix("iter/")
            .or(section.strip_prefix("iter.s/"))
        {
            names.insert(format!("bpf_iter_{name}"));
        }
    }
    let tracepoints = TRACEPOINTS.iter().flat_map(|row| row.names);
    names.extend(tracepoints.map(|name| format!("btf_trace_{name}")));
    let others = ENUMERATORS.iter().chain(PER_CPU_VARIABLES);
    names.extend(
        others
            .flat_map(|row| row.names)
            .map(|name| (*name).to_owned()),
    );
    names
}

/// A struct, and all that are part of it: as the object declares them, they are read.
fn structs_within(types: &Types, id: u32, names: &mut BTreeSet<String>) {
    let id = types.resolved(id);
    let name = essential(types.name(id));
    if name.is_empty() || names.insert(name.to_owned()) {
        for member in types.members(id) {
            structs_within(types, member.id, names);
        }
        if types.get(id).kind() == kind::ARRAY {
            structs_within(types, types.get(id).words[0], names);
        }
    }
}

/// Makes types that have all of some names, with all members of the structs among them and of those
/// with some numbers. Other structs are there by name and size, without members.
pub(crate) fn reduce(kernel: &Types, names: &BTreeSet<String>, whole: &BTreeSet<u32>) -> Types {
    let wanted = |text: u32| names.contains(essential(kernel.string(text)));
    let mut reduction = Reduction {
        kernel,
        names,
        whole,
        made: Types::empty(),
        numbers: BTreeMap::from([(0, 0)]),
        strings: BTreeMap::new(),
    };
    let mut present = BTreeSet::new();
    let variables = kernel.by_name(kind::DATASEC, ".data..percpu");
    for (id, one) in (0_u32..).zip(&kernel.types) {
        let keep = match one.kind() {
            kind::STRUCT | kind::UNION | kind::FUNC | kind::TYPEDEF => wanted(one.name),
            kind::ENUM => one.words.chunks_exact(2).any(|words| wanted(words[0])),
            _ => Some(id) == variables,
        };
        if !keep {
            continue;
        }
        reduction.copy(id);
        match one.kind() {
            kind::ENUM => present.extend(one.words.chunks_exact(2).map(|words| words[0])),
            kind::DATASEC => {
                let variables = one.words.chunks_exact(3);
                present.extend(variables.map(|words| kernel.get(words[0]).name));
            }
            _ => _ = present.insert(one.name),
        }
    }
    for (_, tag) in kernel.of_kinds(&[kind::DECL_TAG]) {
        // Of functions: the component of others is the number of a member.
        let function = kernel.get(tag.size_or_type);
        if function.kind() == kind::FUNC && wanted(function.name) {
            reduction.tag(tag);
        }
    }
    let present: BTreeSet<&str> = present
        .iter()
        .map(|text| essential(kernel.string(*text)))
        .collect();
    reduction.finish(&present)
}

struct Reduction<'a> {
    kernel: &'a Types,
    names: &'a BTreeSet<String>,
    whole: &'a BTreeSet<u32>,
    made: Types,
    /// The new numbers of types.
    numbers: BTreeMap<u32, u32>,
    strings: BTreeMap<String, u32>,
}

impl Reduction<'_> {
    fn string(&mut self, text: &str) -> u32 {
        if let Some(at) = self.strings.get(text) {
            return *at;
        }
        let at = self.made.add_string(text);
        self.strings.insert(text.to_owned(), at);
        at
    }

    /// Copies a type and what it refers to, and returns its new number.
    fn copy(&mut self, id: u32) -> u32 {
        if let Some(number) = self.numbers.get(&id) {
            return *number;
        }
        let mut one = self.kernel.get(id).clone();
        let name = self.kernel.string(one.name);
        let kept = match one.kind() {
            kind::STRUCT | kind::UNION if name.is_empty() => true,
            kind::STRUCT | kind::UNION => {
                self.whole.contains(&id) || self.names.contains(essential(name))
            }
            kind::ENUM | kind::ENUM64 => {
                let names = one.words.chunks_exact(2);
                let mut names = names.map(|words| self.kernel.string(words[0]));
                one.kind() == kind::ENUM && names.any(|name| self.names.contains(name))
            }
            kind::DATASEC => {
                self.keep_wanted_variables(&mut one);
                true
            }
            _ => true,
        };
        if !kept {
            one = Type {
                info: one.info & !0xffff,
                words: Vec::new(),
                ..one
            };
        }
        one.name = self.string(name);
        let step = match one.kind() {
            kind::STRUCT | kind::UNION | kind::ENUM64 => 3,
            kind::ENUM => 2,
            // Names of parameters say what the verifier checks (`__map`, `__prog`).
            kind::FUNC_PROTO => 2,
            _ => usize::MAX,
        };
        if step < usize::MAX {
            for index in (0..one.words.len()).step_by(step) {
                one.words[index] = self.string(self.kernel.string(one.words[index]));
            }
        }
        // Its number is known before what it refers to is copied, which may refer to it.
        let number = self.made.add(one.clone());
        self.numbers.insert(id, number);
        for other in one.referenced() {
            self.copy(other);
        }
        one.renumber(|other| self.numbers.get(&other).copied().unwrap_or(0));
        self.made.types[number as usize] = one;
        number
    }

    /// Leaves the variables in a section that are looked up.
    fn keep_wanted_variables(&self, section: &mut Type) {
        let wanted = |words: &&[u32]| self.names.contains(self.kernel.name(words[0]));
        let words: Vec<u32> = section
            .words
            .chunks_exact(3)
            .filter(wanted)
            .flatten()
            .copied()
            .collect();
        *section = Type::new(section.name, kind::DATASEC, section.size_or_type, words);
    }

    fn tag(&mut self, tag: &Type) {
        let name = self.string(self.kernel.string(tag.name));
        let of = self.copy(tag.size_or_type);
        self.made.add(Type {
            name,
            size_or_type: of,
            ..tag.clone()
        });
    }

    fn finish(mut self, present: &BTreeSet<&str>) -> Types {
        let mut words = Vec::new();
        for name in self.names {
            words.push(self.string(name));
            words.push(u32::from(present.contains(name.as_str())));
        }
        let name = self.string(MANIFEST);
        self.made.add(Type::new(name, kind::ENUM, 4, words));
        self.made
    }
}
