//! The import graph of the files in `src/`: cycles, and the order of layers inside a module.
//!
//! A module file (`x/mod.rs`, `x.rs`) wires the files below it, so its imports of them are no arrows. An import of a
//! re-exported item is an arrow to the file that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::{code_of, is_word, leading_word, product_part, word_positions};

/// Maximum files of an import cycle.
const CYCLE_FILES_MAX: usize = 3;

/// Maximum arrows against the order of layers inside modules, in all.
const UPWARD_MAX: usize = 5;

/// Layers inside a module, lowest first: its files and directories, without their extension. A longer path has
/// precedence. `mod.rs` of the module itself has no layer: it holds the names that its files share.
const INNER_LAYERS: [(&str, &[&[&str]]); 3] = [
    (
        "cluster",
        &[
            &["corrupt", "durable_file", "record", "type_config"],
            &[
                "clock_agreement",
                "database_guard",
                "disk_rollback",
                "disk_space",
                "disk_watch",
                "raft_config",
                "torn_tail",
            ],
            &["codec", "disk_records", "known_members"],
            &["apply", "divergence", "log"],
            &["disk_identity", "disk_records_task"],
            &[
                "peers/call_metadata",
                "peers/connection",
                "peers/local_node",
                "peers/response_check",
                "peers/wire",
            ],
            &["peers/channels"],
            &["reads"],
            &["clocks"],
            &["propose"],
            &["peers"],
            &[
                "backup",
                "core_failure",
                "divergence_task",
                "joining",
                "leader_transfer",
                "leadership",
                "log_keeper",
                "membership",
                "restore",
            ],
            &["status"],
            &["start"],
        ],
    ),
    (
        "state",
        &[
            &["command", "refusal"],
            &["feature_level"],
            &["resources/events", "tables"],
            &["machine/idempotency", "resources/revocation_index"],
            &["readers"],
            &["caller"],
            &["resources"],
            &["machine"],
        ],
    ),
    (
        "api",
        &[
            &["capability", "connect_info", "openapi/params", "openapi/values", "request_id", "text"],
            &["check_result", "listener"],
            &["error"],
            &[
                "authorization_header",
                "awaited",
                "body",
                "cache_control",
                "etag",
                "idempotency",
                "load_shedding",
                "origin",
                "paging",
                "rate_limit",
            ],
            &["request_context", "unread_body"],
            &["middleware"],
            &["caller", "read_consistency"],
            &["admin_audit", "denials", "feed_activity", "routes"],
            &[
                "agents",
                "audit",
                "backup",
                "blocks",
                "cluster",
                "encryption_keys",
                "events",
                "exchange",
                "federation",
                "federation_peers",
                "finalize",
                "health",
                "jwks",
                "members",
                "metrics",
                "oauth_metadata",
                "poll",
                "revocations",
                "signals",
                "ssf_configuration",
                "stream_controls",
                "streams",
                "sys_denials",
                "sys_keys",
                "sys_policy",
                "sys_signals",
                "tools",
                "verify",
            ],
            &["admin_socket", "demo_issuer", "openapi", "startup"],
        ],
    ),
];

/// Imported names by (importing file, defining file).
pub type Graph = BTreeMap<(String, String), BTreeSet<String>>;

type ModulePath = Vec<String>;

/// A source file with its imports.
struct Module {
    file: String,
    code: String,
    /// Name in this file, and the path that it stands for from the crate's root.
    imports: Vec<(String, ModulePath)>,
}

struct Modules(BTreeMap<ModulePath, Module>);

/// `src/state/mod.rs` is `state`, `src/api/openapi/params.rs` is `api::openapi::params`.
fn module_path(file: &str) -> ModulePath {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').filter(|segment| *segment != "lib").map(str::to_owned).collect()
}

/// Whether the file is compiled only for tests, by the name of one of its modules.
fn is_test(path: &[String]) -> bool {
    path.iter().any(|name| matches!(name.as_str(), "tests" | "testing" | "recorded_log"))
}

