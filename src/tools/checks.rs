//! The nine checks of a tool call (contract §5), pure and in one order.
//!
//! Two proof types: [`Authentic`] passed check 1, [`Verified`] passed all nine; only [`authenticate`] and
//! [`verify`] create them. State, clock and keys are arguments, because some are looked up only once the
//! token's subject is known.

use std::sync::Arc;

use strum::VariantArray as _;

use crate::clock::Timestamp;
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::state::command::Tool;
use crate::token::foreign::Credential;
use crate::token::issued::{self, Fabric};
use crate::token::jws::Compact;
use crate::token::key_set::VerifyingKey;
use crate::token::signature_cache::SignatureCache;
use crate::token::{BodyHash, CertificateDigest, Error};

/// A check; they run in this order. Its name is the same in responses, metrics and audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Check {
    /// Form, signature, issuer, subject, times, and the binding to a certificate.
    Token,
    /// No fact that the token derives from is revoked, and a single-use token is not spent.
    Revocation,
    /// The tool accepts the protocol.
    Protocol,
    /// The tool is the audience.
    Audience,
    /// The token has the required capabilities.
    Capabilities,
    /// The blast radius is within the tool's maximum.
    BlastRadius,
    /// The operation is one of the tool's.
    ExecAct,
    /// The body is the one that the token is bound to.
    InpHash,
    /// The target is one of the tool's.
    Target,
}

/// Outcome of a check that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CheckOutcome {
    Pass,
    /// The tool does not require the check.
    Skip,
}

/// Outcomes of the checks so far, in order.
pub type CheckTrace = Vec<(Check, CheckOutcome)>;

/// The first check that failed; later ones did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {reason}")]
pub struct Failure {
    pub check: Check,
    /// For people; contains no secret and no part of the token's text.
    pub reason: String,
    /// Outcomes of the earlier checks.
    pub trace: CheckTrace,
}

impl Failure {
    /// Failure of check 1.
    #[must_use]
    pub fn of_token(reason: String) -> Self {
        Self { check: Check::Token, reason, trace: Vec::new() }
    }
}

/// Keys and rules for the signature of a token.
pub struct Keys<'k> {
    pub fabric: Fabric<'k>,
    /// The key with this `kid`, if its signatures are accepted now.
    pub key: &'k dyn Fn(&str) -> Option<Arc<VerifyingKey>>,
    pub signatures: &'k SignatureCache,
}

/// Replicated status of a token.
#[derive(Clone, Copy, Debug)]
pub struct RevocationStatus {
    /// A fact that it derives from is revoked.
    pub is_revoked: bool,
    /// It is for a single use and was used.
    pub is_spent: bool,
}

/// The tool call that a token is presented for.
#[derive(Clone, Copy, Debug)]
pub struct ToolCall<'c> {
    pub protocol: &'c str,
    /// SHA-256 of the body, if the tool server states it.
    pub request_body_hash: Option<&'c BodyHash>,
    /// Whether the token is meant for a peer fabric.
    pub is_for_peer: bool,
}

/// Proof of check 1: the claims may be read.
#[derive(Debug)]
pub struct Authentic(Credential);

impl Authentic {
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.0
    }
}

/// Proof of all nine checks.
#[derive(Debug)]
pub struct Verified {
    credential: Credential,
    trace: CheckTrace,
}

impl Verified {
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Outcomes of the nine checks, in order.
    #[must_use]
    pub fn trace(&self) -> &CheckTrace {
        &self.trace
    }

    /// Failure of check 2 for the loser of a race: a concurrent call has spent the token.
    #[must_use]
    pub fn into_already_used(mut self) -> Failure {
        self.trace.retain(|(check, _)| *check == Check::Token);
        Failure { check: Check::Revocation, reason: ALREADY_USED.to_owned(), trace: self.trace }
    }
}

