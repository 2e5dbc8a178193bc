//! The code map, which is stated four times: in `LAYERS`, ARCHITECTURE.md, `src/lib.rs` and the directories.

use std::collections::{BTreeMap, BTreeSet};

use super::module_of;

/// Layer by module.
type CodeMap = BTreeMap<String, usize>;

/// Rows such as "| 5 | `src/api/` | the only HTTP server |" of the table in ARCHITECTURE.md.
fn of_page(page: &str) -> CodeMap {
    let mut map = CodeMap::new();
    for row in page.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, layer, modules, ..] = cells.as_slice() else { continue };
        let Ok(layer) = layer.parse() else { continue };
        let paths = modules.split('`').skip(1).step_by(2).filter(|path| path.starts_with("src/"));
        map.extend(paths.map(|path| (module_of(path).to_owned(), layer)));
    }
    map
}

/// The list in the doc of `src/lib.rs`: "5. [`api`]: the only HTTP server", on several lines.
fn of_crate_doc(text: &str) -> CodeMap {
    let mut map = CodeMap::new();
    let mut layer = None;
    for line in text.lines().filter_map(|line| line.strip_prefix("//!")) {
        if let Some((number, _)) = line.split_once(". ") {
            layer = number.trim().parse().ok().or(layer);
        }
        let Some(layer) = layer else { continue };
        let names = line.split("[`").skip(1).filter_map(|rest| rest.split("`]").next());
        map.extend(names.map(|name| (name.to_owned(), layer)));
    }
    map
}

/// Modules and their layers are the same in all four places. `main` is no module of the library.
pub fn violations(layers: &[&[&str]], page: &str, crate_doc: &str, files: &[String]) -> Vec<String> {
    let table = layers.iter().enumerate();
    let table: CodeMap =
        table.flat_map(|(layer, names)| names.iter().map(move |name| ((*name).to_owned(), layer))).collect();
    let mut library = table.clone();
    library.remove("main");
    let mut violations = Vec::new();
    for (place, map, expected) in [
        ("the code map of ARCHITECTURE.md", of_page(page), &table),
        ("the list in src/lib.rs", of_crate_doc(crate_doc), &library),
    ] {
        for name in expected.keys().chain(map.keys()).collect::<BTreeSet<_>>() {
            if expected.get(name) != map.get(name) {
                let stated = |layer: Option<&usize>| {
                    layer.map_or("no layer".to_owned(), |layer| format!("layer {layer}"))
                };
                violations.push(format!(
                    "{place}: `{name}` has {}, in tests/house.rs {}",
                    stated(map.get(name)),
                    stated(expected.get(name))
                ));
            }
        }
    }
    let present: BTreeSet<&str> =
        files.iter().map(|file| module_of(file)).filter(|name| *name != "lib").collect();
    let missing = table.keys().filter(|name| !present.contains(name.as_str()));
    violations.extend(missing.map(|name| format!("tests/house.rs: `{name}` is not in src/")));
    violations
}

#[test]
fn differing_code_map_is_reported() {
    const LAYERS: [&[&str]; 2] = [&["id", "gone"], &["api", "main"]];
    let page = "| 1 | `src/api/`, `src/main.rs` | HTTP |\n| 1 | `src/api/listener/` | in it |\n| 0 | `src/gone/` | old |";
    let crate_doc = "//! 1. [`id`]\n//!    [`api`]\n//! 0. [`gone`]";
    let files = ["src/lib.rs", "src/main.rs", "src/api/mod.rs", "src/id.rs"].map(str::to_owned);
    assert_eq!(
        violations(&LAYERS, page, crate_doc, &files),
        [
            "the code map of ARCHITECTURE.md: `id` has no layer, in tests/house.rs layer 0",
            "the list in src/lib.rs: `id` has layer 1, in tests/house.rs layer 0",
            "tests/house.rs: `gone` is not in src/",
        ]
    );
}