/// Leaves of a `use` tree: the path, and the name under which it is imported.
fn use_tree(tree: &str, prefix: &[String]) -> Vec<(String, ModulePath)> {
    let tree = tree.trim();
    if let Some(group) = tree.strip_prefix('{') {
        let group = group.trim_end().trim_end_matches('}');
        let mut depth = 0;
        let items = group.split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        return items
            .filter(|item| !item.trim().is_empty())
            .flat_map(|item| use_tree(item, prefix))
            .collect();
    }
    let name = leading_word(tree).to_owned();
    let rest = tree[name.len()..].trim_start();
    let mut path = prefix.to_vec();
    if name != "self" || prefix.is_empty() {
        path.push(name.clone());
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return use_tree(rest, &path);
    }
    let alias = rest.strip_prefix("as ").map(|alias| leading_word(alias).to_owned());
    let alias = alias.or_else(|| path.last().cloned()).unwrap_or_default();
    vec![(alias, path)]
}

/// The code without its `use` items, and their trees.
fn split_uses(code: &str) -> (String, Vec<&str>) {
    let mut rest = String::with_capacity(code.len());
    let mut trees = Vec::new();
    let mut from = 0;
    for at in word_positions(code, "use") {
        let Some(length) = code[at..].find(';').filter(|_| at >= from) else { continue };
        rest += &code[from..at];
        trees.push(&code[at + "use".len()..at + length]);
        from = at + length;
    }
    (rest + &code[from..], trees)
}

/// Paths of two names or more, such as `super::clock::now`.
fn paths_in(code: &str) -> BTreeSet<ModulePath> {
    let mut paths = BTreeSet::new();
    let mut path: ModulePath = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(is_word) {
        let (between, after) = rest.split_at(start);
        if between.trim() != "::" {
            paths.insert(std::mem::take(&mut path));
        }
        let name = leading_word(after);
        path.push(name.to_owned());
        rest = &after[name.len()..];
    }
    paths.insert(path);
    paths.retain(|path| path.len() > 1);
    paths
}

impl Modules {
    fn read(files: &BTreeMap<String, String>) -> Self {
        let mut modules = Self(BTreeMap::new());
        let mut uses = Vec::new();
        for (file, text) in files.iter().filter(|(file, _)| *file != "src/main.rs") {
            let path = module_path(file);
            if is_test(&path) {
                continue;
            }
            let code = code_of(product_part(text));
            let (code, trees) = split_uses(&code);
            uses.push((path.clone(), trees.iter().flat_map(|tree| use_tree(tree, &[])).collect::<Vec<_>>()));
            modules.0.insert(path, Module { file: file.clone(), code, imports: Vec::new() });
        }
        for (path, leaves) in uses {
            let imports =
                leaves.into_iter().filter_map(|(alias, leaf)| Some((alias, modules.absolute(&path, &leaf)?)));
            let imports = imports.collect();
            if let Some(module) = modules.0.get_mut(&path) {
                module.imports = imports;
            }
        }
        modules
    }

