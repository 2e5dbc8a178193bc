//! `/openapi.json` as the specification of every response.

use std::collections::HashMap;
use std::sync::Mutex;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::Response;

pub struct Description {
    document: Value,
    validators: Mutex<HashMap<String, Validator>>,
}

impl Description {
    pub fn new(document: Value) -> Self {
        Self { document, validators: Mutex::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.document["paths"].as_object().is_none_or(serde_json::Map::is_empty)
    }

    /// Asserts that the document describes this answer.
    pub fn check(&self, method: &str, path: &str, answer: &Response) {
        let path = path.split('?').next().unwrap_or_default();
        let Some((template, operations)) = self.operations(path) else {
            assert_eq!(answer.status, 404, "{path} is not described: {}", answer.body);
            return self.check_body("#/components/schemas/Body", answer, path);
        };
        let described = if method == "HEAD" { "get".to_owned() } else { method.to_ascii_lowercase() };
        let Some(operation) = operations.get(&described) else {
            assert_eq!(answer.status, 405, "{method} {template} is not described: {}", answer.body);
            let allow = answer.header("allow").expect("405 names what is allowed (RFC 9110 §15.5.6)");
            for name in operations.keys() {
                assert!(allow.contains(&name.to_ascii_uppercase()), "{allow} lacks {name}");
            }
            return self.check_body("#/components/schemas/Body", answer, path);
        };
        let response = &operation["responses"][answer.status.to_string()];
        assert!(
            response.is_object(),
            "{method} {template}: status {} is not described: {}",
            answer.status,
            answer.body
        );
        let Some(contents) = response["content"].as_object() else {
            return assert!(answer.body.is_empty(), "{method} {template}: a body that is not described");
        };
        // RFC 8935 §2.2: the 202 that has a body for one request format has none for the other.
        let is_bare = answer.body.is_empty() && answer.header("content-type").is_none();
        if method == "HEAD" || (is_bare && answer.status == 202) {
            return;
        }
        let media = answer.header("content-type").expect("Content-Type");
        let media = media.split(';').next().unwrap_or_default();
        let content = contents.get(media);
        let content = content.unwrap_or_else(|| panic!("{method} {template}: {media} is not described"));
        if media.ends_with("json") {
            self.check_against(&content["schema"], answer, &format!("{method} {template}"));
        }
    }

    /// The operations of the first matching path template.
    fn operations(&self, path: &str) -> Option<(&str, &serde_json::Map<String, Value>)> {
        let fits = |template: &str| {
            let (template, path): (Vec<_>, Vec<_>) =
                (template.split('/').collect(), path.split('/').collect());
            template.len() == path.len()
                && template
                    .iter()
                    .zip(&path)
                    .all(|(wanted, given)| wanted == given || wanted.starts_with('{'))
        };
        let paths = self.document["paths"].as_object().expect("paths");
        paths
            .iter()
            .find(|(template, _)| fits(template))
            .map(|(template, operations)| (template.as_str(), operations.as_object().expect("operations")))
    }

    fn check_body(&self, reference: &str, answer: &Response, context: &str) {
        self.check_against(&json!({"$ref": reference}), answer, context);
    }

    fn check_against(&self, schema: &Value, answer: &Response, context: &str) {
        let mut validators = self.validators.lock().expect("lock");
        let validator = validators.entry(schema.to_string()).or_insert_with(|| {
            let mut whole = schema.clone();
            whole["components"] = self.document["components"].clone();
            jsonschema::draft202012::new(&whole).expect("a schema of the description")
        });
        let body: Value = serde_json::from_str(&answer.body).expect("a JSON body");
        let mistakes: Vec<String> =
            validator.iter_errors(&body).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(mistakes.is_empty(), "{context}: {mistakes:?} in {}", answer.body);
    }
}
