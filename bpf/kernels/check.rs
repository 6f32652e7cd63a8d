//! Compares what the object asks of a kernel with what that kernel has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;
use libbpf_sys::BPF_CORE_FIELD_EXISTS;

use crate::btf::{Types, kind};
use crate::expected::{
    ENUMERATORS, FALLBACKS, Guard, KFUNCS, PER_CPU_VARIABLES, TRACEPOINTS, Version, WIDTHS, When,
    Where,
};
use crate::in_place::{essential, in_place};
use crate::object::BpfObject;
use crate::reduce::{MANIFEST, needed_names};
use crate::resolve::{Kernel, Outcome, Resolution, is_compatible, resolve};

/// The tag of functions that programs may call. Kernels since 6.10 or so have it; the `_impl` that
/// Linux 7.0 keeps of a function with implicit arguments has none.
const CALLABLE: &str = "bpf_kfunc";

/// Which kernel types are of, where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) version: Version,
    /// The processor by Debian's name, and `rt` before it for a kernel with PREEMPT_RT.
    pub(crate) variant: String,
}

impl Name {
    /// Parses the name of a file: `7.3-amd64.btf`, `7.3-rt-amd64.btf`.
    pub(crate) fn parse(file: &str) -> Option<Name> {
        let (version, variant) = file.strip_suffix(".btf")?.split_once('-')?;
        let (major, minor) = version.split_once('.')?;
        Some(Name {
            version: (major.parse().ok()?, minor.parse().ok()?),
            variant: variant.to_owned(),
        })
    }

    fn is_in(&self, when: When) -> bool {
        match when {
            When::Before(version) => self.version < version,
            When::From(version) => self.version >= version,
            When::Outside(from, before) => !(from..before).contains(&self.version),
            When::On(variant) => self.variant.split('-').any(|part| part == variant),
            When::Always => true,
            When::Never => false,
        }
    }
}

/// Something that this kernel does not have as the object asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// `task_struct.on_rq`, or the name of a function or tracepoint.
    pub(crate) what: String,
    /// Functions of the object that use it.
    pub(crate) programs: BTreeSet<String>,
    pub(crate) found: String,
    /// Why the object works without it. None: it does not.
    pub(crate) reason: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.reason.is_some() {
            "fallback"
        } else {
            "FAULT"
        };
        write!(f, "{verdict}: ")?;
        let mut programs = self.programs.iter();
        if let Some(first) = programs.next() {
            write!(f, "{first}")?;
            match programs.len() {
                0 => {}
                others => write!(f, " (and {others} more)")?,
            }
            write!(f, ": ")?;
        }
        write!(f, "{}: {}", self.what, self.found)?;
        match &self.reason {
            Some(reason) => write!(f, "; {reason}"),
            None => Ok(()),
        }
    }
}

/// Checks an object for a kernel. With a name, the tables say what to expect of it; without a
/// name, nobody has looked at that kernel.
///
/// # Errors
/// When libbpf refuses the types.
pub(crate) fn check(
    object: &BpfObject,
    kernel: &Kernel,
    name: Option<&Name>,
    reference: Option<&Types>,
) -> Result<Vec<Finding>> {
    let mut findings = left_out(object, kernel);
    findings.extend(fields(object, kernel, name, reference)?);
    findings.extend(kfuncs(object, kernel, name)?);
    findings.extend(tracepoints(object, kernel, name));
    findings.extend(by_name(kernel, name));
    Ok(findings)
}

fn fault(what: &str, found: impl Into<String>) -> Finding {
    Finding {
        what: what.to_owned(),
        programs: BTreeSet::new(),
        found: found.into(),
        reason: None,
    }
}

/// In a file that was made by `reduce`: what the object asks for and the file was not made with.
fn left_out(object: &BpfObject, kernel: &Kernel) -> Vec<Finding> {
    let Some(id) = kernel.types.by_name(kind::ENUM, MANIFEST) else {
        return Vec::new();
    };
    let words = kernel.types.get(id).words.chunks_exact(2);
    let included: BTreeSet<&str> = words.map(|words| kernel.types.string(words[0])).collect();
    let needed = needed_names(object).into_iter();
    let missing = needed.filter(|name| !included.contains(name.as_str()));
    missing
        .map(|name| {
            fault(
                &name,
                "not in this file, whatever the kernel has: run scripts/btf.sh",
            )
        })
        .collect()
}

