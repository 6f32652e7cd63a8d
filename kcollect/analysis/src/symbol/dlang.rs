//! Demangles names of D, by the ABI of the language's specification, in the form of binutils'
//! `c++filt`: the name with the types of its parameters, without the type that a function returns.
//!
//! A part of a name may refer to an earlier one by its distance. Names may be hostile, so depth,
//! steps and output are bounded; a reference in what another one refers to has to lie before that.

/// Maximum nesting. Ranges of ranges have some tens of levels.
const MAX_DEPTH: u32 = 256;
/// Maximum number of types, names and values that are parsed.
const MAX_STEPS: u32 = 64 << 10;

/// Demangles a name. None: it is not of D, or its result is longer than `max_bytes`.
pub(super) fn demangle(name: &str, max_bytes: usize) -> Option<String> {
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    let mut parser = Parser {
        bytes: name.as_bytes(),
        at: 0,
        last_reference: name.len(),
        depth: 0,
        steps: 0,
        max_bytes,
    };
    let mut out = String::new();
    parser.mangled(&mut out)?;
    (parser.at == name.len() && !out.is_empty()).then_some(out)
}

/// Where a name is parsed.
struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The position of the reference that is followed.
    last_reference: usize,
    depth: u32,
    steps: u32,
    max_bytes: usize,
}

