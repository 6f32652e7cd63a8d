//! The narrow XML dialect of the experiment's text files.
//!
//! gprofng's parser is handwritten and supports much less than XML: no root element, double quotes
//! only, five entities, and `%hh%` for a byte that could not stand there as it is. It rejects files
//! of a general XML writer. So this module writes ([`write`]) and reads ([`parse`]) the dialect and
//! nothing else; numbers are read as the C library reads them ([`number`]).

pub(crate) mod number;
pub(crate) mod parse;
#[cfg(test)]
mod tests;
pub(crate) mod write;
