//! Keys: every minted token verifies with the key set of any node.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::clients::{Answer, Clients, Intent, Process, exchange, get, post, unix_secs};
use crate::history::{Kind, Outcome, Workload};

const STEP: Duration = Duration::from_millis(60);
/// Tokens that are checked again at the end.
const KEPT: usize = 60;

#[derive(Default)]
pub struct Keys {
    minted: Mutex<Vec<Minted>>,
}

/// A token and its `jti`.
#[derive(Clone)]
struct Minted {
    jti: String,
    token: String,
}

impl Keys {
    pub fn start(self: &Arc<Self>, clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
        let (keys, process) = (Arc::clone(self), clients.process(seed));
        running.spawn(async move { keys.client(process).await });
    }

    async fn client(self: Arc<Self>, mut process: Process) -> Result<()> {
        let clients = Arc::clone(process.clients());
        let account = format!("k{}", clients.run);
        while !clients.stopped_within(STEP).await {
            let credential = clients.issuer.credential_of(&account, clients.number())?;
            let request = post("/v1/exchange/token", "", &exchange(&credential, None));
            let node = process.node();
            let answer = clients.call("workload", node, &request).await;
            let outcome = answer.outcome(&[200]);
            let Some(token) = answer.body["access_token"].as_str().filter(|_| outcome == Outcome::Ok) else {
                continue;
            };
            let (header, claims) = (part(token, 0)?, part(token, 1)?);
            let minted =
                Minted { jti: claims["jti"].as_str().context("no jti")?.to_owned(), token: token.to_owned() };
            let value = json!({"kid": header["kid"], "exp": claims["exp"]});
            process.record(intent(Kind::Mint, &minted.jti), node, &answer, outcome, value)?;
            let node = process.node();
            check(&mut process, &minted, node).await?;
            self.minted().push(minted);
            let earlier = process.draw.one_of(&self.minted());
            let node = process.node();
            verify(&mut process, &earlier, node).await?;
        }
        Ok(())
    }

    fn minted(&self) -> std::sync::MutexGuard<'_, Vec<Minted>> {
        self.minted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the latest tokens on every node.
    pub async fn read_all(&self, process: &mut Process) -> Result<()> {
        let minted = self.minted().clone();
        for one in &minted[minted.len().saturating_sub(KEPT)..] {
            for node in process.clients().all() {
                check(process, one, node).await?;
                verify(process, one, node).await?;
            }
        }
        Ok(())
    }
}

fn intent(kind: Kind, key: &str) -> Intent<'_> {
    Intent { workload: Workload::Keys, kind, key, input: Value::Null }
}

async fn check(process: &mut Process, minted: &Minted, node: usize) -> Result<()> {
    let judge = |answer: &Answer| match answer.status {
        Some(200) => (Outcome::Ok, json!(is_verified(&answer.body, &minted.token).unwrap_or_default())),
        _ => (answer.outcome(&[]), Value::Null),
    };
    let intent = Intent { input: json!({"at": unix_secs()}), ..intent(Kind::Check, &minted.jti) };
    process.operate(intent, ("gateway", node), &get("/v1/identity/jwks"), judge).await.map(drop)
}

/// Uses a token: that of a tainted key is refused.
async fn verify(process: &mut Process, minted: &Minted, node: usize) -> Result<()> {
    let judge = |answer: &Answer| match answer.status {
        Some(200) => (Outcome::Ok, json!(true)),
        Some(403) if answer.body["check"].is_string() => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    };
    let request = super::verification(super::TOOL, &minted.token, None, None);
    process.operate(intent(Kind::Use, &minted.jti), ("gateway", node), &request, judge).await.map(drop)
}

/// Whether a key of the set verifies the signature. `None`: the key is not there, or is malformed.
fn is_verified(key_set: &Value, token: &str) -> Option<bool> {
    let header = part(token, 0).ok()?;
    let key = key_set["keys"].as_array()?.iter().find(|key| key["kid"] == header["kid"])?;
    let mut point = vec![4];
    for coordinate in ["x", "y"] {
        point.extend(URL_SAFE_NO_PAD.decode(key[coordinate].as_str()?).ok()?);
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
    Some(key.verify(signed.as_bytes(), &signature).is_ok())
}

/// Header or claims of a token.
pub(super) fn part(token: &str, number: usize) -> Result<Value> {
    let text = token.split('.').nth(number).context("a token of three parts")?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust_fabric_bench::credentials::Issuer;

    #[test]
    fn token_verifies_only_with_its_key() {
        let (issuer, other) = (Issuer::new("k").expect("key"), Issuer::new("k").expect("key"));
        let token = issuer.credential(1).expect("signed");
        assert_eq!(is_verified(&issuer.key_set(), &token), Some(true));
        assert_eq!(is_verified(&other.key_set(), &token), Some(false));
        assert_eq!(is_verified(&json!({"keys": []}), &token), None);
    }
}
