//! Builds the claims of an access token from a grant (contract §3, Tokens).

use super::Error;
use super::execution_scope::ExecutionScope;
use super::narrow::Grant;
use crate::clock::Timestamp;
use crate::id::LogPosition;
use crate::limits;
use crate::state::MintedToken;
use crate::token::CertificateDigest;
use crate::token::mint::{AccessTokenClaims, ExecutionClaims};

/// Inputs of the claims that do not follow from the grant.
pub struct MintContext<'c> {
    /// Our issuer.
    pub iss: &'c str,
    /// The authenticated caller.
    pub caller: Option<&'c str>,
    /// Certificate that the token is bound to.
    pub confirmation: Option<CertificateDigest>,
    /// `jti`, shared only by retries of one request, and times.
    pub token: MintedToken,
    /// Last applied log id, read before any lookup.
    pub position: LogPosition,
    /// New transaction id, used if the subject token has none.
    pub txn: String,
}

/// `jti` and times of a new token. An execution scope shortens its lifetime.
#[must_use]
pub fn new_token(now: Timestamp, has_execution_scope: bool) -> MintedToken {
    let lifetime =
        if has_execution_scope { limits::EXECUTION_TOKEN_LIFETIME } else { limits::TOKEN_LIFETIME };
    let iat = now.secs();
    let exp = Timestamp::from_secs(iat).plus(lifetime).secs();
    MintedToken { jti: uuid::Uuid::new_v4().to_string(), iat, exp }
}

/// Builds the claims.
///
/// # Errors
/// [`Error::Invalid`] if `htm` or `htu` is missing, which [`ExecutionScope::check`] excludes.
pub fn claims(
    grant: &Grant,
    execution_scope: Option<&ExecutionScope>,
    context: MintContext<'_>,
) -> Result<AccessTokenClaims, Error> {
    let MintContext { iss, caller, confirmation, token, position, txn } = context;
    let MintedToken { jti, iat, exp } = token;
    let execution = execution_scope.map(execution).transpose()?;
    let subject = &grant.pair.subject;
    let scope = grant.scope.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    Ok(AccessTokenClaims {
        iss: iss.to_owned(),
        sub: subject.sub.to_string(),
        aud: grant.allow.audience.clone(),
        iat,
        nbf: iat,
        exp,
        jti,
        client_id: caller.map_or_else(|| subject.sub.to_string(), str::to_owned),
        txn: subject.txn.clone().unwrap_or(txn),
        scope: Some(scope),
        capabilities: grant.capabilities.iter().cloned().collect(),
        blast_radius: grant.blast_radius.as_ref().map(ToString::to_string),
        delegation_depth: Some(grant.delegation_depth),
        act: grant.pair.act.clone(),
        may_act: subject.may_act.as_ref().map(|may_act| may_act.qualified(&subject.iss)),
        lineage: grant.pair.lineage.iter().map(ToString::to_string).collect(),
        via: grant.pair.via.clone(),
        root_iat: grant.pair.root_iat().secs().min(iat),
        root_exp: grant.pair.root_exp().secs(),
        execution,
        agent: None,
        idx: position.to_string(),
        policy: grant.allow.policy_digest.clone(),
        cnf: confirmation.map(Into::into),
    })
}

fn execution(scope: &ExecutionScope) -> Result<ExecutionClaims, Error> {
    let required = |field, value: Option<&str>| {
        value.map(str::to_owned).ok_or(Error::Invalid { field, rule: "is required" })
    };
    Ok(ExecutionClaims {
        nonce: scope.nonce.clone(),
        inp_hash: scope.payload_hash.clone(),
        htm: required("execution_scope.htm", scope.htm.as_deref())?,
        htu: required("execution_scope.htu", scope.htu.as_deref())?,
        exec_act: required("execution_scope.htm", scope.operation())?,
        target: required("execution_scope.htu", scope.operation_target())?,
    })
}