    /// `name` as seen from `module`, from the crate's root; `None` if it is of another crate or of `module` itself.
    fn absolute(&self, module: &[String], name: &[String]) -> Option<ModulePath> {
        let (first, rest) = name.split_first()?;
        let join = |base: &[String], rest: &[String]| [base, rest].concat();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(join(module, rest)),
            "super" => {
                let mut base = module.split_last()?.1;
                let mut rest = rest;
                while let Some((first, after)) = rest.split_first().filter(|(first, _)| *first == "super") {
                    let _ = first;
                    (base, rest) = (base.split_last()?.1, after);
                }
                Some(join(base, rest))
            }
            _ if self.0.contains_key(&join(module, std::slice::from_ref(first))) => Some(join(module, name)),
            _ => {
                let (_, path) = self.0.get(module)?.imports.iter().find(|(alias, _)| alias == first)?;
                Some(join(path, rest))
            }
        }
    }

    /// The file that defines the item at `path`; `None` for a module.
    fn definition(&self, path: &[String]) -> Option<&str> {
        let mut path = path.to_vec();
        // A chain of re-exports is short; a longer one is a loop.
        for _ in 0..8 {
            let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
            let (module, item) = path.split_at(length);
            let module_file = &self.0[module];
            let name = item.first()?;
            match module_file.imports.iter().find(|(alias, _)| alias == name) {
                Some((_, target)) if target != &path => path = [target, &item[1..]].concat(),
                _ => return Some(&module_file.file),
            }
        }
        None
    }

    fn arrows(&self) -> Graph {
        let mut graph = Graph::new();
        for (path, module) in &self.0 {
            let named = paths_in(&module.code).into_iter().filter_map(|name| self.absolute(path, &name));
            for target in named.chain(module.imports.iter().map(|(_, target)| target.clone())) {
                let Some(file) = self.definition(&target) else { continue };
                let is_below = module_path(file).starts_with(path);
                if file != "src/lib.rs" && !is_below {
                    let names = graph.entry((module.file.clone(), file.to_owned())).or_default();
                    names.extend(target.last().cloned());
                }
            }
        }
        graph
    }
}

/// The arrows between the product files of `files`.
pub fn graph(files: &BTreeMap<String, String>) -> Graph {
    Modules::read(files).arrows()
}

