//! Generates the Rust side of the headers in `c`, and compiles the unwinder natively.
//!
//! The headers are the only definition. Types, numbers and comments are taken from them; what C
//! does not have is here: Rust's names, the types of macros, and the traits.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use bindgen::callbacks::{
    AttributeInfo, DeriveInfo, DeriveTrait, EnumVariantValue, ImplementsTrait, IntKind, ItemInfo,
    ItemKind, ParseCallbacks, TypeKind,
};
use bindgen::{Builder, EnumVariation, Formatter, RustEdition};

/// Names that differ in Rust. Other types are named in camel case, and a `thing_record` is a
/// `ThingLayout`, since `ThingRecord` is the decoded record.
const NAMES: [(&str, &str); 13] = [
    ("record_header", "HeaderLayout"),
    ("unwind_rule", "EncodedRule"),
    ("page", "UnwindPage"),
    ("row", "UnwindRow"),
    ("unwind_cfa_kind", "CfaKind"),
    ("unwind_fp_kind", "FramePointerKind"),
    ("unwind_ra_kind", "ReturnAddressKind"),
    ("UNWIND_CFA", "BASE_CFA"),
    ("UNWIND_SAME", "BX_SAME"),
    ("UNWIND_LOST", "BX_LOST"),
    ("UNWIND_FP", "FRAME_POINTER"),
    ("UNWIND_SP", "STACK_POINTER"),
    ("UNWIND_REGISTERS", "REGISTERS"),
];

/// Enumerations, and the prefix of their enumerators, which Rust does not need.
const PREFIXES: [(&str, &str); 15] = [
    ("allocator_function", "FUNCTION_"),
    ("call_program", "CALL_"),
    ("call_table", "CALLS_"),
    ("cause", "CAUSE_"),
    ("detail", "DETAIL_"),
    ("io_extra", "EXTRA_"),
    ("path_end", "PATH_"),
    ("record_flags", "FLAG_"),
    ("record_kind", "RECORD_"),
    ("state", "STATE_"),
    ("unwind_cfa_kind", "CFA_"),
    ("unwind_end", "UNWIND_"),
    ("unwind_fp_kind", "FP_"),
    ("unwind_ra_kind", "RA_"),
    ("usdt_operand_kind", "OPERAND_"),
];

fn main() -> Result<(), Box<dyn Error>> {
    // The directory, not each file: a new header must count too.
    println!("cargo::rerun-if-changed=c");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let shared = builder(Callbacks { of_bytes: true })
        .allowlist_file(r".*/(cpu_stats|limits|records|unwind_tables)\.h")
        .allowlist_type("unwind_(rule|end|cfa_kind|fp_kind|ra_kind)")
        .allowlist_var("UNWIND_(CFA|SAME|LOST|FP|SP|REGISTERS)|SCAN_STACK_WORDS")
        .derive_eq(true)
        .derive_hash(true)
        .generate()?;
    fs::write(
        out.join("layout.rs"),
        with_comments_of_macros(&shared.to_string())?,
    )?;
    builder(Callbacks { of_bytes: false })
        .allowlist_function("kcollect_unwind_.*")
        .allowlist_var("UNWIND_CONTINUES")
        .blocklist_type("unwind_rule")
        .raw_line("use crate::layout::EncodedRule;")
        .no_default("native_reader")
        .generate()?
        .write_to_file(out.join("native.rs"))?;
    cc::Build::new()
        .file("c/native.c")
        .flags(["-Wall", "-Wextra", "-Werror"])
        .compile("kcollect_abi");
    Ok(())
}

fn builder(callbacks: Callbacks) -> Builder {
    // bindgen knows the integers of stdint.h: `__u64` becomes `u64`, and no type of its own.
    let integers = [8, 16, 32, 64].into_iter().flat_map(|bits| {
        [
            format!("-D__u{bits}=uint{bits}_t"),
            format!("-D__s{bits}=int{bits}_t"),
        ]
    });
    Builder::default()
        .header("c/native.c")
        .clang_args(integers)
        .clang_arg("-fparse-all-comments")
        // Enumerations convert from and to the bytes that hold their numbers. No structure and no
        // function has an enumeration itself, whose size would differ from C's.
        .clang_arg("-fshort-enums")
        .rust_edition(RustEdition::Edition2024)
        .formatter(Formatter::Prettyplease)
        .default_enum_style(EnumVariation::Rust {
            non_exhaustive: false,
        })
        .bitfield_enum("record_flags")
        .constified_enum("probe_cookie")
        .prepend_enum_name(false)
        .derive_default(true)
        .parse_callbacks(Box::new(callbacks))
}

