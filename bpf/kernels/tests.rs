//! The object against Debian's kernels, and against types that were edited.

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::architecture;
use crate::btf::{Type, Types, find, kind};
use crate::check::{Finding, Name, check};
use crate::expected::{FALLBACKS, Guard, Where};
use crate::object::BpfObject;
use crate::reduce::MANIFEST;
use crate::resolve::{Kernel, Resolution, resolve};

static AMD64: LazyLock<BpfObject> = LazyLock::new(|| BpfObject::of("amd64").unwrap());
static ARM64: LazyLock<BpfObject> = LazyLock::new(|| BpfObject::of("arm64").unwrap());

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels/btf")
}

fn types(file: &str) -> Types {
    crate::read(&directory().join(file)).unwrap()
}

#[test]
fn object_resolves_on_every_kernel() {
    let mut faults = Vec::new();
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = Name::parse(&file).unwrap();
        let types = types(&file);
        let object = match architecture(&types).unwrap() {
            "amd64" => &AMD64,
            _ => &ARM64,
        };
        let kernel = Kernel::new(types).unwrap();
        let findings = check(object, &kernel, Some(&name), None).unwrap();
        let of_kernel = findings.iter().filter(|one| one.reason.is_none());
        faults.extend(of_kernel.map(|finding| format!("{file}: {finding}")));
        seen.push(file);
    }
    faults.sort();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    for version in ["6.1", "6.12", "6.18", "6.19", "7.0", "7.1", "7.2", "7.3"] {
        for architecture in ["amd64", "arm64"] {
            let file = format!("{version}-{architecture}.btf");
            assert!(seen.contains(&file), "no {file}: run scripts/btf.sh");
        }
    }
}

#[test]
fn every_fallback_is_of_a_field_that_is_read() {
    let kernel = Kernel::new(types(BASE)).unwrap();
    let resolved = resolve(&AMD64, &kernel).unwrap();
    let fields: Vec<_> = resolved.iter().map(Resolution::field).collect();
    for field in FALLBACKS.iter().flat_map(|row| row.fields) {
        assert!(fields.iter().any(|other| other == field), "{field}");
    }
}

/// What an edited kernel does not have and the original has. The kernel counts as not looked at, so
/// its version says nothing.
fn after(file: &str, edit: impl FnOnce(&mut Types)) -> Vec<Finding> {
    let original = types(file);
    let mut edited = original.clone();
    edit(&mut edited);
    let kernel = |types: &Types| Kernel::new(types.clone()).unwrap();
    let before = check(&AMD64, &kernel(&original), None, None).unwrap();
    let mut found = check(&AMD64, &kernel(&edited), None, Some(&original)).unwrap();
    found.retain(|one| !before.contains(one));
    found
}

/// The only finding after an edit: its field, what is found, and whether it is a fault.
fn only(findings: Vec<Finding>) -> (String, String, bool) {
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let one = findings.into_iter().next().unwrap();
    (one.what, one.found, one.reason.is_none())
}

const BASE: &str = "6.18-amd64.btf";

/// The words of a member, which may be in an anonymous part: its name, its type, and its offset.
fn member<'a>(types: &'a mut Types, of: &str, name: &str) -> &'a mut [u32] {
    fn place(types: &Types, id: u32, name: &str) -> Option<(u32, usize)> {
        let members: Vec<_> = types.members(id).collect();
        let here = members.iter().position(|member| member.name == name);
        here.map(|index| (id, index * 3)).or_else(|| {
            let mut inner = members.iter().filter(|member| member.name.is_empty());
            inner.find_map(|member| place(types, types.resolved(member.id), name))
        })
    }
    let id = types.by_name(kind::STRUCT, of).unwrap();
    let (id, index) = place(types, id, name).unwrap();
    &mut types.types[id as usize].words[index..index + 3]
}

fn rename(types: &mut Types, of: &str, name: &str, new: &str) {
    let text = types.add_string(new);
    member(types, of, name)[0] = text;
}

fn retype(types: &mut Types, of: &str, name: &str, id: u32) {
    member(types, of, name)[1] = id;
}

/// Adds an integer.
fn integer(types: &mut Types, bytes: u32, signed: bool) -> u32 {
    let name = types.add_string("edited");
    let encoding = (u32::from(signed) << 24) | (bytes * 8);
    types.add(Type::new(name, kind::INT, bytes, vec![encoding]))
}

