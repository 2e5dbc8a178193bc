//! `JSONTestSuite` (MIT, `tests/vectors/json`): its 318 documents at every route that accepts JSON.
//!
//! `n_` is not JSON and must be refused, `y_` is JSON and must be accepted, `i_` may be either; no document
//! may fail a node. Duplicate names are JSON in the suite and refused here.

use std::fs;
use std::path::Path;

use futures::{StreamExt as _, stream};
use serde_json::Value;
use trust_fabric::json;

use crate::support::{Node, Setup};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/json/test_parsing");
/// Duplicate names in one object are refused here (RFC 8259 §4: names SHOULD be unique).
const DUPLICATES: [&str; 2] = ["y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"];
/// Refusals of bytes that are not JSON.
const SYNTAX: [&str; 2] = ["body is not UTF-8", "body is not acceptable JSON"];

fn documents() -> Vec<(String, Vec<u8>)> {
    let mut documents: Vec<_> = fs::read_dir(DIRECTORY)
        .expect("the suite")
        .map(|entry| entry.expect("an entry").path())
        .map(|path: std::path::PathBuf| {
            (
                Path::file_name(&path).expect("a name").to_string_lossy().into_owned(),
                fs::read(&path).expect("bytes"),
            )
        })
        .collect();
    documents.sort();
    assert_eq!(documents.len(), 318);
    documents
}

fn is_accepted(name: &str) -> Option<bool> {
    match name.as_bytes()[0] {
        b'y' => Some(!DUPLICATES.contains(&name)),
        b'n' => Some(false),
        _ => None,
    }
}

#[test]
fn json_test_suite_parser() {
    for (name, bytes) in documents() {
        let accepted = json::parse(&bytes).is_ok();
        assert!(is_accepted(&name).is_none_or(|expected| accepted == expected), "{name}");
    }
}

/// Method and path of every operation with a JSON request body.
fn routes(description: &Value) -> Vec<(String, String, bool)> {
    let mut routes = Vec::new();
    for (template, operations) in description["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            if !operation["requestBody"]["content"]["application/json"].is_object() {
                continue;
            }
            // Without a peer fabric no body is read.
            if template == "/v1/federation/sync" {
                continue;
            }
            let path: Vec<_> =
                template.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
            let takes_bearer = template == "/v1/identity/agent/encryption-key";
            routes.push((method.to_ascii_uppercase(), path.join("/"), takes_bearer));
        }
    }
    routes
}

#[tokio::test]
async fn json_test_suite_routes() {
    let more_config = "[limits]\nrequests_per_second_per_caller = 1000000\n".to_owned();
    let node = Node::start_with(Setup { more_config, ..Setup::default() }).await;
    let bearer = format!("Bearer {}", node.own_token("demo", "reporter").await.token);
    let routes = routes(&node.get("/openapi.json").await.json());
    assert!(routes.len() >= 20, "{routes:?}");
    let documents = documents();
    let calls = routes.iter().flat_map(|route| documents.iter().map(move |document| (route, document)));
    let (node, bearer) = (&node, bearer.as_str());
    stream::iter(calls)
        .for_each_concurrent(8, |((method, path, takes_bearer), (name, bytes))| async move {
            let mut headers = vec![("content-type", "application/json")];
            headers.extend(takes_bearer.then_some(("authorization", bearer)));
            let answer = node.call(method, path, &headers, bytes.clone()).await;
            let context = format!("{method} {path} {name}: {} {}", answer.status, answer.body);
            assert!(answer.status < 500 || answer.status == 501, "{context}");
            let is_syntax = SYNTAX.iter().any(|text| answer.body.contains(text));
            match is_accepted(name) {
                Some(true) => assert!(!is_syntax, "{context}"),
                Some(false) => {
                    assert!(answer.status == 413 || answer.status == 400 && is_syntax, "{context}");
                }
                None => {}
            }
        })
        .await;
}
