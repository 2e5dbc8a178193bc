//! Enumerated texts on the wire, for `value_type` in schemas. Tests validate every response against them.

use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

macro_rules! texts {
    ($($name:ident: $($value:literal),+;)*) => {$(
        pub struct $name;

        impl $name {
            /// Every text.
            pub const TEXTS: &[&str] = &[$($value),+];
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let texts = Self::TEXTS.iter().copied();
                ObjectBuilder::new().schema_type(Type::String).enum_values(Some(texts)).into()
            }
        }

        impl ToSchema for $name {}
    )*};
}

texts! {
    AgentStatus: "active", "revoked", "ended";
    Check: "token", "revocation", "protocol", "audience", "capabilities", "blast_radius", "exec_act", "inp_hash",
        "target";
    CheckOutcome: "pass", "skip", "fail";
    DeliveryMethod: "push", "poll";
    DeliveryMethodUrn: "urn:ietf:rfc:8935", "urn:ietf:rfc:8936";
    DeniedOperation: "exchange", "identity", "signals", "verification";
    EncryptionKeyStatus: "active";
    FactKind: "subject", "agent", "email", "client", "token", "key", "fabric";
    GrantType: "urn:ietf:params:oauth:grant-type:token-exchange";
    HealthStatus: "pass", "warn", "fail";
    IssuedTokenType: "urn:ietf:params:oauth:token-type:jwt";
    LedgerAlgorithm: "svc-ledger-sum-sha256-v1";
    LedgerState: "revoked", "blocked", "lifted", "key";
    PeerState: "not_read", "joining", "live", "stale", "held", "paused";
    PeerFault: "rolled_back", "incarnation_reused", "root_differs", "awaits_approval", "copy_damaged";
    Liveness: "pass";
    MemberRole: "leader", "follower", "learner", "joining", "invited";
    NodeRole: "leader", "follower";
    NotCovered: "credentials issued later", "client certificates";
    Platform: "mcp", "a2a", "watsonx", "custom";
    PolicyPoint: "exchange", "identity", "signals";
    Protocol: "mcp", "http", "a2a/2025-draft-01";
    RequestedTokenType: "urn:ietf:params:oauth:token-type:jwt", "urn:ietf:params:oauth:token-type:access_token";
    SetErrorCode: "invalid_request", "invalid_key", "invalid_issuer", "invalid_audience", "authentication_failed",
        "access_denied";
    SignalStatus: "accepted", "duplicate", "ignored";
    SigningAlgorithm: "ES256", "RS256";
    SigningKeyState: "pending", "active", "retired", "dead", "tainted";
    StreamStatus: "enabled", "paused", "disabled";
    SubjectTokenType: "urn:ietf:params:oauth:token-type:jwt", "urn:svc:token-type:spiffe-svid",
        "urn:svc:token-type:agent-a2a";
    TokenType: "Bearer";
    WantedRole: "voter", "learner", "removed";
}
