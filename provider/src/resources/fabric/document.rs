//! The document `spec` of a configuration, beside the one of an object in Kubernetes.

use serde_json::{Value as Json, json};
use trust_fabric_spec::{FabricSpec, check};

/// The document in a text of YAML or JSON, without fields that are null.
///
/// # Errors
/// The rule that the text breaks.
pub fn parse(text: &str) -> Result<Json, String> {
    let parsed = yaml_serde::from_str(text);
    let mut parsed: Json = parsed.map_err(|error| format!("must be YAML or JSON: {error}"))?;
    check::remove_nulls(&mut parsed);
    if parsed.is_object() { Ok(parsed) } else { Err("must be a map".to_owned()) }
}

/// A document as text, in a form that depends on nothing else.
#[must_use]
pub fn text(document: &Json) -> String {
    yaml_serde::to_string(document).unwrap_or_default()
}

/// Whether both texts have the same document, after defaults.
#[must_use]
pub fn is_equivalent(one: &str, other: &str) -> bool {
    match (parse(one), parse(other)) {
        (Ok(one), Ok(other)) => {
            one == other || typed(&one).is_some_and(|typed_one| Some(typed_one) == typed(&other))
        }
        _ => false,
    }
}

fn typed(document: &Json) -> Option<FabricSpec> {
    serde_json::from_value(document.clone()).ok()
}

/// The values of the chart for this document; `None` if it is no fabric.
#[must_use]
pub fn values(text: &str) -> Option<String> {
    let fabric = typed(&parse(text).ok()?)?;
    yaml_serde::to_string(&json!({"fabric": fabric})).ok()
}

/// The broken rules of a document that replaces another, each with its place.
#[must_use]
pub fn broken_rules(text: &str, old: Option<&str>) -> Vec<String> {
    let document = match parse(text) {
        Ok(document) => document,
        Err(rule) => return vec![format!("spec: {rule}")],
    };
    let old = old.and_then(|old| parse(old).ok());
    match check::violations(&document, old.as_ref()) {
        Ok(violations) => violations.iter().map(ToString::to_string).collect(),
        // Without a judgement the API server has the last word.
        Err(_) => Vec::new(),
    }
}

/// The part of `live` that `stated` states: fields that others have added are no drift.
#[must_use]
pub fn projected(stated: &Json, live: &Json) -> Json {
    match (stated, live) {
        (Json::Object(members), Json::Object(found)) => members
            .iter()
            .filter_map(|(name, member)| Some((name.clone(), projected(member, found.get(name)?))))
            .collect(),
        (Json::Array(items), Json::Array(found)) if items.len() == found.len() => {
            items.iter().zip(found).map(|(item, found)| projected(item, found)).collect()
        }
        _ => live.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = "
issuer: https://trust.example.com
trustDomain: trust.example.com
pki: {mode: spire, className: spire}
storage: {size: 1Gi}
issuers: [{issuer: https://a.example.com, subject: kubernetes, discovery: true, trustDomains: [a]}]
";

    #[test]
    fn order_comments_nulls_and_defaults_are_no_difference() {
        let document = parse(SPEC).expect("a document");
        let with_default = format!("# A comment.\nreplicas: 3\nversion: null\n{}", text(&document));
        assert!(is_equivalent(SPEC, &with_default));
        assert!(is_equivalent(SPEC, &document.to_string()));
        assert!(!is_equivalent(SPEC, &SPEC.replace("1Gi", "2Gi")));
        assert!(!is_equivalent(SPEC, "- a list"));
    }

    #[test]
    fn values_have_the_fabric_with_its_defaults() {
        let values = values(SPEC).expect("values");
        let parsed = trust_fabric_spec::chart::Values::parse(&values).expect("values of the chart");
        assert_eq!(parsed.fabric.replicas, 3);
        assert!(values.starts_with("fabric:\n") && !values.contains("deploy"), "{values}");
        assert_eq!(super::values("{}"), None);
    }

    #[test]
    fn only_stated_fields_are_compared() {
        let stated = json!({"a": {"b": 1}, "list": [{"c": 1}], "gone": 1});
        let live = json!({"a": {"b": 2, "added": 1}, "list": [{"c": 1, "added": 1}], "more": 1});
        assert_eq!(projected(&stated, &live), json!({"a": {"b": 2}, "list": [{"c": 1}]}));
        let longer = json!({"list": [{"c": 1, "added": 1}, {"c": 2}]});
        assert_eq!(projected(&stated, &longer), longer);
    }

    #[test]
    fn change_that_would_be_refused_is_found() {
        assert_eq!(broken_rules(SPEC, None), Vec::<String>::new());
        assert!(broken_rules("a: [", None)[0].starts_with("spec: must be YAML or JSON"));
        assert_eq!(broken_rules("3", None), ["spec: must be a map"]);
        let other = SPEC.replace("https://trust", "https://other");
        assert!(broken_rules(&other, Some(SPEC))[0].starts_with("spec.issuer: issuer is immutable"));
    }
}
