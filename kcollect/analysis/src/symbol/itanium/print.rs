//! Prints the graph of a name. A declaration of C++ has parts on both sides of what it declares, so
//! that each type is printed in two halves.

use super::{CONST, Cv, FunctionType, Id, MAX_DEPTH, Node, Parser, RESTRICT, Ref, VOLATILE};

/// Maximum number of steps: a part is printed each time that it is substituted.
const MAX_STEPS: u32 = 1 << 18;

/// What prints a name.
pub(super) struct Printer<'p, 'a> {
    nodes: &'p [Node<'a>],
    scopes: &'p [Vec<Id>],
    pub(super) out: String,
    max_bytes: usize,
    steps: u32,
    depth: u32,
    /// The element of packs that is printed, in an expansion.
    pack: Option<usize>,
    /// The encodings around what is printed.
    stack: Vec<usize>,
    in_lambda: u32,
    /// What was printed last was taken back. c++filt puts no space before a `>` then.
    taken_back: bool,
}

impl<'p, 'a> Printer<'p, 'a> {
    pub(super) fn new(parser: &'p Parser<'a>, max_bytes: usize) -> Self {
        Printer {
            nodes: &parser.nodes,
            scopes: &parser.scopes,
            out: String::new(),
            max_bytes,
            steps: 0,
            depth: 0,
            pack: None,
            stack: Vec::new(),
            in_lambda: 0,
            taken_back: false,
        }
    }
    fn node(&self, id: Id) -> &'p Node<'a> {
        &self.nodes[id as usize]
    }
    fn text(&mut self, text: &str) -> Option<()> {
        if self.out.len() + text.len() > self.max_bytes {
            return None;
        }
        self.out.push_str(text);
        self.taken_back = false;
        Some(())
    }
    /// Follows parameters and elements of packs to what they stand for.
    fn resolve(&self, mut id: Id) -> Option<Id> {
        for _ in 0..MAX_DEPTH {
            id = match self.node(id) {
                Node::Argument(n) if self.in_lambda == 0 => {
                    let known = self.argument(*n)?;
                    match self.node(known) {
                        Node::Pack(all) => match self.pack {
                            Some(index) => match all.get(index) {
                                Some(e) => *e,
                                None => return Some(known),
                            },
                            None if all.len() == 1 => all[0],
                            None => return Some(known),
                        },
                        _ => known,
                    }
                }
                _ => return Some(id),
            };
        }
        None
    }
    /// The elements of the first pack in an expansion.
    fn find_pack(&self, id: Id, depth: u32) -> Option<usize> {
        if depth > 64 {
            return None;
        }
        let next = |id: &Id| self.find_pack(*id, depth + 1);
        let all = |ids: &Vec<Id>| ids.iter().find_map(next);
        let function = |f: &FunctionType| {
            f.result
                .as_ref()
                .and_then(next)
                .or_else(|| all(&f.params))
                .or_else(|| f.throws.as_ref().and_then(next))
        };
        match self.node(id) {
            Node::Argument(n) => match self.node(self.argument(*n)?) {
                Node::Pack(all) => Some(all.len()),
                _ => None,
            },
            Node::Pack(args) => all(args),
            Node::Scoped(a, _) => next(a),
            Node::Nested(a, b)
            | Node::Local(a, b)
            | Node::MemberPointer(a, b)
            | Node::Binary(_, _, a, b)
            | Node::NamedCast(_, a, b)
            | Node::Two(_, a, _, b) => next(a).or_else(|| next(b)),
            Node::Template(a, args)
            | Node::Vendor(a, _, args)
            | Node::Call(a, args)
            | Node::Cast(a, args, _) => next(a).or_else(|| all(args)),
            Node::Cv(a, _)
            | Node::Pointer(a)
            | Node::Reference(a, _)
            | Node::Suffixed(a, _)
            | Node::Tagged(a, _)
            | Node::Special(_, a)
            | Node::Temporary(a, _)
            | Node::Decltype(a)
            | Node::Unary(_, _, a)
            | Node::Postfix(_, a)
            | Node::Number(a, _, _)
            | Node::Global(a)
            | Node::SizeofPack(a)
            | Node::Conversion(a)
            | Node::Dtor(a) => next(a),
            Node::Array(a, b) | Node::Vector(a, b) => next(a).or_else(|| b.as_ref().and_then(next)),
            Node::FunctionType(f) => function(f),
            Node::Typed(a, f, _) => next(a).or_else(|| function(f)),
            Node::Trinary(a, b, c) => next(a).or_else(|| next(b)).or_else(|| next(c)),
            Node::Init(a, args) => a.as_ref().and_then(next).or_else(|| all(args)),
            Node::Throw(args) | Node::SizeofArgs(args) | Node::Fold(_, _, args) => all(args),
            Node::Noexcept(Some(a)) => next(a),
            _ => None,
        }
    }
    fn argument(&self, n: u32) -> Option<Id> {
        let scope = *self.stack.last()?;
        self.scopes.get(scope)?.get(n as usize).copied()
    }
    /// Prints what a parameter stands for: that is not in the scope of its template.
    fn argument_of(&mut self, id: Id, print: fn(&mut Self, Id) -> Option<()>) -> Option<()> {
        let to = self.resolve_once(id)?;
        let top = self.stack.pop()?;
        let result = if matches!(self.node(to), Node::Pack(all) if self.pack.is_some_and(|index| index >= all.len()))
        {
            Some(())
        } else {
            print(self, to)
        };
        self.stack.push(top);
        result
    }
    /// Prints what a parameter was resolved to, in the scope that this has.
    fn within(&mut self, from: Id, to: Id, print: fn(&mut Self, Id) -> Option<()>) -> Option<()> {
        if from == to || self.in_lambda > 0 || !matches!(self.node(from), Node::Argument(_)) {
            return print(self, to);
        }
        let top = self.stack.pop()?;
        let result = print(self, to);
        self.stack.push(top);
        result
    }
    fn resolve_once(&self, id: Id) -> Option<Id> {
        let Node::Argument(n) = self.node(id) else {
            return Some(id);
        };
        let known = self.argument(*n)?;
        Some(match (self.node(known), self.pack) {
            (Node::Pack(all), Some(index)) => all.get(index).copied().unwrap_or(known),
            (Node::Pack(all), None) if all.len() == 1 => all[0],
            _ => known,
        })
    }
    /// Makes the arguments of an encoding the current ones for printing, if it has any.
    fn enter(&mut self, scope: usize) -> bool {
        let has = self.scopes.get(scope).is_some_and(|args| !args.is_empty());
        if has {
            self.stack.push(scope);
        }
        has
    }
    fn leave(&mut self, pushed: bool) -> Option<()> {
        if pushed {
            self.stack.pop();
        }
        Some(())
    }
    pub(super) fn print(&mut self, id: Id) -> Option<()> {
        self.left(id)?;
        self.right(id)
    }
    fn list(&mut self, ids: &[Id]) -> Option<()> {
        let begin = self.out.len();
        for id in ids {
            let before = self.out.len();
            if before > begin {
                self.text(", ")?;
            }
            let from = self.out.len();
            self.print(*id)?;
            if self.out.len() == from && before != from {
                self.out.truncate(before);
                self.taken_back = true;
            }
        }
        Some(())
    }
    fn is_declarator(&self, id: Id) -> Option<bool> {
        let id = self.resolve(id)?;
        Some(match self.node(id) {
            Node::Array(..) | Node::FunctionType(_) => true,
            Node::Cv(inner, _) => matches!(self.node(self.resolve(*inner)?), Node::Array(..)),
            _ => false,
        })
    }
    fn open(&mut self, inner: Id) -> Option<bool> {
        let declarator = self.is_declarator(inner)?;
        if declarator {
            let space = !self.out.ends_with(' ');
            self.text(if space { " (" } else { "(" })?;
        }
        Some(declarator)
    }
    fn collapsed(&self, inner: Id, kind: Ref) -> Option<(Id, Ref)> {
        let (mut inner, mut kind) = (self.resolve(inner)?, kind);
        for _ in 0..MAX_DEPTH {
            match self.node(inner) {
                Node::Reference(deeper, other) => {
                    if *other == Ref::L {
                        kind = Ref::L;
                    }
                    inner = self.resolve(*deeper)?;
                }
                _ => return Some((inner, kind)),
            }
        }
        None
    }
    fn function_left(&mut self, f: &FunctionType) -> Option<()> {
        if let Some(result) = f.result {
            self.left(result)?;
            if !self.is_pointer_to_declarator(result)? {
                self.text(" ")?;
            }
        }
        Some(())
    }
    fn is_pointer_to_declarator(&self, id: Id) -> Option<bool> {
        let mut id = self.resolve(id)?;
        let mut pointer = false;
        for _ in 0..MAX_DEPTH {
            id = match self.node(id) {
                Node::Pointer(i) | Node::Reference(i, _) | Node::MemberPointer(_, i) => {
                    pointer = true;
                    self.resolve(*i)?
                }
                Node::Cv(i, _) => self.resolve(*i)?,
                Node::Array(..) | Node::FunctionType(_) => return Some(pointer),
                _ => return Some(false),
            };
        }
        None
    }
    fn function_right(&mut self, f: &FunctionType) -> Option<()> {
        self.text("(")?;
        self.list(&f.params)?;
        self.text(")")?;
        self.qualifiers(f.cv, f.reference)?;
        if let Some(result) = f.result {
            self.right(result)?;
        }
        if let Some(throws) = f.throws {
            match self.node(throws) {
                Node::Noexcept(None) => self.text(" noexcept")?,
                Node::Noexcept(Some(e)) => {
                    self.text(" noexcept(")?;
                    self.print(*e)?;
                    self.text(")")?;
                }
                Node::Throw(all) => {
                    self.text(" throw(")?;
                    let all = all.clone();
                    self.list(&all)?;
                    self.text(")")?;
                }
                _ => {}
            }
        }
        Some(())
    }
    fn qualifiers(&mut self, cv: Cv, reference: Ref) -> Option<()> {
        for (bit, text) in [
            (CONST, " const"),
            (VOLATILE, " volatile"),
            (RESTRICT, " restrict"),
        ] {
            if cv & bit != 0 {
                self.text(text)?;
            }
        }
        match reference {
            Ref::None => Some(()),
            Ref::L => self.text(" &"),
            Ref::R => self.text(" &&"),
        }
    }
    fn base_name(&mut self, id: Id, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.node(self.resolve(id)?) {
            Node::Nested(_, b) | Node::Local(_, b) => self.base_name(*b, depth + 1),
            Node::Template(a, _) | Node::Tagged(a, _) => self.base_name(*a, depth + 1),
            Node::Std(_, base) => self.text(base),
            _ => self.print(id),
        }
    }
    fn operand(&mut self, id: Id) -> Option<()> {
        let inner = match self.node(id) {
            Node::Scoped(name, _) => *name,
            _ => id,
        };
        let plain = match self.node(inner) {
            Node::Nested(_, last) => !matches!(self.node(*last), Node::Template(..)),
            Node::Name(_) | Node::Init(..) | Node::FunctionParam(_) => true,
            _ => false,
        };
        if plain {
            return self.print(id);
        }
        self.text("(")?;
        self.print(id)?;
        self.text(")")
    }

