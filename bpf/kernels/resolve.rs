//! Resolves the relocations of the BPF object for a kernel, by libbpf itself.
//!
//! libbpf does so only while it loads, which needs a privilege and changes the running kernel. So
//! this calls the functions by which it does (`src/relo_core.h`), as `bpftool gen min_core_btf`
//! does. They are not part of its interface: declared here as they are in the version that
//! Cargo.lock names, and no part of the product uses them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::{self, NonNull};

use anyhow::{Context as _, Result, bail, ensure};
use libbpf_sys::{
    BPF_CORE_FIELD_BYTE_OFFSET, BPF_CORE_FIELD_EXISTS, BPF_CORE_TYPE_EXISTS, BPF_CORE_TYPE_MATCHES,
    bpf_core_relo, bpf_insn, btf,
};

use crate::btf::{Types, kind};
use crate::object::{BpfObject, Relocation};

const MAX_ACCESSORS: usize = 64;

#[repr(C)]
struct Candidate {
    btf: *const btf,
    id: u32,
}

/// `struct bpf_core_cand_list`, allocated by libbpf.
#[repr(C)]
struct Candidates {
    candidates: *mut Candidate,
    count: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Accessor {
    type_id: u32,
    index: u32,
    name: *const c_char,
}

/// `struct bpf_core_spec`: a way from a type to a field.
#[repr(C)]
#[derive(Clone, Copy)]
struct Spec {
    btf: *const btf,
    accessors: [Accessor; MAX_ACCESSORS],
    root_type_id: u32,
    kind: u32,
    count: c_int,
    raw: [c_int; MAX_ACCESSORS],
    raw_count: c_int,
    bit_offset: u32,
}

/// `struct bpf_core_relo_res`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Decision {
    old_value: u64,
    new_value: u64,
    poison: bool,
    validate: bool,
    fail_size: bool,
    old_size: u32,
    old_type_id: u32,
    new_size: u32,
    new_type_id: u32,
}

unsafe extern "C" {
    fn bpf_core_essential_name_len(name: *const c_char) -> usize;
    fn bpf_core_add_cands(
        local: *mut Candidate,
        name_length: usize,
        kernel: *const btf,
        kernel_name: *const c_char,
        first_id: c_int,
        candidates: *mut Candidates,
    ) -> c_int;
    fn bpf_core_calc_relo_insn(
        program: *const c_char,
        relocation: *const bpf_core_relo,
        index: c_int,
        local: *const btf,
        candidates: *mut Candidates,
        specs: *mut Spec,
        decision: *mut Decision,
    ) -> c_int;
    fn bpf_core_patch_insn(
        program: *const c_char,
        instruction: *mut bpf_insn,
        instruction_index: c_int,
        relocation: *const bpf_core_relo,
        index: c_int,
        decision: *const Decision,
    ) -> c_int;
    fn bpf_core_types_are_compat(
        local: *const btf,
        local_id: u32,
        kernel: *const btf,
        kernel_id: u32,
    ) -> c_int;
    fn free(memory: *mut Candidate);
}

/// Types as libbpf holds them.
struct LibbpfTypes(NonNull<btf>);

impl LibbpfTypes {
    fn new(bytes: &[u8]) -> Result<LibbpfTypes> {
        let length = u32::try_from(bytes.len())?;
        // SAFETY: libbpf copies that many bytes, and checks what they say.
        let made = unsafe { libbpf_sys::btf__new(bytes.as_ptr().cast(), length) };
        let made = NonNull::new(made).context("libbpf refuses these types");
        Ok(LibbpfTypes(made?))
    }
}

impl Drop for LibbpfTypes {
    fn drop(&mut self) {
        // SAFETY: made by btf__new, and freed once.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) };
    }
}

impl Drop for Candidates {
    fn drop(&mut self) {
        // SAFETY: libbpf allocated it with realloc, or it is null.
        unsafe { free(self.candidates) };
    }
}

/// A function or type of the object that the kernel has or has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The instruction is changed, and reads what was meant.
    Resolved,
    /// The answer to a question (`bpf_core_field_exists`) is no.
    Absent,
    /// The kernel has no such field or type, so the verifier refuses the instruction unless it is
    /// never reached.
    Missing,
    /// A load of another width would be needed, which libbpf changes for unsigned fields only.
    FixedWidth,
    /// The address of the field is taken, and as many bytes are read there as the object declares.
    OtherWidth,
    /// libbpf refuses the whole object.
    Refused(i32),
}

