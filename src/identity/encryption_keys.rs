//! Encryption keys of agents and other subjects of this fabric: a subject registers its own, every
//! authenticated caller reads them. They are never in this fabric's JWK Set, whose keys sign.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{AgentIdentities, find_agent};
use crate::cluster::Corrupt;
use crate::id::{self, WorkloadId};
use crate::json;
use crate::state::{self, AgentStatus, CallContext, EncryptionKeyRecord, LinearizableRead, Registrar};
use crate::text::values;
use crate::token::encryption_key::{self, EncryptionKey};
use crate::token::foreign::Credential;

/// Reason for which a key was not registered, removed or returned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy has no rule about agents, or none is loaded.
    #[error(transparent)]
    NotConfigured(#[from] super::Error),
    /// The bearer token is valid, but not the subject's own.
    #[error(
        "the bearer token must be the subject's own: without an actor, and an agent's identity token or one whose \
         client_id is its sub"
    )]
    NotItsOwn,
    /// The bearer token is of another subject than the request.
    #[error("workload_id: must be the subject of the bearer token")]
    AnotherSubject,
    /// The caller is neither the subject nor the issuer of the agent.
    #[error("workload_id: must be the subject of the bearer token, or an agent issued to the caller")]
    NotItsIssuer,
    /// `workload_id` is not an identifier.
    #[error("workload_id: {0}")]
    WorkloadId(#[from] id::Error),
    /// The key is not a public encryption key, or is weak.
    #[error(transparent)]
    Key(#[from] encryption_key::Error),
    /// No such agent, or it is revoked or expired.
    #[error("no active agent has this workload_id")]
    NoAgent,
    /// The subject is not an agent of ours and has no key.
    #[error("no encryption key is registered for this workload_id")]
    NoKey,
    /// Not written.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A row is corrupt.
    #[error(transparent)]
    Damaged(#[from] Corrupt),
    /// A stored key is not JSON.
    #[error("a registered key is corrupt: {0}")]
    KeyDamaged(#[from] json::Error),
}

/// A key to register. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
pub struct RegisterEncryptionKey {
    /// The subject of the bearer token.
    pub workload_id: String,
    /// A public JWK (RFC 7517): `kty` EC on P-256, P-384 or P-521, OKP on X25519, or RSA from 2048 bits;
    /// `use` is `enc` or absent, `alg` of the ECDH-ES family, RSA-OAEP-256, -384 or -512, or absent.
    #[schema(value_type = Object)]
    pub key: Value,
}

/// A registered key.
#[derive(Serialize, ToSchema)]
pub struct RegisteredEncryptionKey {
    /// The subject.
    workload_id: String,
    /// RFC 7638 thumbprint.
    pub kid: String,
    /// The key, with `use` and `kid`.
    key: Map<String, Value>,
    /// Always `active`.
    #[schema(value_type = values::EncryptionKeyStatus)]
    status: &'static str,
    /// First registration: log time, RFC 3339, UTC.
    registered_at: String,
    /// Whether this request registered it.
    #[serde(skip)]
    pub is_new: bool,
}

impl AgentIdentities {
    /// Registers an encryption key of the bearer's subject. Checks, in this order:
    ///
    /// 1. agent identity is configured
    /// 2. `workload_id` is an identifier
    /// 3. the bearer token is its subject's own ([`Credential::is_first_hand`])
    /// 4. its subject is `workload_id`
    /// 5. the key is public, for encryption, and not weak
    /// 6. an agent is active; the quotas per subject and per trust domain are not reached
    ///
    /// # Errors
    /// [`Error`]: one variant per check.
    pub async fn register_encryption_key(
        &self,
        bearer: Option<&Credential>,
        caller: &CallContext,
        request: &RegisterEncryptionKey,
    ) -> Result<RegisteredEncryptionKey, Error> {
        drop(self.configured()?);
        let workload_id: WorkloadId = request.workload_id.parse()?;
        let bearer = bearer.filter(|bearer| bearer.is_first_hand()).ok_or(Error::NotItsOwn)?;
        if bearer.sub != workload_id {
            return Err(Error::AnotherSubject);
        }
        let key = EncryptionKey::from_jwk(&request.key)?;
        let (kid, jwk) = (key.kid().to_owned(), Value::Object(key.jwk().clone()).to_string());
        let registrar = Registrar { lineage: bearer.lineage.clone(), idx: bearer.idx, iat: bearer.iat };
        let is_agent = workload_id.is_agent_of(&self.trust_domain);
        let state = self.state.on_behalf_of(caller);
        let registering = state.register_encryption_key(&workload_id, is_agent, (kid, jwk), &registrar);
        let (is_new, record) = registering.await?;
        Ok(RegisteredEncryptionKey {
            workload_id: workload_id.to_string(),
            key: read(&record)?,
            kid: record.kid,
            status: "active",
            registered_at: record.registered_at.to_rfc3339(),
            is_new,
        })
    }

    /// Removes a key, for the bearer's own subject or for the caller to which the agent was issued, itself and not through
    /// an actor; also while the policy has no rule about agents.
    ///
    /// # Errors
    /// [`Error::WorkloadId`], [`Error::NotItsOwn`], [`Error::NotItsIssuer`], [`Error::NoAgent`], [`Error::State`].
    pub async fn remove_encryption_key(
        &self,
        bearer: Option<&Credential>,
        caller: &CallContext,
        workload_id: &str,
        kid: String,
    ) -> Result<(), Error> {
        let workload_id: WorkloadId = workload_id.parse()?;
        match bearer {
            Some(bearer) if bearer.sub == workload_id && bearer.is_first_hand() => {}
            Some(bearer) if bearer.sub == workload_id => return Err(Error::NotItsOwn),
            _ if !workload_id.is_agent_of(&self.trust_domain) => return Err(Error::NotItsIssuer),
            _ => {
                let agent = find_agent(&self.state, workload_id.as_str()).await?.ok_or(Error::NoAgent)?;
                let is_first_hand = bearer.is_none_or(Credential::is_first_hand);
                if agent.issued_by != caller.name() || !is_first_hand {
                    return Err(Error::NotItsIssuer);
                }
            }
        }
        Ok(self.state.on_behalf_of(caller).remove_encryption_key(&workload_id, kid).await?)
    }

    /// Encryption keys of a subject; an agent may have none. Keys registered with a token that is revoked by now are left
    /// out: the token may have been stolen.
    ///
    /// # Errors
    /// [`Error::NoAgent`] also for an agent that is revoked or expired.
    pub async fn encryption_keys(
        &self,
        _current: &LinearizableRead,
        workload_id: &str,
    ) -> Result<Vec<Map<String, Value>>, Error> {
        drop(self.configured()?);
        let fresh = self.state.fresh().await?;
        let workload_id: WorkloadId = workload_id.parse()?;
        let is_agent = workload_id.is_agent_of(&self.trust_domain);
        if is_agent {
            let agent = self.state.agent(workload_id.as_str())?.ok_or(Error::NoAgent)?;
            let now = self.state.not_before_log(self.clock.now());
            if self.state.agent_status(&fresh, &agent, now)? != AgentStatus::Active {
                return Err(Error::NoAgent);
            }
        }
        let keys = self.state.encryption_keys(workload_id.as_str())?;
        let is_revoked = |registrar: &Registrar| {
            self.state.revokes(&fresh, &registrar.lineage, registrar.idx, registrar.iat)
        };
        let good = keys.iter().filter(|facts| !is_revoked(&facts.registrar));
        let good: Vec<_> = good.map(read).collect::<Result<_, _>>()?;
        if good.is_empty() && !is_agent { Err(Error::NoKey) } else { Ok(good) }
    }
}

fn read(facts: &EncryptionKeyRecord) -> Result<Map<String, Value>, json::Error> {
    json::read(facts.jwk.as_bytes())
}