fn fields(
    object: &BpfObject,
    kernel: &Kernel,
    name: Option<&Name>,
    reference: Option<&Types>,
) -> Result<Vec<Finding>> {
    let resolved = resolve(object, kernel)?;
    // What bpf_core_field_exists says on this kernel, in each function that asks.
    let exists: BTreeMap<(&str, String), bool> = resolved
        .iter()
        .filter(|one| one.relocation.raw.kind == BPF_CORE_FIELD_EXISTS)
        .map(|one| {
            let asked = (one.relocation.function.as_str(), one.field());
            (asked, one.outcome == Outcome::Resolved)
        })
        .collect();
    let mut by_field: BTreeMap<String, Vec<&Resolution<'_>>> = BTreeMap::new();
    for one in &resolved {
        by_field.entry(one.field()).or_default().push(one);
    }
    let mut findings = Vec::new();
    for (field, all) in &by_field {
        let unresolved = all
            .iter()
            .copied()
            .filter(|one| one.outcome != Outcome::Resolved);
        let unresolved: Vec<_> = unresolved.collect();
        let expected = FALLBACKS
            .iter()
            .find(|row| row.fields.contains(&field.as_str()));
        let due = expected.filter(|row| name.is_none_or(|name| name.is_in(row.missing)));
        if unresolved.is_empty() && due.is_some() && name.is_some() {
            let found = "this kernel has it, though bpf/kernels/expected.rs says otherwise";
            findings.push(fault(field, found));
        }
        // Why this one is never reached, or does no harm.
        let reason = |one: &Resolution<'_>| -> Option<&str> {
            let asked = |field: &str, place: Where| {
                let mut answers = exists.iter().filter(|((function, asked), _)| {
                    asked == field
                        && (place == Where::Anywhere || *function == one.relocation.function)
                });
                answers.next().map(|(_, exists)| *exists)
            };
            match (&one.outcome, due) {
                (Outcome::Absent | Outcome::Missing, Some(row)) => {
                    row.guard.holds(field, asked).then_some(row.reason)
                }
                // A kernel that the tables know should have it, whether or not the object asks.
                (Outcome::Absent | Outcome::Missing, None) => (name.is_none()
                    && Guard::Itself.holds(field, asked))
                .then_some("every known kernel has it, but the object asks before it reads"),
                (Outcome::OtherWidth, _) => {
                    let mut widths = WIDTHS.iter();
                    let found = widths.find(|row| row.field == field && row.bytes == one.sizes[1]);
                    found.map(|row| row.reason)
                }
                _ => None,
            }
        };
        let (fine, faults): (Vec<&Resolution<'_>>, Vec<_>) = unresolved
            .into_iter()
            .partition(|one| reason(one).is_some());
        let shown = if faults.is_empty() { fine } else { faults };
        let Some(first) = shown.first() else {
            continue;
        };
        findings.push(Finding {
            what: field.clone(),
            programs: shown
                .iter()
                .map(|one| one.relocation.function.clone())
                .collect(),
            found: describe(first, object, kernel, reference),
            reason: reason(first).map(str::to_owned),
        });
    }
    Ok(findings)
}

fn describe(
    one: &Resolution<'_>,
    object: &BpfObject,
    kernel: &Kernel,
    reference: Option<&Types>,
) -> String {
    let widths = || {
        let [declared, has] = one.sizes;
        let [declared_type, has_type] = one.types;
        format!(
            "{declared} bytes ({}) in the object, {has} ({}) in the kernel",
            object.types.display(declared_type),
            kernel.types.display(has_type)
        )
    };
    match one.outcome {
        Outcome::Resolved => "resolved".to_owned(),
        Outcome::Absent | Outcome::Missing => {
            in_place(&one.root, &one.path, &kernel.types, reference)
        }
        Outcome::FixedWidth => {
            let remedy = "libbpf changes the width of unsigned fields only";
            format!("{}: {remedy}", widths())
        }
        Outcome::OtherWidth => {
            let remedy = "it is read at its address, as wide as declared";
            format!("{}: {remedy}", widths())
        }
        Outcome::Refused(error) => {
            let names = in_place(&one.root, &one.path, &kernel.types, reference);
            format!("libbpf refuses the object, error {error}; {names}")
        }
    }
}

/// A function by its prototypes: as declared with and without `_impl`, and in flavours
/// (`name___ctx`), of which a kernel has one.
fn family(name: &str) -> &str {
    let name = essential(name);
    name.strip_suffix("_impl").unwrap_or(name)
}

fn kfuncs(object: &BpfObject, kernel: &Kernel, name: Option<&Name>) -> Result<Vec<Finding>> {
    let tags = kernel.types.function_tags();
    let has_tags = tags.values().flatten().any(|tag| *tag == CALLABLE);
    let mut families: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for id in &object.kfuncs {
        let all = families.entry(family(object.types.name(*id))).or_default();
        all.push(*id);
    }
    let callable = |id| !has_tags || tags.get(&id).is_some_and(|tags| tags.contains(&CALLABLE));
    let mut findings = Vec::new();
    for (family, declared) in families {
        let mut matching = Vec::new();
        for id in declared {
            let declared = object.types.name(id);
            let candidate = kernel.types.by_name(kind::FUNC, essential(declared));
            if let Some(candidate) = candidate
                && is_compatible(object, id, kernel, candidate)?
            {
                matching.push((declared, candidate));
            }
        }
        let Some(expected) = KFUNCS.iter().find(|kfunc| kfunc.family == family) else {
            let found = "a kfunc without a row in bpf/kernels/expected.rs";
            findings.push(fault(family, found));
            continue;
        };
        match matching[..] {
            [(_, id)] if callable(id) => {}
            [(name, id)] => {
                let prototype = kernel.types.display(id);
                let found = format!("libbpf takes it for `{prototype}`, which no program may call");
                findings.push(fault(name, found));
            }
            [] => {
                // Another prototype is never expected: the kernel has it, and it would not be used.
                let implemented = format!("{family}_impl");
                let others = [family, &implemented].into_iter().filter_map(|name| {
                    let id = kernel.types.by_name(kind::FUNC, name)?;
                    let prototype = kernel.types.display(id);
                    callable(id).then(|| format!("{name} is `{prototype}`"))
                });
                let others: Vec<_> = others.collect();
                if others.is_empty() {
                    let old = name.is_none_or(|name| name.version < expected.since);
                    findings.push(Finding {
                        reason: old.then(|| expected.reason.to_owned()),
                        ..fault(family, "the kernel has none")
                    });
                } else {
                    let found = format!("declared otherwise: {}", others.join(", "));
                    findings.push(fault(family, found));
                }
            }
            _ => {
                let names: Vec<_> = matching.iter().map(|(name, _)| *name).collect();
                let found = format!("{} all match, so one is called by chance", names.join(", "));
                findings.push(fault(family, found));
            }
        }
    }
    Ok(findings)
}

