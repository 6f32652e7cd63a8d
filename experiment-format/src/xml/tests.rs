//! What is written is read, and any bytes are read or refused.

use std::path::Path;

use proptest::prelude::*;

use super::number::{integer, time, unsigned};
use super::parse::{Item, Parser, decode};
use super::write::{Element, escape, is_name};
use crate::Result;
use crate::error::Error;
use crate::units::Nanos;

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
        .time("tstamp", Nanos(3))
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
    assert_eq!(unsigned("+0x00FF"), Some(255));
    assert_eq!(unsigned("010"), Some(8));
    assert_eq!(unsigned("-1"), Some(u64::MAX));
    assert_eq!(unsigned("0"), Some(0));
    assert_eq!(unsigned("99999999999999999999999"), Some(u64::MAX));
    assert_eq!(time("1.000000003"), Some(Nanos(1_000_000_003)));
    assert_eq!(time("0.3"), Some(Nanos(3)));
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
