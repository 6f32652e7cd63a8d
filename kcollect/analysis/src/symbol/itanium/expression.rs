//! Expressions, in arguments of templates and in `decltype`.

use super::{Id, Node, Parser};

/// Operators: code, text, and the number of operands in an expression.
pub(super) const OPERATORS: [(&str, &str, u8); 59] = [
    ("aN", "&=", 2),
    ("aS", "=", 2),
    ("aa", "&&", 2),
    ("ad", "&", 1),
    ("an", "&", 2),
    ("at", "alignof ", 0),
    ("aw", "co_await ", 1),
    ("az", "alignof ", 1),
    ("cl", "()", 0),
    ("cm", ",", 2),
    ("co", "~", 1),
    ("dV", "/=", 2),
    ("da", "delete[] ", 1),
    ("de", "*", 1),
    ("dl", "delete ", 1),
    ("ds", ".*", 2),
    ("dt", ".", 2),
    ("dv", "/", 2),
    ("eO", "^=", 2),
    ("eo", "^", 2),
    ("eq", "==", 2),
    ("ge", ">=", 2),
    ("gt", ">", 2),
    ("ix", "[]", 0),
    ("lS", "<<=", 2),
    ("le", "<=", 2),
    ("ls", "<<", 2),
    ("lt", "<", 2),
    ("mI", "-=", 2),
    ("mL", "*=", 2),
    ("mi", "-", 2),
    ("ml", "*", 2),
    ("mm", "--", 1),
    ("na", "new[]", 0),
    ("ne", "!=", 2),
    ("ng", "-", 1),
    ("nt", "!", 1),
    ("nw", "new", 0),
    ("oR", "|=", 2),
    ("oo", "||", 2),
    ("or", "|", 2),
    ("pL", "+=", 2),
    ("pl", "+", 2),
    ("pm", "->*", 2),
    ("pp", "++", 1),
    ("ps", "+", 1),
    ("pt", "->", 2),
    ("qu", "?", 3),
    ("rM", "%=", 2),
    ("rS", ">>=", 2),
    ("rm", "%", 2),
    ("rs", ">>", 2),
    ("ss", "<=>", 2),
    ("st", "sizeof ", 0),
    ("sz", "sizeof ", 1),
    ("te", "typeid ", 1),
    ("ti", "typeid ", 0),
    ("tw", "throw ", 1),
    ("nx", "noexcept", 1),
];

