//! `trust-fabric revoke …` and `trust-fabric revocations`.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use trust_fabric_client::{NodeClient, Request};

use super::Error;
use super::confirmation::{Confirmation, is_confirmed};
use super::endpoint::Call;
use super::output::{self, Format, counted, printable, printable_text};
use super::pagination;
use crate::id::WorkloadId;
use crate::limits;
use crate::token::lineage::FAMILY_END;

const REVOCATIONS: [&str; 2] = ["v1", "revocations"];
const KEYS: [&str; 3] = ["v1", "sys", "keys"];
/// Pages of a dry run between two lines of progress.
const PAGES_PER_WORD: u32 = 50;
/// Lists of a dry run, and the label of their rows.
const COVERED: [(&str, &str); 3] = [("agents", "agent "), ("tools", "tool  "), ("streams", "stream")];
/// Status of a node that cannot scan its agents now.
const BUSY: u16 = 503;
/// A SHA-256 thumbprint in base64url (RFC 7638).
const KID_LENGTH: usize = 43;
/// `jti` of our tokens; identity tokens have a number appended.
const UUID_LENGTH: usize = 36;

const EXAMPLES: &str = "\
Examples:
  trust-fabric revoke wimse://example.org/agent/mcp/0f8b... --dry-run
  trust-fabric revoke wimse://example.org/agent/mcp/0f8b... --reason 'prompt injection'
  trust-fabric revoke spiffe://example.org/gateway --block --yes
  trust-fabric revoke alice@example.org --issuer https://idp.example.org
  trust-fabric revoke 00u1a2b3 --kind subject --issuer https://idp.example.org
  trust-fabric revoke 6fa459ea-ee8a-4ca4-894e-db77e160355e      # the jti of a token

On a terminal it asks for confirmation, unless --yes is set; otherwise it revokes at once.
A signing key of another issuer is blocked: its signatures are refused until `trust-fabric unblock`. A key of the fabric
that was deleted after its rotation needs --kind key and --block.
Without --block a revocation covers only credentials issued before it: a workload that still has a credential gets new
tokens, and its client certificates are accepted. The output lists these exceptions as `not covered`.";

/// Kind of a revocation target. Its text is the field of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
enum Kind {
    /// A workload identifier; with --issuer, a subject of that issuer.
    Subject,
    /// An email address verified by --issuer.
    Email,
    /// An agent, with all that act on its behalf.
    Agent,
    /// A `client_id`.
    Client,
    /// One token, by its `jti`.
    #[strum(serialize = "jti")]
    Token,
    /// A signing key, by its `kid`.
    Key,
    /// A peer fabric, by its issuer: everything that came from it.
    Fabric,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Revoke {
    /// A workload identifier, an agent, an email address, a token's jti or a signing key's kid.
    #[arg(value_name = "SUBJECT|JTI|AGENT|KEY", allow_hyphen_values = true)]
    target: String,
    /// Issuer of the target, if not this fabric.
    #[arg(long, value_name = "ISS")]
    issuer: Option<String>,
    /// Kind of the target, if its form is ambiguous.
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Reason, stored with the revocation.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Also block it: refuse later credentials and its client certificates, until `trust-fabric unblock`.
    #[arg(long)]
    block: bool,
    /// Only show what it would affect.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Revocations {
    /// Maximum revocations to list.
    #[arg(long, value_name = "N", default_value_t = limits::PAGE_ROWS_DEFAULT)]
    limit: usize,
    #[command(flatten)]
    call: Call,
}

pub(super) fn revoke(arguments: &Revoke, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let client = arguments.call.server.client()?;
    super::wait_for(async {
        let request = request(arguments, &client).await?;
        if arguments.dry_run {
            return show(&client, &request, arguments.call.output.format, out).await;
        }
        if arguments.confirmation.is_needed() {
            let first = match page(&client, &request, "1", None).await {
                Ok((first, _)) => Some(first),
                // The node is scanning for another caller. A revocation may be urgent and does not wait for that.
                Err(Error::Answer(error)) if error.status() == Some(BUSY) => None,
                Err(error) => return Err(error),
            };
            if !is_confirmed(&question(&request, first.as_ref()))? {
                return Err(Error::NotConfirmed { needs_yes: false });
            }
        }
        // A repeated revocation is the same row. It does not depend on the quota of idempotency keys.
        let request = Request { is_repeatable: true, ..Request::post(&REVOCATIONS, &request) };
        let receipt = client.send(&request).await?.body;
        Ok(write_receipt(out, arguments.call.output.format, &receipt)?)
    })
}

/// Request body for the node.
async fn request(arguments: &Revoke, client: &NodeClient) -> Result<Value, Error> {
    let Revoke { target, issuer, reason, .. } = arguments;
    let kind = match arguments.kind {
        Some(kind) => kind,
        None => match target_kind(target, issuer.is_some())? {
            TargetKind::Kind(kind) => kind,
            TargetKind::PerhapsKey if is_known_key(client, target).await? => Kind::Key,
            TargetKind::PerhapsKey => return Err(Error::AmbiguousTarget(printable(target))),
        },
    };
    let mut request = Map::from_iter([(kind.into_str().to_owned(), json!(target))]);
    request.extend(issuer.iter().map(|issuer| ("issuer".to_owned(), json!(issuer))));
    request.extend(reason.iter().map(|reason| ("reason".to_owned(), json!(reason))));
    request.extend(arguments.block.then(|| ("block".to_owned(), json!(true))));
    Ok(request.into())
}

/// Kind of a target as far as its form determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetKind {
    Kind(Kind),
    /// A key, if the node has one with this `kid`.
    PerhapsKey,
}

