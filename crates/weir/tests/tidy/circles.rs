//! Circles of modules inside a crate: files that need one another by `crate::` paths, outside tests.

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

/// The modules whose files the `crate::` paths of a file lead to.
fn needed(own: &str, text: &str, modules: &BTreeMap<String, &str>) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut found = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        // Not the end of another word, such as `$crate` or `weir_crate`.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        for path in paths(&code[at + start.len()..]) {
            let mut words: Vec<&str> = path.split("::").collect();
            while !words.is_empty() {
                let module = words.join("/");
                if modules.contains_key(&module) {
                    if module != own {
                        found.insert(module);
                    }
                    break;
                }
                words.pop();
            }
        }
    }
    found
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
