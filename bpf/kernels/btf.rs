//! Types of a kernel (BTF) as plain data, to be looked at, edited and written again. What libbpf
//! decides is left to libbpf: see `resolve.rs`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};

/// The kinds of types by number (include/uapi/linux/btf.h), as far as any is told apart here.
pub(crate) mod kind {
    pub(crate) const INT: u32 = 1;
    pub(crate) const PTR: u32 = 2;
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const STRUCT: u32 = 4;
    pub(crate) const UNION: u32 = 5;
    pub(crate) const ENUM: u32 = 6;
    pub(crate) const FWD: u32 = 7;
    pub(crate) const TYPEDEF: u32 = 8;
    pub(crate) const VOLATILE: u32 = 9;
    pub(crate) const CONST: u32 = 10;
    pub(crate) const RESTRICT: u32 = 11;
    pub(crate) const FUNC: u32 = 12;
    pub(crate) const FUNC_PROTO: u32 = 13;
    pub(crate) const VAR: u32 = 14;
    pub(crate) const DATASEC: u32 = 15;
    pub(crate) const DECL_TAG: u32 = 17;
    pub(crate) const TYPE_TAG: u32 = 18;
    pub(crate) const ENUM64: u32 = 19;
}

const MAGIC_AND_VERSION: [u8; 3] = [0x9f, 0xeb, 1];
const HEADER_BYTES: usize = 24;

/// One type: the three words that all have, and those that depend on its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Type {
    /// Offset of the name.
    pub(crate) name: u32,
    /// Number of elements, kind and flag.
    pub(crate) info: u32,
    /// Size in bytes, or the number of another type.
    pub(crate) size_or_type: u32,
    /// Members, parameters, enumerators, ….
    pub(crate) words: Vec<u32>,
}

/// A member of a struct or union.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: u32,
}

/// All types, by number; number 0 is void.
#[derive(Clone, Debug)]
pub(crate) struct Types {
    pub(crate) types: Vec<Type>,
    strings: Vec<u8>,
}

impl Type {
    pub(crate) fn new(name: u32, kind: u32, size_or_type: u32, words: Vec<u32>) -> Type {
        let elements = words.len() / words_per_element(kind).unwrap_or(1);
        // No element of this file's callers comes near the limit of 65,535.
        let info = (kind << 24) | u32::try_from(elements).unwrap_or(0);
        Type {
            name,
            info,
            size_or_type,
            words,
        }
    }

