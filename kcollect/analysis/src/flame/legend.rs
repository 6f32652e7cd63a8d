//! Adds a search field and a legend to a flame graph of inferno.
//!
//! inferno has neither: its search is a faint word that opens a prompt. Its frames are an element
//! of their own, which is moved down to make space. Its texts are looked for one by one; without
//! one of them the picture stays as it is.

use std::fmt::Write as _;

use inferno::flamegraph::color::Color;

/// The height of the legend's line.
const LINE_PX: usize = 22;
/// The width of a character of inferno's font.
const CHARACTER_PX: f64 = 7.2;

/// The search field: an input of HTML, since SVG has none.
const SEARCH: &str = r#"<foreignObject x="10" y="6" width="220" height="28"><input xmlns="http://www.w3.org/1999/xhtml" id="find" type="search" placeholder="Search (regular expression)" aria-label="Search functions with a regular expression" oninput="find(this)" onkeydown="event.stopPropagation()" style="width:206px;font:12px monospace;padding:2px 4px"/></foreignObject>"#;

/// The script that searches while a text is typed. An incomplete expression finds nothing.
const SCRIPT: &str = r#"<script type="text/ecmascript"><![CDATA[
function find(field) {
    if (searching) search_prompt();
    if (!field.value) return;
    try { search(field.value); field.style.color = ""; }
    catch (error) { field.style.color = "red"; }
}
]]></script>"#;

/// Returns a picture of inferno with a search field and a legend of these colours with their
/// meanings.
pub(super) fn add(svg: &str, entries: &[(Color, &str)]) -> String {
    edit(svg, entries).unwrap_or_else(|| svg.to_owned())
}

fn edit(svg: &str, entries: &[(Color, &str)]) -> Option<String> {
    let (width, height) = size(svg)?;
    let (start, style, frames) = (
        svg.find("<svg ")?,
        svg.find("</style>")?,
        svg.find(r#"<svg id="frames" "#)?,
    );
    let head = svg[start..style]
        .replacen(
            &format!("height=\"{height}\""),
            &attribute(height + LINE_PX),
            1,
        )
        .replacen(
            &format!("0 0 {width} {height}"),
            &format!("0 0 {width} {}", height + LINE_PX),
            1,
        );
    let rest = svg[style..frames]
        .replacen(
            &format!("height=\"{height}\""),
            &attribute(height + LINE_PX),
            1,
        )
        .replacen(
            r#"id="unzoom" class="hide" fill="rgb(0,0,0)" x="10""#,
            r#"id="unzoom" class="hide" fill="rgb(0,0,0)" x="240""#,
            1,
        )
        .replacen(
            &format!(
                r#"id="matched" fill="rgb(0,0,0)" x="{}" y="{}.00""#,
                width - 10,
                height.checked_sub(11)?
            ),
            &format!(
                r#"id="matched" fill="rgb(0,0,0)" x="{}" y="42.00""#,
                width - 10
            ),
            1,
        );
    let frames = svg[frames..].replacen("<svg ", &format!("<svg y=\"{LINE_PX}\" "), 1);
    Some(
        [
            &svg[..start],
            &head,
            "#search { opacity:1 }\n",
            &rest,
            SCRIPT,
            SEARCH,
            &legend(entries, width),
            &frames,
        ]
        .concat(),
    )
}

fn attribute(height: usize) -> String {
    format!("height=\"{height}\"")
}

/// Returns the width and the height of a picture.
fn size(svg: &str) -> Option<(usize, usize)> {
    let (_, rest) = svg.split_once("viewBox=\"0 0 ")?;
    let (size, _) = rest.split_once('"')?;
    let (width, height) = size.split_once(' ')?;
    Some((width.parse().ok()?, height.parse().ok()?))
}

/// Returns the legend's line. The distance of its entries is less if many of them need to fit.
fn legend(entries: &[(Color, &str)], width: usize) -> String {
    let own = |text: &str| 17.0 + CHARACTER_PX * text.chars().count() as f64;
    let all: f64 = entries.iter().map(|(_, text)| own(text)).sum();
    let distance = (width as f64 - 20.0 - all) / entries.len().max(1) as f64;
    let distance = distance.clamp(4.0, 16.0);
    let (mut line, mut x) = (String::from("<g id=\"legend\">"), 10.0);
    for (color, text) in entries {
        let Color { r, g, b } = color;
        // Writing to a String cannot fail.
        let _ = write!(
            line,
            r#"<rect x="{x:.0}" y="75" width="12" height="12" rx="2" fill="rgb({r},{g},{b})" stroke="rgb(120,120,120)" stroke-width="0.5"/><text x="{:.0}" y="85">{text}</text>"#,
            x + 17.0
        );
        x += own(text) + distance;
    }
    line + "</g>"
}

#[cfg(test)]
mod tests {
    use inferno::flamegraph::{self, Direction, Options};

    use super::*;

    #[test]
    fn a_picture_has_a_search_field_and_a_legend_above_its_frames() {
        let mut options = Options::default();
        options.direction = Direction::Inverted;
        options.subtitle = Some("what".to_owned());
        let mut svg = Vec::new();
        flamegraph::from_lines(&mut options, ["a;b 3", "a;c 4"], &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let (width, height) = size(&svg).unwrap();
        let made = add(&svg, &[(Color { r: 1, g: 2, b: 3 }, "kernel")]);
        assert_eq!(size(&made), Some((width, height + LINE_PX)));
        for part in [
            "rgb(1,2,3)",
            ">kernel</text>",
            "id=\"find\"",
            "<svg y=\"22\" id=\"frames\"",
            "class=\"hide\" fill=\"rgb(0,0,0)\" x=\"240\"",
            "y=\"42.00\"",
        ] {
            assert_eq!(made.matches(part).count(), 1, "{part} in {made}");
        }
        assert!(!made.contains(&attribute(height)), "{made}");
        assert_eq!(add("no picture", &[]), "no picture");
    }

    #[test]
    fn many_entries_fit_into_the_line() {
        let color = Color { r: 1, g: 2, b: 3 };
        let start = |entries: &[(Color, &str)]| {
            let line = legend(entries, 1200);
            let (_, rest) = line.rsplit_once("<rect x=\"").unwrap();
            rest.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let few = [(color, "user code"), (color, "kernel code")];
        assert_eq!(start(&few), 108.0);
        let many = [(color, "another thread"); 9];
        assert!(start(&many) + 17.0 + 14.0 * CHARACTER_PX < 1200.0);
    }
}
