//! Completes the generated interface description with the facts that the route table and the contract state once for all
//! operations: tags, security, common parameters and responses, formats and examples.

use axum::http::Method;
use serde_json::{Map, Value, json};

use crate::api::Route;
use crate::api::caller::Access;

/// Tags: name, description, and path prefixes. The first match counts.
const TAGS: [(&str, &str, &[&str]); 15] = [
    ("Token exchange", "Exchange a credential for a narrower token (RFC 8693)", &["/v1/exchange/"]),
    ("Discovery", "Public metadata and keys", &["/.well-known/", "/v1/identity/jwks", "/openapi.json"]),
    ("Agent identity", "Identities and encryption keys of AI agents", &["/v1/identity/"]),
    ("Verification", "Verify a token for a tool call", &["/v1/mcp/verify"]),
    ("Audit", "Entries of the audit", &["/v1/audit", "/v1/tools/{tool_id}/audit"]),
    ("Tools", "The tool registry", &["/v1/tools", "/v1/mcp/tools"]),
    ("Signals", "Receive security events (RFC 8417, RFC 8935)", &["/v1/signals/events", "/v1/sys/signals/"]),
    ("Streams", "Transmit security events (SSF 1.0, RFC 8935, RFC 8936)", &["/v1/signals/"]),
    ("Revocation", "Revoke and unblock subjects, tokens and keys", &["/v1/revocations", "/v1/blocks"]),
    (
        "Federation",
        "The ledger of this fabric's own revocations, and its roots, as peer fabrics read them",
        &["/v1/federation/"],
    ),
    ("Live feed", "Events as they happen", &["/v1/events"]),
    ("Policy", "The policy bundle of the cluster, and its denials", &["/v1/sys/policy", "/v1/sys/denials/"]),
    ("Signing keys", "The signing keys of the nodes", &["/v1/sys/keys"]),
    ("Cluster", "Members of the cluster, and backups of its state", &["/v1/sys/cluster", "/v1/sys/backup"]),
    ("Operations", "Health and metrics", &["/v1/sys/health", "/livez", "/readyz", "/metrics"]),
];

/// Examples of each operation by `operationId`: `request`, and responses by status.
const EXAMPLES: &str = include_str!("examples.json");

const JSON: &str = "application/json";

/// Completes a description that utoipa generated.
pub fn complete(mut description: Value, rows: &[Route]) -> Value {
    let examples: Value = EXAMPLES.parse().unwrap_or_default();
    for row in rows {
        let method = row.method.as_str().to_ascii_lowercase();
        let operation = description["paths"][row.path][method].as_object_mut();
        if let Some(operation) = operation {
            complete_operation(operation, row);
            add_examples(operation, &examples);
        }
    }
    let in_requests = schemas_of_requests(&description);
    if let Some(schemas) = description["components"]["schemas"].as_object_mut() {
        for (name, schema) in schemas {
            merge_flattened(schema);
            complete_schema(schema, !in_requests.contains(name));
        }
    }
    description["components"]["securitySchemes"] = json!({
        CERTIFICATE: {
            "type": "mutualTLS",
            "description": "A client certificate (X.509-SVID) of a trusted CA. Its capabilities are configured",
        },
        BEARER: {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "A token of this fabric for this fabric (RFC 6750). Its capabilities are in a claim",
        },
    });
    description["servers"] = json!([{ "url": "/", "description": "The node that serves this document" }]);
    description["tags"] =
        TAGS.iter().map(|(name, text, _)| json!({ "name": name, "description": text })).collect();
    description
}

fn complete_operation(operation: &mut Map<String, Value>, row: &Route) {
    let tag = TAGS.iter().find(|(_, _, prefixes)| prefixes.iter().any(|prefix| row.path.starts_with(prefix)));
    operation.insert("tags".to_owned(), tag.map(|(name, ..)| *name).into_iter().collect());
    operation.insert("security".to_owned(), security(row.access));
    let described = operation.get("description").and_then(Value::as_str);
    let description =
        described.into_iter().chain([requirement(row.access).as_str()]).collect::<Vec<_>>().join("\n\n");
    operation.insert("description".to_owned(), description.into());
    if row.access != Access::Health {
        add_parameter(
            operation,
            json!({
                "name": "Svc-Min-Index",
                "in": "header",
                "description": "The response is of this log index or later, or 503",
                "required": false,
                "schema": { "type": "integer", "format": "int64", "minimum": 0 },
            }),
        );
    }
    add_common_responses(operation, &row.method);
}

const CERTIFICATE: &str = "clientCertificate";
const BEARER: &str = "bearerToken";

