//! Types, and literals of them.

use super::{FunctionType, Id, Node, Parser, Ref};

impl<'a> Parser<'a> {
    pub(super) fn ty(&mut self) -> Option<Id> {
        self.deeper(Self::ty_in)
    }
    pub(super) fn ty_decltype(&mut self) -> Option<Id> {
        self.at += 2;
        let e = self.expression()?;
        self.expect("E")?;
        self.add(Node::Decltype(e))
    }
    pub(super) fn ty_in(&mut self) -> Option<Id> {
        let c = self.peek();
        let node = match c {
            b'r' | b'V' | b'K' => {
                let cv = self.cv();
                let inner = self.ty()?;
                match self.nodes[inner as usize].clone() {
                    Node::FunctionType(mut f) => {
                        // A member function's qualifiers.
                        self.substitutions.pop();
                        f.cv |= cv;
                        Node::FunctionType(f)
                    }
                    _ => Node::Cv(inner, cv),
                }
            }
            b'P' => {
                self.at += 1;
                Node::Pointer(self.ty()?)
            }
            b'R' => {
                self.at += 1;
                Node::Reference(self.ty()?, Ref::L)
            }
            b'O' => {
                self.at += 1;
                Node::Reference(self.ty()?, Ref::R)
            }
            b'C' => {
                self.at += 1;
                Node::Suffixed(self.ty()?, " _Complex")
            }
            b'G' => {
                self.at += 1;
                Node::Suffixed(self.ty()?, " _Imaginary")
            }
            b'F' => {
                return {
                    let f = self.function_type(None)?;
                    self.push(f)
                };
            }
            b'A' => {
                self.at += 1;
                let bound = if self.peek() == b'_' {
                    None
                } else if self.peek().is_ascii_digit() {
                    let d = self.digits();
                    Some(self.add(Node::Name(d))?)
                } else {
                    Some(self.expression()?)
                };
                self.expect("_")?;
                Node::Array(self.ty()?, bound)
            }
            b'M' => {
                self.at += 1;
                let class = self.ty()?;
                let member = self.ty()?;
                Node::MemberPointer(class, member)
            }
            b'T' if matches!(self.peek_at(1), b's' | b'u' | b'e') => {
                self.at += 2;
                let n = self.name(None)?;
                return self.push(n);
            }
            b'T' => {
                let p = self.template_param()?;
                self.substitutions.push(p);
                if self.peek() != b'I' {
                    return Some(p);
                }
                let args = self.arguments_of(false)?;
                Node::Template(p, args)
            }
            b'S' if self.peek_at(1) != b't' => {
                let s = self.substitution()?;
                if self.peek() != b'I' {
                    return Some(s);
                }
                let args = self.arguments_of(false)?;
                Node::Template(s, args)
            }
            b'D' => match self.peek_at(1) {
                b'p' => {
                    self.at += 2;
                    Node::Expansion(self.ty()?)
                }
                b't' | b'T' => {
                    let d = self.ty_decltype()?;
                    return self.push(d);
                }
                b'v' => {
                    self.at += 2;
                    let bound = if self.eat("_") {
                        Some(self.expression()?)
                    } else {
                        let d = self.digits();
                        Some(self.add(Node::Name(d))?)
                    };
                    self.expect("_")?;
                    Node::Vector(self.ty()?, bound)
                }
                b'o' | b'O' | b'w' | b'x' => {
                    let throws = if self.eat("Do") {
                        Some(self.add(Node::Noexcept(None))?)
                    } else if self.eat("DO") {
                        let e = self.expression()?;
                        self.expect("E")?;
                        Some(self.add(Node::Noexcept(Some(e)))?)
                    } else if self.eat("Dw") {
                        let mut all = Vec::new();
                        while !self.eat("E") {
                            all.push(self.ty()?);
                        }
                        Some(self.add(Node::Throw(all))?)
                    } else {
                        self.at += 2;
                        None
                    };
                    let f = self.function_type(throws)?;
                    return self.push(f);
                }
                b'F' => {
                    self.at += 2;
                    let d = self.digits();
                    if self.eat("x") {
                        let n = self.add(Node::Name(d))?;
                        return self.add(Node::Two("_Float", n, "x", n));
                    }
                    if self.eat("b") {
                        return self.add(Node::Name("std::bfloat16_t"));
                    }
                    self.expect("_")?;
                    let n = self.add(Node::Name(d))?;
                    return self.add(Node::Special("_Float", n));
                }
                _ => return self.builtin(),
            },
            b'U' if !matches!(self.peek_at(1), b't' | b'l' | b'b') => {
                self.at += 1;
                let length = self.number()? as usize;
                let name = self.text.get(self.at..self.at.checked_add(length)?)?;
                self.at += length;
                let args = if self.peek() == b'I' {
                    self.arguments_of(false)?
                } else {
                    Vec::new()
                };
                Node::Vendor(self.ty()?, name, args)
            }
            b'u' => {
                self.at += 1;
                let n = self.source_name()?;
                return self.push(n);
            }
            b'a'..=b'z' => return self.builtin(),
            _ => {
                let n = self.name(None)?;
                return self.push(n);
            }
        };
        let id = self.add(node)?;
        self.push(id)
    }
    pub(super) fn push(&mut self, id: Id) -> Option<Id> {
        self.substitutions.push(id);
        Some(id)
    }
    pub(super) fn function_type(&mut self, throws: Option<Id>) -> Option<Id> {
        self.expect("F")?;
        self.eat("Y");
        let result = self.ty()?;
        let mut params = Vec::new();
        let mut reference = Ref::None;
        loop {
            if self.eat("E") {
                break;
            }
            if self.eat("v") {
                continue;
            }
            if self.eat("RE") {
                reference = Ref::L;
                break;
            }
            if self.eat("OE") {
                reference = Ref::R;
                break;
            }
            params.push(self.ty()?);
        }
        self.add(Node::FunctionType(FunctionType {
            result: Some(result),
            params,
            cv: 0,
            reference,
            throws,
        }))
    }
    pub(super) fn builtin(&mut self) -> Option<Id> {
        let (length, name) = match self.peek() {
            b'v' => (1, "void"),
            b'w' => (1, "wchar_t"),
            b'b' => (1, "bool"),
            b'c' => (1, "char"),
            b'a' => (1, "signed char"),
            b'h' => (1, "unsigned char"),
            b's' => (1, "short"),
            b't' => (1, "unsigned short"),
            b'i' => (1, "int"),
            b'j' => (1, "unsigned int"),
            b'l' => (1, "long"),
            b'm' => (1, "unsigned long"),
            b'x' => (1, "long long"),
            b'y' => (1, "unsigned long long"),
            b'n' => (1, "__int128"),
            b'o' => (1, "unsigned __int128"),
            b'f' => (1, "float"),
            b'd' => (1, "double"),
            b'e' => (1, "long double"),
            b'g' => (1, "__float128"),
            b'z' => (1, "..."),
            b'D' => match self.peek_at(1) {
                b'd' => (2, "decimal64"),
                b'e' => (2, "decimal128"),
                b'f' => (2, "decimal32"),
                b'h' => (2, "half"),
                b'i' => (2, "char32_t"),
                b's' => (2, "char16_t"),
                b'u' => (2, "char8_t"),
                b'a' => (2, "auto"),
                b'c' => (2, "decltype(auto)"),
                b'n' => (2, "decltype(nullptr)"),
                _ => return None,
            },
            _ => return None,
        };
        self.at += length;
        self.add(Node::Word(name))
    }
    pub(super) fn primary(&mut self) -> Option<Id> {
        self.expect("L")?;
        if self.eat("_Z") || self.eat("Z") {
            let e = self.encoding()?;
            self.expect("E")?;
            return Some(e);
        }
        let t = self.ty()?;
        let negative = self.eat("n");
        let from = self.at;
        while self.peek() != b'E' {
            if self.peek() == 0 {
                return None;
            }
            self.at += 1;
        }
        let value = &self.text[from..self.at];
        self.at += 1;
        self.add(Node::Number(t, negative, value))
    }
}
