//! The machine code of JIT functions, which experiments have next to their names (`dyntext`).
//!
//! A function may have been compiled several times: in each process of a program, and again by a
//! compiler that optimises it. Reports add all of them up under one name, so one has to be chosen.

use std::cell::RefCell;
use std::collections::HashMap;

use experiment_format::Result;
use experiment_format::address_space::{ObjectKind as Mapped, RecordedAddressSpace};
use experiment_format::dynamic_code::DynamicCode;
use experiment_format::functions::Archives;
use experiment_format::map::MapEvent;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;

use crate::model::{FunctionInfo, Model};
use crate::symbol::demangle;

/// The recorded code of one JIT function.
#[derive(Debug)]
pub struct RecordedCode<'a> {
    /// The experiment that has the code.
    pub experiment: &'a Experiment,
    /// The function's first address.
    pub address: u64,
    /// The bytes of the code.
    pub code: Vec<u8>,
    /// The number of times that other code of this name was recorded.
    pub others: usize,
    /// When the code was recorded, in the time of the experiment.
    at_ns: Nanos,
    space: RecordedAddressSpace,
    /// The tables of functions that calls lead to, each read once.
    archives: RefCell<Archives>,
}

impl<'a> RecordedCode<'a> {
    /// Returns the code of a function: of several, that which was compiled last. None: no
    /// experiment has it.
    ///
    /// # Errors
    /// When a file of an experiment is damaged.
    pub fn find(model: &'a Model, function: &FunctionInfo) -> Result<Option<RecordedCode<'a>>> {
        let mut found: Option<RecordedCode<'a>> = None;
        let mut others = 0;
        for info in &model.experiments {
            let codes = info.source.dynamic_codes()?;
            if codes.iter().next().is_none() {
                continue;
            }
            let events = info.source.maps()?;
            let sizes: HashMap<_, _> = of_name(&events, function.symbol()).collect();
            let of_function = codes.iter().filter_map(|code| {
                let size = sizes.get(&(code.at_ns, code.address))?;
                let bytes = code.code.get(..*size as usize).unwrap_or(code.code);
                Some(DynamicCode {
                    code: bytes,
                    ..code
                })
            });
            let mut last: Option<DynamicCode<'_>> = None;
            for code in of_function {
                let before = last.map(|last| last.code);
                let before = before.or_else(|| found.as_ref().map(|found| &*found.code));
                others += usize::from(before.is_some_and(|before| before != code.code));
                last = Some(code);
            }
            if let Some(DynamicCode {
                at_ns,
                address,
                code,
            }) = last
            {
                found = Some(RecordedCode {
                    experiment: &info.source,
                    address,
                    code: code.to_vec(),
                    others,
                    at_ns,
                    space: RecordedAddressSpace::new(events),
                    archives: RefCell::new(super::archives_of(&info.source)),
                });
            }
        }
        Ok(found)
    }

    /// Returns the function at an address of the process, and the distance from its beginning.
    #[must_use]
    pub fn name_at(&self, address: u64) -> Option<(String, u64)> {
        let location = self.space.find(address, self.at_ns)?;
        match location.kind {
            Mapped::Function => Some((demangle(location.object).into_owned(), location.offset)),
            Mapped::File => {
                let mut archives = self.archives.borrow_mut();
                let table = archives.functions(location.object).ok()??;
                let (name, into) = table.find(location.offset)?;
                Some((demangle(name).into_owned(), into))
            }
        }
    }
}

/// Returns the times and addresses at which functions of a name were mapped, with their sizes.
fn of_name<'a>(
    events: &'a [MapEvent],
    wanted: &'a str,
) -> impl Iterator<Item = ((Nanos, u64), u64)> + 'a {
    events.iter().filter_map(move |event| match event {
        MapEvent::Function {
            at_ns,
            vaddr,
            size,
            name,
        } if name == wanted => Some(((*at_ns, *vaddr), *size)),
        _ => None,
    })
}
