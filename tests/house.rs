//! House rules that the compiler cannot check.
//!
//! Each rule is a function from text to violations. The tests at the end run it over this repository; the tests before
//! them show that it reports a bad sample.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "house/code_map.rs"]
mod code_map;
#[path = "house/imports.rs"]
mod imports;

/// Modules by layer, lowest first (ARCHITECTURE.md, "Code map"). A module may name its own layer and
/// those below, except where [`APART`] says otherwise.
const LAYERS: [&[&str]; 7] = [
    &["id", "breaks", "clock", "telemetry", "json", "text", "limits", "limiter"],
    &["policy"],
    &["token"],
    &[
        "state",
        "cluster",
        "keyring",
        "own_tokens",
        "peer_tokens",
        "active_policy",
        "outbound",
        "journal",
        "tls",
        "backup",
    ],
    &["exchange", "identity", "tools", "receiver", "revocation", "transmitter", "feed", "federation"],
    &["api"],
    &["main", "node", "config", "cli", "demo", "data_directory", "pki"],
];

/// The layer whose modules, the use-cases, never name each other.
const APART: usize = 4;

/// Crates that one module hides from the rest.
const CONFINED: [(&str, &[&str]); 10] = [
    ("axum", &["api"]),
    ("governor", &["api"]),
    ("hyper", &["api"]),
    ("openraft", &["cluster"]),
    ("regorus", &["policy"]),
    ("reqwest", &["outbound"]),
    ("rocksdb", &["cluster"]),
    ("tar", &["backup"]),
    ("tonic", &["cluster"]),
    ("webpki", &["tls"]),
];

/// Words that begin questions, not statements.
const QUESTION_WORDS: [&str; 5] = ["what", "who", "whoever", "whom", "nobody"];

/// Maximum statements in 1000 sentences that begin with one of them.
const QUESTION_LIKE_MAX: usize = 5;

/// Maximum length of a test name.
const TEST_NAME_CHARS_MAX: usize = 60;

/// Maximum lines of a source file without its unit tests.
const FILE_LINES_MAX: usize = 500;

/// Longer files, each with the reason.
const LONG_FILES: [(&str, &str); 1] = [("src/limits.rs", "every limit in one table")];

/// Directories of one machine, which mean nothing on another. Written in halves so that this file passes.
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

/// The position after the next `mark`, or the end of the text.
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

/// The code without its unit tests, which end a file by convention.
fn product_part(text: &str) -> &str {
    let is_inline = |at: &usize| {
        let rest = text[*at..].lines().nth(1).unwrap_or_default();
        rest.starts_with("mod ") && rest.contains('{')
    };
    let end = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(is_inline);
    &text[..end.unwrap_or(text.len())]
}

