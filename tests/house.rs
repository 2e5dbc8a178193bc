//! House rules the compiler cannot check.
//!
//! Each rule is a function from text to complaints; the tests at the end run it over this
//! repository, and the tests before them show that it complains about a bad sample.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules by layer, lowest first (ARCHITECTURE.md, "Code map"). A module may name its own layer and
/// those below, except where [`APART`] says otherwise.
const LAYERS: [&[&str]; 7] = [
    &["id", "error", "clock", "telemetry", "json", "text", "limits", "limiter"],
    &["policy"],
    &["token"],
    &["state", "cluster", "keyring", "own_tokens", "active_policy", "outbound", "journal", "tls"],
    &["exchange", "identity", "tools", "receiver", "revocation", "transmitter", "feed"],
    &["api"],
    &["main", "node", "config", "cli", "demo", "data_directory", "pki"],
];

/// The layer whose modules, the use-cases, never name each other.
const APART: usize = 4;

/// Crates that one module hides from the rest.
const CONFINED: [(&str, &[&str]); 9] = [
    ("axum", &["api"]),
    ("governor", &["api"]),
    ("hyper", &["api"]),
    ("openraft", &["cluster"]),
    ("regorus", &["policy"]),
    ("reqwest", &["outbound"]),
    ("rocksdb", &["cluster"]),
    ("tonic", &["cluster"]),
    ("webpki", &["tls"]),
];

/// Most lines of one source file, its unit tests not counted.
const FILE_LINES_MAX: usize = 500;

/// Files that may be longer, each with the reason. Empty is the aim.
const LONG_FILES: [(&str, &str); 1] = [("src/limits.rs", "every limit in one table")];

/// Places of one machine, which mean nothing on another. Written in halves so that this file passes.
const MACHINE_PATHS: [&str; 3] = [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];

// --- reading Rust ------------------------------------------------------------------------------

/// `text` with comments and the insides of literals blanked, line breaks kept.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut code = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match (at(i), at(i + 1)) {
            ('/', '/') => i + chars[i..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => end_of(&chars, i + 2, "*/"),
            ('"', _) => end_of_string(&chars, i + 1),
            ('r', '"' | '#') => {
                let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
                if at(i + 1 + hashes) == '"' {
                    end_of(&chars, i + 2 + hashes, &format!("\"{}", "#".repeat(hashes)))
                } else {
                    i + 1
                }
            }
            // A lifetime has no closing quote.
            ('\'', '\\') => end_of(&chars, i + 3, "'"),
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i + 1,
        };
        if end == i + 1 {
            code.push(at(i));
        } else {
            code.extend(chars[i..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        }
        i = end;
    }
    code
}

/// The place behind the next `mark`, or the end of the text.
fn end_of(chars: &[char], from: usize, mark: &str) -> usize {
    let mark: Vec<char> = mark.chars().collect();
    (from..chars.len()).find(|i| chars[*i..].starts_with(&mark)).map_or(chars.len(), |i| i + mark.len())
}

fn end_of_string(chars: &[char], from: usize) -> usize {
    let mut i = from;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code without its unit tests, which by custom end a file.
fn product_part(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod ").map_or(text, |(product, _)| product)
}

/// The places in `code` where `word` stands alone.
fn places<'c>(code: &'c str, word: &'c str) -> impl Iterator<Item = usize> + 'c {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| !code[..*at].ends_with(is_word) && !code[at + word.len()..].starts_with(is_word))
}

fn leading_word(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

/// Top-level modules that `code` names, as `crate::x` or in `crate::{x, y::z}`.
fn modules_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for at in places(code, "crate") {
        let Some(rest) = code[at + "crate".len()..].trim_start().strip_prefix("::") else { continue };
        let Some(group) = rest.trim_start().strip_prefix('{') else {
            named.insert(leading_word(rest).to_owned());
            continue;
        };
        let mut depth = 0;
        let mut start = true;
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if is_word(c) && start => {
                    named.insert(leading_word(&group[i..]).to_owned());
                    start = false;
                }
                _ => {}
            }
        }
    }
    named.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    named
}

