//! Host attacks: a foreign name must not be accepted, and must never appear in a response.

use anyhow::Result;

use super::{AttackContext, Outcome};
use crate::wire;

/// Documents that name the issuer and its URLs.
const DOCUMENTS: [&str; 3] =
    ["/.well-known/oauth-authorization-server", "/v1/identity/jwks", "/openapi.json"];

/// Foreign `Host` values.
const FOREIGN: [&str; 16] = [
    "evil.example",
    "evil.example:8693",
    "localhost.evil.example",
    "evil.localhost.example",
    "127.0.0.1.evil.example",
    "localhost:evil",
    "localhost:8693:evil",
    "localhost@evil.example",
    "evil@localhost",
    "localhost/evil",
    "localhost, evil.example",
    "evil.example#localhost",
    "localhost%2eevil.example",
    "[::1]evil",
    "169.254.169.254",
    "",
];

/// Headers with which a proxy states another host.
const BESIDE: [&str; 8] = [
    "X-Forwarded-Host: evil.example",
    "X-Forwarded-Server: evil.example",
    "X-Host: evil.example",
    "X-Original-Host: evil.example",
    "X-HTTP-Host-Override: evil.example",
    "Forwarded: host=evil.example;proto=https",
    "X-Original-URL: /v1/sys/keys",
    "X-Forwarded-Prefix: /evil.example",
];

/// Foreign names in `Host` and in other headers.
pub async fn attack(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (listener, target) in field.node.anonymous() {
        for document in DOCUMENTS {
            for host in FOREIGN {
                let answer = target.call(&wire::request("GET", document, host, "")).await;
                let status = answer.map_or(0, |answer| answer.status);
                outcome.must_refuse(&format!("Host {host:?}, {listener}, {document}"), status, &[400, 403]);
            }
            for header in BESIDE {
                outcome.tries += 1;
                let request = wire::request("GET", document, &target.host, &format!("{header}\r\n"));
                let Ok(answer) = target.call(&request).await else {
                    outcome.note(format!("no answer: {header}, {listener}, {document}"));
                    continue;
                };
                if wire::find(&answer.bytes, b"evil").is_some() {
                    outcome.wrong_accepts += 1;
                    outcome.note(format!("REPEATED: {header}, {listener}, {document}"));
                }
            }
        }
    }
    Ok(outcome)
}
