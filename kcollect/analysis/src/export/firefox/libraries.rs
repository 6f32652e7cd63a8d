//! The load objects as the profile's libraries: a frame in a file is a place in its library, so
//! the profiler groups by library and shows the file of a function.

use std::sync::Arc;

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{Frame, LibraryHandle, LibraryInfo, Profile, Symbol, SymbolTable};

use crate::load::build_ids;
use crate::model::{FrameId, Model, ObjectKind};

/// The libraries, by the positions of their load objects in the model.
#[derive(Debug)]
pub(super) struct Libraries(Vec<Option<LibraryHandle>>);

impl Libraries {
    /// Adds the files among the load objects, with the functions that occur in stacks.
    pub(super) fn add(model: &Model, profile: &mut Profile) -> Libraries {
        let mut symbols = vec![Vec::new(); model.objects.len()];
        for frame in &model.frames {
            let function = model.function(frame.function);
            // Each place is a symbol of its own: functions may lie inside of others.
            if let Ok(address) = u32::try_from(frame.offset) {
                symbols[function.object.index()].push(Symbol {
                    address,
                    size: Some(1),
                    name: function.name.clone(),
                });
            }
        }
        let arch = model.experiments.first();
        let arch = arch.map(|founder| founder.source.header().system.arch.clone());
        let build_ids = build_ids::of(model);
        let objects = model.objects.iter().zip(symbols).zip(build_ids);
        let handles = objects.map(|((object, symbols), build_id)| {
            (object.kind == ObjectKind::File).then(|| {
                let name = object.path.rsplit('/').next().unwrap_or(&object.path);
                profile.add_lib(LibraryInfo {
                    name: name.to_owned(),
                    debug_name: name.to_owned(),
                    path: object.path.clone(),
                    debug_path: object.path.clone(),
                    debug_id: debug_id(&build_id),
                    code_id: (!build_id.is_empty()).then_some(build_id),
                    arch: arch.clone(),
                    symbol_table: Some(Arc::new(SymbolTable::new(symbols))),
                })
            })
        });
        Libraries(handles.collect())
    }

    /// Returns the place of a frame in its library. None: it is in no file, or beyond 4 GiB.
    pub(super) fn place(&self, model: &Model, frame: FrameId) -> Option<Frame> {
        let frame = model.frame(frame);
        let library = self.0[model.function(frame.function).object.index()]?;
        let address = u32::try_from(frame.offset).ok()?;
        Some(Frame::RelativeAddressFromInstructionPointer(
            library, address,
        ))
    }
}

/// Returns the id that symbol servers have for a build id: its first 16 bytes as a GUID.
fn debug_id(build_id: &str) -> DebugId {
    let mut guid = [0; 16];
    let bytes = hex::decode(build_id).unwrap_or_default();
    for (to, from) in guid.iter_mut().zip(bytes) {
        *to = from;
    }
    DebugId::from_guid_age(&guid, 0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_id_is_the_guid_of_a_build_id() {
        let id = debug_id("0123456789abcdef00112233445566778899aabb");
        assert_eq!(
            id.breakpad().to_string(),
            "67452301AB89EFCD00112233445566770"
        );
        assert!(debug_id("").is_nil());
    }
}
