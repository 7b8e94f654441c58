//! Circular dependencies between the modules of a crate: files that refer to each other by `crate::`, `super::` and
//! `self::` paths, outside tests. For a name that a file re-exports from its folder, the defining file counts. A module
//! and the files in its folder may refer to each other by `super::` and `self::`.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, before_tests};

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Each circle, as the name of the crate and its modules.
pub fn circles(tree: &Tree) -> BTreeSet<String> {
    let mut crates: BTreeMap<&str, BTreeMap<String, &str>> = BTreeMap::new();
    for (path, text) in &tree.files {
        let Some((name, file)) = path.strip_prefix("crates/").and_then(|p| p.split_once("/src/"))
        else {
            continue;
        };
        let module = file.trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
        crates.entry(name).or_default().insert(module, before_tests(path, text));
    }
    let mut found = BTreeSet::new();
    for (name, modules) in crates {
        let graph: Graph = modules
            .iter()
            .map(|(module, text)| (module.clone(), needed(module, text, &modules)))
            .collect();
        for circle in connected(&graph) {
            found.insert(format!("{name}: {}", circle.into_iter().collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

/// The modules that the paths of a file refer to, except modules whose folder it is in and modules in its own folder,
/// unless the path begins with `crate::`.
fn needed(own: &str, text: &str, modules: &BTreeMap<String, &str>) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let is_inside = |one: &str, other: &str| {
        one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            // Skip the end of another word, such as `$crate` or `weir_crate`, and the second part of `super::super::`.
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || "_$:".contains(c)) {
                continue;
            }
            for path in paths(&code[at..]) {
                let Some(module) = home_of(&from_the_root(own, &path), modules) else { continue };
                let is_family = is_inside(&module, own) || is_inside(own, &module);
                if module != own && !(is_family && start != "crate::") {
                    found.insert(module);
                }
            }
        }
    }
    found
}

/// The file that a path from the crate's root leads to; if that re-exports the item, the file that defines it.
fn home_of(words: &[String], modules: &BTreeMap<String, &str>) -> Option<String> {
    let is_file = |length: &usize| modules.contains_key(&words[..*length].join("/"));
    let length = (1..=words.len()).rev().find(is_file)?;
    let module = words[..length].join("/");
    let origin = words.get(length).and_then(|item| re_exported(&module, modules[&module], item));
    let home = origin.and_then(|path| home_of(&path, modules));
    Some(home.unwrap_or(module))
}

/// The path of an item that a file re-exports from its own folder, as in `pub use child::Item`.
fn re_exported(own: &str, text: &str, item: &str) -> Option<Vec<String>> {
    let uses = text.match_indices("pub").filter_map(|(at, _)| {
        let (head, path) = text[at..].split_once(" use ")?;
        matches!(head, "pub" | "pub(crate)" | "pub(super)").then(|| paths(path))
    });
    let is_own = |path: &&String| {
        let first = path.trim_start_matches("self::").split("::").next().unwrap_or_default();
        text.contains(&format!("mod {first};"))
    };
    let all: Vec<String> = uses.flatten().collect();
    let path = all.iter().filter(is_own).find(|path| path.rsplit("::").next() == Some(item))?;
    Some(from_the_root(own, path))
}

/// The words of a path that is used in module `own`, as a path from the crate's root.
fn from_the_root(own: &str, path: &str) -> Vec<String> {
    let mut base: Vec<&str> =
        if matches!(own, "lib" | "main") { Vec::new() } else { own.split('/').collect() };
    for word in path.split("::") {
        match word {
            "crate" => base.clear(),
            "self" | "" => {}
            "super" => drop(base.pop()),
            word => base.push(word),
        }
    }
    base.into_iter().map(str::to_owned).collect()
}

/// The paths at the beginning of a text: of `a::b` one, of `a::{b, c::d}` two. Nested groups are not resolved.
fn paths(text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let head: String = text.chars().take_while(|&c| is_path(c)).collect();
    let Some(group) = text[head.len()..].strip_prefix('{') else { return vec![head] };
    let group = &group[..group.find('}').unwrap_or(group.len())];
    let tail = |part: &str| part.trim().chars().take_while(|&c| is_path(c)).collect::<String>();
    group.split(',').map(|part| format!("{head}{}", tail(part))).collect()
}

/// Strongly connected components with more than one module.
fn connected(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(graph[module].iter().filter(|other| seen.insert((*other).clone())));
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|module| (module, reach(module))).collect();
    let circle = |module: &String| -> BTreeSet<String> {
        all[module].iter().filter(|other| all[*other].contains(module)).cloned().collect()
    };
    graph.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}