    fn left(&mut self, id: Id) -> Option<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS || self.depth > 2 * MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let result = self.left_in(id);
        self.depth -= 1;
        result
    }
    fn left_in(&mut self, id: Id) -> Option<()> {
        match self.node(id) {
            Node::Name(name) => self.text(name),
            Node::Word(name) => self.text(name),
            Node::Std(full, _) => self.text(full),
            Node::Nested(a, b) => {
                self.print(*a)?;
                self.text("::")?;
                self.print(*b)
            }
            Node::Local(a, b) => {
                self.print(*a)?;
                self.text("::")?;
                self.print(*b)
            }
            Node::Template(a, args) => {
                self.print(*a)?;
                if self.out.ends_with('<') {
                    self.text(" ")?;
                }
                self.text("<")?;
                self.list(args)?;
                if self.out.ends_with('>') && !self.taken_back {
                    self.text(" ")?;
                }
                self.text(">")
            }
            Node::Cv(inner, cv) => {
                self.left(*inner)?;
                let inner = self.resolve(*inner)?;
                // A qualifier that the type has already, or a reference that cannot have it.
                let had = match self.node(inner) {
                    Node::Cv(_, had) => *had,
                    _ => 0,
                };
                self.qualifiers(cv & !had, Ref::None)
            }
            Node::Vendor(inner, name, args) => {
                self.left(*inner)?;
                self.text(" ")?;
                self.text(name)?;
                if !args.is_empty() {
                    self.text("<")?;
                    self.list(args)?;
                    self.text(">")?;
                }
                Some(())
            }
            Node::Pointer(inner) => {
                self.left(*inner)?;
                self.open(*inner)?;
                self.text("*")
            }
            Node::Reference(inner, kind) => {
                let (to, kind) = self.collapsed(*inner, *kind)?;
                self.within(*inner, to, Self::left)?;
                self.open(to)?;
                self.text(if kind == Ref::L { "&" } else { "&&" })
            }
            Node::Suffixed(inner, text) => {
                self.print(*inner)?;
                self.text(text)
            }
            Node::MemberPointer(class, member) => {
                self.left(*member)?;
                if !self.open(*member)? {
                    self.text(" ")?;
                }
                self.print(*class)?;
                self.text("::*")
            }
            Node::Array(inner, _) => self.left(*inner),
            Node::Vector(inner, bound) => {
                self.print(*inner)?;
                self.text(" __vector(")?;
                if let Some(bound) = bound {
                    self.print(*bound)?;
                }
                self.text(")")
            }
            Node::FunctionType(f) => self.function_left(f),
            Node::Scoped(name, scope) => {
                let pushed = self.enter(*scope);
                self.print(*name)?;
                self.leave(pushed)
            }
            Node::Typed(name, f, scope) => {
                let pushed = self.enter(*scope);
                if let Some(result) = f.result {
                    self.left(result)?;
                    if !self.is_pointer_to_declarator(result)? {
                        self.text(" ")?;
                    }
                }
                self.print(*name)?;
                self.function_right(f)?;
                self.leave(pushed)
            }
            Node::Ctor(of) => self.base_name(*of, 0),
            Node::Dtor(of) => {
                self.text("~")?;
                self.base_name(*of, 0)
            }
            Node::Conversion(ty) => {
                self.text("operator ")?;
                self.print(*ty)
            }
            Node::Operator(text) => {
                self.text("operator")?;
                if text.as_bytes()[0].is_ascii_lowercase() {
                    self.text(" ")?;
                }
                self.text(text.trim_end())
            }
            Node::Literal(name) => {
                self.text("operator\"\" ")?;
                self.text(name)
            }
            Node::VendorOperator(name) => {
                self.text("operator ")?;
                self.text(name)
            }
            Node::Lambda(params, n) => {
                self.text("{lambda(")?;
                self.in_lambda += 1;
                self.list(params)?;
                self.in_lambda -= 1;
                self.text(")#")?;
                self.text(&n.to_string())?;
                self.text("}")
            }
            Node::Unnamed(n) => {
                self.text("{unnamed type#")?;
                self.text(&n.to_string())?;
                self.text("}")
            }
            Node::DefaultArg(n) => {
                self.text("{default arg#")?;
                self.text(&n.to_string())?;
                self.text("}")
            }
            Node::Tagged(inner, tag) => {
                self.print(*inner)?;
                self.text("[abi:")?;
                self.text(tag)?;
                self.text("]")
            }
            Node::Bindings(names) => {
                self.text("[")?;
                self.list(names)?;
                self.text("]")
            }
            Node::Pack(all) => self.list(all),
            Node::Argument(n) if self.in_lambda > 0 => {
                self.text("auto:")?;
                self.text(&n.saturating_add(1).to_string())
            }
            Node::Argument(_) => self.argument_of(id, Self::left),
            Node::Expansion(inner) => {
                let Some(size) = self.find_pack(*inner, 0) else {
                    self.operand_or_type(*inner)?;
                    return self.text("...");
                };
                let outer = self.pack;
                let begin = self.out.len();
                for index in 0..size {
                    let before = self.out.len();
                    if before > begin {
                        self.text(", ")?;
                    }
                    self.pack = Some(index);
                    self.print(*inner)?;
                }
                self.pack = outer;
                Some(())
            }
            Node::Auto(n) => {
                self.text("auto:")?;
                self.text(&n.to_string())
            }
            Node::Special(text, inner) => {
                self.text(text)?;
                self.print(*inner)
            }
            Node::Two(first, a, second, b) => {
                self.text(first)?;
                self.print(*a)?;
                self.text(second)?;
                self.print(*b)
            }
            Node::Temporary(inner, n) => {
                self.text("reference temporary #")?;
                self.text(&n.to_string())?;
                self.text(" for ")?;
                self.print(*inner)
            }
            Node::Decltype(e) => {
                self.text("decltype (")?;
                self.print(*e)?;
                self.text(")")
            }
            Node::Unary(code, text, e) => {
                let mut e = *e;
                if *code == "ad"
                    && let Node::Typed(name, f, _) = self.node(e)
                    && (f.cv, f.reference) == (0, Ref::None)
                    && matches!(self.node(*name), Node::Nested(..))
                {
                    e = *name;
                }
                self.text(text)?;
                if matches!(*code, "st" | "nx") {
                    self.text("(")?;
                    self.print(e)?;
                    return self.text(")");
                }
                self.operand(e)
            }
            Node::Postfix(text, e) => {
                self.operand(*e)?;
                self.text(text)
            }
            Node::Binary(code, text, a, b) => {
                if *code == "gt" {
                    self.text("(")?;
                }
                self.operand(*a)?;
                if *code == "ix" {
                    self.text("[")?;
                    self.print(*b)?;
                    self.text("]")?;
                } else {
                    self.text(text)?;
                    self.operand(*b)?;
                }
                if *code == "gt" {
                    self.text(")")?;
                }
                Some(())
            }
            Node::Trinary(a, b, c) => {
                self.operand(*a)?;
                self.text("?")?;
                self.operand(*b)?;
                self.text(" : ")?;
                self.operand(*c)
            }
            Node::Fold(text, kind, all) => {
                self.text("(")?;
                match kind {
                    'l' => {
                        self.text("...")?;
                        self.text(text)?;
                        self.operand(all[0])?;
                    }
                    'r' => {
                        self.operand(all[0])?;
                        self.text(text)?;
                        self.text("...")?;
                    }
                    _ => {
                        self.operand(all[0])?;
                        self.text(text)?;
                        self.text("...")?;
                        self.text(text)?;
                        self.operand(*all.get(1)?)?;
                    }
                }
                self.text(")")
            }
            Node::Call(f, args) => {
                match self.node(*f) {
                    Node::Typed(name, ..) => self.operand(*name)?,
                    _ => self.operand(*f)?,
                }
                self.text("(")?;
                self.list(args)?;
                self.text(")")
            }
            Node::Cast(ty, args, many) => {
                self.text("(")?;
                self.print(*ty)?;
                self.text(")")?;
                if *many {
                    self.text("(")?;
                    self.list(args)?;
                    return self.text(")");
                }
                self.operand(args[0])
            }
            Node::NamedCast(text, ty, e) => {
                self.text(text)?;
                self.text("<")?;
                self.print(*ty)?;
                self.text(">(")?;
                self.print(*e)?;
                self.text(")")
            }
            Node::Init(ty, args) => {
                if let Some(ty) = ty {
                    self.print(*ty)?;
                }
                self.text("{")?;
                self.list(args)?;
                self.text("}")
            }
            Node::New(array, place, ty, init) => {
                self.text(if *array { "new[]" } else { "new " })?;
                if !place.is_empty() {
                    self.text("(")?;
                    self.list(place)?;
                    self.text(") ")?;
                }
                self.print(*ty)?;
                if let Some(init) = init {
                    self.text("(")?;
                    self.list(init)?;
                    self.text(")")?;
                }
                Some(())
            }
            Node::Number(ty, negative, value) => {
                let name = match self.node(self.resolve(*ty)?) {
                    Node::Word(name) => *name,
                    _ => "",
                };
                let suffix = match name {
                    "int" => Some(""),
                    "unsigned int" => Some("u"),
                    "long" => Some("l"),
                    "unsigned long" => Some("ul"),
                    "long long" => Some("ll"),
                    "unsigned long long" => Some("ull"),
                    _ => None,
                };
                if name == "bool" && !*negative {
                    match *value {
                        "0" => return self.text("false"),
                        "1" => return self.text("true"),
                        _ => {}
                    }
                }
                if let Some(suffix) = suffix {
                    if *negative {
                        self.text("-")?;
                    }
                    self.text(value)?;
                    return self.text(suffix);
                }
                self.text("(")?;
                self.print(*ty)?;
                self.text(")")?;
                if *negative {
                    self.text("-")?;
                }
                let float = matches!(name, "float" | "double" | "long double" | "__float128");
                if float {
                    self.text("[")?;
                }
                self.text(value)?;
                if float {
                    self.text("]")?;
                }
                Some(())
            }
            Node::FunctionParam(0) => self.text("this"),
            Node::FunctionParam(n) => {
                self.text("{parm#")?;
                self.text(&n.to_string())?;
                self.text("}")
            }
            Node::Global(e) => {
                self.text("::")?;
                self.print(*e)
            }
            Node::SizeofPack(e) => {
                let n = self.find_pack(*e, 0).unwrap_or(0);
                self.text(&n.to_string())
            }
            Node::SizeofArgs(all) => {
                let mut n = 0;
                for id in all {
                    n += match self.node(*id) {
                        Node::Pack(p) => p.len(),
                        Node::Expansion(e) => self.find_pack(*e, 0).unwrap_or(1),
                        _ => 1,
                    };
                }
                self.text(&n.to_string())
            }
            Node::Noexcept(_) | Node::Throw(_) => Some(()),
        }
    }
    fn operand_or_type(&mut self, id: Id) -> Option<()> {
        self.operand(id)
    }
    fn right(&mut self, id: Id) -> Option<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS || self.depth > 2 * MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let result = self.right_in(id);
        self.depth -= 1;
        result
    }
    fn right_in(&mut self, id: Id) -> Option<()> {
        match self.node(id) {
            Node::Cv(inner, _) | Node::Vendor(inner, ..) => self.right(*inner),
            Node::Pointer(inner) => {
                if self.is_declarator(*inner)? {
                    self.text(")")?;
                }
                self.right(*inner)
            }
            Node::Reference(inner, kind) => {
                let (to, _) = self.collapsed(*inner, *kind)?;
                if self.is_declarator(to)? {
                    self.text(")")?;
                }
                self.within(*inner, to, Self::right)
            }
            Node::MemberPointer(_, member) => {
                if self.is_declarator(*member)? {
                    self.text(")")?;
                }
                self.right(*member)
            }
            Node::Array(inner, bound) => {
                if !self.out.ends_with(']') {
                    self.text(" ")?;
                }
                self.text("[")?;
                if let Some(bound) = bound {
                    self.print(*bound)?;
                }
                self.text("]")?;
                self.right(*inner)
            }
            Node::FunctionType(f) => self.function_right(f),
            Node::Argument(_) if self.in_lambda == 0 => self.argument_of(id, Self::right),
            _ => Some(()),
        }
    }
}
