//! Makes the page: constant text with the payload in base64 between two parts of it.
//!
//! No name can become markup, and equal payloads are equal pages. The content security policy names
//! the page's own script and style by their hashes and permits nothing else: no other script, no
//! image, no connection, no frame, no form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::encode::{PayloadError, encode};
use super::payload::Payload;
use crate::palette;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
/// The scripts in the order of their dependencies. They share one scope, closed to the outside.
const SCRIPTS: [&str; 16] = [
    include_str!("js/format.js"),
    include_str!("js/theme.js"),
    include_str!("js/data.js"),
    include_str!("js/selection.js"),
    include_str!("js/inverted.js"),
    include_str!("js/bins.js"),
    include_str!("js/canvas.js"),
    include_str!("js/extra_rows.js"),
    include_str!("js/rows.js"),
    include_str!("js/wait.js"),
    include_str!("js/timeline.js"),
    include_str!("js/flame.js"),
    include_str!("js/functions.js"),
    include_str!("js/table.js"),
    include_str!("js/traced.js"),
    include_str!("js/main.js"),
];

/// Returns the page that shows `payload`.
///
/// # Errors
/// When the payload contradicts itself.
pub fn page(payload: &Payload) -> Result<String, PayloadError> {
    let data = STANDARD.encode(encode(payload)?);
    let colours = serde_json::json!({ "light": palette::LIGHT, "dark": palette::DARK });
    let script = format!(
        "(() => {{\n\"use strict\";\nconst COLOURS = {colours};\n{}}})();\n",
        SCRIPTS.concat()
    );
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(&script),
        hash(STYLE)
    );
    Ok([
        ("@POLICY@", policy.as_str()),
        ("@STYLE@", STYLE),
        ("@SCRIPT@", &script),
        // Filled in last, so that it is not searched for the other places.
        ("@PAYLOAD@", &data),
    ]
    .into_iter()
    .fold(HTML.to_owned(), |page, (place, text)| {
        page.replacen(place, text, 1)
    }))
}

#[cfg(test)]
mod tests {
    use experiment_format::ids::Pid;

    use super::*;
    use crate::view::payload::{PageFunction, PageProcess};

    fn hostile(text: &[u8]) -> Payload {
        Payload {
            title: String::from_utf8_lossy(text).into_owned(),
            machine: String::from_utf8_lossy(text).into_owned(),
            losses: String::from_utf8_lossy(text).into_owned(),
            interval_us: 1,
            processes: vec![PageProcess {
                pid: Pid(1),
                name: text.to_vec(),
                lineage: text.to_vec(),
                held_up: text.to_vec(),
                groups: vec![text.to_vec()],
            }],
            groupings: vec!["unit"],
            functions: vec![PageFunction {
                name: text.to_vec(),
                object: text.to_vec(),
                ..PageFunction::default()
            }],
            ..Payload::default()
        }
    }

    #[test]
    fn whatever_it_shows_the_markup_is_the_same() {
        let around = |page: &str| {
            let (before, rest) = page
                .split_once("type=\"application/octet-stream\">")
                .unwrap();
            let (data, after) = rest.split_once('<').unwrap();
            assert!(
                data.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
            );
            (before.to_owned(), after.to_owned())
        };
        let plain = around(&page(&hostile(b"plain")).unwrap());
        for name in [
            b"</script><script>alert(1)</script>".as_slice(),
            b"<!--",
            b"]]>\"'`${1}&lt;",
            b"a\0b\xff\xfe",
            "\u{202e}gnp.exe".as_bytes(),
            b"@SCRIPT@ @PAYLOAD@ @STYLE@ @POLICY@",
        ] {
            assert_eq!(around(&page(&hostile(name)).unwrap()), plain);
        }
    }

    #[test]
    fn no_part_ends_its_element_early() {
        let script = SCRIPTS.concat();
        for part in [script.as_str(), STYLE] {
            for bad in ["</script", "<!--", "<script", "</style", "@PAYLOAD@"] {
                assert!(!part.contains(bad), "{bad}");
            }
        }
    }

    #[test]
    fn equal_payloads_are_equal_pages() {
        assert_eq!(page(&hostile(b"x")).unwrap(), page(&hostile(b"x")).unwrap());
    }

    #[test]
    fn page_has_no_unfilled_places() {
        let page = page(&hostile(b"x")).unwrap();
        for place in ["@POLICY@", "@STYLE@", "@SCRIPT@", "@PAYLOAD@"] {
            assert!(!page.contains(place), "{place}");
        }
        assert!(!page.contains("http://") && !page.contains("https://"));
    }
}
