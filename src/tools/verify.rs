//! Verification of a tool call: may this token call this tool now?
//!
//! [`ToolCallVerifier::verify`] is: freshness lease, check 1, log position, tool, checks 2 to 9, single use, audit. The checks
//! are in `checks`; here is their input.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit::{self, Action, Audit, Decision, Draft};
use super::checks::{self, Authentic, Failure, Keys, RevocationStatus, ToolCall, Verified};
use super::entry::PROTOCOL_RULE;
use crate::breaks::{self, Break};
use crate::clock::{Clock, Timestamp};
use crate::id::{Digest128, DigestKind, WorkloadId};
use crate::own_tokens::OwnTokens;
use crate::peer_tokens::Refused;
use crate::policy::blast_radius::Containment;
use crate::state::command::{Tool, ToolRow};
use crate::state::{self, CallContext, LeaseProof, Refusal, State};
use crate::telemetry::Metrics;
use crate::text::values::Protocol;
use crate::token::foreign::Credential;
use crate::token::{BodyHash, CertificateDigest};

/// Dependencies of a verification.
pub struct ToolCallVerifier {
    /// Verifies our own tokens.
    pub own_tokens: OwnTokens,
    pub state: State,
    /// Order of blast radii.
    pub containment: Containment,
    /// Audit of this node.
    pub audit: Audit,
    pub clock: Clock,
    pub metrics: Metrics,
}

/// A token that was presented to a tool server. Unknown fields are ignored, except in `cnf`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = VerifyRequest)]
pub struct VerifyInput {
    /// The called tool.
    #[schema(required = true, value_type = String, min_length = 1)]
    pub tool_id: Option<String>,
    /// The token of the call.
    #[schema(required = true, value_type = String, min_length = 1)]
    pub token: Option<String>,
    /// The protocol of the call; the default is `mcp`.
    #[schema(value_type = Option<Protocol>)]
    pub protocol: Option<String>,
    /// SHA-256 of the call's body, 32 bytes in base64url.
    pub request_body_hash: Option<String>,
    /// The client certificate of the call's connection, as the tool server saw it. Without it, a certificate-bound token
    /// is refused.
    pub cnf: Option<SeenCertificate>,
}

/// A client certificate (RFC 8705 §3.1). An unknown field is refused, because another confirmation is not supported.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeenCertificate {
    /// SHA-256 of the certificate in DER, 32 bytes in base64url without padding.
    #[serde(rename = "x5t#S256")]
    pub certificate_digest: String,
}

/// Validated request.
pub struct VerifyRequest {
    tool_id: String,
    token: String,
    protocol: &'static str,
    body: Option<BodyHash>,
    presented: Option<CertificateDigest>,
}

impl VerifyRequest {
    /// Checks the fields in the order of the specification.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the first broken rule.
    pub fn read(input: VerifyInput) -> Result<Self, Error> {
        let required = |field, value: Option<String>| match value {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(Error::Invalid { field, rule: "is required" }),
        };
        let tool_id = required("tool_id", input.tool_id)?;
        let token = required("token", input.token)?;
        let protocol = input.protocol.as_deref().unwrap_or("mcp");
        let protocol = Protocol::TEXTS.iter().copied().find(|known| *known == protocol);
        let protocol = protocol.ok_or(Error::Invalid { field: "protocol", rule: PROTOCOL_RULE })?;
        let rule = "must be a SHA-256 digest, 32 bytes in base64url";
        let malformed = |_| Error::Invalid { field: "request_body_hash", rule };
        let body = input.request_body_hash.map(|text| text.parse()).transpose();
        let rule = "must be 32 bytes in base64url without padding";
        let unbound = |_| Error::Invalid { field: "cnf.x5t#S256", rule };
        let presented = input.cnf.map(|cnf| cnf.certificate_digest.parse()).transpose();
        Ok(Self {
            tool_id,
            token,
            protocol,
            body: body.map_err(malformed)?,
            presented: presented.map_err(unbound)?,
        })
    }
}

/// Verdict on a token that passed.
#[derive(Debug)]
pub struct Verdict {
    pub tool_id: String,
    /// Protocol of the call.
    pub protocol: &'static str,
    /// The token and its check results.
    pub verified: Verified,
}

