//! JSON that is safe on a terminal: an export may go to standard output.

use std::io::{self, Write};

use experiment_format::text::printable_json;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Writes a value.
///
/// # Errors
/// When writing fails.
pub(super) fn write(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(out, Printable);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// A format without blanks, and without characters that control a terminal or hide text.
struct Printable;

impl Formatter for Printable {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        writer.write_all(printable_json(fragment).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_mean_the_same_and_are_printable() {
        let value = serde_json::json!({"a\u{9b}": ["\u{1b}[2J", "b\u{202e}c\u{7f}\n"]});
        let mut out = Vec::new();
        write(&value, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "{\"a\\u009b\":[\"\\u001b[2J\",\"b\\u202ec\\u007f\\n\"]}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }
}