    pub(crate) fn kind(&self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    pub(crate) fn is_composite(&self) -> bool {
        matches!(self.kind(), kind::STRUCT | kind::UNION)
    }

    /// Indices in `words` of the numbers of other types.
    fn references(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = match self.kind() {
            kind::ARRAY => (0, 1),
            kind::STRUCT | kind::UNION => (1, 3),
            kind::FUNC_PROTO => (1, 2),
            kind::DATASEC => (0, 3),
            _ => (usize::MAX, 1),
        };
        // The third word of an array is a number of elements.
        let end = if self.kind() == kind::ARRAY {
            2
        } else {
            self.words.len()
        };
        (first..end).step_by(step)
    }

    fn refers_by_third_word(&self) -> bool {
        matches!(
            self.kind(),
            kind::PTR
                | kind::TYPEDEF
                | kind::VOLATILE
                | kind::CONST
                | kind::RESTRICT
                | kind::FUNC
                | kind::FUNC_PROTO
                | kind::VAR
                | kind::DECL_TAG
                | kind::TYPE_TAG
        )
    }

    /// The numbers of all types that this one refers to.
    pub(crate) fn referenced(&self) -> Vec<u32> {
        let direct = self.refers_by_third_word().then_some(self.size_or_type);
        let of_words = self.references().map(|index| self.words[index]);
        direct.into_iter().chain(of_words).collect()
    }

    /// Changes the numbers of all types that this one refers to.
    pub(crate) fn renumber(&mut self, new: impl Fn(u32) -> u32) {
        if self.refers_by_third_word() {
            self.size_or_type = new(self.size_or_type);
        }
        for index in self.references() {
            self.words[index] = new(self.words[index]);
        }
    }
}

/// Number of words of each element, of kinds that have a number of elements.
fn words_per_element(kind: u32) -> Option<usize> {
    match kind {
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => Some(3),
        kind::ENUM | kind::FUNC_PROTO => Some(2),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns the BTF that begins somewhere, if one does.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let header = word(bytes, 4)? as usize;
    let [types_at, types, strings_at, strings] =
        [8, 12, 16, 20].map(|at| word(bytes, at).map(|word| word as usize));
    let (types_at, types, strings_at, strings) = (types_at?, types?, strings_at?, strings?);
    if header < HEADER_BYTES || types_at.checked_add(types)? > strings_at || strings == 0 {
        return None;
    }
    let first = header.checked_add(strings_at)?;
    let end = first.checked_add(strings)?;
    let is_text = bytes.get(first)? == &0 && bytes.get(end - 1)? == &0;
    is_text.then(|| &bytes[..end])
}

/// Finds the BTF of a kernel in a file: a BTF file, an ELF file, or a kernel's image that is not
/// compressed. It is the largest one: programs that come with the kernel have some of their own.
pub(crate) fn find(file: &[u8]) -> Result<&[u8]> {
    // In some files it is not aligned.
    let starts = file.iter().enumerate();
    let starts = starts.filter(|(_, byte)| **byte == MAGIC_AND_VERSION[0]);
    starts
        .map(|(start, _)| &file[start..])
        .filter(|rest| rest.starts_with(&MAGIC_AND_VERSION))
        .filter_map(whole)
        .max_by_key(|btf| btf.len())
        .context("there is no BTF in it; a compressed kernel has to be unpacked first")
}

impl Types {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Types> {
        let bytes = whole(bytes).context("not BTF, or cut off")?;
        let header = |index| word(bytes, index).map_or(0, |word| word as usize);
        let (first, strings) = (header(4) + header(8), header(4) + header(16));
        let words = bytes[first..first + header(12)].chunks_exact(4);
        let words: Vec<u32> = words.filter_map(|bytes| word(bytes, 0)).collect();
        let mut types = vec![Type::default()];
        let mut rest = &words[..];
        while let [name, info, size_or_type, tail @ ..] = rest {
            let mut one = Type {
                name: *name,
                info: *info,
                size_or_type: *size_or_type,
                words: Vec::new(),
            };
            let count = match one.kind() {
                kind::INT | kind::VAR | kind::DECL_TAG => 1,
                kind::ARRAY => 3,
                kind if kind <= kind::ENUM64 => {
                    words_per_element(kind).unwrap_or(0) * (info & 0xffff) as usize
                }
                kind => bail!("types of kind {kind} are unknown"),
            };
            ensure!(count <= tail.len(), "type {} is cut off", types.len());
            one.words = tail[..count].to_vec();
            types.push(one);
            rest = &tail[count..];
        }
        let mut referenced = types.iter().flat_map(Type::referenced);
        if let Some(id) = referenced.find(|id| *id as usize >= types.len()) {
            bail!("there is no type {id}, which another one refers to");
        }
        Ok(Types {
            types,
            strings: bytes[strings..].to_vec(),
        })
    }

    /// No type but void.
    pub(crate) fn empty() -> Types {
        Types {
            types: vec![Type::default()],
            strings: vec![0],
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut words = Vec::new();
        for one in &self.types[1..] {
            words.extend([one.name, one.info, one.size_or_type]);
            words.extend(&one.words);
        }
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let types = length(words.len() * 4);
        let header = [24, 0, types, types, length(self.strings.len())];
        let head = [&MAGIC_AND_VERSION[..], &[0]].concat();
        let words = header.into_iter().chain(words);
        let words: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        [head, words, self.strings.clone()].concat()
    }

    /// Adds a string, and returns its offset.
    pub(crate) fn add_string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len();
        self.strings.extend(text.bytes());
        self.strings.push(0);
        u32::try_from(at).unwrap_or(0)
    }

    /// Adds a type, and returns its number.
    pub(crate) fn add(&mut self, one: Type) -> u32 {
        self.types.push(one);
        u32::try_from(self.types.len() - 1).unwrap_or(0)
    }

    /// A type by number; void for numbers that no type has.
    pub(crate) fn get(&self, id: u32) -> &Type {
        self.types.get(id as usize).unwrap_or(&self.types[0])
    }

    pub(crate) fn string(&self, at: u32) -> &str {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&rest[..length]).unwrap_or("?")
    }

    pub(crate) fn name(&self, id: u32) -> &str {
        self.string(self.get(id).name)
    }

    /// All types of some kinds, with their numbers.
    pub(crate) fn of_kinds<'a>(
        &'a self,
        kinds: &'a [u32],
    ) -> impl Iterator<Item = (u32, &'a Type)> + 'a {
        (0_u32..)
            .zip(&self.types)
            .filter(|(_, one)| kinds.contains(&one.kind()))
    }

    /// The first type of a kind with a name.
    pub(crate) fn by_name(&self, kind: u32, name: &str) -> Option<u32> {
        self.of_kinds(&[kind])
            .find(|(_, one)| self.string(one.name) == name)
            .map(|(id, _)| id)
    }

    pub(crate) fn members(&self, id: u32) -> impl Iterator<Item = Member<'_>> {
        let one = self.get(id);
        let words: &[u32] = if one.is_composite() { &one.words } else { &[] };
        words.chunks_exact(3).map(|words| Member {
            name: self.string(words[0]),
            id: words[1],
        })
    }