/// Check 1: "Compact JWS, allowed alg and `typ`, known key bound to the issuer, signature, trusted `iss` bound to the
/// trust domain of `sub`, times, `jti`; `cnf` satisfied if present." `presented` is the client certificate that the tool
/// server received.
///
/// # Errors
/// The check failed.
pub fn authenticate(
    text: &str,
    keys: &Keys<'_>,
    presented: Option<&CertificateDigest>,
    now: Timestamp,
) -> Result<Authentic, Failure> {
    let verified = Compact::parse(text).and_then(|token| {
        let kid = token.header().kid.as_deref();
        let key = kid.and_then(keys.key).ok_or(Error::UnknownKey)?;
        issued::verify_presented_to_tool(&token, keys.fabric, &key, keys.signatures, presented, now)
    });
    verified.map(Authentic).map_err(|error| Failure::of_token(token_reason(&error)))
}

/// Checks 2 to 9, up to the first that fails.
///
/// # Errors
/// The check that failed.
pub fn verify(
    authentic: Authentic,
    status: RevocationStatus,
    call: ToolCall<'_>,
    tool: &Tool,
    containment: &Containment,
) -> Result<Verified, Failure> {
    let credential = authentic.0;
    let mut trace = CheckTrace::with_capacity(Check::VARIANTS.len());
    for &check in Check::VARIANTS {
        let result = match check {
            // Proven by `Authentic`.
            Check::Token => PASS,
            Check::Revocation => revocation(status),
            Check::Protocol => protocol(call.protocol, tool),
            Check::Audience if call.is_for_peer => Err("token is meant for a peer fabric".to_owned()),
            Check::Audience => audience(&credential, tool),
            Check::Capabilities => capabilities(&credential, tool),
            Check::BlastRadius => blast_radius(&credential, tool, containment),
            Check::ExecAct => exec_act(&credential, tool),
            Check::InpHash => inp_hash(&credential, call.request_body_hash, tool),
            Check::Target => target(&credential, tool),
        };
        match result {
            Ok(outcome) => trace.push((check, outcome)),
            Err(reason) => return Err(Failure { check, reason, trace }),
        }
    }
    Ok(Verified { credential, trace })
}

/// Outcome of a check, or the reason for its failure.
type CheckResult = Result<CheckOutcome, String>;

const PASS: CheckResult = Ok(CheckOutcome::Pass);
const SKIP: CheckResult = Ok(CheckOutcome::Skip);
const ALREADY_USED: &str = "token already used";

/// "Nothing in the index covers `jti`, `sub`, `act`, `client_id`, key or any `lineage` id at this `idx`/`iat`; an
/// execution-scoped token is unspent." The reason does not name the revoked fact: the tool server may not learn it.
fn revocation(status: RevocationStatus) -> CheckResult {
    match status {
        RevocationStatus { is_revoked: true, .. } => Err("token revoked".to_owned()),
        RevocationStatus { is_spent: true, .. } => Err(ALREADY_USED.to_owned()),
        _ => PASS,
    }
}

/// "Request `protocol` ∈ tool's `protocols`."
fn protocol(protocol: &str, tool: &Tool) -> CheckResult {
    let is_accepted = tool.protocols.iter().any(|accepted| accepted == protocol);
    if is_accepted { PASS } else { Err(format!("protocol {protocol} not accepted by tool")) }
}

/// "`aud` = `resource_uri`, byte for byte"; skipped if the tool has none. A token for the fabric itself passes no tool:
/// the tool server could use it here in the name of its subject.
fn audience(credential: &Credential, tool: &Tool) -> CheckResult {
    let (iss, aud) = (&credential.iss, credential.aud.as_slice());
    if aud.iter().any(|aud| aud == iss) {
        return Err("token is meant for the fabric itself".to_owned());
    }
    match &tool.resource_uri {
        None => SKIP,
        Some(resource_uri) if matches!(aud, [only] if only == resource_uri) => PASS,
        Some(_) => Err("token aud does not match tool resource_uri".to_owned()),
    }
}

