//! Opening the files of load objects.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use bpf_abi::CodeFile;
use experiment_format::ids::Pid;
use kcollect_elf::ElfSource;
use object::elf::ELFMAG;

use super::super::{Backing, ObjectId};
use super::{LoadObject, LoadObjects, VDSO, too_many_open};
use crate::archive::{Refusal, RefusalCause};
use crate::files::{Share, TimedOpenError, may_hold};
use crate::objects;
use crate::space::Mapping;

impl LoadObjects {
    pub(super) fn open_new(&mut self, pid: Pid, relatives: &[Pid], mapping: &Mapping) -> ObjectId {
        let backing = objects::backing(&mapping.file.path);
        match backing {
            Backing::Vdso => return self.open_vdso(pid, relatives, mapping),
            Backing::File => {}
            Backing::Anonymous | Backing::Special => {
                return self.add(LoadObject::new(None, backing, mapping));
            }
        }
        let path = Path::new(OsStr::from_bytes(&mapping.file.path));
        let directory = path.parent().unwrap_or(path);
        let (family, wanted) = (relatives.to_vec(), mapping.clone());
        let opened = self
            .opener
            .run(directory, move || open(pid, &family, &wanted))
            .unwrap_or_else(|error| {
                let cause = match error {
                    TimedOpenError::TimedOut { .. } | TimedOpenError::TooManyTimeouts => {
                        RefusalCause::NoAnswer
                    }
                    _ => RefusalCause::Failed,
                };
                Err(Refusal::new(cause, error.to_string()))
            });
        let (file, code_file, is_elf) = match opened {
            Ok(opened) => opened,
            Err(refusal) => {
                self.counts.failed += 1;
                let name = Some(self.names.name_of(&mapping.file).to_owned());
                return self.add(LoadObject {
                    refusal: Some(refusal),
                    ..LoadObject::new(name, backing, mapping)
                });
            }
        };
        self.note_kind(&mapping.file, is_elf);
        if let Some(known) = self.opened.get(&code_file) {
            return *known;
        }
        let name = Some(self.names.name_of(&mapping.file).to_owned());
        let id = self.add(LoadObject {
            file: Some(code_file),
            ..LoadObject::new(name, backing, mapping)
        });
        self.opened.insert(code_file, id);
        if self.archive.is_some() {
            let copy = file.try_clone().ok();
            let held = copy.filter(|copy| may_hold(copy, Share::Half));
            self.keep(id, held.map(ElfSource::File));
        }
        if may_hold(&file, Share::Most) {
            self.request_table(id, ElfSource::File(file));
        } else {
            self.counts.failed += 1;
            self.refuse(id, too_many_open());
        }
        id
    }

    /// Opens the content of an object again, which an earlier experiment has archived.
    pub(super) fn open_again(
        &mut self,
        id: ObjectId,
        pid: Pid,
        relatives: &[Pid],
        mapping: &Mapping,
    ) {
        let Some(object) = self.objects.get(id.0 as usize) else {
            return;
        };
        if object.followed || object.content.is_some() || object.file.is_none() {
            return;
        }
        let content = match object.backing {
            Backing::Vdso => objects::own_vdso(Path::new("/proc"), mapping)
                .ok()
                .map(ElfSource::Bytes),
            _ => {
                let (family, wanted) = (relatives.to_vec(), mapping.clone());
                let directory = object.path.parent().unwrap_or(&object.path).to_owned();
                let opened = self
                    .opener
                    .run(&directory, move || open(pid, &family, &wanted));
                opened
                    .ok()
                    .and_then(Result::ok)
                    .map(|(file, ..)| file)
                    .filter(|file| may_hold(file, Share::Half))
                    .map(ElfSource::File)
            }
        };
        self.keep(id, content);
    }

    /// Returns the object of the vDSO. There is only one: all processes have the same vDSO, except
    /// 32-bit processes, which are not unwound.
    pub(super) fn open_vdso(&mut self, pid: Pid, relatives: &[Pid], mapping: &Mapping) -> ObjectId {
        if let Some(known) = self.vdso {
            return known;
        }
        let proc = Path::new("/proc");
        let bytes = [&[pid], relatives]
            .concat()
            .into_iter()
            .find_map(|pid| objects::vdso(proc, pid, mapping).ok())
            .or_else(|| objects::own_vdso(proc, mapping).ok());
        let id = self.add(LoadObject {
            // Without its bytes there is nothing to archive. Another process may have them.
            requested: bytes.is_none(),
            ..LoadObject::new(Some(VDSO.to_owned()), Backing::Vdso, mapping)
        });
        if let Some(bytes) = bytes {
            self.vdso = Some(id);
            if self.archive.is_some() {
                self.keep(id, Some(ElfSource::Bytes(bytes.clone())));
            }
            self.request_table(id, ElfSource::Bytes(bytes));
        }
        id
    }
}

/// Opens the mapped file. Returns it with its identity and whether it has the header of ELF. It is
/// opened through the process that maps it, or else through one of its relatives. The error is from
/// the attempt through the process.
fn open(pid: Pid, relatives: &[Pid], mapping: &Mapping) -> Result<(File, CodeFile, bool), Refusal> {
    let proc = Path::new("/proc");
    let mut opened = objects::open(proc, pid, mapping);
    for relative in relatives {
        if opened.is_ok() {
            break;
        }
        opened = objects::open(proc, *relative, mapping).or(opened);
    }
    let file = opened.map_err(|error| error.to_string())?.file;
    let code_file = code_file(&file).map_err(|error| error.to_string())?;
    let mut magic = [0; 4];
    let read = file.read_exact_at(&mut magic, 0);
    Ok((file, code_file, read.is_ok() && magic == ELFMAG))
}

nix::ioctl_read!(
    /// Reads the generation of a file's inode (`FS_IOC_GETVERSION`). The kernel writes 32 bits, in
    /// spite of the type.
    get_generation,
    b'v',
    1,
    libc::c_long
);

/// Returns the identity of an open file, as the kernel has it.
pub(super) fn code_file(file: &File) -> io::Result<CodeFile> {
    let metadata = file.metadata()?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let mut generation: libc::c_long = 0;
    // SAFETY: the kernel writes only to the number. If it fails, the generation is 0.
    let _ = unsafe { get_generation(file.as_raw_fd(), &raw mut generation) };
    Ok(CodeFile {
        inode: metadata.ino(),
        modified_ns: (metadata.mtime().cast_unsigned())
            .wrapping_mul(1_000_000_000)
            .wrapping_add(metadata.mtime_nsec().cast_unsigned()),
        device: major << 20 | minor,
        generation: generation as u32,
    })
}
