//! What the tests share: a node that can be restarted, a client that checks every answer against the
//! published description, and issuers with real keys.

mod answer;
pub mod certificates;
mod description;
mod feed;
mod issuer;
mod node;
pub mod program;
pub mod python;
pub mod raw;
mod signer;
pub mod tool_server;

pub use answer::{Answer, Minted};
pub use feed::{Event, Feed};
pub use issuer::{Cluster, credential};
pub use node::{Channel, Node, Setup};
pub use signer::{Signer, encode, malleate};

use serde_json::Value;

/// `iss` of the fabric under test, and the `aud` of credentials meant for it.
pub const FABRIC: &str = "https://fabric.example";
/// Its trust domain.
pub const TRUST_DOMAIN: &str = "trust.example";
/// The instant at which every test begins, in seconds since the Unix epoch.
pub const NOW_SECS: i64 = 1_800_000_000;
/// An audience that is not the fabric.
pub const TOOL: &str = "https://tools.example/sql";
/// An audience whose tokens must be bound to one call.
pub const MIGRATE: &str = "https://tools.example/migrate";
/// `subject_token_type` of an issuer's JWT.
pub const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
/// `subject_token_type` of a JWT-SVID.
pub const SVID: &str = "urn:svc:token-type:spiffe-svid";
/// `subject_token_type` of this fabric's own token.
pub const OWN: &str = "urn:svc:token-type:agent-a2a";
/// `grant_type` of RFC 8693.
pub const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// An issuer of signals that speaks for the trust domain, and for the subjects of every issuer but those of
/// SPIFFE trust domains.
pub const IDP: &str = "https://idp.example";
/// Another, which speaks for the trust domain and its own subjects.
pub const OTHER_IDP: &str = "https://other-idp.example";

/// The workload that most tests speak for.
pub const REPORTER: &str = "wimse://trust.example/ns/demo/sa/reporter";
/// The agent that may act for the workloads of `demo`.
pub const ORCHESTRATOR: &str = "wimse://trust.example/ns/agents/sa/orchestrator";

/// The one text for every credential that is not acceptable.
pub const BAD_SUBJECT: &str = "subject_token is not valid";
/// The same for actors.
pub const BAD_ACTOR: &str = "actor_token is not valid";

/// `value` with the members of `changes` set, and those that are `null` removed.
pub fn with(value: &Value, changes: &Value) -> Value {
    let mut value = value.clone();
    let members = value.as_object_mut().expect("object");
    for (name, change) in changes.as_object().expect("object") {
        if change.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), change.clone());
        }
    }
    value
}
