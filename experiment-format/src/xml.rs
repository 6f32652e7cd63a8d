//! The narrow XML dialect of the experiment's text files.
//!
//! gprofng's parser is made by hand and knows much less than XML: no root element, double quotes
//! only, five entities, and `%hh%` for a byte that would not do. So a general XML writer produces
//! files that it rejects, and this module writes and reads the dialect and nothing else.

use std::fmt::Write;

/// Appends `text` so that the reader decodes the same characters.
///
/// The five entities, and `%hh%` for control characters and for the percent sign itself.
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

/// An element, from its name to its end. The line's end is part of it: gprofng drops the last
/// element of a file unless a byte follows.
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

    /// An attribute; its value may be any text.
    pub(crate) fn attribute(self, name: &str, value: &str) -> Self {
        self.out.push(' ');
        self.out.push_str(name);
        self.out.push_str("=\"");
        escape(self.out, value);
        self.out.push('"');
        self
    }

    /// An attribute whose value needs no escapes.
    pub(crate) fn number(self, name: &str, value: impl std::fmt::Display) -> Self {
        // Writing to a string cannot fail.
        let _ = write!(self.out, " {name}=\"{value}\"");
        self
    }

    /// A time stamp: seconds, a dot and exactly nine digits, since the reader takes the fraction
    /// as an integer.
    pub(crate) fn time(self, name: &str, nanoseconds: u64) -> Self {
        let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
        self.number(name, format_args!("{seconds}.{rest:09}"))
    }

    /// Ends it without content: `/>`.
    pub(crate) fn end(self) {
        self.out.push_str("/>\n");
    }

    /// Ends it with a text inside.
    pub(crate) fn text(self, text: &str) {
        self.out.push('>');
        escape(self.out, text);
        self.close();
    }

    /// Ends it with elements inside.
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

/// Whether the reader takes this as the name of an element or attribute.
pub(crate) fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_that_the_reader_knows() {
        let mut out = String::new();
        escape(&mut out, "a%41% \"q\" <x> & 'y'\n\x7f é");
        assert_eq!(
            out,
            "a%25%41%25% &quot;q&quot; &lt;x&gt; &amp; &apos;y&apos;%0a%%7f% é"
        );
    }

    #[test]
    fn elements_end_with_a_newline() {
        let mut out = String::new();
        Element::begin(&mut out, "event")
            .time("tstamp", 3)
            .number("id", 7)
            .end();
        Element::begin(&mut out, "process").text("a<b");
        Element::begin(&mut out, "system").children(|out| Element::begin(out, "cpu").end());
        assert_eq!(
            out,
            "<event tstamp=\"0.000000003\" id=\"7\"/>\n<process>a&lt;b</process>\n\
             <system>\n<cpu/>\n</system>\n"
        );
    }

    #[test]
    fn names_are_letters_digits_and_underscores() {
        assert!(is_name("tm_zone") && is_name("a1"));
        assert!(!is_name("") && !is_name("1a") && !is_name("a-b") && !is_name("é"));
    }
}