impl Parser<'_> {
    /// The next byte; 0 at the end.
    fn peek(&self) -> u8 {
        self.byte(self.at)
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    fn starts_with(&self, text: &str) -> bool {
        self.bytes[self.at..].starts_with(text.as_bytes())
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.digits()?;
        (self.at < self.bytes.len()).then_some(())?;
        digits.parse().ok()
    }

    /// Takes digits, at least one.
    fn digits(&mut self) -> Option<String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.text(length).filter(|digits| !digits.is_empty())
    }

    /// Takes as many bytes.
    fn text(&mut self, length: usize) -> Option<String> {
        let text = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        self.at += length;
        Some(text)
    }

    /// Parses a part within another one.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        self.steps += 1;
        let parsed = (self.depth < MAX_DEPTH && self.steps < MAX_STEPS)
            .then(|| parse(self))
            .flatten();
        self.depth -= 1;
        parsed
    }

    fn append(&self, out: &mut String, text: &str) -> Option<()> {
        out.push_str(text);
        (out.len() <= self.max_bytes).then_some(())
    }

    /// `_D`, a qualified name, and its type or `Z`.
    fn mangled(&mut self, out: &mut String) -> Option<()> {
        (self.take(b'_') && self.take(b'D')).then_some(())?;
        self.qualified(out, true)?;
        if self.take(b'Z') {
            return Some(());
        }
        self.ty(&mut String::new())
    }

    /// Whether a name begins at a position.
    fn is_name_at(&self, at: usize) -> bool {
        match self.byte(at) {
            b'0'..=b'9' => true,
            b'_' => self.is_template_at(at),
            b'Q' => self
                .reference_at(at)
                .is_some_and(|(to, _)| self.byte(to).is_ascii_digit()),
            _ => false,
        }
    }

    fn is_template_at(&self, at: usize) -> bool {
        let rest = self.bytes.get(at..).unwrap_or_default();
        rest.starts_with(b"__T") || rest.starts_with(b"__U")
    }

    /// Names with dots between them. Those of nested functions have parameters.
    fn qualified(&mut self, out: &mut String, with_modifiers: bool) -> Option<()> {
        self.nested(|parser| {
            let mut first = true;
            loop {
                if parser.take(b'0') {
                    // Something without a name.
                    while parser.take(b'0') {}
                } else {
                    if !first {
                        parser.append(out, ".")?;
                    }
                    first = false;
                    parser.identifier(out)?;
                    parser.parameters_of_name(out, with_modifiers)?;
                }
                if !parser.is_name_at(parser.at) {
                    return Some(());
                }
            }
        })
    }

    /// The parameters after a name, if what follows are parameters and not the name's type.
    fn parameters_of_name(&mut self, out: &mut String, with_modifiers: bool) -> Option<()> {
        if self.peek() != b'M' && !is_convention(self.peek()) {
            return Some(());
        }
        let (start, length) = (self.at, out.len());
        let mut modifiers = String::new();
        let parsed = (!self.take(b'M') || self.modifiers(&mut modifiers).is_some())
            .then(|| self.function_without_result(out, &mut String::new(), &mut String::new()))
            .flatten();
        if parsed.is_none() || self.peek() == 0 {
            self.at = start;
            out.truncate(length);
        } else if with_modifiers {
            self.append(out, &modifiers)?;
        }
        Some(())
    }

    /// The qualifiers of `this`.
    fn modifiers(&mut self, out: &mut String) -> Option<()> {
        loop {
            match self.peek() {
                b'x' | b'y' => {
                    let constant = self.peek() == b'x';
                    self.at += 1;
                    return self.append(out, if constant { " const" } else { " immutable" });
                }
                b'O' => {
                    self.at += 1;
                    self.append(out, " shared")?;
                }
                b'N' => {
                    self.at += 1;
                    self.take(b'g').then_some(())?;
                    self.append(out, " inout")?;
                }
                _ => return Some(()),
            }
        }
    }

    fn identifier(&mut self, out: &mut String) -> Option<()> {
        self.nested(|parser| {
            if parser.peek() == b'Q' {
                let (to, after) = parser.reference_at(parser.at)?;
                parser.at = to;
                let length = parser.number()?;
                parser.simple_name(out, length)?;
                parser.at = after;
                return Some(());
            }
            if parser.is_template_at(parser.at) {
                return parser.template(out, None);
            }
            let length = parser.number().filter(|length| *length > 0)?;
            let name = parser
                .bytes
                .get(parser.at..parser.at.checked_add(length)?)?;
            if length >= 5 && parser.is_template_at(parser.at) {
                return parser.template(out, Some(length));
            }
            // A parent that only tells equal names apart.
            if length >= 4 && name.starts_with(b"__S") && name[3..].iter().all(u8::is_ascii_digit) {
                parser.at += length;
                return parser.identifier(out);
            }
            parser.simple_name(out, length)
        })
    }

    /// A name of this length; some have a meaning.
    fn simple_name(&mut self, out: &mut String, length: usize) -> Option<()> {
        // The length of a name, the name with the `Z` that ends the symbol, and what it stands for.
        const OF_PARENTS: [(usize, &str, &str); 5] = [
            (6, "__initZ", "initializer for "),
            (6, "__vtblZ", "vtable for "),
            (7, "__ClassZ", "ClassInfo for "),
            (11, "__InterfaceZ", "Interface for "),
            (12, "__ModuleInfoZ", "ModuleInfo for "),
        ];
        let found = OF_PARENTS
            .iter()
            .find(|(of, name, _)| *of == length && self.starts_with(name));
        if let Some((_, _, what)) = found {
            self.at += length;
            // The dot before it.
            out.pop();
            out.insert_str(0, what);
            return self.append(out, "");
        }
        if length == 10 && self.starts_with("__postblitMFZ") {
            self.at += length + "MFZ".len();
            return self.append(out, "this(this)");
        }
        let name = self.text(length)?;
        self.append(
            out,
            match name.as_str() {
                "__ctor" => "this",
                "__dtor" => "~this",
                name => name,
            },
        )
    }

    /// The position that a reference at a position refers to, and the one after the reference.
    fn reference_at(&self, at: usize) -> Option<(usize, usize)> {
        let mut distance = 0_usize;
        for (index, byte) in self.bytes.get(at + 1..)?.iter().enumerate() {
            distance = distance.checked_mul(26)?;
            match byte {
                b'a'..=b'z' => {
                    distance = distance.checked_add(usize::from(byte - b'a'))?;
                    let to = at.checked_sub(distance).filter(|_| distance > 0)?;
                    return Some((to, at + 2 + index));
                }
                b'A'..=b'Z' => distance = distance.checked_add(usize::from(byte - b'A'))?,
                _ => return None,
            }
        }
        None
    }

    /// A reference to a type, or to a function's.
    fn type_reference(&mut self, out: &mut String, function: bool) -> Option<()> {
        if self.at >= self.last_reference {
            return None;
        }
        let before = std::mem::replace(&mut self.last_reference, self.at);
        let (to, after) = self.reference_at(self.at)?;
        self.at = to;
        let parsed = if function {
            self.function(out)
        } else {
            self.ty(out)
        };
        self.last_reference = before;
        self.at = after;
        parsed
    }

    /// `__T` or `__U`, a name and its arguments; all as long as `length` says.
    fn template(&mut self, out: &mut String, length: Option<usize>) -> Option<()> {
        self.nested(|parser| {
            let start = parser.at;
            parser.at += 3;
            if !parser.is_name_at(parser.at) || parser.peek() == b'0' {
                return None;
            }
            parser.identifier(out)?;
            parser.append(out, "!(")?;
            parser.template_arguments(out)?;
            parser.append(out, ")")?;
            length
                .is_none_or(|length| parser.at - start == length)
                .then_some(())
        })
    }

    fn template_arguments(&mut self, out: &mut String) -> Option<()> {
        let mut first = true;
        while !self.take(b'Z') {
            if !std::mem::take(&mut first) {
                self.append(out, ", ")?;
            }
            // Of a specialized template.
            self.take(b'H');
            let kind = self.peek();
            self.at += 1;
            match kind {
                b'S' => self.symbol_argument(out)?,
                b'T' => self.ty(out)?,
                b'V' => {
                    let mut kind = self.peek();
                    if kind == b'Q' {
                        kind = self.byte(self.reference_at(self.at)?.0);
                    }
                    let mut name = String::new();
                    self.ty(&mut name)?;
                    self.value(out, Some(&name), kind)?;
                }
                b'X' => {
                    let length = self.number()?;
                    let text = self.text(length)?;
                    self.append(out, &text)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// A symbol as an argument. Before version 2.077 its length stood before it, and the name that
    /// follows may begin with a digit: of the digits, so many are the length that it is right.
    fn symbol_argument(&mut self, out: &mut String) -> Option<()> {
        if self.is_mangled() {
            return self.mangled(out);
        }
        if self.peek() == b'Q' {
            return self.qualified(out, false);
        }
        let start = self.at;
        let length = self.number().filter(|length| *length > 0)?;
        let (end, written) = (self.at, out.len());
        let mut claimed = length;
        for from in (start..=end).rev() {
            let whole = claimed == 0;
            self.at = if whole { end } else { from };
            let begin = self.at;
            let parsed = if self.is_name_at(self.at) {
                self.qualified(out, false)
            } else if self.is_mangled() {
                self.mangled(out)
            } else {
                None
            };
            if parsed.is_some() && (whole || self.at - begin == claimed) {
                return Some(());
            }
            out.truncate(written);
            if whole {
                break;
            }
            claimed /= 10;
        }
        None
    }

    fn is_mangled(&self) -> bool {
        self.starts_with("_D") && self.is_name_at(self.at + 2)
    }

    /// Convention, attributes and parameters of a function.
    fn function_without_result(
        &mut self,
        parameters: &mut String,
        convention: &mut String,
        attributes: &mut String,
    ) -> Option<()> {
        let name = match self.peek() {
            b'F' => "",
            b'U' => "extern(C) ",
            b'W' => "extern(Windows) ",
            b'V' => "extern(Pascal) ",
            b'R' => "extern(C++) ",
            b'Y' => "extern(Objective-C) ",
            _ => return None,
        };
        self.at += 1;
        self.append(convention, name)?;
        self.attributes(attributes)?;
        self.append(parameters, "(")?;
        self.parameters(parameters)?;
        self.append(parameters, ")")
    }

    fn attributes(&mut self, out: &mut String) -> Option<()> {
        while self.peek() == b'N' {
            let name = match self.byte(self.at + 1) {
                b'a' => "pure ",
                b'b' => "nothrow ",
                b'c' => "ref ",
                b'd' => "@property ",
                b'e' => "@trusted ",
                b'f' => "@safe ",
                b'i' => "@nogc ",
                b'j' => "return ",
                b'l' => "scope ",
                b'm' => "@live ",
                // The first parameter's.
                b'g' | b'h' | b'k' | b'n' => break,
                _ => return None,
            };
            self.at += 2;
            self.append(out, name)?;
        }
        Some(())
    }

    fn parameters(&mut self, out: &mut String) -> Option<()> {
        let mut first = true;
        loop {
            match self.peek() {
                0 => return Some(()),
                b'Z' => {
                    self.at += 1;
                    return Some(());
                }
                b'X' => {
                    self.at += 1;
                    return self.append(out, "...");
                }
                b'Y' => {
                    self.at += 1;
                    return self.append(out, if first { "..." } else { ", ..." });
                }
                _ => {}
            }
            if !std::mem::take(&mut first) {
                self.append(out, ", ")?;
            }
            if self.take(b'M') {
                self.append(out, "scope ")?;
            }
            if self.starts_with("Nk") {
                self.at += 2;
                self.append(out, "return ")?;
            }
            let storage = match self.peek() {
                b'I' if self.byte(self.at + 1) == b'K' => "in ref ",
                b'I' => "in ",
                b'J' => "out ",
                b'K' => "ref ",
                b'L' => "lazy ",
                _ => "",
            };
            self.at += if storage == "in ref " {
                2
            } else {
                usize::from(!storage.is_empty())
            };
            self.append(out, storage)?;
            self.ty(out)?;
        }
    }

    /// A function's type: convention, result, parameters, attributes.
    fn function(&mut self, out: &mut String) -> Option<()> {
        let (mut parameters, mut attributes) = (String::new(), String::new());
        self.function_without_result(&mut parameters, out, &mut attributes)?;
        self.ty(out)?;
        self.append(out, &parameters)?;
        self.append(out, " ")?;
        self.append(out, &attributes)
    }

    fn ty(&mut self, out: &mut String) -> Option<()> {
        self.nested(|parser| parser.any_type(out))
    }

    /// A type in brackets after a word.
    fn within(&mut self, out: &mut String, word: &str) -> Option<()> {
        self.append(out, word)?;
        self.ty(out)?;
        self.append(out, ")")
    }

    fn any_type(&mut self, out: &mut String) -> Option<()> {
        let kind = self.peek();
        if is_convention(kind) {
            self.function(out)?;
            return self.append(out, "function");
        }
        if kind == b'Q' {
            return self.type_reference(out, false);
        }
        self.at += 1;
        match kind {
            b'O' => self.within(out, "shared("),
            b'x' => self.within(out, "const("),
            b'y' => self.within(out, "immutable("),
            b'N' => {
                let kind = self.peek();
                self.at += 1;
                match kind {
                    b'g' => self.within(out, "inout("),
                    b'h' => self.within(out, "__vector("),
                    b'n' => self.append(out, "typeof(*null)"),
                    _ => None,
                }
            }
            b'A' => {
                self.ty(out)?;
                self.append(out, "[]")
            }
            b'G' => {
                let length = self.digits()?;
                self.ty(out)?;
                self.append(out, &format!("[{length}]"))
            }
            b'H' => {
                let mut key = String::new();
                self.ty(&mut key)?;
                self.ty(out)?;
                self.append(out, &format!("[{key}]"))
            }
            b'P' if is_convention(self.peek()) => self.ty(out),
            b'P' => {
                self.ty(out)?;
                self.append(out, "*")
            }
            b'C' | b'S' | b'E' | b'T' => self.qualified(out, false),
            b'D' => {
                let mut modifiers = String::new();
                self.modifiers(&mut modifiers)?;
                if self.peek() == b'Q' {
                    self.type_reference(out, true)?;
                } else {
                    self.function(out)?;
                }
                self.append(out, "delegate")?;
                self.append(out, &modifiers)
            }
            b'B' => {
                let count = self.number()?;
                self.append(out, "Tuple!(")?;
                self.list(out, count, Self::ty)?;
                self.append(out, ")")
            }
            b'z' => {
                let name = match self.peek() {
                    b'i' => "cent",
                    b'k' => "ucent",
                    _ => return None,
                };
                self.at += 1;
                self.append(out, name)
            }
            basic => self.append(out, basic_type(basic)?),
        }
    }

    fn list(
        &mut self,
        out: &mut String,
        count: usize,
        element: impl Fn(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        for number in 0..count {
            if number > 0 {
                self.append(out, ", ")?;
            }
            element(self, out)?;
        }
        Some(())
    }

    /// A value of the type that begins with `kind`, whose name is `name`.
    fn value(&mut self, out: &mut String, name: Option<&str>, kind: u8) -> Option<()> {
        self.nested(|parser| parser.any_value(out, name, kind))
    }

    fn any_value(&mut self, out: &mut String, name: Option<&str>, kind: u8) -> Option<()> {
        let first = self.peek();
        if first.is_ascii_digit() {
            return self.integer(out, kind);
        }
        if matches!(first, b'a' | b'w' | b'd') {
            return self.string(out);
        }
        self.at += 1;
        match first {
            b'n' => self.append(out, "null"),
            b'N' => {
                self.append(out, "-")?;
                self.integer(out, kind)
            }
            b'i' => self.integer(out, kind),
            b'e' => self.real(out),
            b'c' => {
                self.real(out)?;
                self.append(out, "+")?;
                self.take(b'c').then_some(())?;
                self.real(out)?;
                self.append(out, "i")
            }
            b'A' => {
                let count = self.number()?;
                self.append(out, "[")?;
                self.list(out, count, |parser, out| {
                    parser.value(out, None, 0)?;
                    if kind == b'H' {
                        parser.append(out, ":")?;
                        parser.value(out, None, 0)?;
                    }
                    Some(())
                })?;
                self.append(out, "]")
            }
            b'S' => {
                let count = self.number()?;
                self.append(out, name.unwrap_or_default())?;
                self.append(out, "(")?;
                self.list(out, count, |parser, out| parser.value(out, None, 0))?;
                self.append(out, ")")
            }
            b'f' if self.is_mangled() => self.mangled(out),
            _ => None,
        }
    }

    fn integer(&mut self, out: &mut String, kind: u8) -> Option<()> {
        match kind {
            b'a' | b'u' | b'w' => {
                let value = self.number()?;
                let text = match (kind, u8::try_from(value)) {
                    (b'a', Ok(byte @ 0x20..0x7f)) => char::from(byte).to_string(),
                    (b'a', _) => format!("\\x{value:02x}"),
                    (b'u', _) => format!("\\u{value:04x}"),
                    _ => format!("\\U{value:08x}"),
                };
                self.append(out, &format!("'{text}'"))
            }
            b'b' => {
                let value = self.number()?;
                self.append(out, if value > 0 { "true" } else { "false" })
            }
            _ => {
                let digits = self.digits()?;
                let suffix = match kind {
                    b'h' | b't' | b'k' => "u",
                    b'l' => "L",
                    b'm' => "uL",
                    _ => "",
                };
                self.append(out, &digits)?;
                self.append(out, suffix)
            }
        }
    }

    /// A floating-point number, in hexadecimal.
    fn real(&mut self, out: &mut String) -> Option<()> {
        for (mangled, value) in [("NAN", "NaN"), ("INF", "Inf"), ("NINF", "-Inf")] {
            if self.starts_with(mangled) {
                self.at += mangled.len();
                return self.append(out, value);
            }
        }
        if self.take(b'N') {
            self.append(out, "-")?;
        }
        let rest = &self.bytes[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_hexdigit());
        let significand = self.text(count.count())?;
        let (lead, fraction) = significand.split_at_checked(1)?;
        self.append(out, &format!("0x{lead}.{fraction}p"))?;
        self.take(b'P').then_some(())?;
        if self.take(b'N') {
            self.append(out, "-")?;
        }
        let exponent = self.digits().unwrap_or_default();
        self.append(out, &exponent)
    }

    fn string(&mut self, out: &mut String) -> Option<()> {
        let kind = self.peek();
        self.at += 1;
        let length = self.number()?;
        self.take(b'_').then_some(())?;
        self.append(out, "\"")?;
        for _ in 0..length {
            let digits = self.text(2)?;
            let byte = u8::from_str_radix(&digits, 16).ok()?;
            let text = match byte {
                b'\t' => "\\t".to_owned(),
                b'\n' => "\\n".to_owned(),
                b'\r' => "\\r".to_owned(),
                0x0c => "\\f".to_owned(),
                0x0b => "\\v".to_owned(),
                b' '..=b'~' => char::from(byte).to_string(),
                _ => format!("\\x{digits}"),
            };
            self.append(out, &text)?;
        }
        self.append(out, "\"")?;
        match kind {
            b'a' => Some(()),
            kind => self.append(out, &char::from(kind).to_string()),
        }
    }
}

/// Whether a function's type begins with this: its calling convention.
fn is_convention(byte: u8) -> bool {
    matches!(byte, b'F' | b'U' | b'W' | b'V' | b'R' | b'Y')
}

fn basic_type(kind: u8) -> Option<&'static str> {
    Some(match kind {
        b'n' => "typeof(null)",
        b'v' => "void",
        b'g' => "byte",
        b'h' => "ubyte",
        b's' => "short",
        b't' => "ushort",
        b'i' => "int",
        b'k' => "uint",
        b'l' => "long",
        b'm' => "ulong",
        b'f' => "float",
        b'd' => "double",
        b'e' => "real",
        b'o' => "ifloat",
        b'p' => "idouble",
        b'j' => "ireal",
        b'q' => "cfloat",
        b'r' => "cdouble",
        b'c' => "creal",
        b'b' => "bool",
        b'a' => "char",
        b'u' => "wchar",
        b'w' => "dchar",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in the libraries of two compilers, as `c++filt` has them.
    #[test]
    fn names_are_those_of_cxxfilt() {
        for (mangled, name) in [
            ("_Dmain", "D main"),
            (
                "_D4core6thread5fiber5Fiber5resetMFNbNiDFZvZv",
                "core.thread.fiber.Fiber.reset(void() delegate)",
            ),
            (
                "_D3std8internal4math13errorfunction1RyG5e",
                "std.internal.math.errorfunction.R",
            ),
            ("_D8TypeInfo7__ClassZ", "ClassInfo for TypeInfo"),
            ("_D8TypeInfo6__vtblZ", "vtable for TypeInfo"),
            ("_D8TypeInfo6__initZ", "initializer for TypeInfo"),
            ("_D2rt3adi12__ModuleInfoZ", "ModuleInfo for rt.adi"),
            (
                "_D6object6Object7Monitor11__InterfaceZ",
                "Interface for object.Object.Monitor",
            ),
            (
                "_D3std7numeric3Fft6__ctorMFAfZCQBdQBcQx",
                "std.numeric.Fft.this(float[])",
            ),
            (
                "_D3std6mmfile6MmFile6__dtorMFZv",
                "std.mmfile.MmFile.~this()",
            ),
            (
                "_D3std7variant__T8VariantNVmi32ZQp10__postblitMFZv",
                "std.variant.VariantN!(32uL).VariantN.this(this)",
            ),
            (
                "_D2rt6dmain212_d_run_main2UAAamPUQgZiZ7tryExecMFMDFZvZv",
                "rt.dmain2._d_run_main2(char[][], ulong, extern(C) int(char[][]) function).tryExec(scope void() delegate)",
            ),
            (
                "_D2rt5trace14trace_readlineFPOS4core4stdc5stdio8_IO_FILEZAa",
                "rt.trace.trace_readline(shared(core.stdc.stdio._IO_FILE)*)",
            ),
            (
                "_D6object__T16assumeSafeAppendTaZQvFNbNgAaZNgQf",
                "object.assumeSafeAppend!(char).assumeSafeAppend(inout(char[]))",
            ),
            (
                "_D3std3xml5checkFNaNfAyaZv",
                "std.xml.check(immutable(char)[])",
            ),
            (
                "_D4core5bitop__T7softBtxVAyaa1_7cZQsFNaNbNiPmmZi",
                "core.bitop.softBtx!(\"|\").softBtx(ulong*, ulong)",
            ),
            (
                "_D3std6base64__T10Base64ImplVai45Vai95Vai61Z9EncodeMapyAa",
                "std.base64.Base64Impl!('-', '_', '=').EncodeMap",
            ),
            (
                "_D14TypeInfo_Tuple7__ClassZ",
                "ClassInfo for TypeInfo_Tuple",
            ),
            (
                "_D3std6digest6DigestQoMFNbNeMAxAvXAh",
                "std.digest.Digest.digest(scope const(void[])[]...)",
            ),
            (
                "_D6object__T3getTmTmZQjFNaNfNgHmmmLNgmZNgm",
                "object.get!(ulong, ulong).get(inout(ulong[ulong]), ulong, lazy inout(ulong))",
            ),
            (
                "_D3std3xml12checkCharRefFNaNfKAyaJwZv",
                "std.xml.checkCharRef(ref immutable(char)[], out dchar)",
            ),
            (
                "_D3std7process6browseFNbNiNfMAxaZv",
                "std.process.browse(scope const(char)[])",
            ),
            (
                "_D4core8internal7convert__T7toUbyteTS3std5range__T6RepeatTaZQkZQBkFNaNbNiNeNkKxSQBrQBq__TQBnTaZQBtZAxh",
                "core.internal.convert.toUbyte!(std.range.Repeat!(char).Repeat).toUbyte(return ref const(std.range.Repeat!(char).Repeat))",
            ),
            (
                "_D4core5bitop__T8softScanTkVbi1ZQqFNaNbNiNfkZi",
                "core.bitop.softScan!(uint, true).softScan(uint)",
            ),
            (
                "_D3std3uni__T8spaceForVmi7ZQoFNaNbNiNfmZm",
                "std.uni.spaceFor!(7uL).spaceFor(ulong)",
            ),
            (
                "_D3std6digest2md3MD59transformMFNaNbNiPxG64hZv",
                "std.digest.md.MD5.transform(const(ubyte[64])*)",
            ),
            (
                "_D3std5range8nullSinkFNcZ4sinkSQBdQBc8NullSink",
                "std.range.nullSink().sink",
            ),
            (
                "_D4core3sys5posixQk5ioctl__T4_IOCTnZQiFNaNbNiiiiZi",
                "core.sys.posix.sys.ioctl._IOC!(typeof(null))._IOC(int, int, int)",
            ),
            (
                "_D4core4sync5mutex5Mutex6unlockMOFNeZv",
                "core.sync.mutex.Mutex.unlock() shared",
            ),
            (
                "_D3std4conv__T2toTiZ__TQjTmZQoFNaNfmZi",
                "std.conv.to!(int).to!(ulong).to(ulong)",
            ),
        ] {
            assert_eq!(demangle(mangled, 4096).as_deref(), Some(name), "{mangled}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "_D",
            "_DYNAMIC",
            "_D3fo",
            "_D3foo",
            "_D0Z",
            "_D3fooQaZ",
            "_D3fooGi",
            "_D99999999999999999999fooZ",
        ] {
            assert_eq!(demangle(name, 4096), None, "{name}");
        }
    }

    #[test]
    fn names_that_would_explode_are_refused() {
        let deep = format!("_D1f{}i", "P".repeat(10_000));
        assert_eq!(demangle(&deep, 4096), None);
        // Each array's key and element are the array before.
        let mut bomb = "_D1fFHii".to_owned();
        let mut before = 0;
        for _ in 0..40 {
            let start = bomb.len();
            bomb.push('H');
            for _ in 0..2 {
                let distance = bomb.len() - if before == 0 { "_D1fF".len() } else { before };
                bomb.push('Q');
                if distance >= 26 {
                    bomb.push(char::from(b'A' + (distance / 26) as u8));
                }
                bomb.push(char::from(b'a' + (distance % 26) as u8));
            }
            before = start;
        }
        bomb.push_str("Zv");
        assert_eq!(demangle(&bomb, 4096), None);
    }
}