impl<'a> Parser<'a> {
    pub(super) fn list(&mut self, end: &str) -> Option<Vec<Id>> {
        let mut all = Vec::new();
        while !self.eat(end) {
            all.push(self.expression()?);
        }
        Some(all)
    }
    pub(super) fn expression(&mut self) -> Option<Id> {
        self.deeper(Self::expression_in)
    }
    pub(super) fn expression_in(&mut self) -> Option<Id> {
        match self.peek() {
            b'L' => return self.primary(),
            b'T' => return self.template_param(),
            b'f' if matches!(self.peek_at(1), b'p')
                || self.peek_at(1) == b'L' && self.peek_at(2).is_ascii_digit() =>
            {
                if self.eat("fpT") {
                    return self.add(Node::FunctionParam(0));
                }
                if self.eat("fL") {
                    self.digits();
                    self.expect("p")?;
                } else {
                    self.at += 2;
                }
                self.cv();
                let n = self.seq(10)?;
                return self.add(Node::FunctionParam(n.checked_add(1)?));
            }
            b'f' => {
                let kind = self.peek_at(1);
                self.at += 2;
                let code = self.text.get(self.at..self.at + 2)?;
                let (_, text, _) = OPERATORS.iter().find(|(known, ..)| *known == code)?;
                self.at += 2;
                let mut all = vec![self.expression()?];
                if matches!(kind, b'L' | b'R') {
                    all.push(self.expression()?);
                }
                return self.add(Node::Fold(text, kind as char, all));
            }
            b'0'..=b'9' => return self.unresolved_simple(),
            b'd' | b'o' if self.peek_at(1) == b'n' => return self.base_unresolved(),
            _ => {}
        }
        if self.eat("gs") {
            let e = self.expression()?;
            return self.add(Node::Global(e));
        }
        if self.eat("sr") {
            return self.unresolved();
        }
        if self.eat("sp") {
            let e = self.expression()?;
            return self.add(Node::Expansion(e));
        }
        if self.eat("sZ") {
            let e = if self.peek() == b'T' {
                self.template_param()?
            } else {
                self.expression()?
            };
            return self.add(Node::SizeofPack(e));
        }
        if self.eat("sP") {
            let mut all = Vec::new();
            while !self.eat("E") {
                all.push(self.argument()?);
            }
            return self.add(Node::SizeofArgs(all));
        }
        if self.eat("cl") || self.eat("cp") {
            let f = self.expression()?;
            let args = self.list("E")?;
            return self.add(Node::Call(f, args));
        }
        if self.eat("cv") {
            let t = self.ty()?;
            if self.eat("_") {
                let args = self.list("E")?;
                return self.add(Node::Cast(t, args, true));
            }
            let e = self.expression()?;
            return self.add(Node::Cast(t, vec![e], false));
        }
        if self.eat("tl") {
            let t = self.ty()?;
            let args = self.list("E")?;
            return self.add(Node::Init(Some(t), args));
        }
        if self.eat("il") {
            let args = self.list("E")?;
            return self.add(Node::Init(None, args));
        }
        for (code, text) in [
            ("dc", "dynamic_cast"),
            ("sc", "static_cast"),
            ("cc", "const_cast"),
            ("rc", "reinterpret_cast"),
        ] {
            if self.eat(code) {
                let t = self.ty()?;
                let e = self.expression()?;
                return self.add(Node::NamedCast(text, t, e));
            }
        }
        for (code, text) in [("st", "sizeof "), ("at", "alignof "), ("ti", "typeid ")] {
            if self.eat(code) {
                let t = self.ty()?;
                return self.add(Node::Unary(code_of(code), text, t));
            }
        }
        if self.eat("tr") {
            return self.add(Node::Word("throw"));
        }
        if self.eat("ix") {
            let a = self.expression()?;
            let b = self.expression()?;
            return self.add(Node::Binary("ix", "[]", a, b));
        }
        if self.eat("nw") || self.eat("na") {
            let array = self.text.as_bytes()[self.at - 1] == b'a';
            let place = self.list("_")?;
            let t = self.ty()?;
            let init = if self.eat("pi") {
                Some(self.list("E")?)
            } else if self.peek() == b'i' {
                let e = self.expression()?;
                Some(vec![e])
            } else {
                self.expect("E")?;
                None
            };
            return self.add(Node::New(array, place, t, init));
        }
        for (code, text) in [("pp", "++"), ("mm", "--")] {
            if self.eat(code) {
                let prefix = self.eat("_");
                let e = self.expression()?;
                return self.add(if prefix {
                    Node::Unary("pp", text, e)
                } else {
                    Node::Postfix(text, e)
                });
            }
        }
        let code = self.text.get(self.at..self.at + 2)?;
        let (code, text, operands) = *OPERATORS.iter().find(|(known, ..)| *known == code)?;
        self.at += 2;
        match operands {
            1 => {
                let e = self.expression()?;
                self.add(Node::Unary(code, text, e))
            }
            2 => {
                let a = self.expression()?;
                let b = match code {
                    "dt" | "pt" => {
                        if self.peek().is_ascii_digit() {
                            self.unresolved_simple()?
                        } else {
                            self.expression()?
                        }
                    }
                    _ => self.expression()?,
                };
                self.add(Node::Binary(code, text, a, b))
            }
            3 => {
                let a = self.expression()?;
                let b = self.expression()?;
                let c = self.expression()?;
                self.add(Node::Trinary(a, b, c))
            }
            _ => None,
        }
    }
    pub(super) fn with_args(&mut self, n: Id) -> Option<Id> {
        if self.peek() != b'I' {
            return Some(n);
        }
        let args = self.arguments_of(false)?;
        self.add(Node::Template(n, args))
    }
    pub(super) fn unresolved_simple(&mut self) -> Option<Id> {
        let mut n = self.source_name()?;
        while self.eat("B") {
            let length = self.number()? as usize;
            let tag = self.text.get(self.at..self.at.checked_add(length)?)?;
            self.at += length;
            n = self.add(Node::Tagged(n, tag))?;
        }
        self.with_args(n)
    }
    /// A name in a scope, after `sr`.
    pub(super) fn unresolved(&mut self) -> Option<Id> {
        let (at, nodes, known) = (self.at, self.nodes.len(), self.substitutions.len());
        if self.peek() == b'N' {
            let nested = self
                .ty()
                .and_then(|scope| Some((scope, self.base_unresolved()?)));
            if let Some((scope, n)) = nested {
                return self.add(Node::Nested(scope, n));
            }
            self.at = at;
            self.nodes.truncate(nodes);
            self.substitutions.truncate(known);
        }
        if self.eat("N") {
            let mut so_far = self.ty()?;
            while !self.eat("E") {
                let n = self.unresolved_simple()?;
                so_far = self.add(Node::Nested(so_far, n))?;
            }
            let n = self.base_unresolved()?;
            return self.add(Node::Nested(so_far, n));
        }
        if self.peek().is_ascii_digit() {
            // As clang has it: names, an end, and the last name.
            let begin = (self.at, self.nodes.len());
            if let Some(found) = self.levels() {
                return Some(found);
            }
            self.at = begin.0;
            self.nodes.truncate(begin.1);
        }
        let scope = self.ty()?;
        let n = self.base_unresolved()?;
        self.add(Node::Nested(scope, n))
    }
    pub(super) fn levels(&mut self) -> Option<Id> {
        let known = self.substitutions.len();
        let mut so_far = self.unresolved_simple()?;
        while !self.eat("E") {
            let n = if self.peek().is_ascii_digit() {
                self.unresolved_simple()
            } else {
                None
            };
            let Some(n) = n else {
                self.substitutions.truncate(known);
                return None;
            };
            so_far = self.add(Node::Nested(so_far, n))?;
        }
        let Some(n) = self.base_unresolved() else {
            self.substitutions.truncate(known);
            return None;
        };
        self.add(Node::Nested(so_far, n))
    }
    pub(super) fn base_unresolved(&mut self) -> Option<Id> {
        if self.peek().is_ascii_digit() {
            return self.unresolved_simple();
        }
        if self.eat("dn") {
            let t = if self.peek().is_ascii_digit() {
                self.source_name()?
            } else {
                self.ty()?
            };
            return self.add(Node::Dtor(t));
        }
        self.eat("on");
        let n = self.operator_name()?;
        self.with_args(n)
    }
}

fn code_of(code: &str) -> &'static str {
    match code {
        "st" => "st",
        "at" => "at",
        _ => "ti",
    }
}
