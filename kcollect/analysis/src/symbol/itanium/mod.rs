//! Demangles names of C++, by the Itanium ABI, in the form of binutils' `c++filt`.
//!
//! A name is parsed to a graph, which is then printed: substitutions make it a graph and no tree.
//! Names may be hostile, so depth, nodes and output are bounded.

mod expression;
mod name;
mod print;
#[cfg(test)]
mod tests;
mod types;

use std::fmt::Write as _;

use print::Printer;

/// Maximum nesting. Expression templates of real programs have some tens of levels.
const MAX_DEPTH: u32 = 256;
/// Maximum number of parts of a name.
const MAX_NODES: usize = 64 << 10;

/// Demangles a C++ name. None: it is not one, or its result is longer than `max_bytes`.
pub(super) fn demangle(name: &str, max_bytes: usize) -> Option<String> {
    if name.starts_with("_GLOBAL_") {
        return global(name, max_bytes);
    }
    let rest = name
        .strip_prefix("__Z")
        .or_else(|| name.strip_prefix("_Z"))?;
    let mut parser = Parser::new(rest);
    let top = parser.encoding()?;
    let clones = parser.clones()?;
    let mut printer = Printer::new(&parser, max_bytes);
    printer.print(top)?;
    for clone in clones {
        write!(printer.out, " [clone {clone}]").ok()?;
    }
    (printer.out.len() <= max_bytes).then_some(printer.out)
}

/// Returns the name of a file's or an object's constructors, `_GLOBAL__I_NAME`.
fn global(name: &str, max_bytes: usize) -> Option<String> {
    let rest = name.strip_prefix("_GLOBAL_")?;
    let rest = rest.strip_prefix(['.', '_', '$'])?;
    let (kind, of) = match (rest.strip_prefix("I_"), rest.strip_prefix("D_")) {
        (Some(of), _) => ("constructors", of),
        (_, Some(of)) => ("destructors", of),
        _ => return None,
    };
    let of = demangle(of, max_bytes).unwrap_or_else(|| of.to_owned());
    Some(format!("global {kind} keyed to {of}"))
}

type Id = u32;

/// `const`, `volatile` and `restrict`, as bits.
type Cv = u8;
const CONST: Cv = 1;
const VOLATILE: Cv = 2;
const RESTRICT: Cv = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ref {
    None,
    L,
    R,
}

