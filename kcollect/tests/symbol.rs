//! Lines and inlined functions of true programs, compared with llvm-addr2line at 2,000 positions of
//! each; and the places in which debug information is found.
//!
//! Not with binutils' addr2line: of functions inlined into each other at one place version 2.40
//! leaves some out, and it gives the innermost the name of the symbol table.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests report by panicking too"
)]

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use analysis::symbol::{
    ObjectRef, Origin, Resolved, SearchPaths, SourceFrame, SymbolError, Symboliser,
};
use experiment_format::archive::{ARCHIVES, archive_name};
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use user_collector::archive::archive_object;
use user_collector::files::InvokingUser;

const POSITIONS: usize = 2000;

/// A directory of programs.
struct Trial(tempfile::TempDir);

impl Trial {
    fn new() -> Trial {
        Trial(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, command: &str) {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap();
        let done = Command::new(program)
            .args(words)
            .current_dir(self.0.path())
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command}: {errors}");
    }

    /// A program in C with functions inlined into each other, compiled by this command to `x`.
    fn c(command: &str) -> Trial {
        let trial = Trial::new();
        fs::write(trial.path("x.c"), c_source()).unwrap();
        trial.run(command);
        trial
    }

    fn resolve(&self, offsets: &[u64]) -> Resolved {
        let search = SearchPaths::new(None);
        Symboliser::new(search).resolve(&object(&self.path("x")), offsets)
    }

    /// Compares all frames of `x` with what addr2line finds in `reference`.
    fn compare(&self, reference: &str) {
        let positions = positions(&self.path("x"));
        let offsets: Vec<_> = positions.iter().map(|(offset, _)| *offset).collect();
        let resolved = self.resolve(&offsets);
        assert_eq!(resolved.error, None);
        let expected = addr2line(&self.path(reference), &positions);
        let with_lines = expected.iter().filter(|frames| !frames.is_empty()).count();
        assert!(with_lines > POSITIONS / 2, "{with_lines}");
        let inlined = expected.iter().filter(|frames| frames.len() > 1).count();
        assert!(inlined > POSITIONS / 20, "{inlined}");
        compare(&positions, &resolved, &expected);
    }
}

fn compare(positions: &[(u64, u64)], resolved: &Resolved, expected: &[Vec<Known>]) {
    assert_eq!(positions.len(), resolved.frames.len());
    for (((offset, address), found), expected) in
        positions.iter().zip(&resolved.frames).zip(expected)
    {
        let mut found: Vec<_> = found.iter().map(known).collect();
        // The outermost name is one of the symbol table there: between two functions too; where
        // line tables have only a name of the source; and of code that two functions of Rust share,
        // another one.
        if let (Some((found, ..)), Some((expected, ..))) = (found.last_mut(), expected.last())
            && (found == "??"
                || expected.starts_with("_R")
                || expected.starts_with("_ZN") && !found.starts_with('_'))
        {
            found.clone_from(expected);
        }
        assert_eq!(found, *expected, "at {offset:#x}, address {address:#x}");
    }
}

fn object(path: &Path) -> ObjectRef {
    ObjectRef {
        name: path.to_str().unwrap().to_owned(),
        build_id: Box::default(),
    }
}

fn c_source() -> String {
    let mut source = String::from("volatile int sink;\n");
    for number in 0..40 {
        write!(
            source,
            "static inline __attribute__((always_inline)) int low{number}(int x) {{\n\
             for (int i = 0; i < x; i++)\n sink += i * {number};\n return sink;\n}}\n\
             static inline __attribute__((always_inline)) int high{number}(int x) {{\n\
             if (x > {number})\n return low{number}(x) +\n low{number}(sink);\n return x;\n}}\n\
             __attribute__((noinline)) int f{number}(int x) {{\n int y = high{number}(x);\n\
             return y * high{number}(y);\n}}\n"
        )
        .unwrap();
    }
    source.push_str("int main(int argc, char **argv) {\n(void)argv; return\n");
    for number in 0..40 {
        writeln!(source, "f{number}(argc) +").unwrap();
    }
    source.push_str("0;\n}\n");
    source
}

/// Positions in the file with their addresses, at random and always the same.
fn positions(path: &Path) -> Vec<(u64, u64)> {
    let bytes = fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text: Vec<_> = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text && section.name() == Ok(".text"))
        .collect();
    let (begin, size) = text[0].file_range().unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let position = |_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let into = random % size;
        (begin + into, text[0].address() + into)
    };
    (0..POSITIONS).map(position).collect()
}

