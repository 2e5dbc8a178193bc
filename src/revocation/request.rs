//! Validation of a revocation request: exactly one fact, and a reason.

use serde::Deserialize;
use utoipa::ToSchema;

use super::Error;
use crate::id::{TrustDomain, WorkloadId};
use crate::token::lineage::{Fact, canonical_name};
use crate::{limits, text};

/// A revocation of exactly one of `subject`, `email`, `agent`, `client`, `jti`, `key` and `fabric`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = RevocationRequest)]
pub struct RevocationInput {
    /// A workload identifier; with another `issuer`, the `sub` of that issuer.
    pub subject: Option<String>,
    /// An email address that `issuer` has verified, byte for byte.
    pub email: Option<String>,
    /// An `agent_id`.
    pub agent: Option<String>,
    /// A `client_id` known to `issuer`.
    pub client: Option<String>,
    /// The `jti` of a token of `issuer`.
    pub jti: Option<String>,
    /// The `kid` of a signing key of `issuer`. One of this fabric is tainted; one that was deleted is unknown, unless
    /// it is to be blocked.
    pub key: Option<String>,
    /// The issuer of a peer fabric: everything that came from it.
    pub fabric: Option<String>,
    /// The issuer of the value: required with `email`, not allowed with `agent` and `fabric`; the default is this fabric.
    pub issuer: Option<String>,
    /// The reason: at most 256 printable ASCII characters.
    pub reason: Option<String>,
    /// Whether to block it as well: credentials issued later and client certificates are refused until
    /// `DELETE /v1/blocks/{id}`. A known signing key of this fabric is tainted in any case; one of another issuer is blocked,
    /// as is everything of a peer fabric.
    pub block: bool,
}

/// A validated request: one fact and a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationRequest {
    fact: Fact,
    names_agent: bool,
    block: bool,
    reason: String,
}

impl RevocationInput {
    /// Validates. `own_issuer` is our `iss`, `trust_domain` that of our agents.
    pub fn validate(self, own_issuer: &str, trust_domain: &TrustDomain) -> Result<RevocationRequest, Error> {
        let Self { subject, email, agent, client, jti, key, fabric, issuer, reason, block } = self;
        let named = [&subject, &email, &agent, &client, &jti, &key, &fabric];
        if named.iter().filter(|field| field.is_some()).count() != 1 {
            return Err(Error::NotOne);
        }
        if let Some(issuer) = &issuer {
            bounded("issuer", issuer, limits::URI_BYTES_MAX)?;
        }
        let reason = reason.unwrap_or_default();
        if reason.len() > limits::REVOCATION_REASON_BYTES_MAX
            || !reason.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        {
            let max = limits::REVOCATION_REASON_BYTES_MAX;
            return Err(invalid("reason", format!("must be at most {max} printable ASCII characters")));
        }
        let names_agent = agent.is_some();
        let iss = issuer.as_deref().unwrap_or(own_issuer);
        let fact = match (subject, email, agent, client, jti, key, fabric) {
            (Some(subject), ..) => of_subject(&subject, issuer.as_deref(), own_issuer)?,
            (_, Some(email), ..) => of_email(&email, issuer.as_deref())?,
            (_, _, Some(agent), ..) => of_agent(&agent, issuer.is_some(), trust_domain)?,
            (_, _, _, Some(client), ..) => of_client(&client, iss, iss == own_issuer, trust_domain)?,
            (.., Some(jti), _, _) => {
                of_token(iss, bounded("jti", &jti, limits::OPAQUE_BYTES_MAX)?, own_issuer)
            }
            (.., Some(key), _) => Fact::signing_key(iss, bounded("key", &key, limits::KID_BYTES_MAX)?),
            (.., Some(fabric)) => of_fabric(&fabric, issuer.is_some())?,
            _ => return Err(Error::NotOne),
        };
        if block && names_fabric(fact.value(), own_issuer, trust_domain) {
            return Err(invalid("block", "must not name this fabric's own issuer or trust domain"));
        }
        Ok(RevocationRequest { fact, names_agent, block, reason })
    }
}

impl RevocationRequest {
    pub fn fact(&self) -> &Fact {
        &self.fact
    }

    /// Whether it was named as an agent, and so must be one.
    pub fn names_agent(&self) -> bool {
        self.names_agent
    }