/// Positions of `word` in `code`, as a whole word.
fn word_positions<'c>(code: &'c str, word: &'c str) -> impl Iterator<Item = usize> + 'c {
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
    for at in word_positions(code, "crate") {
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

/// A lower layer never imports from an upper one, and use-cases never import from each other.
fn layer_violations(path: &str, text: &str) -> Vec<String> {
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
    let mut violations = Vec::new();
    if code.contains("super::super::") {
        violations
            .push(format!("{path}: write `crate::` for `super::super::`, so that the layer can be seen"));
    }
    // A test may join two use-cases.
    let product = modules_named(&code_of(product_part(text)));
    for other in modules_named(&code) {
        match layer_of(&other) {
            _ if other == module => {}
            Some(upper) if upper > layer => {
                violations.push(format!("{path}: layer {layer} names `{other}` of layer {upper}"));
            }
            Some(APART) if layer == APART && product.contains(&other) => {
                violations.push(format!("{path}: use-case `{module}` names use-case `{other}`"));
            }
            // An unknown name is a macro or an item of lib.rs; a module without a layer is reported
            // at its own file.
            _ => {}
        }
    }
    violations
}

/// Each confined crate is named in one module only.
fn confinement_violations(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    CONFINED
        .iter()
        .filter(|(name, homes)| {
            !homes.contains(&module_of(path)) && word_positions(&code, name).next().is_some()
        })
        .map(|(name, homes)| format!("{path}: only `{}` may name `{name}`", homes.join("`, `")))
        .collect()
}

/// Product code parses JSON only with `json`.
fn json_violations(path: &str, text: &str) -> Vec<String> {
    let code = code_of(product_part(text));
    if module_of(path) != "json" && code.contains("serde_json::from_") {
        return vec![format!(
            "{path}: parse JSON with `crate::json`, which refuses what serde_json lets pass"
        )];
    }
    Vec::new()
}

/// Every file begins with a module doc.
fn module_doc_violations(path: &str, text: &str) -> Vec<String> {
    if text.starts_with("//!") {
        Vec::new()
    } else {
        vec![format!("{path}: the first line is not a `//!` doc")]
    }
}

/// A code block in a doc comment looks tested, but no command runs it.
fn doc_test_violations(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let doc = ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        if doc.is_some_and(|doc| doc.trim_start().starts_with("```")) {
            violations.push(format!("{path}:{}: nothing runs this code block: write a test", number + 1));
        }
    }
    violations
}

/// A file has a limited length.
fn length_violations(path: &str, text: &str) -> Vec<String> {
    let lines = product_part(text).lines().count();
    if lines <= FILE_LINES_MAX || LONG_FILES.iter().any(|(long, _)| *long == path) {
        return Vec::new();
    }
    vec![format!("{path}: {lines} lines, more than {FILE_LINES_MAX}; split it where a named step appears")]
}

/// Test names have no `test_` and at most [`TEST_NAME_CHARS_MAX`] characters.
fn test_name_violations(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let mut violations = Vec::new();
    let mut is_test = false;
    for line in code.lines().map(str::trim) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) else { continue };
        let name = leading_word(rest);
        if name.starts_with(concat!("te", "st_")) {
            violations.push(format!("{path}: `{name}` begins with `test_`"));
        }
        if name.len() > TEST_NAME_CHARS_MAX {
            violations.push(format!("{path}: `{name}` is longer than {TEST_NAME_CHARS_MAX} characters"));
        }
        is_test = false;
    }
    violations
}

/// Names in the last column of a page's tables are those of functions in `code`.
fn test_column_violations(page: &str, text: &str, code: &BTreeMap<String, String>) -> Vec<String> {
    let cells = text.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let names: BTreeSet<&str> = names.filter(|name| name.chars().all(is_word)).collect();
    let exists = |name: &&str| code.values().any(|text| text.contains(&format!("fn {name}(")));
    let missing = names.into_iter().filter(|name| !exists(name));
    missing.map(|name| format!("{page}: no test `{name}`")).collect()
}

// --- language ----------------------------------------------------------------------------------

/// Paragraphs of the comments in a source file, or of a document.
fn paragraphs(path: &str, text: &str) -> Vec<String> {
    let extension = path.rsplit('.').next().unwrap_or_default();
    let mut paragraphs = vec![String::new()];
    let mut is_docstring = false;
    let mut is_code_block = false;
    for line in text.lines().map(str::trim) {
        let prose = match extension {
            "md" => Some(line),
            "rs" | "proto" => line.strip_prefix("//").map(|text| text.trim_start_matches(['/', '!'])),
            _ if is_docstring || line.starts_with("\"\"\"") => Some(line.trim_matches('"')),
            _ => line.strip_prefix('#').filter(|text| !text.starts_with('!')),
        };
        if extension == "py" && line.matches("\"\"\"").count() % 2 == 1 && prose.is_some() {
            is_docstring = !is_docstring;
        }
        let Some(prose) = prose.map(str::trim) else {
            is_code_block = false;
            paragraphs.push(String::new());
            continue;
        };
        if prose.starts_with("```") {
            is_code_block = !is_code_block;
        }
        if is_code_block || prose.is_empty() || prose.starts_with("```") {
            paragraphs.push(String::new());
        } else if prose.starts_with('|') {
            paragraphs.extend(prose.split('|').map(|cell| cell.trim().to_owned()));
            paragraphs.push(String::new());
        } else {
            let item = prose.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(". ");
            let item = item.or_else(|| prose.strip_prefix("- ")).or_else(|| prose.strip_prefix("* "));
            let heading = prose.strip_prefix('#').map(|rest| rest.trim_start_matches(['#', ' ']));
            if item.is_some() || heading.is_some() {
                paragraphs.push(String::new());
            }
            if let Some(paragraph) = paragraphs.last_mut() {
                *paragraph += " ";
                *paragraph += item.or(heading).unwrap_or(prose);
            }
            if heading.is_some() {
                paragraphs.push(String::new());
            }
        }
    }
    paragraphs
}

