//! The narrow XML dialect of the experiment's text files.
//!
//! gprofng's parser is made by hand and knows much less than XML: no root element, double quotes
//! only, five entities, and `%hh%` for a byte that would not do. So a general XML writer produces
//! files that it rejects, and this module writes and reads the dialect and nothing else.

use std::fmt::Write;
use std::path::Path;

use crate::Result;
use crate::error::Error;

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

/// What a parser comes across.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// An element begins. One without content is followed by its end too.
    Begin(Tag),
    /// Text of the innermost element that has one; never blank.
    Text(String),
    /// The innermost element ends.
    End,
}

/// The tag that begins an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Name of the element.
    pub(crate) name: String,
    /// Names and decoded values, in order.
    pub(crate) attributes: Vec<(String, String)>,
    /// Where in the file it begins.
    pub(crate) offset: u64,
}

impl Tag {
    /// The value of an attribute; of the last one if there are several.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.attributes.iter().rev().filter(|(key, _)| key == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// The value of an attribute as a number, taken by `read`.
    pub(crate) fn parsed<T>(
        &self,
        path: &Path,
        name: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.malformed(path, format!("{name}={value:?} is no number for it"))),
        }
    }

    /// An error at this tag.
    pub(crate) fn malformed(&self, path: &Path, what: impl Into<String>) -> Error {
        Error::Malformed {
            path: path.to_owned(),
            offset: self.offset,
            what: what.into(),
        }
    }
}

/// A pull parser over the bytes of a file.
///
/// Bytes outside of elements mean nothing. What an unfinished file ends with is left out as far
/// as gprofng leaves it out: elements that are open, and a tag that is the last byte of the file.
/// A tag that is cut is an error, as it is to gprofng.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// Names of the elements that are open.
    open: Vec<String>,
    /// Whether the last tag was `<name/>`, whose end is still to be told.
    closed: bool,
}

impl<'a> Parser<'a> {
    /// Parses `bytes`, the content of the file at `path`.
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Parser {
            path,
            bytes,
            at: 0,
            open: Vec::new(),
            closed: false,
        }
    }

    /// An error at a place in the file.
    pub(crate) fn malformed(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::Malformed {
            path: self.path.to_owned(),
            offset,
            what: what.into(),
        }
    }

    /// The next item, none at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Item>> {
        if std::mem::take(&mut self.closed) {
            self.open.pop();
            return Ok(Some(Item::End));
        }
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Some(tag) = rest.iter().position(|byte| *byte == b'<') else {
                self.at = self.bytes.len();
                return Ok(None);
            };
            let text = &rest[..tag];
            self.at += tag;
            if !self.open.is_empty() && text.iter().any(|byte| !is_blank(*byte)) {
                return Ok(Some(Item::Text(decode(text))));
            }
            let Some(item) = self.tag()? else {
                continue;
            };
            // gprofng drops the last tag of a file unless something follows.
            if self.at >= self.bytes.len() {
                return Ok(None);
            }
            match &item {
                Item::Begin(tag) => self.open.push(tag.name.clone()),
                Item::End => {
                    self.open.pop();
                }
                Item::Text(_) => {}
            }
            return Ok(Some(item));
        }
    }

    /// Reads a tag, the current byte being its `<`. None for what is skipped.
    fn tag(&mut self) -> Result<Option<Item>> {
        let begin = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'?') => self.skip(begin, b"?>"),
            Some(b'!') => self.skip(begin, b">"),
            Some(b'/') => {
                self.at += 1;
                let name = self.name(begin)?;
                self.blanks();
                self.expect(begin, b'>')?;
                match self.open.last() {
                    Some(open) if *open == name => Ok(Some(Item::End)),
                    _ => Err(self.malformed(begin as u64, format!("</{name}> ends nothing"))),
                }
            }
            _ => {
                let name = self.name(begin)?;
                let mut attributes = Vec::new();
                loop {
                    self.blanks();
                    match self.peek() {
                        Some(b'/') => {
                            self.at += 1;
                            self.expect(begin, b'>')?;
                            self.closed = self.at < self.bytes.len();
                            break;
                        }
                        Some(b'>') => {
                            self.at += 1;
                            break;
                        }
                        _ => attributes.push(self.attribute(begin)?),
                    }
                }
                let offset = begin as u64;
                Ok(Some(Item::Begin(Tag {
                    name,
                    attributes,
                    offset,
                })))
            }
        }
    }

    fn attribute(&mut self, begin: usize) -> Result<(String, String)> {
        let name = self.name(begin)?;
        self.blanks();
        self.expect(begin, b'=')?;
        self.blanks();
        self.expect(begin, b'"')?;
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|byte| *byte == b'"') else {
            return Err(self.cut(begin));
        };
        self.at += end + 1;
        Ok((name, decode(&rest[..end])))
    }

    fn name(&mut self, begin: usize) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let end = rest
            .iter()
            .position(|byte| !is_name(byte))
            .unwrap_or(rest.len());
        // All of it is ASCII.
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        if end == rest.len() {
            return Err(self.cut(begin));
        }
        if !crate::xml::is_name(&name) {
            return Err(self.malformed(self.at as u64, "no name where one is due"));
        }
        self.at += end;
        Ok(name)
    }

    fn skip(&mut self, begin: usize, end: &[u8]) -> Result<Option<Item>> {
        if !self.open.is_empty() {
            return Err(self.malformed(begin as u64, "a declaration inside of an element"));
        }
        let rest = &self.bytes[self.at..];
        match rest.windows(end.len()).position(|window| window == end) {
            Some(position) => self.at += position + end.len(),
            None => return Err(self.cut(begin)),
        }
        Ok(None)
    }

    fn expect(&mut self, begin: usize, byte: u8) -> Result<()> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            Some(_) => {
                let what = format!("no {:?} where one is due", char::from(byte));
                Err(self.malformed(self.at as u64, what))
            }
            None => Err(self.cut(begin)),
        }
    }

    fn cut(&self, begin: usize) -> Error {
        self.malformed(begin as u64, "a tag is cut by the end of the file")
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b'\x0b'
}

