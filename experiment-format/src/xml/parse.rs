//! Reads elements.

use std::path::Path;

use super::write::is_name;
use crate::Result;
use crate::error::Error;

/// An item that the parser finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// The beginning of an element. The end follows in every case.
    Begin(Tag),
    /// Text of the innermost open element; never blank.
    Text(String),
    /// The end of the innermost open element.
    End,
}

/// The tag that begins an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The name of the element.
    pub(crate) name: String,
    /// The names and decoded values of the attributes, in order.
    pub(crate) attributes: Vec<(String, String)>,
    /// Where in the file the tag begins, in bytes.
    pub(crate) offset: u64,
}

impl Tag {
    /// Returns the value of an attribute; of the last one if there are several.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.attributes.iter().rev().filter(|(key, _)| key == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// Returns the value of an attribute as `read` reads it.
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
            None => Err(self.malformed(path, format!("{name}={value:?} is no valid number"))),
        }
    }

    /// Returns an error at this tag.
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
/// Bytes outside of elements mean nothing. At the end of an unfinished file, what gprofng ignores
/// is ignored: elements that are open, and a tag that ends with the last byte of the file. A tag
/// that is cut is an error, as in gprofng.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// The names of the open elements.
    open: Vec<String>,
    /// Whether the last tag was `<name/>`, whose end is the next item.
    closed: bool,
}

impl<'a> Parser<'a> {
    /// Begins to parse `bytes`, the content of the file at `path`.
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Parser {
            path,
            bytes,
            at: 0,
            open: Vec::new(),
            closed: false,
        }
    }

    /// Returns an error at an offset in the file.
    fn malformed(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::Malformed {
            path: self.path.to_owned(),
            offset,
            what: what.into(),
        }
    }

    /// Returns the next item, none at the end of the file.
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

    /// Reads a tag; the current byte is its `<`. Returns none for a declaration or a comment.
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
        let legal = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let end = rest
            .iter()
            .position(|byte| !legal(byte))
            .unwrap_or(rest.len());
        // All of it is ASCII.
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        if end == rest.len() {
            return Err(self.cut(begin));
        }
        if !is_name(&name) {
            return Err(self.malformed(self.at as u64, "expected a name"));
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
                let what = format!("expected {:?}", char::from(byte));
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

/// Decodes the five entities and `%hh%`. Other text stays as it is; bytes that are not UTF-8 become
/// the replacement character.
pub(super) fn decode(bytes: &[u8]) -> String {
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
        } else if let [b'%', high, low, b'%', after @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            out.push(16 * high + low);
            rest = after;
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

/// Returns the value of a hexadecimal digit. Capital letters are no digits here.
fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}
