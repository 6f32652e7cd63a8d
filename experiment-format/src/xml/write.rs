//! Writes elements.

use std::fmt::Write;

use crate::units::Nanos;

/// Appends `text`, escaped so that the reader decodes the same characters: the five entities, and
/// `%hh%` for control characters and for the percent sign itself.
pub(crate) fn escape(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '%' | '\0'..='\x1f' | '\x7f' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{:02x}%", u32::from(character));
            }
            other => out.push(other),
        }
    }
}

/// An element being written, from its name to its end. The newline is part of it: gprofng drops the
/// last element of a file unless a byte follows.
#[derive(Debug)]
pub(crate) struct Element<'a> {
    out: &'a mut String,
    name: &'a str,
}

impl<'a> Element<'a> {
    /// Begins `<name`.
    pub(crate) fn begin(out: &'a mut String, name: &'a str) -> Self {
        out.push('<');
        out.push_str(name);
        Element { out, name }
    }

    /// Adds an attribute; its value may be any text.
    pub(crate) fn attribute(self, name: &str, value: &str) -> Self {
        self.out.push(' ');
        self.out.push_str(name);
        self.out.push_str("=\"");
        escape(self.out, value);
        self.out.push('"');
        self
    }

    /// Adds an attribute whose value needs no escapes.
    pub(crate) fn number(self, name: &str, value: impl std::fmt::Display) -> Self {
        // Writing to a string cannot fail.
        let _ = write!(self.out, " {name}=\"{value}\"");
        self
    }

    /// Adds a time stamp: seconds, a dot and exactly nine digits, since the reader takes the
    /// fraction as an integer.
    pub(crate) fn time(self, name: &str, time_ns: Nanos) -> Self {
        let (seconds, rest) = (time_ns.0 / 1_000_000_000, time_ns.0 % 1_000_000_000);
        self.number(name, format_args!("{seconds}.{rest:09}"))
    }

    /// Ends the element without content: `/>`.
    pub(crate) fn end(self) {
        self.out.push_str("/>\n");
    }

    /// Ends the element with a text inside.
    pub(crate) fn text(self, text: &str) {
        self.out.push('>');
        escape(self.out, text);
        self.close();
    }

    /// Ends the element with elements inside.
    pub(crate) fn children(self, write: impl FnOnce(&mut String)) {
        self.out.push_str(">\n");
        write(self.out);
        self.close();
    }

    fn close(self) {
        self.out.push_str("</");
        self.out.push_str(self.name);
        self.out.push_str(">\n");
    }
}

/// Returns whether the reader accepts this name of an element or attribute.
pub(crate) fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