    pub fn block(&self) -> bool {
        self.block
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Whether a value names the fabric itself, with or without the scheme of a workload identifier.
fn names_fabric(value: &str, own_issuer: &str, trust_domain: &TrustDomain) -> bool {
    let bare =
        ["wimse://", "spiffe://"].iter().find_map(|scheme| value.strip_prefix(scheme)).unwrap_or(value);
    value.trim_end_matches('/') == own_issuer || bare.trim_end_matches('/') == trust_domain.as_str()
}

/// Our own subjects are workload identifiers, which need no issuer.
fn of_subject(subject: &str, issuer: Option<&str>, own_issuer: &str) -> Result<Fact, Error> {
    match issuer.filter(|issuer| *issuer != own_issuer) {
        Some(issuer) => {
            Ok(Fact::subject(issuer, bounded("subject", subject, limits::WORKLOAD_ID_BYTES_MAX)?))
        }
        None => match subject.parse::<WorkloadId>() {
            Ok(id) => Ok(Fact::workload(&id)),
            Err(_) => Err(invalid(
                "subject",
                "must be a workload identifier, wimse://... or spiffe://..., or come with its issuer",
            )),
        },
    }
}

fn of_email(email: &str, issuer: Option<&str>) -> Result<Fact, Error> {
    let issuer =
        issuer.ok_or_else(|| invalid("issuer", "is required with email: the issuer that verified it"))?;
    bounded("email", email, limits::EMAIL_BYTES_MAX)?;
    if !email.contains('@') {
        return Err(invalid("email", "must be an email address"));
    }
    Ok(Fact::email(issuer, email))
}

fn of_agent(agent: &str, has_issuer: bool, trust_domain: &TrustDomain) -> Result<Fact, Error> {
    if has_issuer {
        return Err(invalid("issuer", "must not be given with agent: agents are ours"));
    }
    // The registry stores agents by canonical name.
    match canonical_name(agent).parse::<WorkloadId>() {
        Ok(id) if id.is_agent_of(trust_domain) => Ok(Fact::workload(&id)),
        _ => Err(Error::UnknownAgent),
    }
}

fn of_fabric(fabric: &str, has_issuer: bool) -> Result<Fact, Error> {
    if has_issuer {
        return Err(invalid("issuer", "must not be given with fabric"));
    }
    Ok(Fact::fabric(bounded("fabric", fabric, limits::URI_BYTES_MAX)?))
}

fn of_token(iss: &str, jti: &str, own_issuer: &str) -> Fact {
    if iss == own_issuer { Fact::own_token(iss, jti) } else { Fact::token(iss, jti) }
}

/// An agent is its own client: revoked as a client only, it would still be listed as active.
fn of_client(client: &str, iss: &str, is_own: bool, trust_domain: &TrustDomain) -> Result<Fact, Error> {
    bounded("client", client, limits::WORKLOAD_ID_BYTES_MAX)?;
    if is_own && client.parse::<WorkloadId>().is_ok_and(|id| id.is_agent_of(trust_domain)) {
        return Err(invalid("client", "names an agent: use the field agent"));
    }
    Ok(Fact::client(iss, client))
}

/// The text, if it has 1 to `max` bytes and no control character.
pub(super) fn bounded<'t>(field: &'static str, text: &'t str, max: usize) -> Result<&'t str, Error> {
    if text::is_display(text, max) {
        Ok(text)
    } else {
        Err(invalid(field, format!("must be 1 to {max} bytes without control characters")))
    }
}

fn invalid(field: &'static str, rule: impl Into<String>) -> Error {
    Error::Invalid { field, rule: rule.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "https://fabric.example";
    const THEIRS: &str = "https://idp.example";
    const AGENT: &str = "wimse://a.example/agent/mcp/x";

    fn parse(fields: &[(&str, &str)]) -> Result<RevocationRequest, String> {
        let mut input = RevocationInput::default();
        for (name, value) in fields {
            let field = match *name {
                "subject" => &mut input.subject,
                "email" => &mut input.email,
                "agent" => &mut input.agent,
                "client" => &mut input.client,
                "jti" => &mut input.jti,
                "key" => &mut input.key,
                "fabric" => &mut input.fabric,
                "issuer" => &mut input.issuer,
                "block" => {
                    input.block = true;
                    continue;
                }
                _ => &mut input.reason,
            };
            *field = Some((*value).to_owned());
        }
        let trust_domain = "a.example".parse().expect("trust domain");
        input.validate(OURS, &trust_domain).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(fields: &[(&str, &str)], text: &str) {
        let error = parse(fields).expect_err(text);
        assert!(error.contains(text), "{fields:?}: {error}");
    }

    #[test]
    fn each_kind_maps_to_the_fact_in_the_lineage() {
        let workload = |text: &str| Fact::workload(&text.parse().expect("an id"));
        for (fields, fact) in [
            (&[("subject", "spiffe://b.example/x")][..], workload("spiffe://b.example/x")),
            (&[("subject", AGENT)], workload(AGENT)),
            (&[("subject", AGENT), ("issuer", OURS)], workload(AGENT)),
            (&[("subject", "system:x"), ("issuer", THEIRS)], Fact::subject(THEIRS, "system:x")),
            (&[("subject", AGENT), ("issuer", THEIRS)], Fact::subject(THEIRS, AGENT)),
            (&[("agent", AGENT)], workload(AGENT)),
            (&[("email", "A@x.example"), ("issuer", THEIRS)], Fact::email(THEIRS, "A@x.example")),
            (&[("client", "c")], Fact::client(OURS, "c")),
            (&[("client", AGENT), ("issuer", THEIRS)], Fact::client(THEIRS, AGENT)),
            (&[("jti", "j")], Fact::token(OURS, "j")),
            (&[("jti", "j"), ("issuer", THEIRS)], Fact::token(THEIRS, "j")),
            (&[("jti", "f.1")], Fact::own_token(OURS, "f.1")),
            (&[("jti", "f.1"), ("issuer", THEIRS)], Fact::token(THEIRS, "f.1")),
            (&[("key", "k")], Fact::signing_key(OURS, "k")),
            (&[("key", "k"), ("issuer", THEIRS)], Fact::signing_key(THEIRS, "k")),
            (&[("fabric", THEIRS)], Fact::fabric(THEIRS)),
        ] {
            let request = parse(fields).expect("well formed");
            assert_eq!(request.fact(), &fact, "{fields:?}");
            assert_eq!(request.names_agent(), fields[0].0 == "agent");
        }
    }

    #[test]
    fn exactly_one_fact_is_required() {
        let fields = ["subject", "email", "agent", "client", "jti", "key", "fabric"];
        refused(&[], "exactly one of");
        refused(&[("issuer", OURS), ("reason", "r")], "exactly one of");
        for one in fields {
            for other in fields.into_iter().filter(|other| *other != one) {
                refused(&[(one, AGENT), (other, AGENT), ("issuer", THEIRS)], "exactly one of");
            }
        }
    }

    #[test]
    fn invalid_field_is_named() {
        refused(&[("subject", "planner")], "subject: must be a workload identifier");
        refused(&[("subject", "planner"), ("issuer", OURS)], "subject: must be a workload identifier");
        refused(&[("subject", "a\nb"), ("issuer", THEIRS)], "subject: must be 1 to 2048 bytes");
        refused(&[("email", "a@x.example")], "issuer: is required with email");
        refused(&[("email", "a"), ("issuer", THEIRS)], "email: must be an email address");
        refused(&[("agent", AGENT), ("issuer", OURS)], "issuer: must not be given with agent");
        refused(&[("fabric", THEIRS), ("issuer", OURS)], "issuer: must not be given with fabric");
        refused(&[("fabric", "a\nb")], "fabric: must be 1 to");
        refused(&[("client", AGENT)], "client: names an agent");
        for agent in ["", "planner", "wimse://a.example/ns/x", "wimse://b.example/agent/mcp/x"] {
            refused(&[("agent", agent)], "there is no agent");
        }
        for name in ["client", "jti", "key"] {
            refused(&[(name, "")], &format!("{name}: must be 1 to"));
            refused(&[(name, "a\u{7}")], &format!("{name}: must be 1 to"));
            refused(&[(name, "a"), ("issuer", "")], "issuer: must be 1 to");
        }
    }

    #[test]
    fn own_issuer_and_trust_domain_cannot_be_blocked() {
        for (name, value) in [
            ("client", OURS),
            ("client", "https://fabric.example/"),
            ("client", "a.example"),
            ("client", "wimse://a.example"),
            ("client", "spiffe://a.example/"),
        ] {
            refused(&[(name, value), ("block", "")], "block: must not name this fabric");
            assert!(!parse(&[(name, value)]).expect("a watermark").block());
        }
        for value in ["https://fabric.example.org", "b.example", "spiffe://a.example/x"] {
            assert!(parse(&[("client", value), ("block", "")]).expect("another's").block(), "{value}");
        }
        refused(&[("subject", OURS), ("issuer", THEIRS), ("block", "")], "block: must not");
    }

    #[test]
    fn reason_is_printable_and_limited() {
        let with = |reason: &str| parse(&[("jti", "j"), ("reason", reason)]);
        let longest = "r".repeat(limits::REVOCATION_REASON_BYTES_MAX);
        assert_eq!(with(&longest).expect("accepted").reason(), longest);
        assert_eq!(with("").expect("accepted").reason(), "");
        for reason in [format!("{longest}r"), "a\nb".to_owned(), "caf\u{e9}".to_owned(), "\u{7f}".to_owned()]
        {
            let error = with(&reason).expect_err("refused");
            assert_eq!(error, "reason: must be at most 256 printable ASCII characters");
        }
    }
}