/// The top-level module a source file belongs to: `src/token/jws.rs` to `token`.
fn module_of(path: &str) -> &str {
    let path = path.strip_prefix("src/").unwrap_or(path);
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

// --- the rules ---------------------------------------------------------------------------------

/// A lower layer never names an upper one, and use-cases never name each other.
fn layer_complaints(path: &str, text: &str) -> Vec<String> {
    let module = module_of(path);
    if module == "lib" {
        return Vec::new();
    }
    let Some(layer) = layer_of(module) else {
        return vec![format!(
            "{path}: `{module}` has no layer; give it one in tests/house.rs and ARCHITECTURE.md"
        )];
    };
    let code = code_of(text);
    let mut complaints = Vec::new();
    if code.contains("super::super::") {
        complaints
            .push(format!("{path}: write `crate::` for `super::super::`, so that the layer can be seen"));
    }
    // A test may join two use-cases.
    let product = modules_named(&code_of(product_part(text)));
    for other in modules_named(&code) {
        match layer_of(&other) {
            _ if other == module => {}
            Some(upper) if upper > layer => {
                complaints.push(format!("{path}: layer {layer} names `{other}` of layer {upper}"));
            }
            Some(APART) if layer == APART && product.contains(&other) => {
                complaints.push(format!("{path}: use-case `{module}` names use-case `{other}`"));
            }
            // An unknown name is a macro or an item of lib.rs; a module without a layer is reported
            // at its own file.
            _ => {}
        }
    }
    complaints
}

/// Some crates are named in one module only.
fn confinement_complaints(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    CONFINED
        .iter()
        .filter(|(name, homes)| !homes.contains(&module_of(path)) && places(&code, name).next().is_some())
        .map(|(name, homes)| format!("{path}: only `{}` may name `{name}`", homes.join("`, `")))
        .collect()
}

/// One reading of JSON from outside: product code does not parse it past `json`.
fn json_complaints(path: &str, text: &str) -> Vec<String> {
    let code = code_of(product_part(text));
    if module_of(path) != "json" && code.contains("serde_json::from_") {
        return vec![format!(
            "{path}: parse JSON with `crate::json`, which refuses what serde_json lets pass"
        )];
    }
    Vec::new()
}

/// Every file says first what lives in it.
fn module_doc_complaints(path: &str, text: &str) -> Vec<String> {
    if text.starts_with("//!") {
        Vec::new()
    } else {
        vec![format!("{path}: the first line is not a `//!` doc")]
    }
}

/// A code block in a doc comment looks tested; no command here runs it.
fn doc_test_complaints(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let doc = ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        if doc.is_some_and(|doc| doc.trim_start().starts_with("```")) {
            complaints.push(format!("{path}:{}: nothing runs this code block: write a test", number + 1));
        }
    }
    complaints
}

/// A file is one idea.
fn length_complaints(path: &str, text: &str) -> Vec<String> {
    let lines = product_part(text).lines().count();
    if lines <= FILE_LINES_MAX || LONG_FILES.iter().any(|(long, _)| *long == path) {
        return Vec::new();
    }
    vec![format!("{path}: {lines} lines, more than {FILE_LINES_MAX}; split it where a named step appears")]
}

/// Test names are sentences.
fn name_complaints(path: &str, text: &str) -> Vec<String> {
    let prefix = concat!("fn te", "st_");
    code_of(text)
        .match_indices(prefix)
        .map(|(at, _)| leading_word(&text[at + "fn ".len()..]).to_owned())
        .map(|name| format!("{path}: `{name}`: a test name is a sentence, without `test_`"))
        .collect()
}

/// Nothing points at a place that exists on one machine only.
fn machine_path_complaints(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for place in MACHINE_PATHS {
            let named = line.match_indices(place).any(|(at, _)| {
                !line[..at].ends_with(|c: char| is_word(c) || matches!(c, '.' | '-' | '}' | '>'))
            });
            if named {
                complaints.push(format!("{path}:{}: names {place}, a place of one machine", number + 1));
            }
        }
    }
    complaints
}

