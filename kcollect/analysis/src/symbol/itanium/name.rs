//! Names: of functions, of what is local to them, of templates and their arguments.

use super::expression::OPERATORS;
use super::{CONST, Cv, Id, NameFacts, Node, Parser, RESTRICT, Ref, VOLATILE};

/// Standard abbreviations: the letter, the name, and the name of constructors.
const STD: [(u8, &str, &str); 6] = [
    (b'a', "std::allocator", "allocator"),
    (b'b', "std::basic_string", "basic_string"),
    (
        b's',
        "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
        "basic_string",
    ),
    (
        b'i',
        "std::basic_istream<char, std::char_traits<char> >",
        "basic_istream",
    ),
    (
        b'o',
        "std::basic_ostream<char, std::char_traits<char> >",
        "basic_ostream",
    ),
    (
        b'd',
        "std::basic_iostream<char, std::char_traits<char> >",
        "basic_iostream",
    ),
];

impl<'a> Parser<'a> {
    pub(super) fn name(&mut self, facts: Option<&mut NameFacts>) -> Option<Id> {
        match self.peek() {
            b'N' => self.deeper(|p| p.nested(facts)),
            b'Z' => self.deeper(|p| p.local(facts)),
            _ => {
                let mut substituted = false;
                let mut name = if self.peek() == b'S' && self.peek_at(1) != b't' {
                    substituted = true;
                    self.substitution()?
                } else {
                    self.unscoped()?
                };
                let mut facts = facts;
                if let Some(f) = &mut facts {
                    f.no_result = matches!(self.nodes[name as usize], Node::Conversion(_));
                }
                if self.peek() == b'I' {
                    if !substituted {
                        self.substitutions.push(name);
                    }
                    let tag = facts.is_some();
                    let args = self.arguments_of(tag)?;
                    name = self.add(Node::Template(name, args))?;
                    if let Some(f) = facts {
                        f.template = true;
                    }
                } else if substituted {
                    return None;
                }
                Some(name)
            }
        }
    }
    pub(super) fn unscoped(&mut self) -> Option<Id> {
        if self.eat("St") {
            let std = self.add(Node::Name("std"))?;
            self.eat("L");
            let n = self.unqualified(None)?;
            return self.add(Node::Nested(std, n));
        }
        self.eat("L");
        self.unqualified(None)
    }
    pub(super) fn cv(&mut self) -> Cv {
        let mut cv = 0;
        if self.eat("r") {
            cv |= RESTRICT;
        }
        if self.eat("V") {
            cv |= VOLATILE;
        }
        if self.eat("K") {
            cv |= CONST;
        }
        cv
    }
    pub(super) fn nested(&mut self, mut facts: Option<&mut NameFacts>) -> Option<Id> {
        self.expect("N")?;
        self.eat("H");
        let cv = self.cv();
        let reference = if self.eat("O") {
            Ref::R
        } else if self.eat("R") {
            Ref::L
        } else {
            Ref::None
        };
        if let Some(f) = &mut facts {
            f.cv = cv;
            f.reference = Some(reference);
        }
        let mut so_far: Option<Id> = None;
        let mut pushed = false;
        while !self.eat("E") {
            if self.eat("M") {
                continue;
            }
            let c = self.peek();
            if c == b'I' {
                let of = so_far?;
                let args = self.arguments_of(facts.is_some())?;
                let t = self.add(Node::Template(of, args))?;
                so_far = Some(t);
                self.substitutions.push(t);
                pushed = true;
                if let Some(f) = &mut facts {
                    f.template = true;
                }
                continue;
            }
            let next = match c {
                b'T' if so_far.is_none() => self.template_param()?,
                b'S' if so_far.is_none() && self.peek_at(1) != b't' => {
                    so_far = Some(self.substitution()?);
                    pushed = false;
                    continue;
                }
                b'S' if so_far.is_none() => {
                    self.at += 2;
                    so_far = Some(self.add(Node::Name("std"))?);
                    pushed = false;
                    continue;
                }
                b'D' if matches!(self.peek_at(1), b't' | b'T') => self.ty_decltype()?,
                _ => {
                    self.eat("L");
                    let n = self.unqualified(so_far)?;
                    if let Some(f) = &mut facts {
                        f.template = false;
                        let mut base = n;
                        while let Node::Tagged(inner, _) = self.nodes[base as usize] {
                            base = inner;
                        }
                        f.no_result = matches!(
                            self.nodes[base as usize],
                            Node::Ctor(_) | Node::Dtor(_) | Node::Conversion(_)
                        );
                    }
                    match so_far {
                        Some(of) => self.add(Node::Nested(of, n))?,
                        None => n,
                    }
                }
            };
            so_far = Some(next);
            self.substitutions.push(next);
            pushed = true;
        }
        if pushed {
            self.substitutions.pop();
        }
        so_far
    }
    pub(super) fn discriminator(&mut self) {
        let from = self.at;
        if self.eat("__") {
            if !self.digits().is_empty() && self.eat("_") {
                return;
            }
        } else if self.eat("_") && self.peek().is_ascii_digit() {
            self.at += 1;
            return;
        }
        self.at = from;
    }
    pub(super) fn local(&mut self, facts: Option<&mut NameFacts>) -> Option<Id> {
        self.expect("Z")?;
        let function = self.encoding()?;
        // The result of the function around it is not shown.
        let function = match self.nodes[function as usize].clone() {
            Node::Typed(name, mut ty, scope) => {
                ty.result = None;
                self.add(Node::Typed(name, ty, scope))?
            }
            _ => function,
        };
        self.expect("E")?;
        if self.eat("s") {
            self.discriminator();
            let n = self.add(Node::Name("string literal"))?;
            return self.add(Node::Local(function, n));
        }
        if self.eat("d") {
            let n = if self.eat("_") {
                0
            } else {
                let n = self.number()?;
                self.expect("_")?;
                n.checked_add(1)?
            };
            let arg = self.add(Node::DefaultArg(n.checked_add(1)?))?;
            let entity = self.name(facts)?;
            let inner = self.add(Node::Nested(arg, entity))?;
            return self.add(Node::Local(function, inner));
        }
        let entity = self.name(facts)?;
        self.discriminator();
        self.add(Node::Local(function, entity))
    }

