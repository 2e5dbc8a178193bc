//! The keys to which others encrypt for an agent: it registers its own, and whoever is known may read
//! them. They never stand in the key set of this fabric, whose keys sign.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use serde_json::{Map, Value};

use crate::clock::{Clock, Timestamp};
use crate::id::{self, WorkloadId};
use crate::json;
use crate::policy::Bundle;
use crate::state::{self, EncryptionKeyFacts, Idempotency, State};
use crate::token::encryption_key::{self, EncryptionKey};
use crate::token::subject::Credential;

/// Why a key was not registered, or not handed out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy does not decide about agents.
    #[error("agent identity is not configured: the policy has no rule data.svc.identity.decision")]
    NotConfigured,
    /// The bearer is good, but not what an agent was issued as its identity.
    #[error("the bearer token must be the identity token of an agent")]
    NotAnAgent,
    /// The bearer is the identity of one agent and the request is about another.
    #[error("workload_id: must be the agent whose identity token the bearer is")]
    AnotherAgent,
    /// Not an identifier at all.
    #[error("workload_id: {0}")]
    WorkloadId(#[from] id::Error),
    /// The key is not public, not for encryption or not sound.
    #[error(transparent)]
    Key(#[from] encryption_key::Error),
    /// There is none, or nobody should encrypt to it any more: it is revoked, or its life has ended.
    #[error("there is no agent in force with this workload_id")]
    NoAgent,
    /// It could not be written, or read.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A key that was kept is not JSON.
    #[error("a registered key is damaged")]
    Damaged(#[from] json::Error),
}

/// A key as it is registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    /// The agent.
    pub workload_id: WorkloadId,
    /// RFC 7638 thumbprint.
    pub kid: String,
    /// The key: public, with `use` and `kid`.
    pub jwk: Map<String, Value>,
    /// When it was registered first.
    pub registered_at: Timestamp,
    /// Whether it was not there before.
    pub is_new: bool,
}

/// The use-case of `/v1/identity/agent/encryption-key`.
#[derive(Clone)]
pub struct EncryptionKeys {
    /// Agents and their keys.
    pub state: State,
    /// Whether there are agents at all.
    pub policy: Arc<ArcSwapOption<Bundle>>,
    /// Time.
    pub clock: Clock,
}

impl EncryptionKeys {
    /// Registers a key, in this order:
    ///
    /// 1. agent identity is configured
    /// 2. `workload_id` is an identifier
    /// 3. the bearer is the identity token of an agent, and what was exchanged from one is not
    /// 4. it is the agent that the request names
    /// 5. the key is public, for encryption, and sound
    /// 6. the agent is in force, and has not too many keys
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn register(
        &self,
        bearer: Option<&Credential>,
        workload_id: &str,
        key: &Value,
        idempotency: Option<Idempotency>,
    ) -> Result<Registered, Error> {
        self.check_configured()?;
        let workload_id: WorkloadId = workload_id.parse()?;
        let agent = bearer.filter(|bearer| bearer.is_agent_identity()).ok_or(Error::NotAnAgent)?;
        // Contract §2: "encryption key: bearer = the agent's own token … `sub` must be the agent".
        if *agent.sub() != workload_id {
            return Err(Error::AnotherAgent);
        }
        let key = EncryptionKey::from_jwk(key)?;
        let jwk = Value::Object(key.jwk().clone()).to_string();
        let registered = self.state.register_encryption_key(
            workload_id.as_str().to_owned(),
            key.kid().to_owned(),
            jwk,
            idempotency,
        );
        let (is_new, facts) = registered.await?;
        let jwk = read(&facts)?;
        let EncryptionKeyFacts { kid, registered_at, .. } = facts;
        Ok(Registered { workload_id, kid, jwk, registered_at, is_new })
    }

    /// The keys of an agent, to encrypt to any of them; none if it has registered none.
    ///
    /// # Errors
    /// As [`Error`] says; [`Error::NoAgent`] also if nobody should encrypt to it any more.
    pub fn of(&self, workload_id: &str) -> Result<Vec<Map<String, Value>>, Error> {
        self.check_configured()?;
        let workload_id: WorkloadId = workload_id.parse()?;
        let now = self.state.not_before_log(self.clock.now());
        let keys = self.state.encryption_keys(workload_id.as_str(), now).map_err(|error| match error {
            state::Error::UnknownAgent | state::Error::AgentRevoked | state::Error::AgentEnded => {
                Error::NoAgent
            }
            other => Error::State(other),
        })?;
        keys.iter().map(|facts| Ok(read(facts)?)).collect()
    }

    fn check_configured(&self) -> Result<(), Error> {
        let policy = self.policy.load();
        if policy.is_some() { Ok(()) } else { Err(Error::NotConfigured) }
    }
}

fn read(facts: &EncryptionKeyFacts) -> Result<Map<String, Value>, json::Error> {
    json::read(facts.jwk.as_bytes())
}