/// What became of one relocation.
#[derive(Debug)]
pub(crate) struct Resolution<'a> {
    pub(crate) relocation: &'a Relocation,
    /// The type at which the way to the field begins, with its flavour.
    pub(crate) root: String,
    /// The names on that way.
    pub(crate) path: Vec<String>,
    pub(crate) outcome: Outcome,
    /// Size and type of the field in the object and in the kernel, where they matter.
    pub(crate) sizes: [u32; 2],
    pub(crate) types: [u32; 2],
}

impl Resolution<'_> {
    /// `task_struct.se.cfs_rq`, as the tables name it.
    pub(crate) fn field(&self) -> String {
        let all = [std::slice::from_ref(&self.root), &self.path].concat();
        all.join(".")
    }
}

/// A kernel for which the object is resolved.
pub(crate) struct Kernel {
    pub(crate) types: Types,
    libbpf: LibbpfTypes,
}

impl Kernel {
    pub(crate) fn new(types: Types) -> Result<Kernel> {
        let libbpf = LibbpfTypes::new(&types.to_bytes())?;
        Ok(Kernel { types, libbpf })
    }
}

/// Resolves all relocations of an object.
///
/// # Errors
/// When libbpf refuses the types of the object.
pub(crate) fn resolve<'a>(object: &'a BpfObject, kernel: &Kernel) -> Result<Vec<Resolution<'a>>> {
    // Its warnings name numbers of relocations; what matters is in the outcome.
    // SAFETY: no thread of libbpf's is there.
    unsafe { libbpf_sys::libbpf_set_print(None) };
    let local = LibbpfTypes::new(&object.btf)?;
    let mut candidates = HashMap::new();
    let all = object.relocations.iter().zip(0..);
    all.map(|(relocation, index)| {
        let id = relocation.raw.type_id;
        if let std::collections::hash_map::Entry::Vacant(entry) = candidates.entry(id) {
            entry.insert(candidates_of(&object.types, &local, id, kernel)?);
        }
        // As in libbpf, each relocation drops those that did not match.
        let candidates = candidates.get_mut(&id).context("inserted above")?;
        resolve_one(object, &local, relocation, index, candidates)
    })
    .collect()
}

fn candidates_of(
    types: &Types,
    local: &LibbpfTypes,
    id: u32,
    kernel: &Kernel,
) -> Result<Candidates> {
    let mut found = Candidates {
        candidates: ptr::null_mut(),
        count: 0,
    };
    let name = std::ffi::CString::new(types.name(id))?;
    let mut wanted = Candidate {
        btf: local.0.as_ptr(),
        id,
    };
    // SAFETY: a string that ends.
    let length = unsafe { bpf_core_essential_name_len(name.as_ptr()) };
    // SAFETY: both types live longer than the list, and the list is empty.
    let error = unsafe {
        bpf_core_add_cands(
            &raw mut wanted,
            length,
            kernel.libbpf.0.as_ptr(),
            c"vmlinux".as_ptr(),
            1,
            &raw mut found,
        )
    };
    ensure!(error == 0, "libbpf cannot look for {name:?}: error {error}");
    Ok(found)
}