/// Moves a member into a struct of its own, which has a name or is part of the outer one.
fn nest(types: &mut Types, of: &str, name: &str, inner: &str) {
    let [text, id, _] = *member(types, of, name) else {
        panic!("three words");
    };
    let inner = types.add_string(inner);
    let nested = types.add(Type::new(0, kind::STRUCT, 8, vec![text, id, 0]));
    let words = member(types, of, name);
    (words[0], words[1]) = (inner, nested);
}

#[test]
fn renamed_field_is_a_fault_and_its_place_is_named() {
    let found = after(BASE, |types| {
        rename(types, "task_struct", "jobctl", "job_control")
    });
    let (what, found, fault) = only(found);
    assert_eq!(what, "task_struct.jobctl");
    assert_eq!(
        found,
        "struct task_struct has no member jobctl; in its place is `long unsigned int job_control`"
    );
    assert!(fault);
}

#[test]
fn renamed_field_that_is_asked_for_has_a_fallback() {
    let found = after(BASE, |types| {
        rename(types, "task_struct", "utask", "probes")
    });
    let (what, _, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("task_struct.utask", false));
}

#[test]
fn another_fields_answer_guards_only_where_it_is_no() {
    let rename = |types: &mut Types| rename(types, "io_rsrc_node", "file_ptr", "target");
    let (what, _, fault) = only(after(BASE, rename));
    assert_eq!((what.as_str(), fault), ("io_rsrc_node.file_ptr", true));
    // There the struct is another one, and is not read.
    let kernel = Kernel::new(types("6.12-amd64.btf")).unwrap();
    let found = check(&AMD64, &kernel, None, None).unwrap();
    let node = found.iter().find(|one| one.what == what).unwrap();
    assert!(node.reason.is_some(), "{node}");
}

#[test]
fn guard_holds_only_where_it_is_asked() {
    let asked = |field: &str, place: Where| match (field, place) {
        ("there", _) => Some(true),
        ("missing", _) => Some(false),
        ("missing, elsewhere", Where::Anywhere) => Some(false),
        _ => None,
    };
    assert!(Guard::Itself.holds("missing", asked));
    assert!(!Guard::Itself.holds("missing, elsewhere", asked));
    assert!(Guard::OnlyIf("missing").holds("field", asked));
    assert!(!Guard::OnlyIf("there").holds("field", asked));
    assert!(!Guard::OnlyIf("missing, elsewhere").holds("field", asked));
    assert!(Guard::CalledOnlyIf("missing, elsewhere").holds("field", asked));
    assert!(!Guard::CalledOnlyIf("there").holds("field", asked));
    assert!(Guard::Unless(&["missing", "there"]).holds("field", asked));
    assert!(!Guard::Unless(&["missing", "never asked"]).holds("field", asked));
}