fn security(access: Access) -> Value {
    match access {
        Access::Health | Access::Public | Access::JoinToken => json!([]),
        Access::Certificate(_) | Access::Peer => json!([{ CERTIFICATE: [] }]),
        Access::Bearer => json!([{ BEARER: [] }]),
        Access::Credential(_) | Access::Authenticated | Access::PeerOrOperator => {
            json!([{ CERTIFICATE: [] }, { BEARER: [] }])
        }
        Access::Metrics => json!([{}, { CERTIFICATE: [] }, { BEARER: [] }]),
    }
}

fn requirement(access: Access) -> String {
    match access {
        Access::Health | Access::Public => "Requires no credential.".to_owned(),
        Access::JoinToken => "Requires a join token in the body, and TLS.".to_owned(),
        Access::Certificate(capability) => {
            format!("Requires a client certificate with the capability `{capability}`.")
        }
        Access::Credential(capability) => {
            format!("Requires a client certificate or a bearer token with the capability `{capability}`.")
        }
        Access::Peer => "Requires the client certificate of a node of a peer fabric.".to_owned(),
        Access::PeerOrOperator => {
            "Requires the client certificate of a node of a peer fabric, or `cluster.admin`.".to_owned()
        }
        Access::Authenticated => "Requires a client certificate or a bearer token.".to_owned(),
        Access::Bearer => "Requires the bearer token of the subject.".to_owned(),
        Access::Metrics => {
            "Requires a connection from loopback, or the capability `metrics.read`, or nothing, as \
                            configured."
                .to_owned()
        }
    }
}

fn add_parameter(operation: &mut Map<String, Value>, parameter: Value) {
    let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
    if let Some(parameters) = parameters.as_array_mut() {
        parameters.push(parameter);
    }
}

fn has_parameter(operation: &Map<String, Value>, name: &str) -> bool {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    parameters.is_some_and(|parameters| parameters.iter().any(|parameter| parameter["name"] == name))
}

/// Responses that follow from the form of an operation. A description of the handler has precedence.
fn add_common_responses(operation: &mut Map<String, Value>, method: &Method) {
    let has_body = operation.contains_key("requestBody");
    let is_page = has_parameter(operation, "cursor");
    let is_cached = method == Method::GET && has_parameter(operation, "If-None-Match");
    let common = [
        ("304", is_cached, "Not modified"),
        ("400", true, "The request is invalid"),
        ("401", true, "The caller is not authenticated"),
        (
            "403",
            true,
            "The caller is not authorized, or the request is for another host or of another site's page",
        ),
        ("408", has_body, "The body did not arrive in time"),
        ("412", has_parameter(operation, "If-Match"), "The precondition failed"),
        ("413", has_body, "The body is too large"),
        ("415", has_body, "The media type is not supported"),
        (
            "422",
            has_parameter(operation, "Idempotency-Key"),
            "The Idempotency-Key was used for another request",
        ),
        ("429", true, "The rate limit of the caller"),
        ("500", true, "Internal error"),
        ("503", true, "Temporarily unavailable"),
    ];
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    for (status, _, description) in common.into_iter().filter(|(_, applies, _)| *applies) {
        responses.entry(status).or_insert_with(|| json!({ "description": description }));
    }
    for (_, response) in responses.iter_mut().filter(|(status, _)| status.as_str() >= "400") {
        if response.get("content").is_none() {
            response["content"] = json!({ JSON: { "schema": { "$ref": "#/components/schemas/Body" } } });
        }
    }
    if is_page && let Some(page) = responses.get_mut("200") {
        page["headers"]["Link"] = json!({
            "description": "The next page with `rel=\"next\"` (RFC 8288); absent on the last",
            "schema": { "type": "string" },
        });
    }
}

/// The names of all schemas that a request can contain.
fn schemas_of_requests(description: &Value) -> Vec<String> {
    let mut names = Vec::new();
    for operations in description["paths"].as_object().into_iter().flat_map(Map::values) {
        for operation in operations.as_object().into_iter().flat_map(Map::values) {
            collect_references(&operation["requestBody"], &mut names);
        }
    }
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        collect_references(&description["components"]["schemas"][name], &mut names);
        next += 1;
    }
    names
}

fn collect_references(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|path| path.strip_prefix("#/components/schemas/"))
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
            fields.values().for_each(|value| collect_references(value, names));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_references(value, names)),
        _ => {}
    }
}

/// Joins the parts of a structure with a flattened field, so that its fields are described as they are on the wire.
fn merge_flattened(schema: &mut Value) {
    let Some(Value::Array(parts)) = schema.get_mut("allOf").map(Value::take) else { return };
    for part in parts {
        for (member, value) in part.as_object().cloned().unwrap_or_default() {
            match (&mut schema[member], value) {
                (Value::Array(known), Value::Array(more)) => known.extend(more),
                (Value::Object(known), Value::Object(more)) => known.extend(more),
                (known, value) if known.is_null() => *known = value,
                _ => {}
            }
        }
    }
    if let Some(members) = schema.as_object_mut() {
        members.remove("allOf");
    }
}

