//! The access token this fabric issues (contract §3, Tokens; RFC 9068), and its signature.

use serde::Serialize;

use super::act::{Act, MayAct};
use super::confirmation::Confirmation;
use super::signing_key;
use super::signing_key::SigningKey;

/// `typ` of every token we issue (RFC 9068 §2.1). A workload identity token must never be a bearer,
/// so it is not `wit+jwt`.
pub const TYP: &str = "at+jwt";

/// The claims of an access token, in the order of contract §3. Times are whole seconds (NumericDate).
#[derive(Clone, Debug, Serialize)]
pub struct AccessTokenClaims {
    /// Our issuer.
    pub iss: String,
    /// A workload identifier.
    pub sub: String,
    /// Exactly one audience (RFC 8707).
    pub aud: String,
    /// When it was issued.
    pub iat: i64,
    /// Not valid before.
    pub nbf: i64,
    /// Not valid at or after.
    pub exp: i64,
    /// Unique.
    pub jti: String,
    /// The authenticated caller, else `sub`.
    pub client_id: String,
    /// Correlates a whole chain.
    pub txn: String,
    /// Space-joined capabilities and granted plain scopes; absent if empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Granted capabilities.
    pub capabilities: Vec<String>,
    /// Granted blast radius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<String>,
    /// Hops left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_depth: Option<u32>,
    /// Current actor, prior ones nested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<Act>,
    /// Who alone may become the next actor; carried on, or an exchange would wash it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_act: Option<MayAct>,
    /// Digests of everything the token derives from.
    pub lineage: Vec<String>,
    /// When the whole chain ends.
    pub root_exp: i64,
    /// What an execution-scoped token is bound to.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionClaims>,
    /// What the identity token of an agent says beside the rest.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentClaims>,
    /// `<incarnation>-<log index>` applied before the revocation index was read.
    pub idx: String,
    /// Digest of the policy bundle that granted it.
    pub policy: String,
    /// Proof of possession (RFC 8705 §3.1), if the caller asked for binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cnf: Option<Confirmation>,
}

/// The claims that bind a token to one action.
#[derive(Clone, Debug, Serialize)]
pub struct ExecutionClaims {
    /// The HTTP method.
    pub htm: String,
    /// The target URI.
    pub htu: String,
    /// Spent once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// SHA-256 of the body in base64url.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inp_hash: Option<String>,
    /// The operation; `htm` if not stated.
    pub exec_act: String,
    /// What it is done to; `htu` if not stated.
    pub target: String,
}

/// The claims that only an agent's own identity token has: what is exchanged from it lacks them.
#[derive(Clone, Debug, Serialize)]
pub struct AgentClaims {
    /// `mcp`, `a2a`, `watsonx` or `custom`.
    pub platform: String,
    /// For people; not unique.
    pub agent_name: String,
    /// The parent's identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
}

/// Signs an access token.
///
/// # Errors
/// As [`SigningKey::sign`].
pub fn sign_access_token(claims: &AccessTokenClaims, key: &SigningKey) -> Result<String, signing_key::Error> {
    key.sign(claims, TYP)
}