/// Every source file is reached by `mod` from a root.
fn dead_file_complaints(files: &BTreeMap<String, String>, roots: &[&str]) -> Vec<String> {
    let mut alive = BTreeSet::new();
    let mut open: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    while let Some(path) = open.pop() {
        let Some(text) = files.get(&path) else { continue };
        if !alive.insert(path.clone()) {
            continue;
        }
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let is_root = roots.contains(&path.as_str()) || name == "mod.rs";
        let folder =
            if is_root { folder.to_owned() } else { format!("{folder}/{}", name.trim_end_matches(".rs")) };
        let code = code_of(text);
        for at in places(&code, "mod") {
            let child = leading_word(&code[at + "mod".len()..]);
            open.push(format!("{folder}/{child}.rs"));
            open.push(format!("{folder}/{child}/mod.rs"));
        }
    }
    files
        .keys()
        .filter(|path| !alive.contains(*path))
        .map(|path| format!("{path}: no `mod` reaches it"))
        .collect()
}

/// Every one of `paths` is named in `text`, by its file name.
fn unnamed_complaints(paths: &[String], text: &str, place: &str) -> Vec<String> {
    let named = |path: &&String| text.contains(path.rsplit('/').next().unwrap_or(path));
    paths.iter().filter(|path| !named(path)).map(|path| format!("{path}: {place} does not name it")).collect()
}

/// Files of this repository that a page names: in backticks from a known folder, or in a link.
fn paths_named(page: &str, text: &str) -> BTreeSet<String> {
    const FOLDERS: [&str; 9] =
        ["src/", "tests/", "docs/", "policies/", "proto/", "scripts/", ".ci/", ".config/", "cluster/"];
    let is_pattern = |path: &str| path.contains(['<', '*', '{', '…', ' ', '$']);
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut named = BTreeSet::new();
    for word in text.split('`').skip(1).step_by(2) {
        if FOLDERS.iter().any(|known| word.starts_with(known)) && !is_pattern(word) {
            named.insert(word.split("::").next().unwrap_or(word).to_owned());
        }
    }
    for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let target = target.split('#').next().unwrap_or(target);
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
        for segment in target.split('/') {
            match segment {
                ".." => drop(segments.pop()),
                "." | "" => {}
                name => segments.push(name),
            }
        }
        named.insert(segments.join("/"));
    }
    named
}

/// A metric that a limit names is registered. `files` are all sources.
fn limit_complaints(source: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for Limit { name, reason, metric, .. } in limits_in(source) {
        if reason.is_empty() {
            complaints.push(format!("src/limits.rs: {name}: no doc"));
        }
        for series in metric.split('`').skip(1).step_by(2) {
            if let Err(missing) = is_series_there(series, files) {
                complaints.push(format!("src/limits.rs: {name}: {series}: {missing}"));
            }
        }
    }
    complaints
}

/// Whether a series such as `svc_x_total{reason="late"}` can come: the metric is registered with such
/// a label, and the value is a status or is written somewhere in the product.
fn is_series_there(series: &str, files: &BTreeMap<String, String>) -> Result<(), String> {
    let (name, labels) =
        series.strip_suffix('}').and_then(|text| text.split_once('{')).unwrap_or((series, ""));
    let registered = files.get("src/telemetry/metrics.rs").map(|text| product_part(text)).and_then(|text| {
        let (_, rest) = text.split_once(&format!("\"{name}\","))?;
        rest.split(")?").next()
    });
    let registered = registered.ok_or("there is no such metric")?;
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, value) = label.split_once('=').ok_or("a label without a value")?;
        if !registered.contains(&format!("\"{key}\"")) {
            return Err(format!("it has no label {key}"));
        }
        let is_status = key == "status" && value.trim_matches('"').bytes().all(|b| b.is_ascii_digit());
        let mut product = files.iter().filter(|(path, _)| {
            path.starts_with("src/") && !path.contains("/tests") && *path != "src/limits.rs"
        });
        if !is_status && !product.any(|(_, text)| product_part(text).contains(value)) {
            return Err(format!("no product file contains {value}"));
        }
    }
    Ok(())
}

// --- the page of limits ------------------------------------------------------------------------

/// One constant of `src/limits.rs`.
#[derive(Debug, Default)]
struct Limit {
    /// The heading above it.
    section: String,
    name: String,
    value: String,
    reason: String,
    /// Metrics that count how often the limit was exceeded; empty if there is none.
    metric: String,
}

