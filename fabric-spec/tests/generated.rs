//! The generated files in the charts equal the generator's output.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;

use trust_fabric_spec::{chart, crd};

#[expect(clippy::disallowed_methods, reason = "`make fix` sets the variable")]
fn assert_equals_file(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    if std::env::var_os("TRUST_FABRIC_REWRITE").is_some() {
        std::fs::write(&file, text).expect("write the file");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "{path} differs from fabric-spec: run `make fix`");
}

#[test]
fn definition_equals_the_type() {
    let text = crd::yaml().expect("a definition");
    assert_equals_file("charts/trust-fabric-crds/templates/fabrics.yaml", &text);
}

#[test]
fn schema_of_values_equals_the_type() {
    assert_equals_file("charts/trust-fabric/values.schema.json", &chart::schema().expect("a schema"));
}