/// Reason for which a token was not verified.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field is missing or breaks its rule.
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: &'static str },
    /// No such tool.
    #[error("there is no tool with this tool_id")]
    UnknownTool,
    /// A check failed.
    #[error(transparent)]
    Failed(Failure),
    /// This node has not reached the log position at which the token was minted.
    #[error("this node has not yet applied the log index at which the token was minted")]
    Behind,
    /// The token came through a peer fabric, whose ledger is not known well enough.
    #[error(transparent)]
    Peer(Refused),
    /// The state could not be read or written, or the outcome is unknown.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The audit entry could not be written, so there is no verdict.
    #[error("the verdict could not be recorded in the audit")]
    Audit(#[from] audit::Error),
}

impl Error {
    /// Value of the metric label `result`; equal to the decision of the audit entry, if there is one.
    const fn label(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_request",
            Self::UnknownTool => "not_found",
            Self::Failed(_)
            | Self::State(state::Error::Refused(Refusal::IdempotencyKeyReused | Refusal::CallerRefused)) => {
                "deny"
            }
            Self::Behind | Self::Peer(_) | Self::State(_) | Self::Audit(_) => "error",
        }
    }
}

impl ToolCallVerifier {
    /// Verifies a token presented to a tool. The verdict is in the audit before it is returned; an execution-scoped token
    /// is spent by it. `token_subject` is set to the token's subject once its signature is verified, also if it is refused later.
    ///
    /// # Errors
    /// [`Error`]: each variant is one outcome.
    pub async fn verify(
        &self,
        input: VerifyInput,
        caller: &CallContext,
        token_subject: &mut Option<WorkloadId>,
    ) -> Result<Verdict, Error> {
        let verdict = match VerifyRequest::read(input) {
            Ok(request) => self.decide(request, caller, token_subject).await,
            Err(error) => Err(error),
        };
        self.metrics.verifications.inc([verdict.as_ref().map_or_else(Error::label, |_| "allow")]);
        verdict
    }

    async fn decide(
        &self,
        request: VerifyRequest,
        caller: &CallContext,
        token_subject: &mut Option<WorkloadId>,
    ) -> Result<Verdict, Error> {
        // The lease is checked before any lookup (design §4).
        let fresh = self.state.fresh_unless([Break::LeaseAfterLookup]).await?;
        self.state.check_clock(&fresh)?;
        let mut now = self.clock.now();
        let mut authentic = self.authenticate(&fresh, &request, now);
        // Only a token of ours can make this node wait. The tool is read after that: its requirements are then at least
        // as new as the token.
        let caught_up = match &authentic {
            Ok(authentic) => {
                self.own_tokens.catch_up(authentic.credential()).await.map_err(|_| Error::Behind)
            }
            Err(_) => Ok(false),
        };
        if let Ok(true) = caught_up {
            // Meanwhile the token may have expired or its key been tainted.
            now = self.clock.now();
            authentic = self.authenticate(&fresh, &request, now);
        }
        // Since the head of the request was authorized, its body may have arrived slowly.
        if self.state.refuses(&fresh, &caller.facts) {
            return Err(state::Error::Refused(Refusal::CallerRefused).into());
        }
        // An unknown tool is confirmed by a linearizable read before 404.
        let tool = self.state.confirmed(|| self.tool(&request.tool_id)).await?.ok_or(Error::UnknownTool)?;
        let mut draft = draft(&request, caller, now);
        if let Ok(authentic) = &authentic {
            record_subject(&mut draft, authentic.credential());
            *token_subject = Some(authentic.credential().sub.clone());
        }
        // Begun before the token is spent: nothing is done that cannot be audited.
        let open = self.audit.begin(draft)?;
        let outcome = match caught_up {
            Ok(_) => self.run_checks(&fresh, authentic, &tool, &request, caller).await,
            Err(error) => Err(error),
        };
        if breaks::active(Break::LeaseAfterLookup) {
            self.state.fresh().await?;
        }
        self.count(&outcome);
        open.record(|draft| record_outcome(draft, &outcome)).await?;
        Ok(Verdict { tool_id: request.tool_id, protocol: request.protocol, verified: outcome? })
    }

    fn authenticate(
        &self,
        fresh: &LeaseProof,
        request: &VerifyRequest,
        now: Timestamp,
    ) -> Result<Authentic, Failure> {
        let key = |kid: &str| self.own_tokens.key(fresh, kid);
        let keys =
            Keys { fabric: self.own_tokens.fabric(), key: &key, signatures: self.own_tokens.signatures() };
        checks::authenticate(&request.token, &keys, request.presented.as_ref(), now)
    }