/// The constants in their order. A doc may end with "Metric: …".
fn limits_in(source: &str) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut section = String::new();
    let mut doc = String::new();
    for item in source.replace("=\n", "=").lines().map(str::trim) {
        if let Some(line) = item.strip_prefix("// --- ") {
            section = heading(line);
        } else if let Some(line) = item.strip_prefix("/// ") {
            doc = if doc.is_empty() { line.to_owned() } else { format!("{doc} {line}") };
        } else if let Some((name, value)) = constant(item) {
            let (reason, metric) = doc.split_once(" Metric: ").unwrap_or((&doc, ""));
            let [name, value, reason, metric] = [name, value, reason, metric].map(str::to_owned);
            limits.push(Limit { section: section.clone(), name, value, reason, metric });
            doc.clear();
        }
    }
    limits
}

/// The reference page of the limits.
fn limits_page(source: &str) -> String {
    let mut page = vec![
        "# Limits".to_owned(),
        String::new(),
        "Every queue, body, token, list, cache and wait has one of these limits. `make fix` writes this page from"
            .to_owned(),
        "`src/limits.rs` and `client/src/limits.rs`. The last column names the metric that shows how often a limit was exceeded.".to_owned(),
    ];
    let mut section = String::new();
    for limit in limits_in(source) {
        if section != limit.section {
            section.clone_from(&limit.section);
            page.push(format!("\n## {section}\n\n| Name | Value | Meaning | Metric |\n|---|---|---|---|"));
        }
        let Limit { name, value, reason, metric, .. } = &limit;
        let value = value_in_words(name, value);
        let [reason, metric] = [reason, metric]
            .map(|text| text.trim_end_matches('.').replace('|', "\\|").replace("[`", "`").replace("`]", "`"));
        page.push(format!("| `{name}` | {value} | {reason}. | {metric} |"));
    }
    page.join("\n") + "\n"
}

