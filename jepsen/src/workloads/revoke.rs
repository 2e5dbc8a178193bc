//! Revoke, then verify: nothing that began after the acknowledgement is accepted, on any node, neither tokens of this
//! fabric nor credentials of the issuer.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{REVOKED, TOOL, mint, verdict, verification};
use crate::clients::{
    Answer, Clients, Intent, Process, acknowledged, exchange, post, signal, subject, unix_secs,
};
use crate::history::{Kind, Nanos, Outcome, Workload};

const CLIENTS: u64 = 4;
/// Verifications of earlier revocations for each new one.
const REPEATS: usize = 4;
/// Subjects that are read on every node at the end.
const KEPT: usize = 400;

/// A subject with a token and a credential.
#[derive(Clone)]
struct Account {
    name: String,
    token: String,
    credential: String,
    iat: u64,
    /// Time of the history before which both were issued.
    issued: Nanos,
    number: u64,
}

/// The subjects whose revocation was sent.
#[derive(Default)]
pub struct Revoke {
    sent: Mutex<Vec<Account>>,
}

impl Revoke {
    pub fn start(self: &Arc<Self>, clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
        for _ in 0..CLIENTS {
            let (revoke, process) = (Arc::clone(self), clients.process(seed));
            running.spawn(async move { revoke.client(process).await });
        }
    }

    async fn client(self: Arc<Self>, mut process: Process) -> Result<()> {
        let clients = Arc::clone(process.clients());
        while !clients.is_stopped() {
            let number = clients.number();
            let name = format!("r{}-{number}", clients.run);
            let Some(token) = mint(&mut process, &name, None).await? else { continue };
            let credential = clients.issuer.credential_of(&name, clients.number())?;
            let (iat, issued) = (unix_secs(), clients.recorder.now());
            let account = Account { name, token, credential, iat, issued, number };
            let node = process.node();
            use_token(&mut process, &account, node).await?;
            self.revoke_beside_uses(&mut process, &account).await?;
            for _ in 0..REPEATS {
                if let Some(earlier) = self.earlier(&mut process) {
                    let node = process.node();
                    if process.draw.below(4) == 0 {
                        use_credential(&mut process, &earlier, node).await?;
                    } else {
                        use_token(&mut process, &earlier, node).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the signal until it is acknowledged, while another process uses the token; then uses both on every node.
    async fn revoke_beside_uses(&self, process: &mut Process, account: &Account) -> Result<()> {
        let clients = Arc::clone(process.clients());
        let sub_id = json!({"format": "uri", "uri": subject(&account.name)});
        let jti = format!("{}-revoked", account.name);
        let body = signal(&jti, &sub_id, REVOKED, &json!({}));
        let request = post("/v1/signals/events", "", &body);
        let mut beside = clients.process(account.number);
        let revoking = async {
            loop {
                let outcome = send(process, account, &jti, &request).await?;
                if outcome == Outcome::Ok || clients.is_stopped() {
                    return anyhow::Ok(outcome);
                }
                tokio::time::sleep(super::PAUSE).await;
            }
        };
        let using = async {
            let node = beside.node();
            use_token(&mut beside, account, node).await?;
            if beside.draw.below(2) == 0 {
                // A duplicate has the promise of the first, and is sometimes acknowledged before it.
                send(&mut beside, account, &jti, &request).await?;
                use_token(&mut beside, account, node).await?;
            }
            anyhow::Ok(())
        };
        let (outcome, used) = tokio::join!(revoking, using);
        used?;
        if outcome? == Outcome::Ok {
            for node in clients.all() {
                use_token(process, account, node).await?;
            }
            let node = process.node();
            use_credential(process, account, node).await?;
        }
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push(account.clone());
        Ok(())
    }

    fn earlier(&self, process: &mut Process) -> Option<Account> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        (!sent.is_empty()).then(|| process.draw.one_of(&sent))
    }

    /// Uses the latest subjects on every node.
    pub async fn read_all(&self, process: &mut Process) -> Result<()> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let from = sent.len().saturating_sub(KEPT);
        let mut reading = JoinSet::new();
        for node in process.clients().all() {
            let (accounts, mut process) = (sent[from..].to_vec(), process.clients().process(node as u64));
            reading.spawn(async move {
                for account in &accounts {
                    use_token(&mut process, account, node).await?;
                    if account.number % 8 == 0 {
                        use_credential(&mut process, account, node).await?;
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(read) = reading.join_next().await {
            read??;
        }
        Ok(())
    }
}

/// Sends a signal once, to any node.
async fn send(process: &mut Process, account: &Account, jti: &str, request: &[u8]) -> Result<Outcome> {
    let intent = Intent {
        workload: Workload::Revoke,
        kind: Kind::Revoke,
        key: &account.name,
        input: json!({"jti": jti}),
    };
    let node = process.node();
    Ok(process.operate(intent, ("transmitter", node), request, acknowledged).await?.0)
}

fn intent<'a>(account: &'a Account, used: &str) -> Intent<'a> {
    Intent {
        workload: Workload::Revoke,
        kind: Kind::Use,
        key: &account.name,
        input: json!({"what": used, "issued": account.issued, "iat": account.iat}),
    }
}

async fn use_token(process: &mut Process, account: &Account, node: usize) -> Result<()> {
    let request = verification(TOOL, &account.token, None, None);
    process.operate(intent(account, "token"), ("gateway", node), &request, verdict).await.map(drop)
}

async fn use_credential(process: &mut Process, account: &Account, node: usize) -> Result<()> {
    let request = post("/v1/exchange/token", "", &exchange(&account.credential, None));
    let judge = |answer: &Answer| match answer.status {
        Some(200) => (Outcome::Ok, json!(true)),
        Some(400) => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    };
    process.operate(intent(account, "credential"), ("workload", node), &request, judge).await.map(drop)
}