/// Name, path and line, innermost first.
type Known = (String, String, u32);

fn known(frame: &SourceFrame) -> Known {
    (
        frame.function.as_deref().unwrap_or("??").to_owned(),
        normal(frame.file.as_deref().unwrap_or("??")),
        frame.line.unwrap_or(0),
    )
}

fn normal(path: &str) -> String {
    let mut normal = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal.to_str().unwrap().to_owned()
}

fn addr2line(path: &Path, positions: &[(u64, u64)]) -> Vec<Vec<Known>> {
    let mut list = String::new();
    for (_, address) in positions {
        writeln!(list, "{address:#x}").unwrap();
    }
    let arguments = tempfile::NamedTempFile::new().unwrap();
    fs::write(arguments.path(), list).unwrap();
    let done = Command::new("llvm-addr2line")
        .args(["-a", "-f", "-i", "-e"])
        .arg(path)
        .arg(format!("@{}", arguments.path().display()))
        .output()
        .unwrap();
    assert!(done.status.success());
    let text = String::from_utf8(done.stdout).unwrap();
    let mut all: Vec<Vec<Known>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        let (file, number) = place.rsplit_once(':').unwrap();
        // Without debug information it tells names of the symbol table, and of files without a
        // directory.
        let number = number.parse().unwrap_or(0);
        if number != 0 || file.starts_with('/') {
            let known = (line.to_owned(), normal(file), number);
            all.last_mut().unwrap().push(known);
        }
    }
    assert_eq!(all.len(), positions.len());
    all
}

#[test]
fn c_with_dwarf_4() {
    Trial::c("cc -O2 -gdwarf-4 x.c -o x").compare("x");
}

#[test]
fn c_with_dwarf_5() {
    Trial::c("cc -O2 -gdwarf-5 x.c -o x").compare("x");
}

#[test]
fn c_by_clang() {
    Trial::c("clang -O2 -g x.c -o x").compare("x");
}

#[test]
fn cpp_with_templates() {
    let trial = Trial::new();
    let mut source = String::from(
        "extern \"C\" int printf(const char *, ...);\n\
         namespace deep { template <typename T, int N> struct Sum {\n\
         static inline T of(const T *x) {\n return x[N] * N +\n Sum<T, N - 1>::of(x);\n }\n };\n\
         template <typename T> struct Sum<T, 0> {\n static inline T of(const T *x) { return x[0]; }\n };\n\
         template <typename F> inline auto call(F f, int n) {\n\
         for (int i = 0; i < n; i++)\n f(i);\n return f(n);\n } }\n",
    );
    for number in 1..20 {
        write!(
            source,
            "template <typename T> __attribute__((noinline)) T f{number}(const T *x, int n) {{\n\
             return deep::call([=](int i) {{\n return deep::Sum<T, {number}>::of(x + i);\n }}, n);\n}}\n"
        )
        .unwrap();
    }
    source.push_str("int main(int argc, char **argv) {\n long a[99] = {}; double b[99] = {};\n");
    for number in 1..20 {
        writeln!(
            source,
            "printf(\"%ld %f\", f{number}(a, argc), f{number}(b, argc));"
        )
        .unwrap();
    }
    source.push_str("}\n");
    fs::write(trial.path("x.cc"), source).unwrap();
    // The header files and the library of C++ are not needed, and so not installed for this.
    trial.run("clang++ -std=c++17 -O2 -g -c x.cc -o x.o");
    trial.run("cc x.o -o x");
    trial.compare("x");
}

#[test]
fn rust_with_line_tables() {
    let trial = Trial::new();
    let source = "use std::collections::BTreeMap;\n\
        fn main() {\n let mut words = BTreeMap::new();\n\
        for word in std::env::args() {\n *words.entry(word).or_insert(0) += 1;\n }\n\
        println!(\"{words:?}\");\n}\n";
    fs::write(trial.path("x.rs"), source).unwrap();
    trial.run("rustc --edition 2024 -O -C debuginfo=line-tables-only x.rs");
    trial.compare("x");
}

#[test]
fn compressed_sections_are_read() {
    let trial = Trial::c("cc -O2 -g x.c -o plain");
    for flag in ["zlib-gabi", "zlib-gnu"] {
        trial.run(&format!("objcopy --compress-debug-sections={flag} plain x"));
        assert!(
            fs::metadata(trial.path("x")).unwrap().len()
                < fs::metadata(trial.path("plain")).unwrap().len()
        );
        trial.compare("plain");
    }
}

