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

#[derive(Clone, Debug)]
pub struct Credential {
    pub(super) kind: Kind,
    pub(super) iss: String,
    pub(super) sub: WorkloadId,
    pub(super) original_sub: String,
    pub(super) email: Option<String>,
    pub(super) jti: Option<String>,
    pub(super) kid: String,
    pub(super) aud: Vec<String>,
    pub(super) iat: Timestamp,
    pub(super) exp: Timestamp,
    pub(super) root_iat: Timestamp,
    pub(super) root_exp: Timestamp,
    pub(super) capabilities: Option<Vec<String>>,
    pub(super) scope: Option<Vec<String>>,
    pub(super) blast_radius: Option<String>,
    pub(super) delegation_depth: Option<u32>,
    pub(super) act: Option<Act>,
    pub(super) may_act: Option<MayAct>,
    pub(super) txn: Option<String>,
    pub(super) client_id: Option<String>,
    pub(super) lineage: Vec<Digest128>,
    pub(super) idx: Option<LogPosition>,
    pub(super) is_bound: bool,
    pub(super) is_agent_identity: bool,
    pub(super) via: Vec<String>,
    pub(super) execution: Option<Execution>,
    pub(super) kubernetes: Option<Kubernetes>,
}

impl Credential {
    /// The kind it was presented as.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its issuer. For a JWT-SVID without `iss`: the configured name of the issuer.
    #[must_use]
    pub fn iss(&self) -> &str {
        &self.iss
    }

    /// The subject as a workload identifier, mapped by its issuer's rule.
    #[must_use]
    pub fn sub(&self) -> &WorkloadId {
        &self.sub
    }

    /// `sub` as in the credential.
    #[must_use]
    pub fn original_sub(&self) -> &str {
        &self.original_sub
    }

    /// `email`, if `email_verified` is `true` and the issuer's `verified_email` is set.
    #[must_use]
    pub fn email(&self) -> Option<&str> {
        self.email.as_deref()
    }

    #[must_use]
    pub fn jti(&self) -> Option<&str> {
        self.jti.as_deref()
    }

    /// `kid` of the key that signed it; the key's thumbprint if the key has none.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// `aud`, at least one.
    #[must_use]
    pub fn aud(&self) -> &[String] {
        &self.aud
    }

    #[must_use]
    pub fn iat(&self) -> Timestamp {
        self.iat
    }

    #[must_use]
    pub fn exp(&self) -> Timestamp {
        self.exp
    }

    /// Time of issue of the oldest credential of the chain that this credential starts or continues
    /// (`root_iat`).
    #[must_use]
    pub fn root_iat(&self) -> Timestamp {
        self.root_iat
    }

    /// End of the chain that this credential starts or continues (contract §3, `root_exp`).
    #[must_use]
    pub fn root_exp(&self) -> Timestamp {
        self.root_exp
    }

    /// `capabilities`; `None` does not restrict (contract §3, Narrowing).
    #[must_use]
    pub fn capabilities(&self) -> Option<&[String]> {
        self.capabilities.as_deref()
    }

    /// The words of `scope`; `None` does not restrict.
    #[must_use]
    pub fn scope(&self) -> Option<&[String]> {
        self.scope.as_deref()
    }

    /// `blast_radius`, not parsed.
    #[must_use]
    pub fn blast_radius(&self) -> Option<&str> {
        self.blast_radius.as_deref()
    }

    /// `delegation_depth`, up to `DELEGATION_DEPTH_MAX`.
    #[must_use]
    pub fn delegation_depth(&self) -> Option<u32> {
        self.delegation_depth
    }

    #[must_use]
    pub fn act(&self) -> Option<&Act> {
        self.act.as_ref()
    }

    #[must_use]
    pub fn may_act(&self) -> Option<&MayAct> {
        self.may_act.as_ref()
    }

    #[must_use]
    pub fn txn(&self) -> Option<&str> {
        self.txn.as_deref()
    }

    #[must_use]
    pub fn client_id(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    /// The lineage it carried, then its own facts, without repetition. It may be longer than `LINEAGE_MAX`, which limits
    /// minted tokens.
    #[must_use]
    pub fn lineage(&self) -> &[Digest128] {
        &self.lineage
    }

    /// `idx`, which only our own tokens have.
    #[must_use]
    pub fn idx(&self) -> Option<LogPosition> {
        self.idx
    }

    /// Whether it is bound to the certificate of its connection.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Whether it is the identity token of an agent, not a token exchanged from one.
    #[must_use]
    pub fn is_agent_identity(&self) -> bool {
        self.is_agent_identity
    }

    /// Whether the subject itself presents it: the subject obtained it, it has no actor, it came through no federation
    /// peer and has no execution scope. True for every identity token of an agent.
    #[must_use]
    pub fn is_first_hand(&self) -> bool {
        let is_first_hand = self.is_agent_identity || self.client_id.as_deref() == Some(self.sub.as_str());
        is_first_hand && self.act.is_none() && self.via.is_empty() && self.execution.is_none()
    }

    /// Issuers of the peer fabrics through which it came, at most [`limits::VIA_MAX`].
    #[must_use]
    pub fn via(&self) -> &[String] {
        &self.via
    }

    /// Its execution scope. Only a token of ours that is presented to a tool can have one.
    #[must_use]
    pub fn execution(&self) -> Option<&Execution> {
        self.execution.as_ref()
    }

    /// The workload attributes of a Kubernetes service-account token.
    #[must_use]
    pub fn kubernetes(&self) -> Option<&Kubernetes> {
        self.kubernetes.as_ref()
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
) -> Result<Credential, Error> {
    Ok(Credential {
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

impl Credential {
    /// Adds the digests of its own facts, each once (contract §3, `lineage`).
    pub(super) fn with_own_lineage(mut self) -> Self {
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
        self
    }
}
