//! The files of values in `charts/trust-fabric/ci`, and the releases that Helm makes of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trust_fabric_spec::chart::Values;

use crate::python;

pub const RELEASE: &str = "fabric";
pub const NAMESPACE: &str = "fabric";

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn chart() -> PathBuf {
    root().join("charts/trust-fabric")
}

pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// Name and text of each file of values.
pub fn files() -> Vec<(String, String)> {
    let entries = fs::read_dir(chart().join("ci")).expect("read the folder of values");
    let mut files: Vec<(String, String)> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let name = name.strip_suffix("-values.yaml").expect("a file of values").to_owned();
            (name, fs::read_to_string(&path).expect("read values"))
        })
        .collect();
    files.sort();
    assert_eq!(files.len(), 8);
    files
}

/// The values of a file as the type reads them.
pub fn parsed(text: &str) -> Values {
    Values::parse(text).expect("values that the type has")
}

pub fn values(name: &str) -> Value {
    let text = read(&format!("charts/trust-fabric/ci/{name}-values.yaml"));
    serde_json::to_value(parsed(&text)).expect("JSON")
}

/// A release of values in YAML or JSON, under another name than the usual one.
pub fn release(values: &str, name: &str) -> Value {
    json!({"values": values, "release": name, "namespace": NAMESPACE})
}

/// The reports of `render_chart.py` about releases of a chart, with the schemas of these versions.
pub fn render(chart: &Path, versions: &[&str], releases: &[Value]) -> Vec<Value> {
    let order = json!({"chart": chart, "versions": versions, "releases": releases});
    let (report, success) = python::run("render_chart.py", &order);
    assert!(success, "{report}");
    serde_json::from_value(report).expect("a list")
}

/// Name of the file and report of each file of values.
pub fn rendered(versions: &[&str]) -> Vec<(String, Value)> {
    let files = files();
    let releases: Vec<Value> = files.iter().map(|(_, text)| release(text, RELEASE)).collect();
    let reports = render(&chart(), versions, &releases);
    let names = files.into_iter().map(|(name, _)| name);
    names
        .zip(reports)
        .inspect(|(name, report)| assert!(report.get("refused").is_none(), "{name}: {report}"))
        .collect()
}

/// Objects of a kind in a report.
pub fn of_kind<'r>(report: &'r Value, kind: &'static str) -> impl Iterator<Item = &'r Value> {
    report["objects"].as_array().expect("objects").iter().filter(move |object| object["kind"] == kind)
}

/// `value` with the members of `patch` set, at any depth, and without those that are null (RFC 7396).
pub fn patched(value: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut object = value.as_object().cloned().unwrap_or_default();
    for (key, change) in changes {
        if change.is_null() {
            object.remove(key);
        } else {
            let changed = patched(object.get(key).unwrap_or(&Value::Null), change);
            object.insert(key.clone(), changed);
        }
    }
    Value::Object(object)
}

/// Asserts that a generated file equals `text`, or writes it for `make fix`.
#[expect(clippy::disallowed_methods, reason = "`make fix` sets the variable")]
pub fn assert_equals_file(path: &str, text: &str) {
    let file = root().join(path);
    if std::env::var_os("TRUST_FABRIC_REWRITE").is_some() {
        fs::create_dir_all(file.parent().expect("a folder")).expect("create the folder");
        fs::write(&file, text).expect("write the file");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "{path} differs from what is generated: run `make fix`");
}