/// Programs get the arguments of a tracepoint as numbers and cast them, so the verifier sees a new
/// order only if a pointer has another type.
fn tracepoints(object: &BpfObject, kernel: &Kernel, name: Option<&Name>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (program, section) in &object.programs {
        let by_program = |what: &str, found: String, reason: Option<&str>| Finding {
            programs: [program.clone()].into(),
            reason: reason.map(str::to_owned),
            ..fault(what, found)
        };
        if let Some(iterator) = section
            .strip_prefix("iter/")
            .or(section.strip_prefix("iter.s/"))
        {
            let function = format!("bpf_iter_{iterator}");
            if kernel.types.by_name(kind::FUNC, &function).is_none() {
                findings.push(by_program(
                    &function,
                    "the kernel has none".to_owned(),
                    None,
                ));
            }
        }
        let Some(attached) = section.strip_prefix("tp_btf/") else {
            continue;
        };
        let Some(expected) = TRACEPOINTS.iter().find(|row| row.names.contains(&attached)) else {
            let found = "a tracepoint without a row in bpf/kernels/expected.rs".to_owned();
            findings.push(by_program(attached, found, None));
            continue;
        };
        let found = expected.names.iter().find_map(|name| {
            let id = kernel
                .types
                .by_name(kind::TYPEDEF, &format!("btf_trace_{name}"))?;
            Some((name, prototype(&kernel.types, id)))
        });
        match found {
            Some((_, prototype)) if expected.prototypes.contains(&prototype.as_str()) => {}
            Some((name, prototype)) => {
                let known = expected.prototypes.join("` or `");
                let found = format!("is `{prototype}`, expected `{known}`");
                findings.push(by_program(name, found, None));
            }
            None => {
                let missing = expected
                    .missing
                    .filter(|(when, _)| name.is_none_or(|name| name.is_in(*when)));
                let found = "the kernel has no such tracepoint".to_owned();
                findings.push(by_program(
                    attached,
                    found,
                    missing.map(|(_, reason)| reason),
                ));
            }
        }
    }
    findings
}

/// The arguments of a tracepoint, without the first, which is not the program's. Integers by their
/// size, since names of types change and programs see 64 bits of each.
fn prototype(types: &Types, id: u32) -> String {
    let pointer = types.get(types.resolved(id));
    let function = types.get(types.resolved(pointer.size_or_type));
    let arguments = function.words.chunks_exact(2).skip(1).map(|words| {
        let resolved = types.get(types.resolved(words[1]));
        match resolved.kind() {
            kind::INT | kind::ENUM => format!("{} bytes", resolved.size_or_type),
            _ => types.display(words[1]).into_owned(),
        }
    });
    arguments.collect::<Vec<_>>().join(", ")
}

/// What `bpf/src/` looks up by itself.
fn by_name(kernel: &Kernel, name: Option<&Name>) -> Vec<Finding> {
    let types = &kernel.types;
    let variables = types.by_name(kind::DATASEC, ".data..percpu");
    let variables = variables.map_or(&[][..], |id| &types.get(id).words);
    let variables: BTreeSet<&str> = variables
        .chunks_exact(3)
        .map(|words| types.name(words[0]))
        .collect();
    let enumerators = ENUMERATORS.iter().filter(|row| {
        row.names
            .iter()
            .all(|name| types.enumerator(name).is_none())
    });
    let variables = PER_CPU_VARIABLES
        .iter()
        .filter(|row| !row.names.iter().any(|name| variables.contains(*name)));
    enumerators
        .chain(variables)
        .map(|row| {
            let missing = row
                .missing
                .filter(|(when, _)| name.is_none_or(|name| name.is_in(*when)));
            Finding {
                reason: missing.map(|(_, reason)| reason.to_owned()),
                ..fault(&row.names.join(" or "), "the kernel has none")
            }
        })
        .collect()
}
