//! Types of security events (CAEP 1.0, RISC 1.0).

/// The types of events that streams deliver: all of CAEP 1.0 and of RISC 1.0.
pub const EVENTS_SUPPORTED: [&str; 22] = [
    "https://schemas.openid.net/secevent/caep/event-type/session-revoked",
    "https://schemas.openid.net/secevent/caep/event-type/token-claims-change",
    "https://schemas.openid.net/secevent/caep/event-type/credential-change",
    "https://schemas.openid.net/secevent/caep/event-type/assurance-level-change",
    "https://schemas.openid.net/secevent/caep/event-type/device-compliance-change",
    "https://schemas.openid.net/secevent/caep/event-type/session-established",
    "https://schemas.openid.net/secevent/caep/event-type/session-presented",
    "https://schemas.openid.net/secevent/caep/event-type/risk-level-change",
    "https://schemas.openid.net/secevent/risc/event-type/account-credential-change-required",
    "https://schemas.openid.net/secevent/risc/event-type/account-purged",
    "https://schemas.openid.net/secevent/risc/event-type/account-disabled",
    "https://schemas.openid.net/secevent/risc/event-type/account-enabled",
    "https://schemas.openid.net/secevent/risc/event-type/identifier-changed",
    "https://schemas.openid.net/secevent/risc/event-type/identifier-recycled",
    "https://schemas.openid.net/secevent/risc/event-type/credential-compromise",
    "https://schemas.openid.net/secevent/risc/event-type/opt-in",
    "https://schemas.openid.net/secevent/risc/event-type/opt-out-initiated",
    "https://schemas.openid.net/secevent/risc/event-type/opt-out-cancelled",
    "https://schemas.openid.net/secevent/risc/event-type/opt-out-effective",
    "https://schemas.openid.net/secevent/risc/event-type/recovery-activated",
    "https://schemas.openid.net/secevent/risc/event-type/recovery-information-changed",
    "https://schemas.openid.net/secevent/risc/event-type/sessions-revoked",
];
