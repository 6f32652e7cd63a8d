//! Frame information that is written here.

use gimli::write::{CallFrameInstruction as Cfi, CommonInformationEntry};
use gimli::{Encoding, Format, X86_64};

/// What all functions begin with.
pub(crate) fn cie() -> CommonInformationEntry {
    let encoding = Encoding {
        format: Format::Dwarf32,
        version: 1,
        address_size: 8,
    };
    let mut cie = CommonInformationEntry::new(encoding, 1, -8, X86_64::RA);
    cie.add_instruction(Cfi::Cfa(X86_64::RSP, 8));
    cie.add_instruction(Cfi::Offset(X86_64::RA, -8));
    cie
}
