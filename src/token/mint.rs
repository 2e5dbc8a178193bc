//! The access token that this fabric mints (contract §3, Tokens; RFC 9068), and its signature.

use serde::Serialize;

use super::act::{Act, MayAct};
use super::confirmation::Confirmation;
use super::signing_key;
use super::signing_key::SigningKey;

/// `typ` of every token we mint (RFC 9068 §2.1). Not `wit+jwt`: a workload identity token must not be a bearer token.
pub const TYP: &str = "at+jwt";

/// The claims of an access token, in the order of contract §3. Times are whole seconds (NumericDate).
#[derive(Clone, Debug, Serialize)]
pub struct AccessTokenClaims {
    pub iss: String,
    pub sub: String,
    /// Exactly one audience (RFC 8707).
    pub aud: String,
    pub iat: i64,
    pub nbf: i64,
    /// Not valid at or after.
    pub exp: i64,
    pub jti: String,
    /// The authenticated caller, else `sub`.
    pub client_id: String,
    /// Correlates the whole chain.
    pub txn: String,
    /// Space-joined capabilities and granted plain scopes; absent if empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    pub capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_depth: Option<u32>,
    /// Current actor; prior actors are nested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<Act>,
    /// The only next actor allowed; copied on exchange, which would otherwise remove the restriction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_act: Option<MayAct>,
    /// Digests of all facts from which the token derives.
    pub lineage: Vec<String>,
    /// Issuers of the peer fabrics through which the token came; absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    /// Time of issue of the oldest credential of the chain: a revocation in another fabric since then covers
    /// the token.
    pub root_iat: i64,
    /// End of the whole chain.
    pub root_exp: i64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionClaims>,
    /// Claims of an agent's identity token only.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentClaims>,
    /// `<incarnation>-<log index>` that was applied before the revocation index was read.
    pub idx: String,
    /// Digest of the policy bundle that granted it.
    pub policy: String,
    /// Proof of possession (RFC 8705 §3.1), if the caller requested it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cnf: Option<Confirmation>,
}

/// Claims of an execution scope.
#[derive(Clone, Debug, Serialize)]
pub struct ExecutionClaims {
    pub htm: String,
    pub htu: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// SHA-256 of the body in base64url.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inp_hash: Option<String>,
    /// The operation; defaults to `htm`.
    pub exec_act: String,
    /// Object of the operation; defaults to `htu`.
    pub target: String,
}

/// Claims of an agent's identity token; tokens exchanged from it have none of them.
#[derive(Clone, Debug, Serialize)]
pub struct AgentClaims {
    /// `mcp`, `a2a`, `watsonx` or `custom`.
    pub platform: String,
    /// Display name; not unique.
    pub agent_name: String,
    /// Workload identifier of the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
}

pub fn sign_access_token(claims: &AccessTokenClaims, key: &SigningKey) -> Result<String, signing_key::Error> {
    key.sign(claims, TYP)
}