    fn tool(&self, tool_id: &str) -> Result<Option<Tool>, Error> {
        Ok(self.state.tool(tool_id)?.and_then(|row: ToolRow| row.tool))
    }

    async fn run_checks(
        &self,
        fresh: &LeaseProof,
        authentic: Result<Authentic, Failure>,
        tool: &Tool,
        request: &VerifyRequest,
        caller: &CallContext,
    ) -> Result<Verified, Error> {
        let authentic = authentic.map_err(Error::Failed)?;
        let execution = execution(authentic.credential());
        let status = self.status(fresh, authentic.credential(), execution, caller)?;
        let is_for_peer = self.own_tokens.is_for_peer(authentic.credential());
        let call =
            ToolCall { protocol: request.protocol, request_body_hash: request.body.as_ref(), is_for_peer };
        let verified =
            checks::verify(authentic, status, call, tool, &self.containment).map_err(Error::Failed)?;
        // The first passing verification spends an execution-scoped token in the whole cluster, by a log entry: of
        // concurrent verifications, `apply` lets one pass.
        let Some(execution) = execution else { return Ok(verified) };
        let owner = state::owner(caller.id.as_deref().unwrap_or_default());
        let state = self.state.on_behalf_of(caller);
        match state.spend_token(execution, verified.credential().exp, owner).await {
            Ok(()) => Ok(verified),
            Err(state::Error::Refused(Refusal::TokenSpent)) => {
                Err(Error::Failed(verified.into_already_used()))
            }
            Err(state::Error::Refused(ended @ Refusal::TokenEnded)) => {
                Err(Error::Failed(Failure::of_token(ended.to_string())))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn status(
        &self,
        fresh: &LeaseProof,
        credential: &Credential,
        execution: Option<Digest128>,
        caller: &CallContext,
    ) -> Result<RevocationStatus, Error> {
        let is_spent =
            execution.map(|execution| self.state.is_spent(execution, caller.idempotency)).transpose()?;
        let is_revoked = match self.own_tokens.judge(fresh, credential) {
            Ok(()) => false,
            Err(refused @ Refused::Unjudged { .. }) => return Err(Error::Peer(refused)),
            // Revoked here or by a peer, or a peer through which it came is paused or not accepted.
            Err(_) => true,
        };
        Ok(RevocationStatus { is_revoked, is_spent: is_spent.unwrap_or(false) })
    }

    fn count(&self, outcome: &Result<Verified, Error>) {
        let trace = match outcome {
            Ok(verified) => verified.trace(),
            Err(Error::Failed(failure)) => {
                self.metrics.verify_checks.inc([failure.check.into_str(), "fail"]);
                &failure.trace
            }
            Err(_) => return,
        };
        for (check, outcome) in trace {
            self.metrics.verify_checks.inc([check.into_str(), outcome.into_str()]);
        }
    }
}

/// Digest of a single-use token, by `iss` and `jti`.
fn execution(credential: &Credential) -> Option<Digest128> {
    credential.execution.as_ref()?;
    let jti = credential.jti.as_deref()?;
    Some(Digest128::of(DigestKind::Execution, credential.iss.as_bytes(), jti.as_bytes()))
}

fn draft(request: &VerifyRequest, caller: &CallContext, now: Timestamp) -> Draft {
    let undecided = Draft::undecided(Action::Verify, &request.tool_id, caller, now);
    Draft { protocol: Some(request.protocol.to_owned()), ..undecided }
}

/// Only after the signature is verified: an entry names no subject that an attacker could have written.
fn record_subject(draft: &mut Draft, credential: &Credential) {
    draft.subject = credential.sub.to_string();
    draft.actor = credential.act.as_ref().map(|act| act.sub.clone());
    draft.jti.clone_from(&credential.jti);
    draft.txn.clone_from(&credential.txn);
}

fn record_outcome(draft: &mut Draft, outcome: &Result<Verified, Error>) {
    match outcome {
        Ok(_) => {
            draft.decision = Decision::Allow;
            "all checks passed".clone_into(&mut draft.notes);
        }
        Err(Error::Failed(failure)) => {
            draft.decision = Decision::Deny;
            draft.check = Some(failure.check.into_str());
            draft.notes.clone_from(&failure.reason);
        }
        Err(error) => {
            let is_refusal = matches!(
                error,
                Error::State(state::Error::Refused(Refusal::IdempotencyKeyReused | Refusal::CallerRefused))
            );
            draft.decision = if is_refusal { Decision::Deny } else { Decision::Error };
            draft.notes = error.to_string();
        }
    }
}