/// Files that import each other in a circle, largest circle first.
fn cycles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in graph.keys() {
        next.entry(from).or_default().insert(to);
    }
    let reached = |start: &str| {
        let mut reached = BTreeSet::new();
        let mut queue: Vec<&str> = next.get(start).into_iter().flatten().copied().collect();
        while let Some(file) = queue.pop() {
            if reached.insert(file) {
                queue.extend(next.get(file).into_iter().flatten());
            }
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|file| (*file, reached(file))).collect();
    let mut cycles: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
    for (file, others) in &reached {
        let is_back = |other: &&&str| reached.get(**other).is_some_and(|reached| reached.contains(file));
        cycles.insert(others.iter().filter(is_back).copied().collect());
    }
    let mut cycles: Vec<_> = cycles.into_iter().filter(|cycle| cycle.len() > 1).collect();
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

fn arrow((from, to): (&str, &str), names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    format!("{from} imports {} from {to}", names.join(", "))
}

/// No import cycle has more than [`CYCLE_FILES_MAX`] files.
pub fn cycle_violations(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for cycle in cycles(graph).iter().filter(|cycle| cycle.len() > CYCLE_FILES_MAX) {
        violations.push(format!("a cycle of {} files, more than {CYCLE_FILES_MAX}:", cycle.len()));
        let inside = graph
            .iter()
            .filter(|((from, to), _)| cycle.contains(from.as_str()) && cycle.contains(to.as_str()));
        violations.extend(inside.map(|((from, to), names)| format!("  {}", arrow((from, to), names))));
    }
    violations
}

/// The layers of the module of `file`, and its layer; `None` outside of [`INNER_LAYERS`].
fn inner_layer(file: &str) -> Option<(&'static str, Option<usize>)> {
    let path = module_path(file).join("/");
    let (module, layers) = INNER_LAYERS.iter().find(|(module, _)| path.starts_with(&format!("{module}/")))?;
    Some((*module, layer_at(module, layers, &path)))
}

/// The layer of the longest listed path that contains `path`.
fn layer_at(module: &str, layers: &[&[&str]], path: &str) -> Option<usize> {
    let within = path.strip_prefix(module)?.trim_start_matches('/');
    let contains = |name: &str| within == name || within.starts_with(&format!("{name}/"));
    let listed =
        layers.iter().enumerate().flat_map(|(layer, names)| names.iter().map(move |name| (layer, name)));
    listed.filter(|(_, name)| contains(name)).max_by_key(|(_, name)| name.len()).map(|(layer, _)| layer)
}

/// At most [`UPWARD_MAX`] arrows go from a lower to an upper layer inside a module.
pub fn inner_layer_violations(graph: &Graph) -> Vec<String> {
    let mut violations = BTreeSet::new();
    let mut upward = Vec::new();
    for ((from, to), names) in graph {
        let (Some((module, lower)), Some((other, upper))) = (inner_layer(from), inner_layer(to)) else {
            continue;
        };
        for (file, layer) in [(from, lower), (to, upper)] {
            if layer.is_none() {
                violations.insert(format!("{file}: INNER_LAYERS of tests/house/imports.rs does not list it"));
            }
        }
        if module == other && lower < upper {
            upward.push(arrow((from, to), names));
        }
    }
    if upward.len() > UPWARD_MAX {
        violations.insert(format!("{} arrows against the order, more than {UPWARD_MAX}", upward.len()));
        violations.extend(upward);
    }
    violations.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph_of(files: &[(&str, &str)]) -> Graph {
        graph(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    fn arrows(graph: &Graph) -> Vec<String> {
        graph.iter().map(|((from, to), names)| arrow((from, to), names)).collect()
    }

    #[test]
    fn imports_are_resolved_to_the_defining_file() {
        let graph = graph_of(&[
            ("src/lib.rs", "mod a;\nmod b;"),
            (
                "src/a.rs",
                "use crate::b::{self, Shared, inner::{Deep as D, other}};\nfn f() { b::run(); other::go(); }",
            ),
            ("src/b/mod.rs", "mod inner;\npub use inner::Shared;\nuse inner::Own;"),
            (
                "src/b/inner/mod.rs",
                "mod other;\npub struct Shared; // use crate::a::Comment;\nuse super::run;",
            ),
            (
                "src/b/inner/other.rs",
                "use std::fmt;\nfn f() { super::super::run() }\n#[cfg(test)]\nmod tests {\nuse crate::a::T;\n}",
            ),
            ("src/b/tests.rs", "use crate::a::Anything;"),
        ]);
        assert_eq!(
            arrows(&graph),
            [
                "src/a.rs imports Deep, Shared from src/b/inner/mod.rs",
                "src/a.rs imports go from src/b/inner/other.rs",
                "src/a.rs imports run from src/b/mod.rs",
                "src/b/inner/mod.rs imports run from src/b/mod.rs",
                "src/b/inner/other.rs imports run from src/b/mod.rs",
            ]
        );
    }

    #[test]
    fn cycle_of_four_files_is_reported() {
        let ring = |length: usize| -> Graph {
            let file = |i: usize| format!("src/a/f{}.rs", i % length);
            (0..length).map(|i| ((file(i), file(i + 1)), BTreeSet::from(["Name".to_owned()]))).collect()
        };
        assert_eq!(cycle_violations(&ring(CYCLE_FILES_MAX)), Vec::<String>::new());
        let violations = cycle_violations(&ring(CYCLE_FILES_MAX + 1));
        assert_eq!(
            violations[..2],
            ["a cycle of 4 files, more than 3:", "  src/a/f0.rs imports Name from src/a/f1.rs"]
        );
    }

    #[test]
    fn arrow_against_the_inner_order_is_reported() {
        let arrow_to = |i: usize| {
            (("src/state/command.rs".to_owned(), format!("src/state/resources/r{i}.rs")), BTreeSet::new())
        };
        let mut graph: Graph = (0..UPWARD_MAX).map(arrow_to).collect();
        assert_eq!(inner_layer_violations(&graph), Vec::<String>::new());
        graph.extend([arrow_to(UPWARD_MAX)]);
        assert_eq!(inner_layer_violations(&graph).len(), 1 + UPWARD_MAX + 1);
        let down =
            (("src/state/machine/mod.rs".to_owned(), "src/state/tables/mod.rs".to_owned()), BTreeSet::new());
        let unknown = (("src/state/new.rs".to_owned(), "src/state/command.rs".to_owned()), BTreeSet::new());
        let violations = inner_layer_violations(&[down, unknown].into());
        assert_eq!(violations, ["src/state/new.rs: INNER_LAYERS of tests/house/imports.rs does not list it"]);
    }
}