/// Adds the comments of macros, which clang does not keep.
fn with_comments_of_macros(bindings: &str) -> Result<String, Box<dyn Error>> {
    let mut comments = BTreeMap::new();
    for header in fs::read_dir("c")? {
        let text = fs::read_to_string(header?.path())?;
        for part in text.split("\n/*").skip(1) {
            let (comment, rest) = part.split_once("*/\n").unwrap_or_default();
            let words = comment.split_whitespace().filter(|word| *word != "*");
            let comment = words.collect::<Vec<_>>().join(" ");
            let macros = rest
                .lines()
                .map_while(|line| line.strip_prefix("#define ")?.split_whitespace().next());
            comments.extend(macros.map(|name| (rust_name(name), comment.clone())));
        }
    }
    let comment_of = |line: &str| {
        let (name, _) = line.strip_prefix("pub const ")?.split_once(':')?;
        comments.get(name)
    };
    let lines = bindings.lines().map(|line| match comment_of(line) {
        Some(comment) => format!("/// {comment}\n{line}\n"),
        None => format!("{line}\n"),
    });
    Ok(lines.collect())
}

/// Names, types and traits of what is generated.
#[derive(Debug)]
struct Callbacks {
    /// Structures are read from bytes and written as bytes.
    of_bytes: bool,
}

impl ParseCallbacks for Callbacks {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        let name = rust_name(item.name);
        let is_type = matches!(item.kind, ItemKind::Type) && !name.ends_with("_t");
        if name != item.name || !is_type {
            return Some(name);
        }
        Some(match name.strip_suffix("_record") {
            Some(record) => camel_case(record) + "Layout",
            None => camel_case(&name),
        })
    }

    fn enum_variant_name(
        &self,
        enumeration: Option<&str>,
        name: &str,
        _: EnumVariantValue,
    ) -> Option<String> {
        let enumeration = enumeration?.trim_start_matches("enum ");
        let prefix = PREFIXES.iter().find(|(c, _)| *c == enumeration);
        let short = prefix.and_then(|(_, prefix)| name.strip_prefix(prefix));
        match enumeration {
            "record_flags" => short.map(str::to_owned),
            "probe_cookie" => None,
            _ => Some(camel_case(short.unwrap_or(name))),
        }
    }

    /// The types of macros: indices and sizes, if not named here.
    fn int_macro(&self, name: &str, _: i64) -> Option<IntKind> {
        Some(match name {
            "ALLOCATION_CALL_SITE"
            | "IO_CALL_SITES"
            | "UNCONFIRMED"
            | "UNWIND_CFA"
            | "UNWIND_FP"
            | "UNWIND_LOST"
            | "UNWIND_SAME"
            | "UNWIND_SP"
            | "VIA_SCAN" => IntKind::U8,
            "MAX_CHUNKS" => IntKind::U16,
            "FIRST_REGISTERED_FILE" => IntKind::I32,
            "ANY_REGISTERED_FILE"
            | "COPIED_CODE_DEVICE"
            | "CPUS_PER_RING"
            | "LOG2_BITS"
            | "MAX_BLOCKS"
            | "MAX_PAGES"
            | "MAX_PROBE_USES"
            | "OPERATION_UNKNOWN"
            | "ROWS_PER_CHUNK"
            | "SCALE_BITS"
            | "SCAN_STACK_WORDS"
            | "SCRATCHES_PER_CPU"
            | "UNWIND_CONTINUES" => IntKind::U32,
            "MAX_LOCK_WAITS_PER_CPU_AND_SECOND"
            | "MAX_MEAN_BYTES"
            | "MORE_RESULTS"
            | "NO_LOCK_WAITS"
            | "RED_ZONE_BYTES" => IntKind::U64,
            _ => IntKind::Custom {
                name: "usize",
                is_signed: false,
            },
        })
    }

    fn add_derives(&self, of: &DeriveInfo<'_>) -> Vec<String> {
        let derives: &[&str] = match of.kind {
            TypeKind::Struct if self.of_bytes => &[
                "zerocopy::FromBytes",
                "zerocopy::IntoBytes",
                "zerocopy::Immutable",
                "zerocopy::KnownLayout",
            ],
            TypeKind::Enum if of.name == "RecordFlags" => &[],
            TypeKind::Enum => &[
                "PartialOrd",
                "Ord",
                "num_enum::IntoPrimitive",
                "num_enum::TryFromPrimitive",
            ],
            _ => &[],
        };
        derives.iter().copied().map(str::to_owned).collect()
    }

    fn add_attributes(&self, of: &AttributeInfo<'_>) -> Vec<String> {
        match of.name {
            "UnwindEnd" => vec![
                "#[derive(serde::Serialize)]".to_owned(),
                r#"#[serde(rename_all = "snake_case")]"#.to_owned(),
            ],
            _ => Vec::new(),
        }
    }

    /// The type is in the other file.
    fn blocklisted_type_implements_trait(
        &self,
        _: &str,
        _: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        Some(ImplementsTrait::Yes)
    }
}

fn rust_name(name: &str) -> String {
    let other = NAMES.iter().find(|(c, _)| *c == name);
    other.map_or(name, |(_, rust)| rust).to_owned()
}

/// `some_name` or `SOME_NAME` as `SomeName`.
fn camel_case(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    words
        .map(|word| word[..1].to_uppercase() + &word[1..].to_lowercase())
        .collect()
}
