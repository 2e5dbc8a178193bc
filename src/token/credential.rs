//! A verified credential. Only [`super::foreign`] (foreign issuers), [`super::issued`] (this fabric) and
//! [`super::federated`] (peer fabrics) create one.

use std::str::FromStr;

use super::Error;
use super::act::{Act, MayAct};
use super::claims::Claims;
use super::execution::Execution;
use super::key_set::VerifyingKey;
use super::lineage;
use super::subject_mapping::Kubernetes;
use crate::clock::Timestamp;
use crate::id::{Digest128, LogPosition, WorkloadId};
use crate::limits;

/// The kind that a token is presented as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A JWT of a configured issuer.
    Jwt,
    SpiffeSvid,
    /// A token of this fabric, or of a peer.
    AgentA2a,
}

impl FromStr for Kind {
    type Err = Error;

    /// Parses a `subject_token_type` of the specification.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "urn:ietf:params:oauth:token-type:jwt" => Ok(Self::Jwt),
            "urn:svc:token-type:spiffe-svid" => Ok(Self::SpiffeSvid),
            "urn:svc:token-type:agent-a2a" => Ok(Self::AgentA2a),
            _ => Err(Error::UnsupportedTokenType),
        }
    }
}

/// Content of a [`Credential`].
#[derive(Clone, Debug)]
pub struct CredentialClaims {
    /// The kind it was presented as.
    pub kind: Kind,
    /// Its issuer. For a JWT-SVID without `iss`: the configured name of the issuer.
    pub iss: String,
    /// The subject as a workload identifier, mapped by its issuer's rule.
    pub sub: WorkloadId,
    /// `sub` as in the credential.
    pub original_sub: String,
    /// `email`, if `email_verified` is `true` and the issuer's `verified_email` is set.
    pub email: Option<String>,
    pub jti: Option<String>,
    /// `kid` of the key that signed it; the key's thumbprint if the key has none.
    pub kid: String,
    /// `aud`, at least one.
    pub aud: Vec<String>,
    pub iat: Timestamp,
    pub exp: Timestamp,
    /// Time of issue of the oldest credential of the chain that this credential starts or continues.
    pub root_iat: Timestamp,
    /// End of the chain that this credential starts or continues (contract §3, `root_exp`).
    pub root_exp: Timestamp,
    /// `None` does not restrict (contract §3, Narrowing).
    pub capabilities: Option<Vec<String>>,
    /// The words of `scope`; `None` does not restrict.
    pub scope: Option<Vec<String>>,
    /// `blast_radius`, not parsed.
    pub blast_radius: Option<String>,
    /// Up to `DELEGATION_DEPTH_MAX`.
    pub delegation_depth: Option<u32>,
    pub act: Option<Act>,
    pub may_act: Option<MayAct>,
    pub txn: Option<String>,
    pub client_id: Option<String>,
    /// The lineage it carried, then its own facts, without repetition. It may be longer than `LINEAGE_MAX`, which limits
    /// minted tokens.
    pub lineage: Vec<Digest128>,
    /// `idx`, which only our own tokens have.
    pub idx: Option<LogPosition>,
    /// Whether it is bound to the certificate of its connection.
    pub is_bound: bool,
    /// Whether it is the identity token of an agent, not a token exchanged from one.
    pub is_agent_identity: bool,
    /// Issuers of the peer fabrics through which it came, at most [`limits::VIA_MAX`].
    pub via: Vec<String>,
    /// Its execution scope. Only a token of ours that is presented to a tool can have one.
    pub execution: Option<Execution>,
    /// The workload attributes of a Kubernetes service-account token.
    pub kubernetes: Option<Kubernetes>,
}

/// A verified credential. Its claims can be read, but not changed.
#[derive(Clone, Debug, derive_more::Deref)]
pub struct Credential(pub(super) CredentialClaims);

impl Credential {
    /// Whether the subject itself presents it: the subject obtained it, it has no actor, it came through no federation
    /// peer and has no execution scope. True for every identity token of an agent.
    #[must_use]
    pub fn is_first_hand(&self) -> bool {
        let is_first_hand = self.is_agent_identity || self.client_id.as_deref() == Some(self.sub.as_str());
        is_first_hand && self.act.is_none() && self.via.is_empty() && self.execution.is_none()
    }
}

/// Reads the claims that all kinds share. The chain began at `root_iat` and ends at `root_exp`.
pub(super) fn read(
    kind: Kind,
    iss: &str,
    sub: WorkloadId,
    (root_iat, root_exp): (Timestamp, Timestamp),
    key: &VerifyingKey,
    claims: &Claims,
) -> Result<CredentialClaims, Error> {
    Ok(CredentialClaims {
        kind,
        iss: iss.to_owned(),
        sub,
        original_sub: claims.sub.clone(),
        email: None,
        jti: claims.jti.clone(),
        kid: key.kid().unwrap_or(key.thumbprint()).to_owned(),
        aud: claims.aud.clone(),
        iat: claims.iat,
        exp: claims.exp,
        root_iat,
        root_exp,
        capabilities: claims.words("capabilities")?,
        scope: claims.scope()?,
        blast_radius: claims.text("blast_radius", limits::OPAQUE_BYTES_MAX)?,
        delegation_depth: claims.whole_number("delegation_depth", limits::DELEGATION_DEPTH_MAX)?,
        act: claims.others.get("act").map(|value| Act::read(value, iss)).transpose()?,
        may_act: claims.others.get("may_act").map(MayAct::read).transpose()?,
        txn: claims.text("txn", limits::OPAQUE_BYTES_MAX)?,
        client_id: claims.text("client_id", limits::WORKLOAD_ID_BYTES_MAX)?,
        lineage: Vec::new(),
        idx: None,
        is_bound: false,
        is_agent_identity: false,
        via: Vec::new(),
        execution: None,
        kubernetes: None,
    })
}

impl CredentialClaims {
    /// The credential, with the digests of its own facts, each once (contract §3, `lineage`).
    pub(super) fn with_own_lineage(mut self) -> Credential {
        let mut own = vec![lineage::workload(&self.sub), lineage::signing_key(&self.iss, &self.kid)];
        for actor in self.act.iter().flat_map(Act::chain) {
            own.push(lineage::subject(&actor.iss, &actor.sub));
            own.extend(actor.sub.parse().ok().as_ref().map(lineage::workload));
        }
        own.extend(self.jti.as_deref().map(|jti| lineage::token(&self.iss, jti)));
        if let Some(client_id) = &self.client_id {
            own.push(lineage::client(&self.iss, client_id));
            // A caller that is a workload is revoked by its workload identifier, independent of the issuer.
            own.extend(client_id.parse().ok().as_ref().map(lineage::workload));
        }
        for digest in own {
            if !self.lineage.contains(&digest) {
                self.lineage.push(digest);
            }
        }
        Credential(self)
    }
}
