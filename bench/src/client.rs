//! Client operations of the benches: tokens, revocations, verifications.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::certificates::TRUST_DOMAIN;
use crate::credentials::{AUDIENCE, FABRIC, Issuer};
use crate::members::Members;
use crate::registry::{body_hash, write_verification};
use crate::settings::SIGNAL_ISSUER;
use crate::wire::{self, Response, Target};

/// Maximum wait for one response; then the next node is tried.
const TRY_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for a success of any node.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum nonces tried per token.
const NONCES_MAX: u32 = 5;
/// Pause before all nodes are tried again.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Client {
    /// A caller that may verify and register tools, at each node.
    pub gateway: Vec<Target>,
    workload: Vec<Target>,
    transmitter: Vec<Target>,
    issuer: Arc<Issuer>,
    /// Makes the names of this run unique.
    run: String,
}

impl Client {
    pub fn new(members: &Members) -> Result<Self> {
        Ok(Self {
            gateway: members.targets("gateway")?,
            workload: members.targets("workload")?,
            transmitter: members.targets("transmitter")?,
            issuer: Arc::clone(&members.issuer),
            run: format!("{:x}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis()),
        })
    }

    /// Registers the tool of this run; with `execution` it requires execution-scoped tokens.
    pub async fn register(&self, execution: bool) -> Result<()> {
        let mut entry = json!({
            "tool_id": self.tool(),
            "name": "One tool",
            "resource_uri": AUDIENCE,
            "required_capabilities": ["db.read"],
        });
        if execution {
            entry["requires_execution"] = json!(true);
            entry["allowed_operations"] = json!(["POST"]);
        }
        let body = entry.to_string();
        let request = wire::request_with("POST", "/v1/tools", "localhost", "", body.as_bytes());
        until(&self.gateway, &request, &[200, 201]).await.map(drop)
    }

    fn tool(&self) -> String {
        format!("run-{}", self.run)
    }

    /// The workload of this number.
    pub fn account(&self, number: u64) -> String {
        format!("u{}-{number}", self.run)
    }

    /// A token of a workload.
    pub async fn token(&self, account: &str, number: u64) -> Result<String> {
        minted(&self.exchanged(account, number, None, &[200]).await?)
    }

    /// An execution-scoped token of a workload. A nonce is used even if the response is lost with its node; the
    /// next try takes another.
    pub async fn execution_token(&self, account: &str, number: u64) -> Result<String> {
        let mut refused = String::new();
        for attempt in 0..NONCES_MAX {
            let nonce = format!("once-{number}-{attempt}");
            let answer = self.exchanged(account, number, Some(&nonce), &[200, 400]).await?;
            if answer.status == 200 {
                return minted(&answer);
            }
            refused = String::from_utf8_lossy(answer.body()).into_owned();
        }
        bail!("each of {NONCES_MAX} nonces was refused; the last: {refused}");
    }

    async fn exchanged(
        &self,
        account: &str,
        number: u64,
        nonce: Option<&str>,
        good: &[u16],
    ) -> Result<Response> {
        let credential = self.issuer.credential_of(account, number)?;
        let mut body = json!({
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "subject_token": credential,
            "audience": AUDIENCE,
        });
        if let Some(nonce) = nonce {
            body["execution_scope"] = json!({"htm": "POST", "htu": AUDIENCE, "nonce": nonce,
                "payload_hash": body_hash(number)});
        }
        let body = body.to_string();
        let request = wire::request_with("POST", "/v1/exchange/token", "localhost", "", body.as_bytes());
        until(&self.workload, &request, good).await
    }

    /// Revokes a workload by a signal to one of `nodes` and waits for the acknowledgement.
    pub async fn revoke(&self, account: &str, nodes: &[usize]) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let body = json!({
            "iss": SIGNAL_ISSUER,
            "jti": format!("{account}-revoked"),
            "iat": now,
            "aud": FABRIC,
            "sub_id": {"format": "uri", "uri": format!("wimse://{TRUST_DOMAIN}/ns/demo/sa/{account}")},
            "events": {"https://schemas.openid.net/secevent/caep/event-type/session-revoked": {}},
        })
        .to_string();
        let request = wire::request_with("POST", "/v1/signals/events", "localhost", "", body.as_bytes());
        let targets: Vec<_> = nodes.iter().filter_map(|node| self.transmitter.get(*node).cloned()).collect();
        until(&targets, &request, &[202]).await.map(drop)
    }

    /// A verification whose body hash depends on the number; with `key`, one that may be retried.
    pub fn verification(&self, token: &str, number: u64, key: Option<&str>) -> Vec<u8> {
        let mut request = Vec::new();
        write_verification(&mut request, "localhost", &self.tool(), token, number);
        if let Some(key) = key
            && let Some(end) = wire::find(&request, b"\r\n\r\n")
        {
            let header = format!("\r\nidempotency-key: {key}");
            request.splice(end..end, header.into_bytes());
        }
        request
    }

    /// Verdict of one node: accepted, refused, or `None`.
    pub async fn verdict(&self, node: usize, request: &[u8]) -> Option<bool> {
        let target = self.gateway.get(node)?;
        verdict(&timeout(TRY_MAX, once(target, request)).await.ok()?.ok()?)
    }

    /// The same with retries until there is a verdict.
    pub async fn eventual_verdict(&self, node: usize, request: &[u8]) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(verdict) = self.verdict(node, request).await {
                return Ok(verdict);
            }
            sleep(PAUSE).await;
        }
        bail!("node {} did not answer a verification in {PATIENCE:?}", node + 1)
    }
}

/// Sends a request to the targets in turn, until one responds with one of these statuses.
pub async fn until(targets: &[Target], request: &[u8], good: &[u16]) -> Result<Response> {
    let begun = Instant::now();
    let mut last = String::from("no answer");
    while begun.elapsed() < PATIENCE {
        for target in targets {
            match timeout(TRY_MAX, once(target, request)).await {
                Ok(Ok(answer)) if good.contains(&answer.status) => return Ok(answer),
                Ok(Ok(answer)) => {
                    last = format!("{} {}", answer.status, String::from_utf8_lossy(answer.body()));
                    if !matches!(answer.status, 429 | 503) {
                        bail!("a valid request is answered {last}");
                    }
                }
                _ => {}
            }
        }
        sleep(PAUSE).await;
    }
    bail!("no node succeeded in {PATIENCE:?}; the last answer: {last}")
}

/// The token of an exchange.
pub fn minted(answer: &Response) -> Result<String> {
    let answer: Value = serde_json::from_slice(answer.body())?;
    Ok(answer["access_token"].as_str().context("no access_token")?.to_owned())
}

/// Sends a request over a connection of its own.
pub async fn once(target: &Target, request: &[u8]) -> std::io::Result<Response> {
    target.connect().await?.call(request).await
}

/// Verdict of a response; `None` if it neither accepts the token nor reports it as revoked or used.
pub fn verdict(answer: &Response) -> Option<bool> {
    match answer.status {
        200 => Some(true),
        403 if wire::find(answer.body(), br#""check":"revocation""#).is_some() => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_refusals_are_no_verdict() {
        let of = |status, body: &str| verdict(&Response { status, bytes: body.as_bytes().to_vec(), head: 0 });
        assert_eq!(of(200, ""), Some(true));
        assert_eq!(of(403, r#"{"check":"revocation"}"#), Some(false));
        assert_eq!(of(403, r#"{"check":"audience"}"#), None);
        assert_eq!(of(503, r#"{"check":"revocation"}"#), None);
    }
}