/// Determines the kind by the form; an ambiguous form is an error.
fn target_kind(target: &str, has_issuer: bool) -> Result<TargetKind, Error> {
    let ambiguous = || Error::AmbiguousTarget(printable(target));
    match target.parse::<WorkloadId>() {
        // The issuer's own name for a subject, or our identifier with a superfluous issuer.
        Ok(_) if has_issuer => return Err(ambiguous()),
        Ok(id) if id.is_agent_of(id.trust_domain()) => return Ok(TargetKind::Kind(Kind::Agent)),
        Ok(_) => return Ok(TargetKind::Kind(Kind::Subject)),
        Err(_) => {}
    }
    if target.contains('@') {
        return if has_issuer { Ok(TargetKind::Kind(Kind::Email)) } else { Err(Error::EmailWithoutIssuer) };
    }
    if has_issuer {
        return Err(ambiguous());
    }
    let is_base64url = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if is_own_jti(target) {
        Ok(TargetKind::Kind(Kind::Token))
    } else if target.len() == KID_LENGTH && target.bytes().all(is_base64url) {
        Ok(TargetKind::PerhapsKey)
    } else {
        Err(ambiguous())
    }
}

/// A UUID; of an identity token, its family and a number.
fn is_own_jti(target: &str) -> bool {
    let (family, number) = target.split_once(FAMILY_END).unwrap_or((target, "0"));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    family.len() == UUID_LENGTH && uuid::Uuid::parse_str(family).is_ok() && is_number
}

async fn is_known_key(client: &NodeClient, kid: &str) -> Result<bool, Error> {
    let keys = client.get(&KEYS).await?;
    Ok(keys.as_array().into_iter().flatten().any(|key| key["kid"] == *kid))
}

async fn page(
    client: &NodeClient,
    request: &Value,
    limit: &str,
    cursor: Option<&str>,
) -> Result<(Value, Option<String>), Error> {
    let mut query = vec![("dry_run", "true"), ("limit", limit)];
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    let response = client.send(&Request { query: &query, ..Request::post(&REVOCATIONS, request) }).await?;
    Ok((response.body, response.next))
}