#[test]
fn kernels_without_uprobes_or_control_groups_have_fallbacks() {
    let found = after(BASE, |types| {
        rename(types, "task_struct", "utask", "other");
        rename(types, "uprobes_state", "xol_area", "other");
        rename(types, "task_struct", "cgroups", "other");
        for name in [
            "uprobe_task",
            "return_instance",
            "xol_area",
            "css_set",
            "cgroup",
        ] {
            let id = types.by_name(kind::STRUCT, name).unwrap();
            types.types[id as usize].name = 0;
        }
    });
    assert!(found.len() > 10, "{found:#?}");
    let faults: Vec<_> = found.iter().filter(|one| one.reason.is_none()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn kernels_without_the_schedulers_figures_have_fallbacks() {
    let fields = [
        ("task_struct", "sched_info"),
        ("sched_info", "last_arrival"),
        ("sched_info", "last_queued"),
        ("sched_info", "run_delay"),
        ("sched_entity", "cfs_rq"),
        ("rq", "clock"),
    ];
    for (of, field) in fields {
        let found = after(BASE, |types| rename(types, of, field, "other"));
        assert!(!found.is_empty(), "{of}.{field}");
        let faults: Vec<_> = found.iter().filter(|one| one.reason.is_none()).collect();
        assert!(faults.is_empty(), "{of}.{field}: {faults:#?}");
    }
}

#[test]
fn loads_of_unsigned_fields_take_any_width() {
    for bytes in [1, 2, 8] {
        let found = after(BASE, |types| {
            let id = integer(types, bytes, false);
            retype(types, "task_struct", "flags", id);
        });
        assert_eq!(found, [], "{bytes} bytes");
    }
}

#[test]
fn loads_of_signed_fields_take_no_other_width() {
    for bytes in [1, 8] {
        let found = after(BASE, |types| {
            let id = integer(types, bytes, false);
            retype(types, "io_cqe", "res", id);
        });
        let loaded = found.iter().find(|one| one.what == "io_cqe.res").unwrap();
        let expected = format!("4 bytes (int) in the object, {bytes} (edited) in the kernel");
        assert!(loaded.found.starts_with(&expected), "{loaded}");
        assert!(loaded.reason.is_none(), "{loaded}");
    }
}

#[test]
fn loads_of_fields_that_became_signed_and_narrow_are_refused() {
    let found = after(BASE, |types| {
        let id = integer(types, 2, true);
        retype(types, "task_struct", "flags", id);
    });
    let (what, _, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("task_struct.flags", true));
}

#[test]
fn sign_alone_does_not_matter() {
    let found = after(BASE, |types| {
        let id = integer(types, 4, true);
        retype(types, "task_struct", "flags", id);
    });
    assert_eq!(found, []);
}

/// libbpf takes it: `bpf_core_read` reads as many bytes as the object declares.
#[test]
fn fields_that_are_read_at_their_address_keep_their_width() {
    for bytes in [2, 8] {
        let found = after(BASE, |types| {
            let id = integer(types, bytes, true);
            retype(types, "cgroup", "level", id);
        });
        let (what, found, fault) = only(found);
        assert_eq!((what.as_str(), fault), ("cgroup.level", true), "{found}");
    }
}

#[test]
fn field_of_another_kind_does_not_match() {
    let found = after(BASE, |types| {
        let pointer = types.add(Type::new(0, kind::PTR, 0, Vec::new()));
        retype(types, "task_struct", "jobctl", pointer);
    });
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("task_struct.jobctl", true));
    assert_eq!(
        found,
        "struct task_struct.jobctl is void *, which does not match"
    );
}

#[test]
fn anonymous_structs_are_searched_and_named_ones_are_not() {
    let found = after(BASE, |types| nest(types, "task_struct", "jobctl", ""));
    assert_eq!(found, []);
    let found = after(BASE, |types| nest(types, "task_struct", "jobctl", "job"));
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("task_struct.jobctl", true));
    assert_eq!(
        found,
        "struct task_struct has no member jobctl; it has job.jobctl (long unsigned int)"
    );
}

#[test]
fn bit_fields_may_become_bytes() {
    let found = after(BASE, |types| {
        let byte = integer(types, 1, false);
        let words = member(types, "task_struct", "in_iowait");
        // The offset alone, aligned: of no bits.
        (words[1], words[2]) = (byte, words[2] & 0xff_fff8);
    });
    assert_eq!(found, []);
}

#[test]
fn two_types_of_one_name_that_differ_are_refused() {
    let found = after(BASE, |types| {
        let (name, id) = (types.add_string("cgroup"), integer(types, 4, true));
        let level = types.add_string("level");
        types.add(Type::new(name, kind::STRUCT, 8, vec![level, id, 32]));
    });
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("cgroup.level", true));
    assert!(found.starts_with("libbpf refuses the object"), "{found}");
}

#[test]
fn kfunc_without_its_tag_cannot_be_called() {
    let found = after("7.3-amd64.btf", |types| {
        let function = types.by_name(kind::FUNC, "bpf_rdonly_cast").unwrap();
        for one in &mut types.types {
            if one.kind() == kind::DECL_TAG && one.size_or_type == function {
                one.name = 0;
            }
        }
    });
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("bpf_rdonly_cast", true));
    assert!(found.ends_with("which no program may call"), "{found}");
}

#[test]
fn kfunc_with_other_parameters_is_a_fault() {
    let found = after("7.3-amd64.btf", |types| {
        let function = types.by_name(kind::FUNC, "bpf_rdonly_cast").unwrap();
        let prototype = types.get(function).size_or_type;
        let mut words = types.get(prototype).words.clone();
        words.extend([0, integer(types, 4, false)]);
        let returned = types.get(prototype).size_or_type;
        let other = types.add(Type::new(0, kind::FUNC_PROTO, returned, words));
        types.types[function as usize].size_or_type = other;
    });
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("bpf_rdonly_cast", true));
    assert!(found.starts_with("declared otherwise: "), "{found}");
}