/// "`required_capabilities` ⊆ token's", whole words; skipped if the list is empty. The reason names the first missing
/// one and none of the token's.
fn capabilities(credential: &Credential, tool: &Tool) -> CheckResult {
    let granted = credential.capabilities.as_deref().unwrap_or_default();
    match tool.required_capabilities.iter().find(|required| !granted.contains(required)) {
        Some(missing) => Err(format!("missing capability {missing}")),
        None if tool.required_capabilities.is_empty() => SKIP,
        None => PASS,
    }
}

/// "Token's fits `max_blast_radius`"; skipped if the tool has none. A token without the claim is unbounded and fails; a
/// malformed one fails too.
fn blast_radius(credential: &Credential, tool: &Tool, containment: &Containment) -> CheckResult {
    let Some(limit) = tool.max_blast_radius.as_deref() else { return SKIP };
    let Some(value) = credential.blast_radius.as_deref() else {
        return Err("token has no blast radius".to_owned());
    };
    let Ok(value) = value.parse::<BlastRadius>() else {
        return Err("blast radius of the token is malformed".to_owned());
    };
    let fits = limit.parse().is_ok_and(|limit| containment.fits(&value, &limit));
    if fits { PASS } else { Err(format!("{value} exceeds {limit}")) }
}

/// "Present and in `allowed_operations`"; skipped if not `requires_execution`, or the list is empty.
fn exec_act(credential: &Credential, tool: &Tool) -> CheckResult {
    if !tool.requires_execution || tool.allowed_operations.is_empty() {
        return SKIP;
    }
    match credential.execution.as_ref().and_then(|execution| execution.exec_act.as_ref()) {
        None => Err("exec_act missing".to_owned()),
        Some(exec_act) if tool.allowed_operations.contains(exec_act) => PASS,
        Some(exec_act) => Err(format!("operation {exec_act} not allowed")),
    }
}

/// "Token has it, `request_body_hash` given, the 32 bytes equal"; skipped if not `requires_execution` and the token has
/// none. A token bound to a body is never accepted for another one, whatever the tool requires.
fn inp_hash(credential: &Credential, body: Option<&BodyHash>, tool: &Tool) -> CheckResult {
    let claim = credential.execution.as_ref().and_then(|execution| execution.inp_hash);
    match (claim, body) {
        (None, _) if !tool.requires_execution => SKIP,
        (None, _) => Err("inp_hash missing".to_owned()),
        (Some(_), None) => Err("request_body_hash missing".to_owned()),
        (Some(claim), Some(body)) if claim.equals(body) => PASS,
        (Some(_), Some(_)) => Err("request body hash mismatch".to_owned()),
    }
}

/// "Present and in `allowed_targets` (exact)"; skipped if not `requires_execution`, or the list is empty. Not normalized:
/// two spellings of one address are two targets.
fn target(credential: &Credential, tool: &Tool) -> CheckResult {
    if !tool.requires_execution || tool.allowed_targets.is_empty() {
        return SKIP;
    }
    match credential.execution.as_ref().and_then(|execution| execution.target.as_ref()) {
        None => Err("target missing".to_owned()),
        Some(target) if tool.allowed_targets.contains(target) => PASS,
        Some(_) => Err("target not allowed".to_owned()),
    }
}

/// Reason of check 1 for the tool server: it is authenticated and has the token, so the reason is no secret to it.
fn token_reason(error: &Error) -> String {
    let text = match error {
        Error::TypeMismatch => "unsupported token type",
        Error::UnknownKey => "signing key unknown",
        Error::SignatureInvalid => "signature invalid",
        Error::IssuerMismatch | Error::TrustDomainNotAllowed => "issuer not trusted",
        Error::Expired | Error::TooOld => "token expired",
        Error::NotYetValid | Error::IssuedAhead => "token not yet valid",
        Error::NotItsHolder => "token is bound to another certificate than cnf names",
        other => return other.to_string(),
    };
    text.to_owned()
}
