//! What a kernel has in place of a field: for people who read that it is missing.

use crate::btf::{Member, Types, kind};

/// How deep named structs are searched for a field that moved.
const MAX_DEPTH: usize = 4;

/// A name without its flavour: `task_struct` of `task_struct___thread_throttling`.
pub(crate) fn essential(name: &str) -> &str {
    match name.rsplit_once("___") {
        Some((before, flavour)) if !before.is_empty() && !flavour.is_empty() => before,
        _ => name,
    }
}

/// A struct or union that has its members. Others stand for what was left out of a reduced file.
pub(crate) fn composite(types: &Types, name: &str) -> Option<u32> {
    let mut found = types.of_kinds(&[kind::STRUCT, kind::UNION]);
    found
        .find(|(_, one)| essential(types.string(one.name)) == name && !one.words.is_empty())
        .map(|(id, _)| id)
}

/// Describes what a kernel has in place of a field. `reference` is another kernel that has it, by
/// which its neighbours are known.
pub(crate) fn in_place(
    root: &str,
    path: &[String],
    types: &Types,
    reference: Option<&Types>,
) -> String {
    let root = essential(root);
    let Some(mut at) = composite(types, root) else {
        return format!("the kernel has no struct {root}");
    };
    let mut way = format!("struct {root}");
    for (index, name) in path.iter().enumerate() {
        let Some(member) = find_member(types, at, name) else {
            if is_left_out(types, at) {
                return format!("{way} is left out of this file: run scripts/btf.sh");
            }
            let rest = &path[..index];
            return instead(
                types,
                (at, &way),
                name,
                reference.map(|other| (other, root, rest)),
            );
        };
        at = element(types, member.id);
        way = format!("{way}.{name}");
        if index + 1 < path.len() && !types.get(at).is_composite() {
            return format!("{way} is {}", types.display(member.id));
        }
        if index + 1 == path.len() {
            return format!(
                "{way} is {}, which does not match",
                types.display(member.id)
            );
        }
    }
    format!("struct {root} does not match")
}

/// A struct of which a reduced file has the name and size only.
fn is_left_out(types: &Types, id: u32) -> bool {
    let one = types.get(id);
    one.is_composite() && one.words.is_empty() && one.size_or_type > 0
}

/// The structs on the way to a field, as far as the kernel has that way.
pub(crate) fn structs_on_the_way(types: &Types, root: &str, path: &[String]) -> Vec<u32> {
    let root = essential(root);
    let roots = types.of_kinds(&[kind::STRUCT, kind::UNION]);
    let roots = roots.filter(|(_, one)| essential(types.string(one.name)) == root);
    let mut all = Vec::new();
    for (mut at, _) in roots {
        all.push(at);
        for name in path {
            let Some(member) = find_member(types, at, name) else {
                break;
            };
            at = element(types, member.id);
            all.push(at);
        }
    }
    all
}

/// The type of an array's elements, or the type itself.
fn element(types: &Types, id: u32) -> u32 {
    let mut id = types.resolved(id);
    while types.get(id).kind() == kind::ARRAY {
        id = types.resolved(types.get(id).words[0]);
    }
    id
}

/// Finds a member as C does: in the struct, and in what has no name in it.
fn find_member<'a>(types: &'a Types, of: u32, name: &str) -> Option<Member<'a>> {
    types.members(of).find_map(|member| {
        if member.name.is_empty() {
            return find_member(types, types.resolved(member.id), name);
        }
        (member.name == name).then_some(member)
    })
}

/// Finds a member in named structs that are part of a struct.
fn find_deeper(types: &Types, of: u32, name: &str, depth: usize) -> Option<String> {
    if depth == 0 {
        return None;
    }
    types.members(of).find_map(|member| {
        let inner = element(types, member.id);
        if !types.get(inner).is_composite() {
            return None;
        }
        if let Some(found) = find_member(types, inner, name).filter(|_| !member.name.is_empty()) {
            return Some(format!(
                "{}.{name} ({})",
                member.name,
                types.display(found.id)
            ));
        }
        let deeper = find_deeper(types, inner, name, depth - 1)?;
        let separator = if member.name.is_empty() { "" } else { "." };
        Some(format!("{}{separator}{deeper}", member.name))
    })
}

/// The names and types of all members, including the members of anonymous members.
fn flat<'a>(types: &'a Types, of: u32) -> Vec<Member<'a>> {
    let members = types.members(of);
    members
        .flat_map(|member| match member.name {
            "" => flat(types, types.resolved(member.id)),
            _ => vec![member],
        })
        .collect()
}

fn instead(
    types: &Types,
    (at, way): (u32, &str),
    name: &str,
    reference: Option<(&Types, &str, &[String])>,
) -> String {
    let head = format!("{way} has no member {name}");
    if let Some(moved) = find_deeper(types, at, name, MAX_DEPTH) {
        return format!("{head}; it has {moved}");
    }
    match reference.and_then(|reference| between_neighbours(types, at, name, reference)) {
        Some(found) => format!("{head}; in its place is {found}"),
        None => head,
    }
}

/// Members that are where a field is in another kernel: after the member before it, up to the
/// member after it.
fn between_neighbours(
    types: &Types,
    at: u32,
    name: &str,
    (reference, root, path): (&Types, &str, &[String]),
) -> Option<String> {
    let mut there = composite(reference, root)?;
    for name in path {
        there = element(reference, find_member(reference, there, name)?.id);
    }
    let there = flat(reference, there);
    let index = there.iter().position(|member| member.name == name)?;
    let here = flat(types, at);
    let position = |name: &str| here.iter().position(|member| member.name == name);
    let before = index.checked_sub(1).map(|index| there[index].name);
    let first = before.map_or(Some(0), |name| Some(position(name)? + 1))?;
    let last = there.get(index + 1).map(|member| member.name);
    let last = last.map_or(Some(here.len()), position)?;
    let between = here.get(first..last)?;
    let names = between
        .iter()
        .map(|member| format!("`{} {}`", types.display(member.id), member.name));
    let names: Vec<_> = names.collect();
    (1..=3).contains(&names.len()).then(|| names.join(", "))
}