fn heading(section: &str) -> String {
    let section = section.trim_end_matches(['-', ' ']);
    let mut letters = section.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Name and value of `pub const NAME: T = value;`.
fn constant(item: &str) -> Option<(&str, &str)> {
    let (name, rest) = item.strip_prefix("pub const ")?.split_once(':')?;
    let (_, value) = rest.split_once('=')?;
    Some((name, value.trim().strip_suffix(';')?))
}

/// `256 * 1024` of a `..._BYTES_...` as `256 KiB`, a duration with its unit; anything else as written.
fn value_in_words(name: &str, value: &str) -> String {
    let argument = |start: &str| value.strip_prefix(start).and_then(|rest| rest.strip_suffix(')'));
    if let Some(secs) = argument("Duration::from_secs(").and_then(product) {
        return format!("{} s", grouped(secs));
    }
    if let Some(millis) = argument("Duration::from_millis(").and_then(product) {
        return format!("{} ms", grouped(millis));
    }
    match product(value) {
        Some(bytes) if name.contains("BYTES") && bytes >= 1024 * 1024 && bytes % (1024 * 1024) == 0 => {
            format!("{} MiB", grouped(bytes / (1024 * 1024)))
        }
        Some(bytes) if name.contains("BYTES") && bytes >= 1024 && bytes % 1024 == 0 => {
            format!("{} KiB", grouped(bytes / 1024))
        }
        Some(bytes) if name.contains("BYTES") => format!("{} B", grouped(bytes)),
        Some(number) => grouped(number),
        None => format!("`{value}`"),
    }
}

/// The value of a sum of products of whole numbers.
fn product(expression: &str) -> Option<u64> {
    expression
        .split('+')
        .map(|term| {
            term.split('*')
                .map(|factor| factor.trim().replace('_', "").parse::<u64>().ok())
                .product::<Option<u64>>()
        })
        .sum()
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let lead = digits.len() % 3;
    let (first, rest) = digits.split_at(lead);
    let mut groups: Vec<&str> = if first.is_empty() { Vec::new() } else { vec![first] };
    groups.extend((0..rest.len()).step_by(3).map(|at| &rest[at..at + 3]));
    groups.join(" ")
}

// --- each rule complains about a bad sample ----------------------------------------------------

#[test]
fn comments_and_literals_are_not_code() {
    let text = "a // crate::api\n/* crate::api */ b \"crate::api \\\" x\" c r#\"crate::\"api\"# '\"' '\\'' &'a d // end";
    let code = code_of(text);
    assert!(!code.contains("api") && !code.contains("end"), "{code}");
    for kept in ["a ", " b ", " c ", "&'a d"] {
        assert!(code.contains(kept), "{kept:?} in {code}");
    }
    assert_eq!(code.lines().count(), text.lines().count());
}

#[test]
fn a_layer_that_looks_up_is_reported() {
    for bad in [
        "use crate::api::Route;",
        "use crate::{id, api::{Route, self}, clock};",
        "fn f() -> crate::exchange::Answer { }",
        "use crate::\n    node;",
        "use super::super::api;",
    ] {
        assert_eq!(layer_complaints("src/state/mod.rs", bad).len(), 1, "{bad}");
    }
    for good in ["use crate::{token::{api, Claims}, cluster};", "/// See [`crate::api`].", "crate::limits::X"]
    {
        assert_eq!(layer_complaints("src/state/mod.rs", good), Vec::<String>::new(), "{good}");
    }
    assert_eq!(layer_complaints("src/warehouse.rs", "").len(), 1, "a module without a layer");
}

#[test]
fn a_confined_crate_named_elsewhere_is_reported() {
    assert_eq!(confinement_complaints("src/exchange/mod.rs", "use axum::Router;").len(), 1);
    assert_eq!(confinement_complaints("src/state/mod.rs", "type T = rocksdb::DB;").len(), 1);
    assert!(confinement_complaints("src/api/mod.rs", "use axum::Router;").is_empty());
    assert!(
        confinement_complaints("src/state/mod.rs", "// rocksdb syncs here\nlet open_rocksdb = 1;").is_empty()
    );
}

#[test]
fn json_read_past_the_one_reader_is_reported() {
    assert_eq!(json_complaints("src/api/exchange.rs", "serde_json::from_slice(&body)").len(), 1);
    assert!(json_complaints("src/json.rs", "serde_json::from_slice(&body)").is_empty());
    let in_a_test = "fn f() {}\n#[cfg(test)]\nmod tests { serde_json::from_str(x) }";
    assert!(json_complaints("src/api/exchange.rs", in_a_test).is_empty());
}

#[test]
fn a_file_without_a_module_doc_is_reported() {
    assert_eq!(module_doc_complaints("src/a.rs", "use std::fs;\n//! late").len(), 1);
    assert!(module_doc_complaints("src/a.rs", "//! What lives here.").is_empty());
}

#[test]
fn a_code_block_in_a_doc_comment_is_reported() {
    for bad in ["/// ```\n/// f();\n/// ```", "    //! ```rust"] {
        assert!(!doc_test_complaints("src/a.rs", bad).is_empty(), "{bad}");
    }
    assert!(doc_test_complaints("src/a.rs", "/// Calls `f`.\n// ```").is_empty());
}

#[test]
fn a_long_file_is_reported_and_its_tests_do_not_count() {
    let long = "let a = 1;\n".repeat(FILE_LINES_MAX + 1);
    assert_eq!(length_complaints("src/a.rs", &long).len(), 1);
    assert!(
        length_complaints("src/a.rs", &format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}"))
            .is_empty()
    );
}

#[test]
fn a_test_prefix_is_reported() {
    let bad = concat!("#[test]\nfn te", "st_it_works() {}");
    assert_eq!(name_complaints("tests/a.rs", bad).len(), 1);
    assert!(name_complaints("tests/a.rs", "#[test]\nfn refuses_an_expired_credential() {}").is_empty());
}

#[test]
fn a_place_of_one_machine_is_reported() {
    for place in MACHINE_PATHS {
        assert_eq!(machine_path_complaints("a.md", &format!("see {place}notes")).len(), 1, "{place}");
        assert!(
            machine_path_complaints("a.md", &format!("https://example.com{place}notes")).is_empty(),
            "{place}"
        );
    }
}

#[test]
fn a_file_no_mod_reaches_is_reported() {
    let files = [
        ("src/lib.rs", "pub mod a;\nmod b;"),
        ("src/a.rs", "mod deep;"),
        ("src/a/deep.rs", ""),
        ("src/b/mod.rs", "// mod lost;\nmod near;"),
        ("src/b/near.rs", ""),
        ("src/b/lost.rs", ""),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .into();
    assert_eq!(dead_file_complaints(&files, &["src/lib.rs"]), ["src/b/lost.rs: no `mod` reaches it"]);
}

#[test]
fn a_page_or_policy_nobody_names_is_reported() {
    let paths = ["docs/decisions/one.md".to_owned(), "docs/decisions/two.md".to_owned()];
    let complaints = unnamed_complaints(&paths, "see [one](docs/decisions/one.md)", "ARCHITECTURE.md");
    assert_eq!(complaints, ["docs/decisions/two.md: ARCHITECTURE.md does not name it"]);
}

#[test]
fn paths_are_found_in_backticks_and_links() {
    let text = "`src/a.rs` `src/b.rs::verify` `src/<name>.rs` `cargo` [x](../c.md#part) [y](https://e.com/d) [z](e.md)";
    let found: Vec<String> = paths_named("docs/page.md", text).into_iter().collect();
    assert_eq!(found, ["c.md", "docs/e.md", "src/a.rs", "src/b.rs"]);
}

#[test]
fn limits_page_has_name_value_reason_and_metric() {
    let source = "// --- input ----\n\n/// Largest\n/// body.\n/// Metric: `svc_a{b=\"c\"}`.\n\
                  pub const A_BYTES_MAX: usize = 256 * 1024;\n/// Life of [`A`].\n\
                  pub const LIFE: Duration = Duration::from_secs(24 * 3600 + 300);\n/// Odd.\npub const ODD: u8 = OTHER;";
    let page = limits_page(source);
    for row in [
        "## Input",
        "| `A_BYTES_MAX` | 256 KiB | Largest body. | `svc_a{b=\"c\"}` |",
        "| `LIFE` | 86 700 s | Life of `A`. |  |",
        "| `ODD` | `OTHER` | Odd. |  |",
    ] {
        assert!(page.contains(row), "{row} in {page}");
    }
}

#[test]
fn limit_with_an_unknown_metric_is_reported() {
    let files: BTreeMap<String, String> = [
        ("src/a/mod.rs", "close(\"late\");\n\n#[cfg(test)]\nmod tests {\n    fn f() { close(\"early\") }\n}"),
        ("src/limits.rs", "/// Metric: `svc_x_total{reason=\"early\"}`"),
        (
            "src/telemetry/metrics.rs",
            "counters(&r, \"svc_x_total\", \"H.\", &[\"reason\", \"status\"])?; f(\"svc_y\", \"H.\")?;",
        ),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .into();
    let complaints = |doc: &str| limit_complaints(&format!("{doc}\npub const A: u8 = 1;"), &files);
    for good in [
        "/// Reason.",
        "/// Reason.\n/// Metric: `svc_y`.",
        "/// Reason. Metric: `svc_x_total{reason=\"late\",status=\"408\"}`, `svc_y`.",
    ] {
        assert_eq!(complaints(good), Vec::<String>::new(), "{good}");
    }
    for (bad, complaint) in [
        ("", "no doc"),
        ("/// R. Metric: `svc_z`.", "svc_z: there is no such metric"),
        ("/// R. Metric: `svc_x`.", "svc_x: there is no such metric"),
        ("/// R. Metric: `svc_y{reason=\"late\"}`.", "it has no label reason"),
        ("/// R. Metric: `svc_x_total{reason=\"early\"}`.", "no product file contains \"early\""),
        ("/// R. Metric: `svc_x_total{reason}`.", "a label without a value"),
    ] {
        let found = complaints(bad);
        assert!(found.iter().any(|found| found.contains(complaint)), "{bad}: {found:?}");
    }
}

// --- this repository keeps the rules -----------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Paths of all files under `folder`, relative to the repository, builds and git's own left out.
fn files_under(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path: PathBuf = entry.expect("read a folder entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if matches!(name, ".git" | "target" | "__pycache__") {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else {
                let relative = path.strip_prefix(root()).expect("a file of this repository");
                files.push(relative.to_str().expect("file names are UTF-8").to_owned());
            }
        }
    }
    files.sort();
    files
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// Rust files under `folder` with their texts.
fn rust_under(folder: &str) -> BTreeMap<String, String> {
    let is_rust = |path: &String| Path::new(path).extension().is_some_and(|extension| extension == "rs");
    files_under(folder).into_iter().filter(is_rust).map(|path| (path.clone(), read(&path))).collect()
}

fn keeps(rule: fn(&str, &str) -> Vec<String>, folders: &[&str]) {
    let mut complaints = Vec::new();
    for folder in folders {
        let files = rust_under(folder);
        assert!(!files.is_empty(), "nothing to check under {folder}");
        complaints.extend(files.iter().flat_map(|(path, text)| rule(path, text)));
    }
    none(&complaints);
}

fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn lower_layers_never_name_upper_ones() {
    keeps(layer_complaints, &["src"]);
}

#[test]
fn each_great_dependency_has_one_home() {
    keeps(confinement_complaints, &["src"]);
}

#[test]
fn json_from_outside_has_one_reader() {
    keeps(json_complaints, &["src"]);
}

#[test]
fn every_file_begins_with_what_it_is() {
    keeps(module_doc_complaints, &["src", "tests"]);
}

#[test]
fn no_doc_comment_has_a_code_block() {
    keeps(doc_test_complaints, &["src", "tests"]);
}

#[test]
fn no_file_is_long() {
    keeps(length_complaints, &["src"]);
}

#[test]
fn every_test_name_is_a_sentence() {
    keeps(name_complaints, &["src", "tests"]);
}

#[test]
fn no_source_file_is_dead() {
    let sources = rust_under("src");
    let own_roots: Vec<&str> = sources
        .keys()
        .map(String::as_str)
        .filter(|path| matches!(*path, "src/lib.rs" | "src/main.rs") || path.starts_with("src/bin/"))
        .collect();
    none(&dead_file_complaints(&sources, &own_roots));
    let tests = rust_under("tests");
    let own_roots: Vec<&str> =
        tests.keys().map(String::as_str).filter(|path| path.matches('/').count() == 1).collect();
    none(&dead_file_complaints(&tests, &own_roots));
}

#[test]
fn every_policy_is_used_or_explained() {
    let sources: String = rust_under("src").into_values().chain(rust_under("tests").into_values()).collect();
    let pages: String =
        files_under("docs").iter().filter(|path| path.contains("policy")).map(|path| read(path)).collect();
    none(&unnamed_complaints(
        &files_under("policies"),
        &(sources + &pages),
        "no source and no page on policy",
    ));
}

#[test]
fn every_protobuf_file_is_compiled() {
    none(&unnamed_complaints(&files_under("proto"), &read("build.rs"), "build.rs"));
}

#[test]
fn every_decision_is_linked_from_the_architecture() {
    none(&unnamed_complaints(&files_under("docs/decisions"), &read("ARCHITECTURE.md"), "ARCHITECTURE.md"));
}

#[test]
fn every_path_a_page_names_exists() {
    let mut complaints = Vec::new();
    let pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "SPEC-MAP.md"].map(str::to_owned);
    for page in pages.into_iter().chain(files_under("docs")) {
        let missing = paths_named(&page, &read(&page)).into_iter().filter(|path| !root().join(path).exists());
        complaints.extend(missing.map(|path| format!("{page}: names {path}, which does not exist")));
    }
    none(&complaints);
}

#[test]
fn nothing_names_a_place_of_one_machine() {
    let mut complaints = Vec::new();
    for path in files_under("") {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        complaints.extend(machine_path_complaints(&path, &text));
    }
    none(&complaints);
}

#[test]
fn limits_are_documented_and_their_metrics_exist() {
    none(&limit_complaints(&read("src/limits.rs"), &rust_under("src")));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "`make fix` sets the variable")]
fn limits_page_equals_the_code() {
    const PAGE: &str = "docs/reference/limits.md";
    let page = limits_page(&(read("src/limits.rs") + &read("client/src/limits.rs")));
    if std::env::var_os("TRUST_FABRIC_REWRITE").is_some() {
        fs::write(root().join(PAGE), &page).expect("write the page");
    }
    assert!(read(PAGE) == page, "{PAGE} differs from the limits in the code: run `make fix`");
}