    pub(super) fn source_name(&mut self) -> Option<Id> {
        let length = self.number()? as usize;
        let name = self.text.get(self.at..self.at.checked_add(length)?)?;
        if length == 0 {
            return None;
        }
        self.at += length;
        let rest = name
            .strip_prefix("_GLOBAL_")
            .and_then(|r| r.strip_prefix(['.', '_', '$']));
        let anonymous = rest.is_some_and(|r| r.starts_with('N'));
        self.add(Node::Name(if anonymous {
            "(anonymous namespace)"
        } else {
            name
        }))
    }
    pub(super) fn unqualified(&mut self, of: Option<Id>) -> Option<Id> {
        self.eat("F");
        let mut name = match self.peek() {
            b'0'..=b'9' => self.source_name()?,
            b'U' if self.peek_at(1) == b't' => {
                self.at += 2;
                let n = self.counter()?;
                self.add(Node::Unnamed(n))?
            }
            b'U' if self.peek_at(1) == b'l' => {
                self.at += 2;
                let params = self.lambda_params()?;
                let n = self.counter()?;
                self.add(Node::Lambda(params, n))?
            }
            b'U' if self.peek_at(1) == b'b' => {
                self.at += 2;
                let n = self.counter()?;
                self.add(Node::Unnamed(n))?
            }
            b'C' if matches!(self.peek_at(1), b'1'..=b'5' | b'I') => {
                let of = of?;
                self.at += 1;
                let inherited = self.eat("I");
                if !self.peek().is_ascii_digit() {
                    return None;
                }
                self.at += 1;
                if inherited {
                    self.ty()?;
                }
                self.add(Node::Ctor(of))?
            }
            b'D' if matches!(self.peek_at(1), b'0'..=b'5') => {
                let of = of?;
                self.at += 2;
                self.add(Node::Dtor(of))?
            }
            b'D' if self.peek_at(1) == b'C' => {
                self.at += 2;
                let mut names = Vec::new();
                while !self.eat("E") {
                    names.push(self.source_name()?);
                }
                self.add(Node::Bindings(names))?
            }
            _ => self.operator_name()?,
        };
        while self.eat("B") {
            let length = self.number()? as usize;
            let tag = self.text.get(self.at..self.at.checked_add(length)?)?;
            self.at += length;
            name = self.add(Node::Tagged(name, tag))?;
        }
        Some(name)
    }
    /// The number of a lambda or a type without a name.
    pub(super) fn counter(&mut self) -> Option<u32> {
        if self.eat("_") {
            return Some(1);
        }
        let n = self.number()?;
        self.expect("_")?;
        n.checked_add(2)
    }
    pub(super) fn lambda_params(&mut self) -> Option<Vec<Id>> {
        while self.peek() == b'T' && matches!(self.peek_at(1), b'y' | b'n' | b't' | b'p') {
            self.template_param_decl()?;
        }
        if self.eat("vE") {
            return Some(Vec::new());
        }
        let mut params = Vec::new();
        while !self.eat("E") {
            params.push(self.ty()?);
        }
        Some(params)
    }
    pub(super) fn template_param_decl(&mut self) -> Option<()> {
        if self.eat("Ty") {
            return Some(());
        }
        if self.eat("Tn") {
            self.ty()?;
            return Some(());
        }
        if self.eat("Tt") {
            while !self.eat("E") {
                self.template_param_decl()?;
            }
            return Some(());
        }
        self.expect("Tp")?;
        self.template_param_decl()
    }
    pub(super) fn operator_name(&mut self) -> Option<Id> {
        if self.eat("cv") {
            let t = self.ty()?;
            return self.add(Node::Conversion(t));
        }
        if self.eat("li") {
            let length = self.number()? as usize;
            let name = self.text.get(self.at..self.at.checked_add(length)?)?;
            self.at += length;
            return self.add(Node::Literal(name));
        }
        if self.peek() == b'v' && self.peek_at(1).is_ascii_digit() {
            self.at += 2;
            let length = self.number()? as usize;
            let name = self.text.get(self.at..self.at.checked_add(length)?)?;
            self.at += length;
            return self.add(Node::VendorOperator(name));
        }
        let code = self.text.get(self.at..self.at + 2)?;
        let (_, text, _) = OPERATORS.iter().find(|(known, ..)| *known == code)?;
        self.at += 2;
        self.add(Node::Operator(text))
    }