#[test]
fn missing_kfunc_has_a_fallback_on_a_kernel_that_nobody_knows() {
    let found = after("7.3-amd64.btf", |types| {
        for one in &mut types.types {
            if one.kind() == kind::FUNC {
                one.name = 0;
            }
        }
    });
    let faults: Vec<_> = found.iter().filter(|one| one.reason.is_none()).collect();
    // The iterator over all threads is one of these functions.
    assert!(
        faults.iter().all(|one| one.what == "bpf_iter_task"),
        "{faults:?}"
    );
    assert!(
        found.iter().any(|one| one.what == "bpf_rdonly_cast"),
        "{found:?}"
    );
}

#[test]
fn tracepoint_with_other_arguments_is_a_fault() {
    let mut found = after(BASE, |types| {
        let typedef = types
            .by_name(kind::TYPEDEF, "btf_trace_sched_switch")
            .unwrap();
        let pointer = types.get(typedef).size_or_type;
        let function = types.get(pointer).size_or_type as usize;
        types.types[function].words.swap(3, 5);
    });
    // Two programs are for it, of which one is loaded.
    found.retain(|one| one.programs.contains("kc_sched_switch"));
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("sched_switch", true));
    assert!(
        found.starts_with("is `struct task_struct *, 1 bytes, "),
        "{found}"
    );
}

#[test]
fn what_a_file_was_made_without_is_not_taken_for_missing() {
    let found = after(BASE, |types| {
        let manifest = types.by_name(kind::ENUM, MANIFEST).unwrap() as usize;
        let name = (0..types.types[manifest].words.len())
            .step_by(2)
            .find(|index| types.string(types.types[manifest].words[*index]) == "task_struct");
        types.types[manifest].words[name.unwrap()] = 0;
    });
    let (what, found, fault) = only(found);
    assert_eq!((what.as_str(), fault), ("task_struct", true));
    assert!(found.starts_with("not in this file"), "{found}");
}

#[test]
fn types_are_written_as_they_were_read() {
    let bytes = std::fs::read(directory().join(BASE)).unwrap();
    assert_eq!(Types::parse(&bytes).unwrap().to_bytes(), bytes);
}

#[test]
fn largest_types_in_an_image_are_found() {
    let (small, large) = (Types::empty().to_bytes(), types(BASE).to_bytes());
    let parts = [
        &[0; 61][..],
        &small,
        &[0; 7],
        &large,
        &[0x9f, 0xeb, 1, 0, 9],
    ];
    let image = parts.concat();
    assert_eq!(find(&image).unwrap(), large);
    assert!(find(&image[..80]).is_err());
}

#[test]
fn damaged_types_are_refused() {
    let bytes = std::fs::read(directory().join(BASE)).unwrap();
    for length in (0..bytes.len()).step_by(997) {
        assert!(Types::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    for at in (0..bytes.len()).step_by(101) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        // Whatever it says, it is read or refused.
        if let Ok(types) = Types::parse(&damaged) {
            types
                .of_kinds(&[kind::STRUCT])
                .for_each(|(id, _)| _ = types.members(id).count());
        }
    }
}

/// libbpf changes the width of a load to the kernel field's width only if both are unsigned.
#[test]
fn loads_are_of_unsigned_fields() {
    const LOAD: u8 = 1;
    // What may be negative, as wide as the kernel's interface has it (struct io_uring_cqe, _sqe).
    const SIGNED: [&str; 2] = ["io_cqe.res", "io_kiocb.cqe.fd"];
    let kernel = Kernel::new(types(BASE)).unwrap();
    let resolved = resolve(&AMD64, &kernel).unwrap();
    let loads = resolved
        .iter()
        .filter(|one| one.relocation.instructions[0][0] & 7 == LOAD);
    let signed = loads.filter(|one| {
        let field = AMD64.types.get(one.types[0]);
        field.kind() == kind::INT && (field.words[0] >> 24) & 1 != 0
    });
    let mut fields: Vec<_> = signed.map(Resolution::field).collect();
    fields.sort();
    fields.dedup();
    assert_eq!(fields, SIGNED);
}