/// Shows all pages of a dry run; as JSON, one page per line.
async fn show(
    client: &NodeClient,
    request: &Value,
    format: Format,
    out: &mut (dyn Write + Send),
) -> Result<(), Error> {
    let limit = limits::PAGE_ROWS_MAX.to_string();
    let (mut cursor, mut pages, mut rows) = (None::<String>, 0_u32, 0_usize);
    loop {
        let (page, next) = page(client, request, &limit, cursor.as_deref()).await?;
        if format == Format::Json {
            writeln!(out, "{page}")?;
        } else {
            write_page(out, &page, cursor.is_none())?;
        }
        rows += COVERED.iter().filter_map(|(field, _)| Some(page[field].as_array()?.len())).sum::<usize>();
        if next.is_none() {
            return Ok(out.flush()?);
        }
        cursor = next;
        pages += 1;
        if pages.is_multiple_of(PAGES_PER_WORD) {
            writeln!(io::stderr(), "{rows} agents, tools and streams so far")?;
        }
    }
}

/// Writes a page, after a summary if it is the first.
fn write_page(out: &mut dyn Write, page: &Value, is_first: bool) -> io::Result<()> {
    if is_first {
        writeln!(out, "dry run: revoking {} would affect", target(page))?;
        writeln!(out, "  {}", affected(page))?;
    }
    for (field, name) in COVERED {
        for id in page[field].as_array().into_iter().flatten().filter_map(Value::as_str) {
            writeln!(out, "{name}  {}", printable(id))?;
        }
    }
    Ok(())
}