    pub(super) fn substitution(&mut self) -> Option<Id> {
        self.expect("S")?;
        let c = self.peek();
        if let Some((_, full, base)) = STD.iter().find(|(code, ..)| *code == c) {
            self.at += 1;
            let mut n = self.add(Node::Std(full, base))?;
            let mut tagged = false;
            while self.eat("B") {
                let length = self.number()? as usize;
                let tag = self.text.get(self.at..self.at.checked_add(length)?)?;
                self.at += length;
                n = self.add(Node::Tagged(n, tag))?;
                tagged = true;
            }
            if tagged {
                self.substitutions.push(n);
            }
            return Some(n);
        }
        let index = self.seq(36)?;
        self.substitutions.get(index as usize).copied()
    }
    pub(super) fn template_param(&mut self) -> Option<Id> {
        self.expect("T")?;
        if self.eat("L") {
            self.seq(10)?;
            let n = self.seq(10)?;
            return self.add(Node::Auto(n.checked_add(1)?));
        }
        let n = self.seq(10)?;
        self.add(Node::Argument(n))
    }
    pub(super) fn arguments_of(&mut self, tag: bool) -> Option<Vec<Id>> {
        self.expect("I")?;
        if tag {
            self.arguments.clear();
        }
        let mut args = Vec::new();
        while !self.eat("E") {
            let a = self.deeper(Self::argument)?;
            args.push(a);
            if tag {
                self.arguments.push(a);
            }
            if self.eat("Q") {
                self.expression()?;
            }
        }
        Some(args)
    }
    pub(super) fn argument(&mut self) -> Option<Id> {
        match self.peek() {
            b'X' => {
                self.at += 1;
                let e = self.expression()?;
                self.expect("E")?;
                Some(e)
            }
            b'J' | b'I' => {
                self.at += 1;
                let mut all = Vec::new();
                while !self.eat("E") {
                    all.push(self.deeper(Self::argument)?);
                }
                self.add(Node::Pack(all))
            }
            b'L' => self.primary(),
            b'T' if matches!(self.peek_at(1), b'y' | b'n' | b't' | b'p') => {
                self.template_param_decl()?;
                self.argument()
            }
            _ => self.ty(),
        }
    }
}
