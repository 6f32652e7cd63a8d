//! The kind of what is mapped, by the kernel's name of the mapping.
//!
//! perf's `mmap2` records and `/proc/PID/maps` have different names for what is not a file:
//! anonymous memory is `//anon` in the one and has no name in the other. Both are parsed here
//! (`perf_event_mmap_event` and `show_map_vma` in the kernel's sources).

/// The kind of what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// A file, which may be deleted, or a memfd (`/memfd:`).
    File,
    /// The kernel's code for user mode: an ELF image without a file.
    Vdso,
    /// Memory without a file; code in it is JIT code.
    Anonymous,
    /// Pages of the kernel or of a driver: `[vsyscall]`, `[uprobes]`, `anon_inode:[io_uring]`.
    Special,
}

/// Suffix that the kernel adds to the path of a deleted file.
pub(super) const DELETED: &[u8] = b" (deleted)";

/// Returns the kind of what is mapped, by the kernel's name of the mapping.
#[must_use]
pub fn backing(path: &[u8]) -> Backing {
    match path {
        b"[vdso]" => return Backing::Vdso,
        b"" | b"//anon" | b"[heap]" => return Backing::Anonymous,
        _ => {}
    }
    // Threads' stacks had their number in the name before Linux 4.5; named memory is `[anon:NAME]`.
    let in_brackets = [&b"[stack"[..], b"[anon:", b"[anon_shmem:"];
    if in_brackets.iter().any(|start| path.starts_with(start)) {
        return Backing::Anonymous;
    }
    // Shared memory, which the kernel makes of files that can't be opened.
    let name = without_mark(path);
    let shared = matches!(name, b"/dev/zero" | b"/anon_hugepage") || name.starts_with(b"/SYSV");
    match path.first() {
        _ if shared => Backing::Anonymous,
        Some(b'/') => Backing::File,
        _ => Backing::Special,
    }
}

/// Returns the path of a file without the mark of a deleted one.
#[must_use]
pub fn without_mark(path: &[u8]) -> &[u8] {
    path.strip_suffix(DELETED).unwrap_or(path)
}

/// The paths at which the file may still be found, the likelier one first; empty if it has no path.
pub(super) fn paths(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    // `//toolong` and `//enomem` are perf's; no path of the kernel's begins with two slashes.
    let real = path.starts_with(b"/") && !path.starts_with(b"//") && !path.starts_with(b"/memfd:");
    // The suffix may be a part of the name itself.
    let stripped = path.strip_suffix(DELETED);
    [Some(path), stripped]
        .into_iter()
        .flatten()
        .filter(move |_| real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backings_follow_from_names() {
        let names: [(&str, Backing); 30] = [
            ("/usr/bin/true", Backing::File),
            ("/usr/bin/true (deleted)", Backing::File),
            ("/memfd:jit (deleted)", Backing::File),
            ("/dev/dri/card0", Backing::File),
            ("/dev/zerox", Backing::File),
            ("/dev/shm/sem (deleted)", Backing::File),
            ("/", Backing::File),
            ("//toolong", Backing::File),
            ("//enomem", Backing::File),
            ("/[vdso]", Backing::File),
            ("[vdso]", Backing::Vdso),
            ("", Backing::Anonymous),
            ("//anon", Backing::Anonymous),
            ("[heap]", Backing::Anonymous),
            ("[stack]", Backing::Anonymous),
            ("[stack:123]", Backing::Anonymous),
            ("[anon:dalvik-jit]", Backing::Anonymous),
            ("[anon_shmem:x]", Backing::Anonymous),
            ("/dev/zero", Backing::Anonymous),
            ("/dev/zero (deleted)", Backing::Anonymous),
            ("/SYSV00000000 (deleted)", Backing::Anonymous),
            ("/anon_hugepage (deleted)", Backing::Anonymous),
            ("[vsyscall]", Backing::Special),
            ("[uprobes]", Backing::Special),
            ("[vvar]", Backing::Special),
            ("[vvar_vclock]", Backing::Special),
            ("anon_inode:[io_uring]", Backing::Special),
            ("anon_inode:kvm-vcpu:0", Backing::Special),
            ("socket:[1234]", Backing::Special),
            ("[vectors]", Backing::Special),
        ];
        for (name, expected) in names {
            assert_eq!(backing(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn paths_to_try() {
        let of = |path: &'static str| -> Vec<&[u8]> { paths(path.as_bytes()).collect() };
        assert_eq!(of("/bin/a"), [b"/bin/a"]);
        assert_eq!(
            of("/bin/a (deleted)"),
            [&b"/bin/a (deleted)"[..], b"/bin/a"]
        );
        for none in [
            "",
            "//toolong",
            "//anon",
            "/memfd:a (deleted)",
            "relative",
            "[vdso]",
        ] {
            assert!(of(none).is_empty(), "{none}");
        }
    }
}
