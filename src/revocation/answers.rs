//! Revocations as responses state them.

use serde::Serialize;
use utoipa::ToSchema;

use super::{RevocationRequest, Revocations};
use crate::clock::Timestamp;
use crate::id::Digest128;
use crate::limits;
use crate::state::command::{RevocationRow, Revoked};
use crate::state::{Awaited, stated};
use crate::text::values;

/// A revocation in force.
#[derive(Serialize, ToSchema)]
pub struct RevocationMade {
    /// The digest of the revoked fact, as in the claim `lineage`. Base64url.
    pub id: String,
    /// The kind of fact.
    #[schema(value_type = values::FactKind)]
    pub kind: String,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The revoked value.
    value: String,
    /// As requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Log time, RFC 3339, UTC.
    revoked_at: String,
    /// The log index of its entry. Tokens of this cluster with a smaller `idx` are refused.
    pub index: u64,
    /// Number of affected agents. Null if it cannot be known (a signing key or a token), if this node was scanning the
    /// agents for other requests, or if counting took more than two seconds.
    #[schema(required = true, value_type = Option<u64>)]
    pub agents: Option<u64>,
    /// Whether it is blocked as well, until the block is lifted.
    blocked: bool,
    /// Credentials that it does not cover.
    #[schema(value_type = Vec<values::NotCovered>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_covered: Vec<&'static str>,
    /// The awaited peers, for the header of the response.
    #[serde(skip)]
    #[schema(ignore)]
    pub awaited: Awaited,
}

/// A retained revocation.
#[derive(Serialize, ToSchema)]
pub struct Revocation {
    /// The digest of the revoked fact, as in the claim `lineage`. Base64url.
    id: String,
    /// The kind of fact; absent if only the digest is known.
    #[schema(value_type = Option<values::FactKind>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The revoked value; absent if only the digest is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The reason, as the operator or the issuer gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The operator, or the issuer of the signal; absent for an anonymous operator, and for a key that was tainted by its `kid`:
    /// the audit has that act.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Log time, RFC 3339, UTC.
    revoked_at: String,
    /// End of retention; every credential that it covers has expired by then.
    expires_at: String,
    /// The log index of its entry.
    index: u64,
}

impl Revocations {
    /// From the request and the log's reply only: a retry may come after the revocation has expired.
    pub(super) fn made(
        &self,
        request: &RevocationRequest,
        (revoked, awaited): (&Revoked, Awaited),
        blocked: bool,
        agents: Option<u64>,
    ) -> RevocationMade {
        let fact = request.fact();
        RevocationMade {
            id: fact.digest().to_string(),
            kind: self.kind_of(fact).to_owned(),
            issuer: stated(fact.issuer().to_owned()),
            value: fact.value().to_owned(),
            reason: stated(request.reason().to_owned()),
            revoked_at: Timestamp::from_millis(revoked.at_millis).to_rfc3339(),
            index: revoked.index,
            agents,
            blocked,
            not_covered: self.not_covered(request, blocked),
            awaited,
        }
    }

    pub(super) fn listed(&self, (id, row): (Digest128, RevocationRow)) -> Revocation {
        let at = Timestamp::from_millis(row.at_millis);
        let fact = row.fact;
        Revocation {
            id: id.to_string(),
            kind: fact.as_ref().map(|fact| self.kind(fact).to_owned()),
            issuer: fact.as_ref().and_then(|fact| stated(fact.issuer.clone())),
            value: fact.map(|fact| fact.value),
            reason: stated(row.reason),
            by: stated(row.by),
            revoked_at: at.to_rfc3339(),
            expires_at: at.plus(limits::REVOCATION_RETENTION).to_rfc3339(),
            index: row.index,
        }
    }
}
