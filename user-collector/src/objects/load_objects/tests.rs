use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use super::opening::code_file;
use super::*;
use crate::space::FileIdentity;

/// Returns load objects with a single one, mapped with this build id or this inode.
fn objects(file: Option<CodeFile>, build_id: &[u8], inode: u64) -> (LoadObjects, Mapping) {
    let mapping = Mapping {
        start: 0x1000,
        end: 0x2000,
        offset: 0,
        file: Arc::new(MappedFile {
            path: b"/lib/one.so".as_slice().into(),
            build_id: build_id.into(),
            identity: FileIdentity {
                inode,
                ..FileIdentity::default()
            },
        }),
    };
    let mut objects = LoadObjects::new(None).unwrap();
    let object = LoadObject::new(None, Backing::File, &mapping);
    objects.add(LoadObject { file, ..object });
    (objects, mapping)
}

#[test]
fn a_file_of_the_kernel_is_an_object_of_user_space() {
    let file = CodeFile {
        inode: 7,
        modified_ns: 100,
        device: 8 << 20,
        generation: 3,
    };
    let [other_device, written, other_inode] = [
        CodeFile {
            device: 1,
            generation: 0,
            inode: 7 | 1 << 62,
            ..file
        },
        CodeFile {
            modified_ns: 101,
            ..file
        },
        CodeFile { inode: 8, ..file },
    ];
    let is = |known, build_id: &[u8], inode, file| {
        let (objects, mapping) = objects(known, build_id, inode);
        objects.is_file(ObjectId(0), &mapping, file)
    };
    assert!(is(Some(file), b"", 0, file));
    assert!(is(Some(other_device), b"", 0, file));
    // It was written to, or touched: only the build id shows that it is the same.
    assert!(!is(Some(written), b"", 0, file));
    assert!(is(Some(written), b"1234", 0, file));
    assert!(!is(Some(other_inode), b"1234", 0, file));
    // It could not be opened.
    assert!(is(None, b"", 7, file));
    assert!(!is(None, b"", 8, file));
    assert!(!is(None, b"1234", 0, file));
    assert!(is(Some(CodeFile::VDSO), b"", 0, CodeFile::VDSO));
}

#[test]
fn a_file_is_identified_by_what_the_system_reports() {
    let file = File::open("/proc/self/exe").unwrap();
    let metadata = file.metadata().unwrap();
    let code_file = code_file(&file).unwrap();
    assert_eq!(code_file.inode, metadata.ino());
    let at = metadata.modified().unwrap();
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(u128::from(code_file.modified_ns), since.as_nanos());
    let device = libc::makedev(code_file.device >> 20, code_file.device & 0xf_ffff);
    assert_eq!(device, metadata.dev());
}