fn resolve_one<'a>(
    object: &BpfObject,
    local: &LibbpfTypes,
    relocation: &'a Relocation,
    index: c_int,
    candidates: &mut Candidates,
) -> Result<Resolution<'a>> {
    let none = Accessor {
        type_id: 0,
        index: 0,
        name: ptr::null(),
    };
    let empty = Spec {
        btf: ptr::null(),
        accessors: [none; MAX_ACCESSORS],
        root_type_id: 0,
        kind: 0,
        count: 0,
        raw: [0; MAX_ACCESSORS],
        raw_count: 0,
        bit_offset: 0,
    };
    let mut specs = [empty; 3];
    let mut decision = Decision::default();
    let raw = &relocation.raw;
    // SAFETY: three specifications are what it works with, and all types outlive the call.
    let error = unsafe {
        bpf_core_calc_relo_insn(
            c"".as_ptr(),
            raw,
            index,
            local.0.as_ptr(),
            candidates,
            specs.as_mut_ptr(),
            &raw mut decision,
        )
    };
    let accessors = &specs[0].accessors[..usize::try_from(specs[0].count)?.min(MAX_ACCESSORS)];
    let names = accessors.iter().filter(|accessor| !accessor.name.is_null());
    // SAFETY: libbpf points to the names of members in `local`, which is there.
    let names = names.map(|accessor| unsafe { CStr::from_ptr(accessor.name) });
    let path = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let asks = [
        BPF_CORE_FIELD_EXISTS,
        BPF_CORE_TYPE_EXISTS,
        BPF_CORE_TYPE_MATCHES,
    ];
    let outcome = if error != 0 {
        Outcome::Refused(error)
    } else if decision.poison {
        Outcome::Missing
    } else if asks.contains(&raw.kind) && decision.new_value == 0 {
        Outcome::Absent
    } else {
        patch(relocation, index, &decision, object)?
    };
    Ok(Resolution {
        relocation,
        root: object.types.name(raw.type_id).to_owned(),
        path,
        outcome,
        sizes: [decision.old_size, decision.new_size],
        types: [decision.old_type_id, decision.new_type_id],
    })
}

/// Changes the instruction, as libbpf does, to see whether it can be.
fn patch(
    relocation: &Relocation,
    index: c_int,
    decision: &Decision,
    object: &BpfObject,
) -> Result<Outcome> {
    const CLASS: u8 = 7;
    const LOADS_AND_STORES: std::ops::RangeInclusive<u8> = 1..=3;
    let raw = &relocation.raw;
    let class = relocation.instructions[0][0] & CLASS;
    let accesses = LOADS_AND_STORES.contains(&class);
    let mut code = relocation.instructions.as_flattened().to_vec();
    let mut instructions = [bpf_insn::default(); 2];
    let bytes = size_of_val(&instructions);
    ensure!(bytes == code.len(), "instructions have another size");
    // SAFETY: both have that many bytes, and all bytes are valid in an instruction.
    unsafe {
        ptr::copy_nonoverlapping(code.as_mut_ptr(), instructions.as_mut_ptr().cast(), bytes);
    };
    // SAFETY: two instructions are as many as it changes.
    let error = unsafe {
        bpf_core_patch_insn(
            c"".as_ptr(),
            instructions.as_mut_ptr(),
            0,
            raw,
            index,
            decision,
        )
    };
    Ok(if error != 0 {
        Outcome::Refused(error)
    } else if accesses && decision.fail_size {
        Outcome::FixedWidth
    } else if !accesses && reads_other_width(raw, decision, &object.types) {
        Outcome::OtherWidth
    } else {
        Outcome::Resolved
    })
}

/// Returns whether what is read at the address of a field is not the field. An array or struct is
/// often declared with its beginning only; the kernel's must not be shorter.
fn reads_other_width(raw: &bpf_core_relo, decision: &Decision, types: &Types) -> bool {
    // Of bit fields libbpf notes no type here: they are read by the size that the kernel has.
    if raw.kind != BPF_CORE_FIELD_BYTE_OFFSET || decision.old_type_id == 0 {
        return false;
    }
    let (old, new) = (decision.old_size, decision.new_size);
    match types.get(decision.old_type_id).kind() {
        kind::ARRAY | kind::STRUCT | kind::UNION => new < old,
        _ => new != old,
    }
}

/// Returns whether libbpf takes a function of the kernel for one that the object declares.
///
/// # Errors
/// When libbpf refuses the types of the object or cannot compare.
pub(crate) fn is_compatible(
    object: &BpfObject,
    function: u32,
    kernel: &Kernel,
    candidate: u32,
) -> Result<bool> {
    let local = LibbpfTypes::new(&object.btf)?;
    let prototypes = (
        object.types.get(function).size_or_type,
        kernel.types.get(candidate).size_or_type,
    );
    // SAFETY: both types are there.
    let compatible = unsafe {
        bpf_core_types_are_compat(
            local.0.as_ptr(),
            prototypes.0,
            kernel.libbpf.0.as_ptr(),
            prototypes.1,
        )
    };
    if compatible < 0 {
        bail!(
            "libbpf cannot compare {}: error {compatible}",
            object.types.name(function)
        );
    }
    Ok(compatible > 0)
}
