//! Refusals of a token. `api` answers all of them with one fixed text (contract §1), so that the response is
//! no oracle; the reason goes to log and audit.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The token type is none of the three supported ones.
    #[error("unsupported token type")]
    UnsupportedTokenType,
    /// Larger than `TOKEN_BYTES_MAX`.
    #[error("token is too large")]
    TooLarge,
    /// Not three parts in unpadded base64url (RFC 7515 §7.1).
    #[error("token is not a compact JWS")]
    NotCompact,
    /// The header is not a JSON object with fields of the right types (RFC 7515 §4).
    #[error("token header is malformed")]
    HeaderMalformed,
    /// The header has `crit`, `b64` or `zip`: unsupported extensions (RFC 7515 §4.1.11).
    #[error("token header has an extension that is not understood")]
    HeaderExtension,
    /// The header contains or locates its own key: `jwk`, `jku`, `x5u`, `x5c` (contract §3).
    #[error("token header carries its own key")]
    KeyInToken,
    /// `alg` is absent, `none`, symmetric or unknown.
    #[error("token algorithm is refused")]
    AlgorithmRefused,
    /// `alg` is not in the issuer's allow-list (RFC 8725 §3.1).
    #[error("token algorithm is not allowed for its issuer")]
    AlgorithmNotAllowed,
    /// `kid` is empty, too long or not printable ASCII.
    #[error("token kid is malformed")]
    KidMalformed,
    /// No key of the issuer has this `kid` and fits `alg`.
    #[error("token key is not in the key set of its issuer")]
    UnknownKey,
    /// No `kid`, and several keys of the issuer fit `alg`.
    #[error("token has no kid and several keys of its issuer fit")]
    AmbiguousKey,
    /// The signature does not verify.
    #[error("token signature is invalid")]
    SignatureInvalid,
    /// `typ` does not fit the kind of credential (RFC 8725 §3.11).
    #[error("token typ does not fit its kind")]
    TypeMismatch,
    /// The payload is not a JSON object.
    #[error("token payload is not a JSON object")]
    PayloadMalformed,
    /// A required claim is absent.
    #[error("token lacks the claim {0}")]
    ClaimMissing(&'static str),
    /// A claim has a wrong type or breaks a limit.
    #[error("token claim {0} is malformed")]
    ClaimMalformed(&'static str),
    /// No issuer is configured for this `iss` or trust domain.
    #[error("token issuer is unknown")]
    UnknownIssuer,
    /// `iss` is not the issuer whose key verified the token.
    #[error("token issuer does not match its key")]
    IssuerMismatch,
    /// `aud` holds none of the accepted audiences.
    #[error("token audience does not match")]
    AudienceMismatch,
    /// At or past `exp`.
    #[error("token has expired")]
    Expired,
    /// Before `nbf`.
    #[error("token is not valid yet")]
    NotYetValid,
    /// `iat` lies ahead.
    #[error("token was issued in the future")]
    IssuedAhead,
    /// Older than its issuer's `max_credential_age`.
    #[error("token is too old")]
    TooOld,
    /// At or past `root_exp`, the end of the chain it belongs to.
    #[error("token chain has expired")]
    ChainExpired,
    /// `sub` cannot be mapped to a workload identifier by the issuer's rule.
    #[error("token subject does not follow its issuer's rule")]
    SubjectMalformed,
    /// The claim `kubernetes.io` contradicts `sub`.
    #[error("token subject contradicts its kubernetes.io claim")]
    SubjectDisagrees,
    /// The issuer is not configured for the subject's trust domain.
    #[error("token issuer is not allowed for the trust domain of its subject")]
    TrustDomainNotAllowed,
    /// More actors than `ACT_DEPTH_MAX`.
    #[error("token actor chain is too long")]
    ActTooDeep,
    /// One actor occurs twice in the chain.
    #[error("token actor chain has a loop")]
    ActLoop,
    /// Bound to a key whose possession the caller has not proven (RFC 7800, RFC 8705 §3).
    #[error("token is bound to another certificate")]
    NotItsHolder,
    /// Its subject or an actor is in the namespace of this fabric's agents.
    #[error("token subject or actor is in the namespace of this fabric's agents")]
    SubjectReserved,
    /// A fact of its lineage is revoked.
    #[error("token is revoked")]
    Revoked,
    /// A token of a peer fabric that is valid for longer than `TOKEN_LIFETIME`.
    #[error("token of a peer is valid for too long")]
    LifetimeTooLong,
    /// The identity token of an agent of a peer fabric: only a token exchanged there may leave it.
    #[error("token is the identity token of an agent of another fabric")]
    IdentityOfAnotherFabric,
    /// A token of a peer fabric or another issuer that came through a further fabric.
    #[error("token came through another fabric than its issuer")]
    ThroughAnotherFabric,
    /// A token of a peer fabric names an actor that is not of that peer.
    #[error("token of a peer names an actor of another issuer")]
    ActorNotOfIssuer,
    /// A token of ours came through a fabric that is not accepted.
    #[error("token came through a fabric that is not accepted")]
    PeerNotAccepted,
    /// `idx` is above the last log index that this node has applied, and stays so.
    #[error("idx is ahead of the log")]
    IndexAhead,
    /// A token with an execution scope cannot be exchanged.
    #[error("token has an execution scope and cannot be exchanged")]
    ExecutionScoped,
}