fn write_receipt(out: &mut dyn Write, format: Format, receipt: &Value) -> io::Result<()> {
    if format == Format::Json {
        return output::json(out, receipt);
    }
    let blocked = if receipt["blocked"] == true { " and blocked" } else { "" };
    writeln!(out, "{} is revoked{blocked}, with everything that derives from it", target(receipt))?;
    writeln!(out, "  id      {}", printable_text(receipt, "id"))?;
    if let Some(agents) = receipt["agents"].as_u64() {
        writeln!(out, "  agents  {agents}")?;
    }
    writeln!(out, "  at      {} (log index {})", printable_text(receipt, "revoked_at"), receipt["index"])?;
    let left: Vec<_> =
        receipt["not_covered"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !left.is_empty() {
        writeln!(out, "  not covered: {}; --block refuses them too", printable(&left.join(", ")))?;
    }
    Ok(())
}

/// Kind, value and issuer.
fn target(answer: &Value) -> String {
    let issuer = printable_text(answer, "issuer");
    let of = if issuer.is_empty() { String::new() } else { format!(" of {issuer}") };
    format!("{} {}{of}", printable_text(answer, "kind"), printable_text(answer, "value"))
}

fn affected(page: &Value) -> String {
    let stays = |field: &str, one: &str, many: &str| match page["counts"][field].as_u64().unwrap_or_default()
    {
        0 => String::new(),
        count => format!("; {}", counted(count, one, many)),
    };
    let tools = stays(
        "tools",
        "tool that it registered stays registered",
        "tools that it registered stay registered",
    );
    let streams = stays("streams", "stream that it created stays", "streams that it created stay");
    let already = if page["is_revoked"] == true { " (already revoked)" } else { "" };
    let agents = match page["counts"]["agents"].as_u64() {
        Some(agents) => counted(agents, "agent", "agents"),
        None if page["kind"] == "key" => {
            "every agent whose last token it signed: cannot be counted".to_owned()
        }
        None => "the agents that derive from it: cannot be counted".to_owned(),
    };
    format!("{agents}, and every token that derives from it{tools}{streams}{already}")
}

/// The confirmation prompt. Without a page of a dry run it has no counts.
fn question(request: &Value, page: Option<&Value>) -> String {
    let (target, affected) = match page {
        Some(page) => (target(page), affected(page)),
        None => (requested_target(request), "the number of affected agents is not available now".to_owned()),
    };
    let verb = if request["block"] == true { "revoke and block" } else { "revoke" };
    format!("{verb} {target}?\n  {affected}\ncannot be undone; {verb}? [y/N] ")
}

/// Kind, value and issuer of a request.
fn requested_target(request: &Value) -> String {
    let mut names = ["subject", "email", "agent", "client", "jti", "key", "fabric"].into_iter();
    let name = names.find(|name| request.get(*name).is_some()).unwrap_or_default();
    let issuer = printable_text(request, "issuer");
    let of = if issuer.is_empty() { String::new() } else { format!(" of {issuer}") };
    format!("{name} {}{of}", printable_text(request, name))
}

pub(super) fn list(arguments: &Revocations, out: &mut dyn Write) -> Result<(), Error> {
    let columns = [
        ("kind", "kind"),
        ("value", "value"),
        ("issuer", "issuer"),
        ("revoked", "revoked_at"),
        ("by", "by"),
        ("reason", "reason"),
        ("id", "id"),
    ];
    pagination::list(&arguments.call, &REVOCATIONS, arguments.limit, &columns, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_determined_by_form_and_never_guessed() {
        let kid = "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs";
        for (target, has_issuer, kind) in [
            ("wimse://a.example/agent/mcp/x", false, TargetKind::Kind(Kind::Agent)),
            ("spiffe://a.example/ns/x/sa/agent", false, TargetKind::Kind(Kind::Subject)),
            ("wimse://a.example/agents/x", false, TargetKind::Kind(Kind::Subject)),
            ("alice@a.example", true, TargetKind::Kind(Kind::Email)),
            ("6fa459ea-ee8a-4ca4-894e-db77e160355e", false, TargetKind::Kind(Kind::Token)),
            ("6fa459ea-ee8a-4ca4-894e-db77e160355e.18014398509481984", false, TargetKind::Kind(Kind::Token)),
            (kid, false, TargetKind::PerhapsKey),
        ] {
            assert_eq!(target_kind(target, has_issuer).expect(target), kind, "{target}");
        }
        for (target, has_issuer) in [
            ("wimse://a.example/agent/mcp/x", true),
            ("6fa459ea-ee8a-4ca4-894e-db77e160355e", true),
            ("6fa459eaee8a4ca4894edb77e160355e", false),
            ("6fa459ea-ee8a-4ca4-894e-db77e160355e.", false),
            ("6fa459ea-ee8a-4ca4-894e-db77e160355e.x", false),
            (".1", false),
            (kid, true),
            (&kid[1..], false),
            ("planner", false),
            ("system:serviceaccount:demo:reporter", false),
            ("system:serviceaccount:demo:reporter", true),
            ("", false),
        ] {
            let output = target_kind(target, has_issuer);
            assert!(matches!(output, Err(Error::AmbiguousTarget(_))), "{target}: {output:?}");
        }
        assert!(matches!(target_kind("alice@a.example", false), Err(Error::EmailWithoutIssuer)));
    }

    #[test]
    fn busy_node_does_not_prevent_the_prompt() {
        let request = json!({"email": "a\u{7}@b.example", "issuer": "https://i.example", "reason": "r"});
        let requested_target = question(&request, None);
        assert!(
            requested_target.starts_with("revoke email a")
                && requested_target.contains(" of https://i.example?\n"),
            "{requested_target}"
        );
        assert!(
            requested_target.contains("not available now") && requested_target.ends_with("[y/N] "),
            "{requested_target}"
        );
        assert!(!requested_target.contains('\u{7}'), "{requested_target:?}");
        let key = json!({"kind": "key", "value": "k", "counts": {"agents": null, "tools": 0, "streams": 0}});
        let requested_target = question(&json!({"key": "k"}), Some(&key));
        assert!(
            requested_target.starts_with("revoke key k?\n") && requested_target.contains("cannot be counted"),
            "{requested_target}"
        );
    }

    #[test]
    fn control_characters_of_a_response_are_replaced() {
        let page = json!({
            "kind": "agent", "value": "\u{1b}[2Jx", "is_revoked": true,
            "counts": {"agents": 2, "tools": 1, "streams": 1}, "agents": ["a\nb", "c"], "tools": ["\u{7}"],
            "streams": ["s"],
        });
        let mut output = Vec::new();
        write_page(&mut output, &page, true).expect("written");
        let output = String::from_utf8(output).expect("text");
        assert_eq!(output.lines().count(), 6, "{output}");
        assert!(!output.contains(['\u{1b}', '\u{7}']), "{output:?}");
        assert!(
            output.contains("2 agents") && output.contains("1 tool that it registered stays"),
            "{output}"
        );
        assert!(
            output.contains("1 stream that it created stays") && output.contains("already revoked"),
            "{output}"
        );
    }
}
