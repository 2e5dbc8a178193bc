//! `svc_encryption_key`: a public key with which others encrypt to an agent or to another subject.
//!
//! A private key in place of the public one is refused without being printed: Terraform shows the line of an attribute that
//! a message points at, so these messages point at none.

use serde_json::{Map, Value as Json, json};
use trust_fabric_client::{Method, Request};

use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::private::Private;
use crate::resource::{Found, Operation, Planned, Resource, Route, Unfinished};
use crate::schema::{Attribute, TIMEOUTS, Table, Type};
use crate::value::{self, Object, Value};
use crate::{identity, rules};

/// The resource type.
pub struct EncryptionKey;

static TABLE: Table = Table {
    name: "svc_encryption_key",
    summary: "A public key with which others encrypt to an agent, or to another subject of a token of this fabric.",
    attributes: &[
        Attribute::required(
            "public_key",
            Type::Text,
            "Public key as a JWK: EC on P-256, P-384 or P-521, OKP on X25519, or RSA from 2048 bits. Two texts with one \
             thumbprint (RFC 7638) and one `alg` are equal.",
        )
        .wire("key")
        .replaces(),
        Attribute::optional_computed(
            "workload_id",
            Type::Text,
            "The agent or other subject; by default that of the token. It must be that of the token.",
        )
        .replaces()
        .rule(rules::workload_id),
        Attribute::optional(
            "agent_token",
            Type::Text,
            "The subject's own token, for the registration: without an actor or an execution scope, and for the fabric \
             itself. By default the provider's `jwt_token`.",
        )
        .write_only(),
        Attribute::computed("kid", Type::Text, "The thumbprint of the key (RFC 7638)."),
        Attribute::computed("id", Type::Text, "`<workload_id>#<kid>`.").rule(rules::key_id),
        Attribute::computed("status", Type::Text, "`active`."),
        Attribute::computed("registered_at", Type::Text, "Time of the first registration; null after an import."),
        TIMEOUTS,
    ],
    import: Some("id"),
    example: include_str!("../../examples/svc_encryption_key.tf"),
    notes: "\
- The registration takes the subject's own token, and no certificate. `svc_agent_token` has one of an agent.
- A key is read with any credential of the provider. It is deleted with `jwt_token` if that is the subject's own token,
  otherwise with the certificate of the identity that had the agent issued.
- A key is gone with its agent, and with the token that registered it if that is revoked. A key of a subject that is no
  agent ends 30 days after its registration. The next apply then registers it again.
- A private or symmetric key is refused while a plan is made, and is not printed.",
};

/// Fields that make a JWK private or symmetric.
const PRIVATE: [&str; 9] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"];

const KEYS: [&str; 4] = ["v1", "identity", "agent", "encryption-key"];

/// The credential of reads, and of a deletion by the issuer of the agent.
const CREDENTIAL: Credential = Credential::CertificateFirst;