#[derive(Clone, Debug)]
enum Node<'a> {
    Name(&'a str),
    /// A standard abbreviation: in full, and the name of its constructors.
    Std(&'static str, &'static str),
    Nested(Id, Id),
    /// A function, and what is local to it.
    Local(Id, Id),
    Template(Id, Vec<Id>),
    /// A type with qualifiers.
    Cv(Id, Cv),
    /// A vendor's qualifier.
    Vendor(Id, &'a str, Vec<Id>),
    Pointer(Id),
    Reference(Id, Ref),
    Suffixed(Id, &'static str),
    MemberPointer(Id, Id),
    Array(Id, Option<Id>),
    Vector(Id, Option<Id>),
    FunctionType(FunctionType),
    /// A function's name with its type.
    Typed(Id, FunctionType, usize),
    Ctor(Id),
    Dtor(Id),
    Conversion(Id),
    Operator(&'static str),
    /// A user-defined literal.
    Literal(&'a str),
    VendorOperator(&'a str),
    Lambda(Vec<Id>, u32),
    Unnamed(u32),
    DefaultArg(u32),
    Tagged(Id, &'a str),
    Bindings(Vec<Id>),
    /// Arguments of a template for a pack.
    Pack(Vec<Id>),
    Expansion(Id),
    /// A parameter of a lambda.
    Auto(u32),
    /// A parameter of the template that is printed; in a lambda's parameters `auto`.
    Argument(u32),
    /// An encoding without a type, and its arguments.
    Scoped(Id, usize),
    Special(&'static str, Id),
    Two(&'static str, Id, &'static str, Id),
    Temporary(Id, u32),
    Decltype(Id),
    /// An operator before or after an operand.
    Unary(&'static str, &'static str, Id),
    Postfix(&'static str, Id),
    Binary(&'static str, &'static str, Id, Id),
    Trinary(Id, Id, Id),
    Fold(&'static str, char, Vec<Id>),
    Call(Id, Vec<Id>),
    Cast(Id, Vec<Id>, bool),
    NamedCast(&'static str, Id, Id),
    Init(Option<Id>, Vec<Id>),
    New(bool, Vec<Id>, Id, Option<Vec<Id>>),
    Number(Id, bool, &'a str),
    FunctionParam(u32),
    Global(Id),
    SizeofPack(Id),
    SizeofArgs(Vec<Id>),
    Noexcept(Option<Id>),
    Throw(Vec<Id>),
    Word(&'static str),
}

#[derive(Clone, Debug)]
struct FunctionType {
    result: Option<Id>,
    params: Vec<Id>,
    cv: Cv,
    reference: Ref,
    /// What is thrown.
    throws: Option<Id>,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    nodes: Vec<Node<'a>>,
    substitutions: Vec<Id>,
    /// The arguments of the template that the name of the present encoding is of.
    arguments: Vec<Id>,
    depth: u32,
    /// The arguments of all encodings.
    scopes: Vec<Vec<Id>>,
}

/// What follows from a function's name for its type.
#[derive(Clone, Copy, Default)]
struct NameFacts {
    template: bool,
    no_result: bool,
    cv: Cv,
    reference: Option<Ref>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser {
            text,
            at: 0,
            nodes: Vec::new(),
            substitutions: Vec::new(),
            arguments: Vec::new(),
            depth: 0,
            scopes: Vec::new(),
        }
    }
    fn peek(&self) -> u8 {
        self.peek_at(0)
    }
    fn peek_at(&self, ahead: usize) -> u8 {
        self.text
            .as_bytes()
            .get(self.at + ahead)
            .copied()
            .unwrap_or(0)
    }
    fn eat(&mut self, text: &str) -> bool {
        let rest = self.text.as_bytes().get(self.at..);
        let found = rest.is_some_and(|rest| rest.starts_with(text.as_bytes()));
        if found {
            self.at += text.len();
        }
        found
    }
    fn expect(&mut self, text: &str) -> Option<()> {
        self.eat(text).then_some(())
    }
    fn add(&mut self, node: Node<'a>) -> Option<Id> {
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        self.nodes.push(node);
        Some(self.nodes.len() as Id - 1)
    }
    fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let r = f(self);
        self.depth -= 1;
        r
    }
    fn digits(&mut self) -> &'a str {
        let from = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        &self.text[from..self.at]
    }
    fn number(&mut self) -> Option<u32> {
        self.digits().parse().ok()
    }
    fn signed(&mut self) -> Option<&'a str> {
        let from = self.at;
        self.eat("n");
        if self.digits().is_empty() {
            return None;
        }
        Some(&self.text[from..self.at])
    }
    /// A sequence number and `_`: 0 without digits.
    fn seq(&mut self, radix: u32) -> Option<u32> {
        let from = self.at;
        while self.peek() != b'_' {
            if !self.peek().is_ascii_alphanumeric() {
                return None;
            }
            self.at += 1;
        }
        let digits = &self.text[from..self.at];
        self.at += 1;
        match digits {
            "" => Some(0),
            _ => u32::from_str_radix(digits, radix).ok()?.checked_add(1),
        }
    }
    fn clones(&mut self) -> Option<Vec<&'a str>> {
        let rest = self.text.get(self.at..)?;
        if rest.is_empty() {
            return Some(Vec::new());
        }
        let mut found = Vec::new();
        let mut rest = rest;
        while !rest.is_empty() {
            let b = rest.as_bytes();
            if b[0] != b'.' {
                return None;
            }
            let c = *b.get(1)?;
            if !(c.is_ascii_lowercase() || c == b'_' || c.is_ascii_digit()) {
                return None;
            }
            let mut end = 1;
            while end < b.len() && (b[end].is_ascii_lowercase() || b[end] == b'_') {
                end += 1;
            }
            if end == 1 {
                while end < b.len() && b[end].is_ascii_digit() {
                    end += 1;
                }
            }
            while end + 1 < b.len() && b[end] == b'.' && b[end + 1].is_ascii_digit() {
                end += 2;
                while end < b.len() && b[end].is_ascii_digit() {
                    end += 1;
                }
            }
            found.push(&rest[..end]);
            rest = &rest[end..];
        }
        self.at = self.text.len();
        Some(found)
    }

    fn encoding(&mut self) -> Option<Id> {
        self.deeper(|p| {
            let saved = std::mem::take(&mut p.arguments);
            p.scopes.push(Vec::new());
            let scope = p.scopes.len() - 1;
            let r = p.encoding_in(scope);
            p.arguments = saved;
            r
        })
    }
    fn encoding_in(&mut self, scope: usize) -> Option<Id> {
        if self.peek() == b'T' || self.peek() == b'G' {
            return self.special();
        }
        let mut facts = NameFacts::default();
        let name = self.name(Some(&mut facts))?;
        self.scopes[scope] = self.arguments.clone();
        if matches!(self.peek(), 0 | b'E' | b'.' | b'_') {
            return self.add(Node::Scoped(name, scope));
        }
        if self.eat("Ua9enable_ifI") {
            while !self.eat("E") {
                self.argument()?;
            }
        }
        let result = if facts.template && !facts.no_result {
            Some(self.ty()?)
        } else {
            None
        };
        let params = self.params()?;
        self.add(Node::Typed(
            name,
            FunctionType {
                result,
                params,
                cv: facts.cv,
                reference: facts.reference.unwrap_or(Ref::None),
                throws: None,
            },
            scope,
        ))
    }
    fn params(&mut self) -> Option<Vec<Id>> {
        if self.eat("v") {
            return Some(Vec::new());
        }
        let mut params = Vec::new();
        loop {
            params.push(self.ty()?);
            if matches!(self.peek(), 0 | b'E' | b'.' | b'_' | b'Q') {
                return Some(params);
            }
            if (self.peek() == b'R' || self.peek() == b'O') && self.peek_at(1) == b'E' {
                return Some(params);
            }
        }
    }
    fn special(&mut self) -> Option<Id> {
        if self.eat("GV") {
            let n = self.name(None)?;
            return self.add(Node::Special("guard variable for ", n));
        }
        if self.eat("GR") {
            let n = self.name(None)?;
            let k = if self.peek() == 0 { 0 } else { self.seq(36)? };
            return self.add(Node::Temporary(n, k));
        }
        if self.eat("GTt") {
            let n = self.encoding()?;
            return self.add(Node::Special("transaction clone for ", n));
        }
        if self.eat("GA") {
            let n = self.encoding()?;
            return self.add(Node::Special("hidden alias for ", n));
        }
        for (code, text) in [
            ("TV", "vtable for "),
            ("TT", "VTT for "),
            ("TI", "typeinfo for "),
            ("TS", "typeinfo name for "),
            ("TF", "typeinfo fn for "),
        ] {
            if self.eat(code) {
                let t = self.ty()?;
                return self.add(Node::Special(text, t));
            }
        }
        for (code, text) in [
            ("TW", "TLS wrapper function for "),
            ("TH", "TLS init function for "),
        ] {
            if self.eat(code) {
                let t = self.name(None)?;
                return self.add(Node::Special(text, t));
            }
        }
        if self.eat("TA") {
            let t = self.argument()?;
            return self.add(Node::Special("template parameter object for ", t));
        }
        if self.eat("TC") {
            let derived = self.ty()?;
            self.digits();
            self.expect("_")?;
            let base = self.ty()?;
            return self.add(Node::Two("construction vtable for ", base, "-in-", derived));
        }
        if self.eat("Tc") {
            self.offset()?;
            self.offset()?;
            let n = self.encoding()?;
            return self.add(Node::Special("covariant return thunk to ", n));
        }
        let text = match self.peek_at(1) {
            b'h' => "non-virtual thunk to ",
            b'v' => "virtual thunk to ",
            _ => return None,
        };
        self.expect("T")?;
        self.offset()?;
        let n = self.encoding()?;
        self.add(Node::Special(text, n))
    }
    fn offset(&mut self) -> Option<()> {
        if self.eat("h") {
            self.signed()?;
            return self.expect("_");
        }
        self.expect("v")?;
        self.signed()?;
        self.expect("_")?;
        self.signed()?;
        self.expect("_")
    }
}
