//! `/v1/federation/`: wire types and translation: hash, export and sync of the ledger of this fabric's own revocations, and
//! the bundle of its roots.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use utoipa::ToSchema;

use super::cache_control::NO_STORE;
use super::caller::{Caller, LedgerReader, PeerNode, Public};
use super::error::Error;
use super::openapi::params::{IfNoneMatch, Page};
use super::paging::{self, RawQuery};
use super::{App, body, cache_control};
use crate::federation::wire::{SyncRequest, SyncResponse};
use crate::federation::{ExportQuery, HashQuery, LedgerHash, Reader};
use crate::limits;
use crate::state::{LedgerEntry, LedgerState, LinearizableRead, Sum, stated};
use crate::text::values;

/// Prefix of the `subject_id` of an entry of which only the digest is known.
const DIGEST_URN: &str = "urn:svc:digest:";

/// The hash of the ledger.
#[derive(Serialize, ToSchema)]
pub struct RevocationHash {
    /// Hash over the entries of the covered epochs and the blocks in force. Base64url.
    hash: String,
    /// Number of entries under the hash.
    count: u64,
    /// Time of the response. RFC 3339, UTC.
    timestamp: String,
    /// The algorithm of the hash.
    #[schema(value_type = values::LedgerAlgorithm)]
    algorithm: &'static str,
    /// The lowest epoch that the hash covers.
    floor: u32,
    /// The present epoch: elapsed time in steps of 600 seconds.
    epoch: u32,
    /// The log position of the last change of the ledger, for `since`.
    position: String,
    /// The entries of the requested epoch by the first byte of their `id`: 256 buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<LedgerBucket>>,
}

/// Entries of an epoch whose `id` has the same first byte.
#[derive(Serialize, ToSchema)]
pub struct LedgerBucket {
    /// Number of entries.
    count: u64,
    /// Sum of their hashes modulo 2^256, 32 bytes big-endian. Base64url.
    sum: String,
}

/// An entry of the ledger: the latest state of a fact.
#[derive(Serialize, ToSchema)]
pub struct RevocationEntry {
    /// The revoked or blocked value; `urn:svc:digest:` and the `id` if only the digest is known.
    subject_id: String,
    /// The reason, as its author stated it; may be empty, and is so if only the digest is known.
    reason: String,
    /// Of a revocation: the time of its log entry. Of a block or lift: the time of the event, as its author stated it.
    /// RFC 3339, UTC.
    revoked_at: String,
    /// The digest of the fact, as in the claim `lineage`. Base64url.
    id: String,
    /// The kind of fact; absent if only the digest is known.
    #[schema(value_type = Option<values::FactKind>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// `revoked`: everything issued before is refused. `key`: everything is refused. `blocked`: everything is refused
    /// until it is `lifted`.
    #[schema(value_type = values::LedgerState)]
    state: &'static str,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// Credentials of other issuers that were issued before are refused; only of `revoked`. RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    /// End of retention; absent for a block or lift. RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The fabric that revoked it: its `iss`.
    origin: String,
    /// The log index of the entry.
    seq: u64,
    /// The epoch of the entry.
    epoch: u32,
    /// The digest of issuer and family of a block or lift. A fact has one entry for each. Base64url.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

/// A SPIFFE bundle (SPIFFE Trust Domain and Bundle §4).
#[derive(Serialize, ToSchema)]
pub struct SpiffeBundle {
    /// The roots, each with `kty`, `use` `x509-svid`, `x5c` and the fields of its type.
    keys: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Time after which it should be read again, in seconds.
    spiffe_refresh_hint: u64,
}

/// The X.509 roots of this fabric's trust domain, by which peer fabrics verify its certificates.
#[utoipa::path(get, path = "", operation_id = "federationBundle", params(IfNoneMatch), responses(
    (status = 200, description = "The bundle", body = SpiffeBundle),
    (status = 404, description = "This fabric has no roots of its trust domain"),
    (status = 501, description = "Federation is not configured"),
))]
pub async fn bundle(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    cache_control::answer(&headers, "application/json", app.federation.bundle()?)
}

/// The hash of this fabric's own revocations, by which two copies of the ledger are compared.
#[utoipa::path(
    get, path = "", operation_id = "revocationHash",
    params(
        ("origin" = Option<String>, Query, description = "The `iss` of the fabric whose ledger is read; default: this fabric"),
        ("epoch" = Option<u32>, Query, description = "An epoch whose buckets are returned as well"),
        ("floor" = Option<u32>, Query, description = "The lowest epoch that the hash shall cover"),
    ),
    responses(
        (status = 200, description = "The hash", body = RevocationHash),
        (status = 404, description = "This node has no ledger of the origin"),
    )
)]
pub async fn hash(
    caller: Caller<LedgerReader>,
    State(app): State<App>,
    current: LinearizableRead,
    query: RawQuery,
) -> Result<Response, Error> {
    let query = paging::QueryParams::read(query, &["origin", "epoch", "floor"])?;
    let query =
        HashQuery { origin: query.value("origin"), epoch: query.value("epoch"), floor: query.value("floor") };
    let answer = hash_answer(app.federation.hash(&current, reader_of(&caller), query).await?);
    Ok((NO_STORE, Json(answer)).into_response())
}