    /// The type after typedefs and qualifiers.
    pub(crate) fn resolved(&self, mut id: u32) -> u32 {
        while let kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG =
            self.get(id).kind()
        {
            id = self.get(id).size_or_type;
        }
        id
    }

    /// The tags of each function that has some.
    pub(crate) fn function_tags(&self) -> BTreeMap<u32, Vec<&str>> {
        let mut tags: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for (_, tag) in self.of_kinds(&[kind::DECL_TAG]) {
            let of = tags.entry(tag.size_or_type).or_default();
            of.push(self.string(tag.name));
        }
        tags
    }

    /// The value of an enumerator.
    pub(crate) fn enumerator(&self, name: &str) -> Option<u32> {
        let enums = self.of_kinds(&[kind::ENUM]);
        let mut all = enums.flat_map(|(_, one)| one.words.chunks_exact(2));
        all.find(|words| self.string(words[0]) == name)
            .map(|words| words[1])
    }

    /// A type as in C. Names of parameters are left out: they carry no meaning for callers.
    pub(crate) fn display(&self, id: u32) -> Cow<'_, str> {
        if id == 0 {
            return "void".into();
        }
        let one = self.get(id);
        let inner = || self.display(one.size_or_type);
        let named = |keyword: &str| match self.name(id) {
            "" => format!("{keyword} {{…}}").into(),
            name => format!("{keyword} {name}").into(),
        };
        match one.kind() {
            kind::PTR => {
                let target = inner();
                let space = if target.ends_with('*') { "" } else { " " };
                format!("{target}{space}*").into()
            }
            kind::CONST => format!("const {}", inner()).into(),
            kind::VOLATILE => format!("volatile {}", inner()).into(),
            kind::RESTRICT | kind::TYPE_TAG | kind::FUNC => inner(),
            kind::ARRAY => format!("{}[{}]", self.display(one.words[0]), one.words[2]).into(),
            kind::STRUCT => named("struct"),
            kind::UNION => named("union"),
            kind::FWD if one.info >> 31 != 0 => named("union"),
            kind::FWD => named("struct"),
            kind::ENUM | kind::ENUM64 => named("enum"),
            kind::FUNC_PROTO => {
                let parameters: Vec<_> = one
                    .words
                    .chunks_exact(2)
                    .map(|words| self.display(words[1]))
                    .collect();
                let parameters = if parameters.is_empty() {
                    "void".to_owned()
                } else {
                    parameters.join(", ")
                };
                format!("{} ({parameters})", inner()).into()
            }
            _ => self.name(id).into(),
        }
    }
}