/// Sentences of a paragraph, of two words or more.
fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    let mut ends: Vec<usize> = paragraph
        .match_indices(' ')
        .map(|(at, _)| at)
        .filter(|at| {
            let is_end =
                paragraph[..*at].trim_end_matches([')', '"', '*', '_', '`']).ends_with(['.', '!', '?']);
            is_end && !paragraph[*at + 1..].starts_with(char::is_lowercase)
        })
        .collect();
    ends.push(paragraph.len());
    let starts = std::iter::once(0).chain(ends.clone());
    starts
        .zip(ends)
        .map(|(start, end)| paragraph[start..end].trim())
        .filter(|sentence| sentence.split_whitespace().nth(1).is_some())
}

/// Whether a statement begins with a word that belongs to questions.
fn is_question_like(sentence: &str) -> bool {
    let word = leading_word(sentence.trim_start_matches(|c: char| !is_word(c) && c != '`')).to_lowercase();
    let is_question = sentence.trim_end_matches([')', '"', '*', '_', ' ']).ends_with('?');
    QUESTION_WORDS.contains(&word.as_str()) && !is_question
}

/// Statements begin with a noun: at most [`QUESTION_LIKE_MAX`] in 1000 sentences begin with a word of questions
/// (`docs/glossary.md`, "How we write").
fn language_violations(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut violations = Vec::new();
    let (mut all, mut question_like) = (0, 0);
    for (path, text) in files {
        let paragraphs = paragraphs(path, text);
        let sentences: Vec<&str> = paragraphs.iter().flat_map(|paragraph| sentences(paragraph)).collect();
        let found: Vec<&&str> = sentences.iter().filter(|sentence| is_question_like(sentence)).collect();
        all += sentences.len();
        question_like += found.len();
        if let Some(first) = found.first() {
            violations.push(format!(
                "{path}: {} of {} sentences, first {first:?}",
                found.len(),
                sentences.len()
            ));
        }
    }
    if question_like * 1000 <= all * QUESTION_LIKE_MAX {
        return Vec::new();
    }
    violations.push(format!("{question_like} of {all} sentences begin with one of {QUESTION_WORDS:?}"));
    violations
}

/// No path of one machine is named.
fn machine_path_violations(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for place in MACHINE_PATHS {
            let named = line.match_indices(place).any(|(at, _)| {
                !line[..at].ends_with(|c: char| is_word(c) || matches!(c, '.' | '-' | '}' | '>'))
            });
            if named {
                violations.push(format!("{path}:{}: names {place}, a directory of one machine", number + 1));
            }
        }
    }
    violations
}

/// Every source file is declared by a `mod` below a root.
fn dead_file_violations(files: &BTreeMap<String, String>, roots: &[&str]) -> Vec<String> {
    let mut reached = BTreeSet::new();
    let mut queue: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    while let Some(path) = queue.pop() {
        let Some(text) = files.get(&path) else { continue };
        if !reached.insert(path.clone()) {
            continue;
        }
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let is_root = roots.contains(&path.as_str()) || name == "mod.rs";
        let folder =
            if is_root { folder.to_owned() } else { format!("{folder}/{}", name.trim_end_matches(".rs")) };
        let code = code_of(text);
        for at in word_positions(&code, "mod") {
            let child = leading_word(&code[at + "mod".len()..]);
            queue.push(format!("{folder}/{child}.rs"));
            queue.push(format!("{folder}/{child}/mod.rs"));
        }
        let places = text.split("#[path = \"").skip(1).filter_map(|rest| rest.split('"').next());
        queue.extend(places.map(|place| format!("{folder}/{place}")));
    }
    files
        .keys()
        .filter(|path| !reached.contains(*path))
        .map(|path| format!("{path}: no `mod` declares it"))
        .collect()
}