/// A caller without a peer has `cluster.admin`.
fn reader_of(caller: &Caller<LedgerReader>) -> Reader<'_> {
    caller.peer().map_or(Reader::Operator, |peer| Reader::Peer(peer))
}

fn hash_answer(hash: LedgerHash) -> RevocationHash {
    let bucket = |sum: &Sum| LedgerBucket { count: sum.count, sum: URL_SAFE_NO_PAD.encode(sum.bytes) };
    RevocationHash {
        hash: URL_SAFE_NO_PAD.encode(hash.hash),
        count: hash.count,
        timestamp: hash.at.to_rfc3339(),
        algorithm: values::LedgerAlgorithm::TEXTS[0],
        floor: hash.floor,
        epoch: hash.epoch,
        position: hash.position.to_string(),
        buckets: hash.buckets.map(|buckets| buckets.iter().map(bucket).collect()),
    }
}

/// This fabric's own revocations, blocks and lifts, the latest entry of each.
#[utoipa::path(
    get, path = "", operation_id = "exportRevocations",
    params(
        ("since" = Option<String>, Query, description = "A log position, `<incarnation>-<index>`: only later entries"),
        ("origin" = Option<String>, Query, description = "The `iss` of the fabric whose ledger is read; default: this fabric"),
        ("epoch" = Option<u32>, Query, description = "Only revocations of this epoch, without blocks and lifts"),
        ("bucket" = Option<u8>, Query, description = "Only entries whose `id` has this first byte; needs `epoch`"),
        Page,
    ),
    responses(
        (status = 200, description = "A page, ordered by `seq`, then `id`", body = [RevocationEntry]),
        (status = 404, description = "This node has no ledger of the origin"),
        (status = 409, description = "A client that continues from `since` would miss a change"),
    )
)]
pub async fn export(
    caller: Caller<LedgerReader>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    let known = ["since", "origin", "epoch", "bucket", "limit", "cursor"];
    let query = paging::QueryParams::read(query, &known)?;
    let page = query.page()?;
    let query = ExportQuery {
        since: query.value("since"),
        origin: query.value("origin"),
        epoch: query.value("epoch"),
        bucket: query.value("bucket"),
        cursor: page.after.as_deref(),
        limit: page.limit,
    };
    let page = app.federation.export(&current, reader_of(&caller), query)?;
    let rows: Vec<_> = page.entries.into_iter().map(|entry| row_of(&app.issuer, entry)).collect();
    let next = page.next.map(|next| app.federation.write_cursor(&next)).transpose()?;
    paging::answer(&uri, &rows, next.as_deref())
}

/// The entries of our ledger after a position, for a peer fabric that keeps a copy.
///
/// The call is answered at once if there are entries, and otherwise held until there is one, for `hold_ms` at most. The
/// node proves that it is current after the call has arrived, whatever index the call names.
#[utoipa::path(
    post, path = "", operation_id = "syncLedger", request_body = SyncRequest,
    responses(
        (status = 200, description = "The entries after `since`", body = SyncResponse),
        (status = 400, description = "The request is invalid, or its `version` is not supported"),
        (status = 403, description = "The caller is no configured peer with `serve`, or an operator has paused it"),
        (status = 409, description = "`since` is ahead of the log of this fabric: one of them has lost log entries"),
        (status = 429, description = "Two calls of this peer, or 512 of all, are in flight at this node"),
        (status = 501, description = "Federation is not configured"),
        (status = 503, description = "The node is not current; the caller tries another one"),
    )
)]
pub async fn sync(
    caller: Caller<PeerNode>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let request: SyncRequest = body::json(&parts.headers, body, limits::SYNC_BODY_BYTES_MAX).await?;
    let peer = caller.peer().ok_or_else(|| Error::internal("the caller of a route for peers is no peer"))?;
    let response = app.federation.sync(peer, request).await?;
    Ok((NO_STORE, Json(response)).into_response())
}

fn row_of(origin: &str, entry: LedgerEntry) -> RevocationEntry {
    let LedgerEntry { index, epoch, state, id, by, fact, reason, at } = entry;
    let is_known = fact.is_some();
    let fact = fact.unwrap_or_default();
    let (is_revoked, is_watermark) = (state == LedgerState::Revoked, by.is_none());
    RevocationEntry {
        subject_id: if is_known { fact.value } else { format!("{DIGEST_URN}{id}") },
        reason,
        revoked_at: at.to_rfc3339(),
        id: id.to_string(),
        kind: stated(fact.kind),
        state: state.into_str(),
        issuer: stated(fact.issuer),
        not_before: is_revoked.then(|| at.to_rfc3339()),
        expires_at: is_watermark.then(|| at.plus(limits::REVOCATION_RETENTION).to_rfc3339()),
        origin: origin.to_owned(),
        seq: index,
        epoch,
        by: by.map(|by| by.to_string()),
    }
}