#[test]
fn a_debug_file_by_link() {
    let trial = Trial::c("cc -O2 -g -Wl,--build-id=none x.c -o plain");
    fs::create_dir(trial.path(".debug")).unwrap();
    trial.run("objcopy --only-keep-debug plain .debug/x.debug");
    trial.run("objcopy --strip-debug --add-gnu-debuglink=.debug/x.debug plain x");
    trial.compare("plain");
    let debug = trial.path(".debug/x.debug");
    let origin = trial.resolve(&[0]).origin;
    assert_eq!(
        origin,
        Some(Origin::DebugFile(fs::canonicalize(&debug).unwrap()))
    );
    // With another checksum it belongs to another file.
    let mut bytes = fs::read(&debug).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&debug, bytes).unwrap();
    assert_eq!(trial.resolve(&[0]).error, Some(SymbolError::NoLines));
}

/// `0123` as `.build-id/01/23.debug`.
fn debug_path(root: &Path, id: &[u8]) -> PathBuf {
    let hex = hex::encode(id);
    let (first, rest) = hex.split_at(2);
    root.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug"))
}

fn build_id(path: &Path) -> Box<[u8]> {
    kcollect_elf::section_build_id(File::open(path).unwrap())
}

#[test]
fn a_debug_file_by_build_id() {
    let trial = Trial::c("cc -O2 -g -Wl,--build-id=sha1 x.c -o plain");
    trial.run("objcopy --strip-debug plain x");
    let root = trial.path("root");
    let debug = debug_path(&root, &build_id(&trial.path("plain")));
    fs::create_dir_all(debug.parent().unwrap()).unwrap();
    trial.run(&format!(
        "objcopy --only-keep-debug plain {}",
        debug.display()
    ));
    let positions = positions(&trial.path("x"));
    let offsets: Vec<_> = positions.iter().map(|(offset, _)| *offset).collect();
    let mut search = SearchPaths::new(None);
    search.roots.push(root);
    let found = Symboliser::new(search).resolve(&object(&trial.path("x")), &offsets);
    let expected = addr2line(&trial.path("plain"), &positions);
    compare(&positions, &found, &expected);
}

#[test]
fn lines_in_a_common_file_of_dwz() {
    let trial = Trial::c("cc -O2 -gdwarf-4 -Wl,--build-id=sha1 x.c -o plain");
    // What two programs share is moved.
    trial.run("cp plain x");
    trial.run("cc -O2 -gdwarf-4 -Wl,--build-id=sha1 -DOTHER x.c -o other");
    trial.run("dwz -m common.debug -r x other");
    trial.compare("plain");
    fs::remove_file(trial.path("common.debug")).unwrap();
    let offsets: Vec<_> = positions(&trial.path("x"))
        .iter()
        .map(|(offset, _)| *offset)
        .collect();
    let without = trial.resolve(&offsets);
    assert_eq!(
        without.error,
        Some(SymbolError::NoAlternative("common.debug".into()))
    );
    assert!(
        without
            .frames
            .iter()
            .flatten()
            .any(|frame| frame.line.is_some())
    );
}

#[test]
fn lines_in_split_dwarf() {
    // No dwp of Debian 12 reads what its gcc writes in DWARF 5.
    for (compiler, packed) in [
        ("gcc -gdwarf-4", true),
        ("gcc -gdwarf-5", false),
        ("clang -gdwarf-5", true),
    ] {
        let trial = Trial::c(&format!("{compiler} -O2 -g -gsplit-dwarf -c x.c -o x.o"));
        trial.run("cc x.o -o x");
        // The reference has the same code, and its debug information in it.
        trial.run(&format!("{compiler} -O2 -g -c x.c -o plain.o"));
        trial.run("cc plain.o -o plain");
        trial.compare("plain");
        let (dwo, moved) = (trial.path("x.dwo"), trial.path("moved.dwo"));
        if packed {
            trial.run("llvm-dwp -e x -o x.dwp");
            fs::rename(&dwo, &moved).unwrap();
            trial.compare("plain");
            fs::remove_file(trial.path("x.dwp")).unwrap();
        } else {
            fs::rename(&dwo, &moved).unwrap();
        }
        let positions = positions(&trial.path("x"));
        let offsets: Vec<_> = positions.iter().map(|(offset, _)| *offset).collect();
        let without = trial.resolve(&offsets);
        assert_eq!(without.error, Some(SymbolError::NoSplitFile(dwo)));
        let mut lines = without.frames.iter().flatten();
        assert!(lines.any(|frame| frame.line.is_some()));
        // One of another build is not taken.
        trial.run(&format!(
            "{compiler} -O2 -g -gsplit-dwarf -Dsink=other -c x.c -o x.o"
        ));
        assert_eq!(trial.resolve(&offsets), without);
    }
}