/// Undoes the five entities and `%hh%`. What is neither stays as it is; bytes that are no UTF-8
/// become the replacement character.
fn decode(bytes: &[u8]) -> String {
    const ENTITIES: [(&[u8], u8); 5] = [
        (b"&lt;", b'<'),
        (b"&gt;", b'>'),
        (b"&amp;", b'&'),
        (b"&apos;", b'\''),
        (b"&quot;", b'"'),
    ];
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, others @ ..] = rest {
        let entity = ENTITIES.iter().find(|(entity, _)| rest.starts_with(entity));
        if let Some((entity, byte)) = entity {
            out.push(*byte);
            rest = &rest[entity.len()..];
        } else if let [b'%', high, low, b'%', behind @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            out.push(16 * high + low);
            rest = behind;
        } else {
            out.push(*first);
            rest = others;
        }
    }
    match String::from_utf8(out) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// A hexadecimal digit; capital letters do not count.
fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// A number as C's `atoi` takes it: a sign, decimal digits, and whatever follows. None without
/// digits; what is too large becomes the largest.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = signed(text);
    let value = leading(digits, 10)?;
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

/// A number as C's `strtoull` takes it without being told a base: `0x`, octal or decimal.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (negative, digits) = signed(text);
    let hexadecimal = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
    let value = match hexadecimal {
        Some(digits) => leading(digits, 16),
        None if digits.starts_with('0') => leading(digits, 8),
        None => leading(digits, 10),
    }?;
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

/// A time stamp in nanoseconds: the fraction is an integer, whatever its length.
pub(crate) fn time(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = u64::try_from(integer(seconds)?).ok()?;
    let fraction = leading(fraction, 10)?;
    Some(
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(fraction),
    )
}