#[tonic::async_trait]
impl Resource for EncryptionKey {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn noun(&self) -> &'static str {
        "encryption key"
    }

    fn route(&self, operation: Operation) -> Route {
        let (credential, name) = match operation {
            Operation::Create => (Credential::Token, "POST /v1/identity/agent/encryption-key"),
            Operation::Read | Operation::Update => (CREDENTIAL, "GET /v1/identity/agent/encryption-key"),
            Operation::Delete => (CREDENTIAL, "DELETE /v1/identity/agent/encryption-key"),
        };
        Route { credential, name }
    }

    fn validate(&self, config: &Object) -> Vec<Diagnostic> {
        let refused = config.text("public_key").and_then(|text| public(text).err());
        let refused =
            refused.map(|rule| Diagnostic::error("Invalid public key", format!("public_key: {rule}")));
        refused.into_iter().collect()
    }

    fn plan(&self, prior: Option<&Object>, _config: &Object, planned: &mut Planned) {
        let Some(before) = prior.and_then(|prior| prior.text("public_key")) else { return };
        if planned.state.text("public_key").is_some_and(|now| is_same(before, now)) {
            planned.state.set("public_key", Value::text(before));
            planned.replaces.retain(|replacing| *replacing != "public_key");
        }
    }

    fn advice(&self, operation: Operation, status: u16) -> Option<&'static str> {
        match (operation, status) {
            (Operation::Create, 401) => {
                Some("The token is not accepted: it may have expired, or the agent be revoked.")
            }
            (Operation::Create, 403) => Some(
                "The token must be the subject's own, without an actor or an execution scope. svc_agent_token has one of \
                 an agent.",
            ),
            (Operation::Delete, 403) => Some(
                "Configure the certificate of the identity that had the agent issued, or the subject's own token.",
            ),
            (Operation::Create, 429) => {
                Some("The quota of keys is used up, of the subject or of its trust domain.")
            }
            _ => None,
        }
    }

    async fn create(&self, call: &Call<'_>, planned: &Object) -> Result<Found, Unfinished> {
        let key = public(planned.text("public_key").unwrap_or_default());
        // It may not have been known before.
        let key = key.map_err(|rule| Failure::Withheld(format!("public_key: {rule}")))?;
        let token = planned.text("agent_token");
        let subject = match (planned.text("workload_id"), token) {
            (Some(workload_id), _) => Some(workload_id.to_owned()),
            (None, Some(token)) => identity::of_token(token),
            (None, None) => call.identity(Credential::Token),
        };
        let body = json!({ "workload_id": subject.unwrap_or_default(), "key": key });
        let request = Request { bearer: token, ..Request::post(&KEYS, &body) };
        let response = call.send(Credential::Token, request).await?;
        let names = ["workload_id", "kid", "status", "registered_at"];
        let mut found = found(&response.body, &names)?;
        if response.status == 200 {
            let detail = "It was registered before, and is now managed by this resource.";
            found.warnings.push(Diagnostic::warning("The encryption key existed", detail));
        }
        Ok(found)
    }

    async fn read(&self, call: &Call<'_>, state: &Object) -> Result<Option<Found>, Failure> {
        let (workload_id, kid) = names(state);
        let query = [("workload_id", workload_id)];
        let set = match call.send(CREDENTIAL, Request { query: &query, ..Request::get(&KEYS) }).await {
            Ok(response) => response.body,
            Err(failure) if failure.status() == Some(404) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let keys = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(key) = keys.iter().find(|key| key["kid"] == kid) else { return Ok(None) };
        let record = json!({ "workload_id": workload_id, "kid": kid, "status": "active" });
        let mut found = found(&record, &["workload_id", "kid", "status"])?;
        let text = key.to_string();
        // As it is configured, as long as it is the same key.
        if !state.text("public_key").is_some_and(|before| is_same(before, &text)) {
            found.observed.set("public_key", Value::text(text));
        }
        Ok(Some(found))
    }

    /// No request: only `timeouts` change without a replacement.
    async fn update(
        &self,
        call: &Call<'_>,
        prior: &Object,
        _planned: &Object,
        _private: &Private,
    ) -> Result<Found, Unfinished> {
        Ok(self.read(call, prior).await?.ok_or(Failure::Gone)?)
    }

    async fn delete(&self, call: &Call<'_>, state: &Object) -> Result<bool, Failure> {
        let (workload_id, kid) = names(state);
        // A key that differs in `alg` only has the same `kid`: with create_before_destroy it is registered already.
        match (self.read(call, state).await?, state.text("public_key")) {
            (Some(live), Some(before))
                if live.observed.text("public_key").is_some_and(|live| !is_same(before, live)) =>
            {
                return Ok(false);
            }
            _ => {}
        }
        let is_own = call.identity(Credential::Token).as_deref() == Some(workload_id);
        let credential = if is_own { Credential::Token } else { CREDENTIAL };
        let query = [("workload_id", workload_id), ("kid", kid)];
        let request = Request { method: Method::DELETE, query: &query, ..Request::get(&KEYS) };
        match call.send(credential, request).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.status() == Some(404) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// Subject and thumbprint of a state; those of an import are in `id` only.
fn names(state: &Object) -> (&str, &str) {
    let id = state.text("id").and_then(|id| id.split_once('#')).unwrap_or_default();
    (state.text("workload_id").unwrap_or(id.0), state.text("kid").unwrap_or(id.1))
}

/// Step 5: these values of the record, and `id`.
fn found(record: &Json, names: &[&str]) -> Result<Found, Failure> {
    let mut observed = value::json::observe(record, TABLE.attributes, names)?;
    let text = |name| observed.text(name).unwrap_or_default();
    let id = format!("{}#{}", text("workload_id"), text("kid"));
    observed.set("id", Value::text(id));
    Ok(Found { observed, ..Found::default() })
}

/// The JWK in `text`.
///
/// # Errors
/// The rule, without a part of the text.
fn public(text: &str) -> Result<Map<String, Json>, String> {
    let Ok(Json::Object(key)) = serde_json::from_str(text) else {
        return Err("must be a JWK: a JSON object".to_owned());
    };
    if let Some(name) = PRIVATE.into_iter().find(|name| key.contains_key(*name)) {
        return Err(format!(
            "has the member {name}, which makes the key private or symmetric; state the public key only"
        ));
    }
    if thumbprint(&key).is_none() {
        return Err("must have kty EC (with crv, x, y), OKP (with crv, x) or RSA (with n, e)".to_owned());
    }
    Ok(key)
}

/// The fields of a key that its thumbprint covers (RFC 7638 §3.2).
fn thumbprint(key: &Map<String, Json>) -> Option<Vec<&str>> {
    let text = |name: &str| key.get(name).and_then(Json::as_str);
    let names: &[&str] = match text("kty")? {
        "EC" => &["crv", "kty", "x", "y"],
        "OKP" => &["crv", "kty", "x"],
        "RSA" => &["e", "kty", "n"],
        _ => return None,
    };
    names.iter().map(|name| text(name)).collect()
}

/// Whether both texts are one public key for one algorithm.
fn is_same(one: &str, other: &str) -> bool {
    let read = |text| public(text).ok();
    let (Some(one), Some(other)) = (read(one), read(other)) else { return false };
    thumbprint(&one) == thumbprint(&other) && one.get("alg") == other.get("alg")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource;

    const KEY: &str = r#"{"kty":"OKP","crv":"X25519","x":"3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"}"#;

    #[test]
    fn private_and_malformed_keys_are_refused_without_their_text() {
        let secret = "secret-4711";
        let with = |member: &str| KEY.replacen('{', &format!("{{\"{member}\":\"{secret}\","), 1);
        for name in PRIVATE {
            let rule = public(&with(name)).expect_err(name);
            assert!(rule.contains(&format!("member {name},")) && !rule.contains(secret), "{rule}");
        }
        for text in [
            secret.to_owned(),
            format!("\"{secret}\""),
            format!("-----BEGIN PRIVATE KEY-----\n{secret}"),
            format!("[{}]", with("d")),
            with("kty").replace("OKP", secret),
            KEY.replace("\"x\"", &format!("\"{secret}\"")),
            r#"{"kty":"EC","crv":"P-256","x":"AA","y":1}"#.to_owned(),
            r#"{"kty":"oct"}"#.to_owned(),
        ] {
            let config = Object::default().with("public_key", Value::text(text.clone()));
            let refused = EncryptionKey.validate(&config);
            assert!(refused.len() == 1 && refused[0].attribute.is_none(), "{text}: {refused:?}");
            assert!(!refused[0].detail.contains(secret), "{refused:?}");
        }
        assert!(public(KEY).is_ok());
    }

    #[test]
    fn same_key_in_another_text_is_no_difference() {
        let prior = Object::default().with("public_key", Value::text(KEY));
        let plan = |text: String| {
            let config = Object::default().with("public_key", Value::text(text));
            resource::plan(&EncryptionKey, Some(&prior), &config, &config)
        };
        let other_order = r#"{ "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08", "use": "enc", "crv": "X25519", "kty": "OKP" }"#;
        let same = plan(other_order.to_owned());
        assert_eq!((same.state.text("public_key"), same.replaces), (Some(KEY), vec![]));
        for other in [KEY.replace("3p7b", "4p7b"), KEY.replacen('{', "{\"alg\":\"ECDH-ES\",", 1)] {
            let changed = plan(other.clone());
            assert_eq!(
                (changed.state.text("public_key"), changed.replaces),
                (Some(&*other), vec!["public_key"])
            );
        }
    }
}