#[test]
fn the_experiments_copy_is_enough_and_another_build_is_refused() {
    let trial = Trial::c("cc -O2 -g -Wl,--build-id=sha1 x.c -o x");
    let (name, positions) = (trial.path("x"), positions(&trial.path("x")));
    let offsets: Vec<_> = positions.iter().map(|(offset, _)| *offset).collect();
    let expected = trial.resolve(&offsets).frames;
    let recorded = ObjectRef {
        build_id: build_id(&name),
        ..object(&name)
    };
    let request = NameRequest::Exactly("x.er".to_owned());
    let (dir, _) = ExperimentDir::create(trial.0.path(), &request, None).unwrap();
    let root = InvokingUser {
        uid: 0,
        groups: Vec::new(),
    };
    let file = File::open(&name).unwrap();
    let proceed = AtomicBool::new(false);
    archive_object(&dir, &recorded.name, &file, None, &root, &proceed).unwrap();
    trial.run("cc -O1 -g -Wl,--build-id=sha1 x.c -o x");

    let archives = dir.path().join(ARCHIVES);
    let symboliser = Symboliser::new(SearchPaths::new(Some(archives)));
    let found = symboliser.resolve(&object(&name), &offsets);
    assert_eq!((found.origin, found.error), (Some(Origin::Archive), None));
    assert_eq!(found.frames, expected);
    let main = positions[0].0;
    let code = symboliser.disassemble(&object(&name), main..main + 64, &|_| None);
    assert_eq!(code.unwrap().origin, Origin::Archive);

    let here = Symboliser::new(SearchPaths::new(None));
    let found = here.resolve(&recorded, &offsets);
    assert_eq!(found.error, Some(SymbolError::OtherBuild(name)));
    assert!(found.frames.iter().all(Vec::is_empty));
}

/// The image of a kernel has the addresses at which it runs, its debug file those at which it was
/// linked.
#[test]
fn a_kernel_that_was_moved_at_boot() {
    const MOVED: u64 = 0xffff_ffff_8100_0000;
    let trial = Trial::c("cc -O2 -g -Wl,--build-id=sha1 x.c -o x -Wl,--defsym=_stext=_start");
    let bytes = fs::read(trial.path("x")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let by = MOVED.wrapping_sub(text.address());
    let names: Vec<_> = file
        .symbols()
        .filter(|symbol| {
            symbol.section_index() == Some(text.index()) || symbol.name() == Ok("_stext")
        })
        .collect();
    let symbols = names.iter().map(|symbol| ImageSymbol {
        address: symbol.address().wrapping_add(by),
        size: symbol.size(),
        name: symbol.name_bytes().unwrap(),
        global: true,
    });
    let image = ElfImage {
        texts: vec![TextSection {
            address: MOVED,
            size: text.size(),
            bits: None,
        }],
        symbols: symbols.collect(),
    };
    let archives = trial.path("archives");
    fs::create_dir(&archives).unwrap();
    let place = archives.join(archive_name("vmlinux"));
    fs::write(place, image.to_bytes().unwrap()).unwrap();
    let id = build_id(&trial.path("x"));
    let (root, mut search) = (trial.path("root"), SearchPaths::new(Some(archives)));
    let debug = debug_path(&root, &id);
    fs::create_dir_all(debug.parent().unwrap()).unwrap();
    fs::copy(trial.path("x"), &debug).unwrap();
    search.roots = vec![root];

    let positions = positions(&trial.path("x"));
    let begin = image.placed().unwrap()[0].file_offset;
    let offset = |(_, address): &(u64, u64)| begin + (address - text.address());
    let offsets: Vec<_> = positions.iter().map(offset).collect();
    let symboliser = Symboliser::new(search);
    let mut kernel = ObjectRef {
        name: "vmlinux".to_owned(),
        build_id: id,
    };
    let found = symboliser.resolve(&kernel, &offsets);
    assert_eq!(found.error, None);
    let expected = addr2line(&trial.path("x"), &positions);
    compare(&positions, &found, &expected);
    let code = symboliser.disassemble(&kernel, begin..begin + 64, &|_| None);
    assert_eq!(code, Err(SymbolError::NoCode));
    kernel.build_id = Box::default();
    assert_eq!(
        symboliser.resolve(&kernel, &offsets).error,
        Some(SymbolError::NoLines)
    );
}
