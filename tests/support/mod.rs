//! Shared by the tests: a node that can be restarted, a client that checks every response against
//! `/openapi.json`, and issuers with real keys.

pub mod certificates;
mod description;
mod feed;
mod issuer;
mod node;
pub mod ports;
pub mod program;
pub mod python;
pub mod raw;
mod response;
mod signer;
pub mod terminal;
pub mod tool_server;

pub use feed::{Event, Feed};
pub use issuer::{Issuers, credential};
pub use node::{Channel, Node, Setup};
pub use response::{Minted, Response};
pub use signer::{Signer, encode, malleate};

use serde_json::Value;

/// `iss` of the node under test, and the `aud` of credentials for it.
pub const FABRIC: &str = "https://fabric.example";
pub const TRUST_DOMAIN: &str = "trust.example";
/// The instant at which every test begins, in seconds since the Unix epoch.
pub const NOW_SECS: i64 = 1_800_000_000;
/// An audience other than the node.
pub const TOOL: &str = "https://tools.example/sql";
/// An audience whose tokens need an execution scope.
pub const MIGRATE: &str = "https://tools.example/migrate";
pub const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
pub const SVID: &str = "urn:svc:token-type:spiffe-svid";
/// `subject_token_type` of tokens that the node minted.
pub const OWN: &str = "urn:svc:token-type:agent-a2a";
pub const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// A signal issuer with authority over the trust domain, and over the subjects of every issuer except SPIFFE
/// trust domains.
pub const IDP: &str = "https://idp.example";
/// A signal issuer with authority over the trust domain and its own subjects.
pub const OTHER_IDP: &str = "https://other-idp.example";

/// The workload in most tests.
pub const REPORTER: &str = "wimse://trust.example/ns/demo/sa/reporter";
/// The agent that may act for the workloads of `demo`.
pub const ORCHESTRATOR: &str = "wimse://trust.example/ns/agents/sa/orchestrator";

/// The one description for every invalid subject token.
pub const BAD_SUBJECT: &str = "subject_token is not valid";
/// The one description for every invalid actor token.
pub const BAD_ACTOR: &str = "actor_token is not valid";

/// `value` with the fields of `changes` set, and without those that are `null`.
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