/// Adds the format of times. An optional field of a response is absent, never null.
fn complete_schema(schema: &mut Value, is_of_responses: bool) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, property) in properties {
        if is_of_responses && !required.iter().any(|required| required == name) {
            remove_null(property);
        }
        // A field without a value is absent: null is a default for no type.
        if let Some(fields) = property.as_object_mut()
            && fields.get("default").is_some_and(Value::is_null)
        {
            fields.remove("default");
        }
        if name.ends_with("_at") && property["type"] == "string" {
            property["format"] = json!("date-time");
        }
    }
}

fn remove_null(property: &mut Value) {
    let is_not_null = |kind: &Value| *kind != "null" && kind["type"] != "null";
    for keyword in ["type", "oneOf"] {
        let Some(kinds) = property.get_mut(keyword).and_then(Value::as_array_mut) else { continue };
        kinds.retain(is_not_null);
        if let [only] = kinds.as_mut_slice() {
            let only = only.take();
            match (keyword, only) {
                ("oneOf", Value::Object(reference)) => {
                    if let Some(fields) = property.as_object_mut() {
                        fields.remove("oneOf");
                        fields.extend(reference);
                    }
                }
                (_, only) => property[keyword] = only,
            }
        }
    }
}

/// Adds the examples of the operation.
fn add_examples(operation: &mut Map<String, Value>, examples: &Value) {
    let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
    let Some(example) = examples.get(id).cloned() else { return };
    if let Some(body) = operation.get_mut("requestBody") {
        add_example(body, &example["request"]);
    }
    if let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) {
        for (status, response) in responses {
            add_example(response, &example[status]);
        }
    }
}

/// A text is an example of a text, and everything else of a JSON or form body.
fn add_example(message: &mut Value, example: &Value) {
    let contents = message.get_mut("content").and_then(Value::as_object_mut);
    for content in contents.into_iter().flat_map(Map::values_mut) {
        if !example.is_null() && example.is_string() == (content["schema"]["type"] == "string") {
            content["example"] = example.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contents that are text: a binary file has no example.
    fn contents(message: &Value) -> Vec<Value> {
        let contents = message["content"].as_object().into_iter().flatten();
        contents
            .filter(|(media_type, _)| *media_type != "application/zstd")
            .map(|(_, content)| content.clone())
            .collect()
    }

    /// `subject` names the operation in messages.
    fn assert_valid(content: &Value, components: &Value, subject: &str) {
        let mut schema = content["schema"].clone();
        schema["components"] = components.clone();
        let validator = jsonschema::draft202012::new(&schema).expect("schema");
        let errors: Vec<String> = validator
            .iter_errors(&content["example"])
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{subject}: {errors:?}");
    }

    #[test]
    fn every_operation_is_complete_and_its_examples_are_valid() {
        let description: Value = serde_json::from_str(&crate::api::openapi::description()).expect("JSON");
        let components = &description["components"];
        for row in crate::api::rows() {
            let operation = &description["paths"][row.path][row.method.as_str().to_ascii_lowercase()];
            let subject = operation["operationId"].as_str().unwrap_or(row.path);
            for member in ["summary", "description", "security"] {
                assert!(!operation[member].is_null(), "{subject}: no {member}");
            }
            assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{subject}: tags");
            let of_request = contents(&operation["requestBody"]);
            assert_eq!(of_request.is_empty(), operation["requestBody"].is_null(), "{subject}");
            let responses = operation["responses"].as_object().expect("responses");
            let of_responses: Vec<Value> = responses
                .iter()
                .filter(|(status, _)| status.starts_with('2'))
                .flat_map(|(_, response)| contents(response))
                .collect();
            for contents in [of_request, of_responses] {
                let (with_example, missing): (Vec<_>, Vec<_>) =
                    contents.iter().partition(|content| !content["example"].is_null());
                assert!(missing.is_empty() || !with_example.is_empty(), "{subject}: no example");
                for content in with_example {
                    assert_valid(content, components, subject);
                }
            }
        }
    }

    #[test]
    fn optional_fields_of_responses_are_not_null() {
        let mut schema = json!({
            "required": ["both"],
            "properties": {
                "both": { "type": ["string", "null"] },
                "text": { "type": ["string", "null"] },
                "reference": { "oneOf": [{ "type": "null" }, { "$ref": "#/a" }] },
                "ends_at": { "type": "string" },
            },
        });
        complete_schema(&mut schema, true);
        let properties = json!({
            "both": { "type": ["string", "null"] },
            "text": { "type": "string" },
            "reference": { "$ref": "#/a" },
            "ends_at": { "type": "string", "format": "date-time" },
        });
        assert_eq!(schema["properties"], properties);
    }
}
