//! Text from processes and files that may be hostile, made safe to print.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns text that is safe on a terminal, from bytes that any process may have chosen.
///
/// Printable UTF-8 stays. Control characters, newlines, DEL, invalid bytes and the invisible
/// characters that reorder or hide text become `\xHH`, byte by byte.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let hex = |out: &mut String, bytes: &[u8]| {
        for byte in bytes {
            out.push_str(&format!("\\x{byte:02X}"));
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if !is_printable(character) {
                hex(&mut out, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(character);
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

/// Returns lines of text that are safe on a terminal, as [`printable`] does; ends of lines and tabs
/// stay.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |out, character| {
        let mut bytes = [0; 4];
        out.push_str(&printable(character.encode_utf8(&mut bytes).as_bytes()));
    })
}

/// Returns JSON that is safe on a terminal, and means the same: the characters that
/// [`printable_lines`] spells out are in strings, and become `\uHHHH`.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(json, |out, character| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

fn escaped(text: &str, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let is_unsafe = |character: char| !matches!(character, '\n' | '\t') && !is_printable(character);
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unsafe(character) {
            escape(&mut out, character)
        } else {
            out.push(character)
        }
    }
    Cow::Owned(out)
}

/// Returns whether a character neither controls a terminal, nor reorders text, joins or splits it
/// invisibly, or breaks the line.
#[must_use]
pub fn is_printable(character: char) -> bool {
    let invisible = matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !character.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_stays_and_the_rest_is_spelled_out() {
        assert_eq!(printable("naïve ☂ 🦀 \"x\"".as_bytes()), "naïve ☂ 🦀 \"x\"");
        assert_eq!(
            printable(b"a\nb\x7f\xffc\t\0"),
            "a\\x0Ab\\x7F\\xFFc\\x09\\x00"
        );
        assert_eq!(
            printable("a\u{202e}b\u{200b}".as_bytes()),
            "a\\xE2\\x80\\xAEb\\xE2\\x80\\x8B"
        );
        assert_eq!(printable("\u{85}".as_bytes()), "\\xC2\\x85");
    }

    #[test]
    fn lines_and_json_keep_their_form() {
        let text = "a\tb\nc\x1b[2Jd\u{9b}e\u{202e}f\r";
        assert_eq!(
            printable_lines(text),
            "a\tb\nc\\x1B[2Jd\\xC2\\x9Be\\xE2\\x80\\xAEf\\x0D"
        );
        let json = "{\n  \"\u{9b}\": \"\u{202e}\u{e0041} x\"\n}";
        assert_eq!(
            printable_json(json),
            "{\n  \"\\u009b\": \"\\u202e\\udb40\\udc41 x\"\n}"
        );
        for plain in ["", "naïve\n☂\t"] {
            assert!(matches!(printable_lines(plain), Cow::Borrowed(_)));
        }
    }
}
