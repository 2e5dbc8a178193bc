//! The ephemeral resource `svc_token`: a token exchange (RFC 8693).

use trust_fabric_client::Request;

use crate::cluster::{Call, Credential, Failure};
use crate::ephemeral::{Ephemeral, Opened};
use crate::rules;
use crate::schema::{Attribute, Table, Type};
use crate::value::{Object, Value, json};

/// The type.
pub struct Token;

static TABLE: Table = Table {
    name: "svc_token",
    summary: "A token for one audience in exchange for another one (RFC 8693). It is valid for 5 minutes, and for 30 \
              seconds with an execution scope: for one call, and not for the configuration of a provider.",
    attributes: &[
        Attribute::required("subject_token", Type::Text, "The token to exchange.").sensitive(),
        Attribute::optional_computed(
            "subject_token_type",
            Type::Text,
            "Its type; the default is `urn:ietf:params:oauth:token-type:jwt`.",
        )
        .rule(rules::token_type)
        .default(|| Value::text("urn:ietf:params:oauth:token-type:jwt")),
        Attribute::optional(
            "audience",
            Type::Text,
            "Trust domain or URL of the target; by default that of the policy.",
        ),
        Attribute::optional_computed("scope", Type::Text, "Requested scope, then the granted one."),
        Attribute::optional("actor_token", Type::Text, "Token of the agent that acts for the subject.")
            .sensitive(),
        Attribute::optional(
            "execution_scope",
            Type::Object(EXECUTION_SCOPE),
            "Binds the token to one HTTP request.",
        ),
        Attribute::computed("access_token", Type::Text, "The token.").sensitive(),
        Attribute::computed("expires_in", Type::Number, "Lifetime of the token in seconds."),
    ],
    import: None,
    example: include_str!("../../examples/ephemeral_svc_token.tf"),
    notes: "\
- The exchange takes a client certificate with the capability `exchange`.
- The end of a run does not revoke the token: it expires.",
};

const EXECUTION_SCOPE: &[Attribute] = &[
    Attribute::required("htm", Type::Text, "HTTP method."),
    Attribute::required("htu", Type::Text, "URI without query and fragment."),
    Attribute::optional("payload_hash", Type::Text, "SHA-256 of the body in base64url."),
    Attribute::optional("nonce", Type::Text, "Accepted once for each subject."),
    Attribute::optional("exec_act", Type::Text, "Operation; the default is `htm`."),
    Attribute::optional("target", Type::Text, "Target of the operation; the default is `htu`."),
];

/// The attributes that a request states.
const STATED: [&str; 6] =
    ["subject_token", "subject_token_type", "audience", "scope", "actor_token", "execution_scope"];

#[tonic::async_trait]
impl Ephemeral for Token {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn opening(&self) -> [&'static str; 3] {
        ["exchange", "exchanged", "token"]
    }

    fn advice(&self, status: u16) -> Option<&'static str> {
        match status {
            400 => Some(
                "The token to exchange may have expired, or be one of an issuer that the fabric does not know.",
            ),
            403 => Some(
                "The policy decides which subject gets a token for which audience, and the identity of the provider needs \
                 the capability exchange.",
            ),
            _ => None,
        }
    }

    async fn open(&self, call: &Call<'_>, config: &Object) -> Result<Opened, Failure> {
        let mut body = json::body(config, TABLE.attributes, &STATED);
        body["grant_type"] = "urn:ietf:params:oauth:grant-type:token-exchange".into();
        let request = Request::post(&["v1", "exchange", "token"], &body);
        let response = call.send(Credential::Certificate, request).await?;
        let names = ["access_token", "expires_in", "scope"];
        let observed = json::observe(&response.body, TABLE.attributes, &names)?;
        Ok(Opened { observed, kept: None })
    }
}
