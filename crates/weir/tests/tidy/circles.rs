//! Circles of modules inside a crate: files that need one another by `crate::`, `super::` and `self::` paths, outside
//! tests. What the file of a folder and the files in it share by `super::` and `self::` is no circle: they are one thing.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, before_tests};

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Each circle as its crate and its modules.
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

/// The modules whose files the paths of a file lead to, but for the one whose folder it is in and those of its own.
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
            // Not the end of another word, such as `$crate` or `weir_crate`, nor of `super::super::`.
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || "_$:".contains(c)) {
                continue;
            }
            for path in paths(&code[at..]) {
                let mut words = from_the_root(own, &path);
                while !words.is_empty() {
                    let module = words.join("/");
                    if modules.contains_key(&module) {
                        let is_family = is_inside(&module, own) || is_inside(own, &module);
                        if module != own && !(is_family && start != "crate::") {
                            found.insert(module);
                        }
                        break;
                    }
                    words.pop();
                }
            }
        }
    }
    found
}

/// The words of a path in module `own`, from the crate's root on.
fn from_the_root<'a>(own: &'a str, path: &'a str) -> Vec<&'a str> {
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
    base
}

/// `a::b`, or of `a::{b, c::d}` both paths; groups in groups end at the inner ones.
fn paths(text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let head: String = text.chars().take_while(|&c| is_path(c)).collect();
    let Some(group) = text[head.len()..].strip_prefix('{') else { return vec![head] };
    let group = &group[..group.find('}').unwrap_or(group.len())];
    let tail = |part: &str| part.trim().chars().take_while(|&c| is_path(c)).collect::<String>();
    group.split(',').map(|part| format!("{head}{}", tail(part))).collect()
}

/// Sets of more than one module, each of which reaches all others.
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
