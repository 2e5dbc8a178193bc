//! Why a token was refused. What the caller is told is decided in `api`: one fixed text for all of
//! these (contract §1), so that an answer is no oracle; the reason goes to log and audit.

/// Why a token was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The credential kind is none of the three of the specification.
    #[error("unsupported token type")]
    UnsupportedTokenType,
    /// Larger than `TOKEN_BYTES_MAX`.
    #[error("token is too large")]
    TooLarge,
    /// Not three parts in base64url without padding (RFC 7515 §7.1).
    #[error("token is not a compact JWS")]
    NotCompact,
    /// The header is not a JSON object with members of the right types (RFC 7515 §4).
    #[error("token header is malformed")]
    HeaderMalformed,
    /// The header has `crit`, `b64` or `zip`: extensions that are not understood here (RFC 7515 §4.1.11).
    #[error("token header has an extension that is not understood")]
    HeaderExtension,
    /// The header brings or locates its own key: `jwk`, `jku`, `x5u`, `x5c` (contract §3).
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
    #[error("token key is unknown")]
    UnknownKey,
    /// No `kid`, and not exactly one key of the issuer fits `alg`.
    #[error("token names no key and its issuer has several")]
    AmbiguousKey,
    /// The signature does not verify.
    #[error("token signature is invalid")]
    SignatureInvalid,
    /// `typ` is not one that this kind of credential may have (RFC 8725 §3.11).
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
    /// The claim `kubernetes.io` says otherwise than `sub`.
    #[error("token subject disagrees with its kubernetes claim")]
    SubjectDisagrees,
    /// The issuer may not speak for the subject's trust domain.
    #[error("token issuer may not speak for the trust domain of its subject")]
    TrustDomainNotAllowed,
    /// More actors than `ACT_DEPTH_MAX`.
    #[error("token actor chain is too long")]
    ActTooDeep,
    /// One actor stands twice in the chain.
    #[error("token actor chain has a loop")]
    ActLoop,
    /// Bound to a key that its presenter has not proven to hold (RFC 7800, RFC 8705 §3).
    #[error("token is bound to another holder")]
    NotItsHolder,
    /// Its subject, or an actor, has a name that only this fabric gives, to its agents.
    #[error("token subject or actor has a name of this fabric's agents")]
    SubjectReserved,
    /// Something it derives from is revoked.
    #[error("token is revoked")]
    Revoked,
    /// An execution-scoped token is good for one action, not for an exchange.
    #[error("token is bound to one action and cannot be exchanged")]
    ExecutionScoped,
}