/// Each of `paths` is named in `text`, by its file name.
fn unnamed_violations(paths: &[String], text: &str, place: &str) -> Vec<String> {
    let named = |path: &&String| text.contains(path.rsplit('/').next().unwrap_or(path));
    paths.iter().filter(|path| !named(path)).map(|path| format!("{path}: {place} does not name it")).collect()
}

/// Files of this repository that a document names: in backticks with a known directory, or in a link.
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
fn limit_violations(source: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let mut violations = Vec::new();
    for Limit { name, reason, metric, .. } in limits_in(source) {
        if reason.is_empty() {
            violations.push(format!("src/limits.rs: {name}: no doc"));
        }
        for series in metric.split('`').skip(1).step_by(2) {
            if let Err(missing) = find_series(series, files) {
                violations.push(format!("src/limits.rs: {name}: {series}: {missing}"));
            }
        }
    }
    violations
}

/// Whether a series such as `svc_x_total{reason="late"}` can exist: the metric is registered with this label, and the
/// value is a status or a literal of the product.
fn find_series(series: &str, files: &BTreeMap<String, String>) -> Result<(), String> {
    let (name, labels) =
        series.strip_suffix('}').and_then(|text| text.split_once('{')).unwrap_or((series, ""));
    let registered =
        files.get("src/telemetry/metrics/table.rs").map(|text| product_part(text)).and_then(|text| {
            let (_, rest) = text.split_once(&format!("\"{name}\""))?;
            rest.split(';').next()
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
        let has_value = |text: &str| text.contains(value) || derives_name(text, value.trim_matches('"'));
        if !is_status && !product.any(|(_, text)| has_value(product_part(text))) {
            return Err(format!("no product file contains {value}"));
        }
    }
    Ok(())
}

/// Whether a variant in the source has this name by `strum::IntoStaticStr`.
fn derives_name(source: &str, name: &str) -> bool {
    let capitalized = |word: &str| {
        let (first, rest) = word.split_at_checked(1).unwrap_or_default();
        first.to_uppercase() + rest
    };
    let variant: String = name.split('_').map(capitalized).collect();
    let is_variant = |line: &str| {
        line.strip_prefix("    ")
            .and_then(|line| line.strip_prefix(&variant))
            .is_some_and(|rest| rest.starts_with([',', '(', ' ']))
    };
    let deriving = source.split("strum::IntoStaticStr").skip(1);
    let bodies = deriving.filter_map(|rest| rest.split_once("enum ")?.1.split("\n}").next());
    bodies.flat_map(str::lines).any(is_variant)
}

// --- reference page of the limits --------------------------------------------------------------

/// One constant of `src/limits.rs`.
#[derive(Debug, Default)]
struct Limit {
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
        "`src/limits.rs`, `client/src/limits.rs` and `provider/src/limits.rs`. The last column names the metric that shows how often a limit was exceeded.".to_owned(),
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

/// The value of a sum of products of integers.
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

// --- each rule reports a bad sample ------------------------------------------------------------

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
fn upward_import_is_reported() {
    for bad in [
        "use crate::api::Route;",
        "use crate::{id, api::{Route, self}, clock};",
        "fn f() -> crate::exchange::Answer { }",
        "use crate::\n    node;",
        "use super::super::api;",
    ] {
        assert_eq!(layer_violations("src/state/mod.rs", bad).len(), 1, "{bad}");
    }
    for good in ["use crate::{token::{api, Claims}, cluster};", "/// See [`crate::api`].", "crate::limits::X"]
    {
        assert_eq!(layer_violations("src/state/mod.rs", good), Vec::<String>::new(), "{good}");
    }
    assert_eq!(layer_violations("src/warehouse.rs", "").len(), 1, "a module without a layer");
}

#[test]
fn confined_crate_named_elsewhere_is_reported() {
    assert_eq!(confinement_violations("src/exchange/mod.rs", "use axum::Router;").len(), 1);
    assert_eq!(confinement_violations("src/state/mod.rs", "type T = rocksdb::DB;").len(), 1);
    assert!(confinement_violations("src/api/mod.rs", "use axum::Router;").is_empty());
    assert!(
        confinement_violations("src/state/mod.rs", "// rocksdb syncs here\nlet open_rocksdb = 1;").is_empty()
    );
}

#[test]
fn json_parsed_without_the_json_module_is_reported() {
    assert_eq!(json_violations("src/api/exchange.rs", "serde_json::from_slice(&body)").len(), 1);
    assert!(json_violations("src/json.rs", "serde_json::from_slice(&body)").is_empty());
    let in_a_test = "fn f() {}\n#[cfg(test)]\nmod tests { serde_json::from_str(x) }";
    assert!(json_violations("src/api/exchange.rs", in_a_test).is_empty());
}

#[test]
fn file_without_a_module_doc_is_reported() {
    assert_eq!(module_doc_violations("src/a.rs", "use std::fs;\n//! late").len(), 1);
    assert!(module_doc_violations("src/a.rs", "//! What lives here.").is_empty());
}

#[test]
fn code_block_in_a_doc_comment_is_reported() {
    for bad in ["/// ```\n/// f();\n/// ```", "    //! ```rust"] {
        assert!(!doc_test_violations("src/a.rs", bad).is_empty(), "{bad}");
    }
    assert!(doc_test_violations("src/a.rs", "/// Calls `f`.\n// ```").is_empty());
}

#[test]
fn long_file_is_reported_without_counting_tests() {
    let long = "let a = 1;\n".repeat(FILE_LINES_MAX + 1);
    assert_eq!(length_violations("src/a.rs", &long).len(), 1);
    assert!(
        length_violations("src/a.rs", &format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}"))
            .is_empty()
    );
}

#[test]
fn long_or_prefixed_test_name_is_reported() {
    let prefixed = concat!("#[test]\nfn te", "st_it_works() {}");
    let long = format!("#[tokio::test(start_paused = true)]\n#[ignore]\nasync fn {}() {{}}", "a".repeat(61));
    for bad in [prefixed, &long] {
        assert_eq!(test_name_violations("tests/a.rs", bad).len(), 1, "{bad}");
    }
    let good = format!("#[test]\nfn {}() {{}}\nfn {}() {{}}", "a".repeat(60), "b".repeat(61));
    assert_eq!(test_name_violations("tests/a.rs", &good), Vec::<String>::new());
}

#[test]
fn statements_that_begin_like_questions_are_reported() {
    let violations =
        |path: &str, text: &str| language_violations(&BTreeMap::from([(path.to_owned(), text.to_owned())]));
    for (path, bad) in [
        ("src/a.rs", "/// Permit of a call. What is left\n/// over is dropped.\nfn f() {}"),
        ("src/a.rs", "fn f() {\n    // Nobody is asked.\n}"),
        ("docs/a.md", "# Who may call\n\nA caller."),
        ("docs/a.md", "Text.\n\n- **Whoever** asks, waits.\n| A | What a stream holds |"),
        ("tests/a.py", "def f():\n    \"\"\"What one poll is given.\"\"\"\n"),
        ("scripts/a.sh", "# Who comes later waits."),
    ] {
        let found = violations(path, bad);
        assert_eq!(found.len(), 2, "{bad}: {found:?}");
        assert!(found[0].starts_with(path), "{found:?}");
    }
    let rare = "It is so. ".repeat(199) + "What is left is dropped.";
    for (path, good) in [
        ("src/a.rs", "/// What is a fact? A digest.\nlet what = \"What is left is dropped.\";"),
        ("docs/a.md", "A node, who knows, waits.\n\n```text\nWhat is left\n```\n\n| What |\n"),
        ("docs/a.md", &rare),
    ] {
        assert_eq!(violations(path, good), Vec::<String>::new(), "{good}");
    }
}

#[test]
fn directory_of_one_machine_is_reported() {
    for place in MACHINE_PATHS {
        assert_eq!(machine_path_violations("a.md", &format!("see {place}notes")).len(), 1, "{place}");
        assert!(
            machine_path_violations("a.md", &format!("https://example.com{place}notes")).is_empty(),
            "{place}"
        );
    }
}

#[test]
fn file_without_a_mod_is_reported() {
    let files = [
        ("src/lib.rs", "pub mod a;\nmod b;"),
        ("src/a.rs", "mod deep;\n#[path = \"deep/placed.rs\"]\nmod placed;"),
        ("src/a/deep/placed.rs", ""),
        ("src/a/deep.rs", ""),
        ("src/b/mod.rs", "// mod lost;\nmod near;"),
        ("src/b/near.rs", ""),
        ("src/b/lost.rs", ""),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .into();
    assert_eq!(dead_file_violations(&files, &["src/lib.rs"]), ["src/b/lost.rs: no `mod` declares it"]);
}

#[test]
fn unnamed_page_is_reported() {
    let paths = ["docs/decisions/one.md".to_owned(), "docs/decisions/two.md".to_owned()];
    let violations = unnamed_violations(&paths, "see [one](docs/decisions/one.md)", "ARCHITECTURE.md");
    assert_eq!(violations, ["docs/decisions/two.md: ARCHITECTURE.md does not name it"]);
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
        ("src/b.rs", "#[derive(strum::IntoStaticStr)]\nenum B {\n    TooLate,\n}"),
        ("src/limits.rs", "/// Metric: `svc_x_total{reason=\"early\"}`"),
        (
            "src/telemetry/metrics/table.rs",
            "x: IntCounterVec = \"svc_x_total\" [\"reason\", \"status\"] \"H.\"; y: IntGauge = \"svc_y\" [] \"H.\";",
        ),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .into();
    let violations = |doc: &str| limit_violations(&format!("{doc}\npub const A: u8 = 1;"), &files);
    for good in [
        "/// Reason.",
        "/// Reason.\n/// Metric: `svc_y`.",
        "/// Reason. Metric: `svc_x_total{reason=\"late\",status=\"408\"}`, `svc_y`.",
        "/// Reason. Metric: `svc_x_total{reason=\"too_late\"}`.",
    ] {
        assert_eq!(violations(good), Vec::<String>::new(), "{good}");
    }
    for (bad, violation) in [
        ("", "no doc"),
        ("/// R. Metric: `svc_z`.", "svc_z: there is no such metric"),
        ("/// R. Metric: `svc_x`.", "svc_x: there is no such metric"),
        ("/// R. Metric: `svc_y{reason=\"late\"}`.", "it has no label reason"),
        ("/// R. Metric: `svc_x_total{reason=\"early\"}`.", "no product file contains \"early\""),
        ("/// R. Metric: `svc_x_total{reason=\"too_soon\"}`.", "no product file contains \"too_soon\""),
        ("/// R. Metric: `svc_x_total{reason}`.", "a label without a value"),
    ] {
        let found = violations(bad);
        assert!(found.iter().any(|found| found.contains(violation)), "{bad}: {found:?}");
    }
}

// --- this repository follows the rules ---------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Paths of all files under `folder`, relative to the repository, without builds and `.git`.
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

fn check(rule: fn(&str, &str) -> Vec<String>, folders: &[&str]) {
    let mut violations = Vec::new();
    for folder in folders {
        let files = rust_under(folder);
        assert!(!files.is_empty(), "nothing to check under {folder}");
        violations.extend(files.iter().flat_map(|(path, text)| rule(path, text)));
    }
    assert_none(&violations);
}

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn imports_never_go_up() {
    check(layer_violations, &["src"]);
}

#[test]
fn import_cycles_are_small() {
    assert_none(&imports::cycle_violations(&imports::graph(&rust_under("src"))));
}

#[test]
fn code_maps_are_equal() {
    let (page, crate_doc) = (read("ARCHITECTURE.md"), read("src/lib.rs"));
    assert_none(&code_map::violations(&LAYERS, &page, &crate_doc, &files_under("src")));
}

#[test]
fn layers_inside_modules_are_kept() {
    assert_none(&imports::inner_layer_violations(&imports::graph(&rust_under("src"))));
}

#[test]
fn confined_crates_are_named_in_one_module() {
    check(confinement_violations, &["src"]);
}

#[test]
fn json_is_parsed_by_one_module() {
    check(json_violations, &["src"]);
}

#[test]
fn every_file_has_a_module_doc() {
    check(module_doc_violations, &["src", "tests", "provider"]);
}

#[test]
fn no_doc_comment_has_a_code_block() {
    check(doc_test_violations, &["src", "tests", "provider"]);
}

#[test]
fn no_file_is_too_long() {
    check(length_violations, &["src", "provider"]);
}

#[test]
fn names_of_tests_are_short() {
    check(
        test_name_violations,
        &["src", "client", "fabric-spec", "tests", "bench", "jepsen", "models", "provider"],
    );
}

#[test]
fn statements_begin_with_nouns() {
    const FORMATS: [&str; 9] = ["md", "rs", "proto", "py", "sh", "toml", "rego", "yml", "yaml"];
    let is_prose = |path: &String| {
        FORMATS.contains(&path.rsplit('.').next().unwrap_or_default()) && !path.starts_with("tests/vectors/")
    };
    let paths = files_under("").into_iter().filter(is_prose);
    let files = paths.map(|path| (path.clone(), read(&path))).collect();
    assert_none(&language_violations(&files));
}

#[test]
fn every_source_file_is_declared() {
    let sources = rust_under("src");
    let own_roots: Vec<&str> = sources
        .keys()
        .map(String::as_str)
        .filter(|path| matches!(*path, "src/lib.rs" | "src/main.rs") || path.starts_with("src/bin/"))
        .collect();
    assert_none(&dead_file_violations(&sources, &own_roots));
    let tests = rust_under("tests");
    let own_roots: Vec<&str> =
        tests.keys().map(String::as_str).filter(|path| path.matches('/').count() == 1).collect();
    assert_none(&dead_file_violations(&tests, &own_roots));
}

#[test]
fn every_policy_is_used_or_explained() {
    let sources: String = rust_under("src").into_values().chain(rust_under("tests").into_values()).collect();
    let pages: String =
        files_under("docs").iter().filter(|path| path.contains("policy")).map(|path| read(path)).collect();
    assert_none(&unnamed_violations(
        &files_under("policies"),
        &(sources + &pages),
        "no source and no page on policy",
    ));
}

#[test]
fn every_protobuf_file_is_compiled() {
    assert_none(&unnamed_violations(&files_under("proto"), &read("build.rs"), "build.rs"));
}

#[test]
fn every_decision_is_linked_from_the_architecture() {
    assert_none(&unnamed_violations(
        &files_under("docs/decisions"),
        &read("ARCHITECTURE.md"),
        "ARCHITECTURE.md",
    ));
}

#[test]
fn every_path_a_page_names_exists() {
    let mut violations = Vec::new();
    let pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "SPEC-MAP.md"].map(str::to_owned);
    for page in pages.into_iter().chain(files_under("docs")) {
        let missing = paths_named(&page, &read(&page)).into_iter().filter(|path| !root().join(path).exists());
        violations.extend(missing.map(|path| format!("{page}: names {path}, which does not exist")));
    }
    assert_none(&violations);
}

#[test]
fn tests_that_pages_of_proofs_name_exist() {
    let code = ["src", "tests", "models"].into_iter().flat_map(rust_under).collect();
    for page in ["docs/proofs/federation.md", "docs/proofs/breaks.md"] {
        assert_none(&test_column_violations(page, &read(page), &code));
    }
}

#[test]
fn missing_test_of_a_page_is_reported() {
    let code = BTreeMap::from([("a.rs".to_owned(), "fn there_is_one() {}".to_owned())]);
    let page = "| `floor_n` | `there_is_one`, `tests/x.py` |\n| a | not proven, `there_is_none` |";
    assert_eq!(test_column_violations("p.md", page, &code), ["p.md: no test `there_is_none`"]);
}

#[test]
fn no_file_names_a_directory_of_one_machine() {
    let mut violations = Vec::new();
    for path in files_under("") {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        violations.extend(machine_path_violations(&path, &text));
    }
    assert_none(&violations);
}

#[test]
fn limits_are_documented_and_their_metrics_exist() {
    assert_none(&limit_violations(&read("src/limits.rs"), &rust_under("src")));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "`make fix` sets the variable")]
fn limits_page_equals_the_code() {
    const PAGE: &str = "docs/reference/limits.md";
    let page = limits_page(
        &["src", "client/src", "provider/src"].map(|crate_| read(&format!("{crate_}/limits.rs"))).concat(),
    );
    if std::env::var_os("TRUST_FABRIC_REWRITE").is_some() {
        fs::write(root().join(PAGE), &page).expect("write the page");
    }
    assert!(read(PAGE) == page, "{PAGE} differs from the limits in the code: run `make fix`");
}
