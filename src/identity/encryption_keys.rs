//! The keys to which others encrypt for an agent: it registers its own, and whoever is known may read
//! them. They never stand in the key set of this fabric, whose keys sign.

use serde_json::{Map, Value};

use super::Identity;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{self, WorkloadId};
use crate::json;
use crate::state::{self, AgentStanding, Current, EncryptionKeyFacts, Idempotency, Registrar};
use crate::token::encryption_key::{self, EncryptionKey};
use crate::token::subject::Credential;

/// Why a key was not registered, or not handed out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy has no rule about agents, or is not loaded.
    #[error(transparent)]
    NotConfigured(#[from] super::Error),
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
    /// It could not be written.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A row could not be read.
    #[error(transparent)]
    Damaged(#[from] Corrupt),
    /// A key that was kept is not JSON.
    #[error("a registered key is damaged")]
    KeyDamaged(#[from] json::Error),
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

impl Identity {
    /// Registers a key to which others encrypt for an agent, in this order:
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
    pub async fn register_encryption_key(
        &self,
        bearer: Option<&Credential>,
        workload_id: &str,
        key: &Value,
        idempotency: Option<Idempotency>,
    ) -> Result<Registered, Error> {
        drop(self.configured()?);
        let workload_id: WorkloadId = workload_id.parse()?;
        let agent = bearer.filter(|bearer| bearer.is_agent_identity()).ok_or(Error::NotAnAgent)?;
        // Contract §2: "encryption key: bearer = the agent's own token … `sub` must be the agent".
        if *agent.sub() != workload_id {
            return Err(Error::AnotherAgent);
        }
        let key = EncryptionKey::from_jwk(key)?;
        let (kid, jwk) = (key.kid().to_owned(), Value::Object(key.jwk().clone()).to_string());
        let agent_id = workload_id.as_str().to_owned();
        let registrar = Registrar { lineage: agent.lineage().to_vec(), idx: agent.idx(), iat: agent.iat() };
        let registering = self.state.register_encryption_key(agent_id, kid, jwk, &registrar, idempotency);
        let (is_new, facts) = registering.await?;
        let jwk = read(&facts)?;
        let EncryptionKeyFacts { kid, registered_at, .. } = facts;
        Ok(Registered { workload_id, kid, jwk, registered_at, is_new })
    }

    /// The keys of an agent, to encrypt to any of them; none if it has registered none. One that was registered
    /// with a token that is revoked is not the agent's: whoever stole the token may have registered it.
    ///
    /// # Errors
    /// As [`Error`] says; [`Error::NoAgent`] also if nobody should encrypt to it any more.
    pub async fn encryption_keys(
        &self,
        _current: &Current,
        workload_id: &str,
    ) -> Result<Vec<Map<String, Value>>, Error> {
        drop(self.configured()?);
        let fresh = self.state.fresh().await?;
        let workload_id: WorkloadId = workload_id.parse()?;
        let agent = self.state.agent(workload_id.as_str())?.ok_or(Error::NoAgent)?;
        let now = self.state.not_before_log(self.clock.now());
        if self.state.agent_standing(&fresh, &agent, now)? != AgentStanding::Active {
            return Err(Error::NoAgent);
        }
        let keys = self.state.encryption_keys(workload_id.as_str())?;
        let is_revoked = |registrar: &Registrar| {
            self.state.revokes(&fresh, &registrar.lineage, registrar.idx, registrar.iat)
        };
        let good = keys.iter().filter(|facts| !facts.registrar.as_ref().is_some_and(is_revoked));
        good.map(|facts| Ok(read(facts)?)).collect()
    }
}

fn read(facts: &EncryptionKeyFacts) -> Result<Map<String, Value>, json::Error> {
    json::read(facts.jwk.as_bytes())
}