fn signed(text: &str) -> (bool, &str) {
    let text = text.trim_start();
    match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn leading(digits: &str, base: u32) -> Option<u64> {
    let mut value = None;
    for digit in digits
        .chars()
        .map_while(|character| character.to_digit(base))
    {
        let larger = value.unwrap_or(0u64).saturating_mul(base.into());
        value = Some(larger.saturating_add(digit.into()));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    fn parse(bytes: &[u8]) -> Result<Vec<Item>> {
        let mut parser = Parser::new(Path::new("log.xml"), bytes);
        let mut items = Vec::new();
        while let Some(item) = parser.next()? {
            items.push(item);
        }
        Ok(items)
    }

    /// Items as text: `name(a=v)`, `"text"`, `/`.
    fn outline(bytes: &[u8]) -> String {
        let show = |item: &Item| match item {
            Item::Begin(tag) => {
                let attributes = tag.attributes.iter().map(|(k, v)| format!("{k}={v}"));
                format!("{}({})", tag.name, attributes.collect::<Vec<_>>().join(","))
            }
            Item::Text(text) => format!("{text:?}"),
            Item::End => "/".to_owned(),
        };
        parse(bytes)
            .unwrap()
            .iter()
            .map(show)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn elements_attributes_and_text() {
        assert_eq!(
            outline(b"<?xml?><!-- x -->\0\0 junk <a x=\"1\" y = \"&lt;\"><b/> t%0a% </a>\n"),
            "a(x=1,y=<) b() / \" t\\n \" /"
        );
    }

    #[test]
    fn decoding_is_that_of_the_format() {
        assert_eq!(decode(b"&lt;&gt;&amp;&apos;&quot;&amp;lt;"), "<>&'\"&lt;");
        assert_eq!(decode(b"%25%41%25% %4A% %zz% %0"), "%41% %4A% %zz% %0");
        assert_eq!(decode(b"&#10; & \xff"), "&#10; & \u{fffd}");
        assert_eq!(decode(b"%c3%%a9%"), "é");
    }

    #[test]
    fn the_last_tag_needs_a_byte_behind_it() {
        assert_eq!(outline(b"<a/>\n<b/>"), "a() /");
        assert_eq!(outline(b"<a/>\n<b/>\n"), "a() / b() /");
        assert_eq!(outline(b"<a>x</a>"), "a() \"x\"");
    }

    #[test]
    fn errors_name_file_and_offset() {
        for (text, offset) in [
            ("<a/>\n<b x='1'/>\n", 10),
            ("<a/>\n<b x=\"1", 5),
            ("<a></b>\n", 3),
            ("<a-b/>\n", 2),
            ("<a x-y=\"1\"/>\n", 4),
            ("<a><?x?></a>\n", 3),
            ("<", 0),
        ] {
            let Err(Error::Malformed {
                path,
                offset: found,
                ..
            }) = parse(text.as_bytes())
            else {
                panic!("{text:?} is taken");
            };
            assert_eq!(
                (path.as_path(), found),
                (Path::new("log.xml"), offset),
                "{text:?}"
            );
        }
    }

    #[test]
    fn numbers_are_read_as_the_c_library_does() {
        assert_eq!(integer(" -12x"), Some(-12));
        assert_eq!(integer("0x10"), Some(0));
        assert_eq!(integer("x"), None);
        assert_eq!(number("+0x00FF"), Some(255));
        assert_eq!(number("010"), Some(8));
        assert_eq!(number("-1"), Some(u64::MAX));
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(time("1.000000003"), Some(1_000_000_003));
        assert_eq!(time("0.3"), Some(3));
        assert_eq!(time("-1.0"), None);
    }

    proptest! {
        #[test]
        fn any_text_comes_back(name in "[a-z][a-z_]*", text in any::<String>(), value in any::<String>()) {
            let mut out = String::new();
            Element::begin(&mut out, &name).attribute("v", &value).text(&text);
            let items = parse(out.as_bytes()).unwrap();
            let Item::Begin(tag) = &items[0] else { panic!() };
            prop_assert_eq!(tag.get("v"), Some(value.as_str()));
            if text.bytes().all(|byte| byte == b' ') {
                prop_assert_eq!(items.len(), 2);
            } else {
                prop_assert_eq!(&items[1], &Item::Text(text));
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn anything_that_looks_like_xml_ends(text in "[<>/?!=\"a %&;1\n]{0,60}") {
            let _ = parse(text.as_bytes());
        }
    }
}
