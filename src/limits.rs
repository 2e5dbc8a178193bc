//! Every limit of a node, in one table: name, value, unit and reason.
//!
//! A queue, body, list, cache or wait that grows without a line here is a bug; constants of a file or text format are
//! exempt. `make fix` writes `docs/reference/limits.md` from this file; a house rule compares the two. A doc may end with
//! the metric that shows how often the limit was exceeded; the house rule checks that the metric exists.

use std::time::Duration;

// --- input -------------------------------------------------------------------------------------

/// Maximum size of a request body; beyond it: 413.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Maximum part of an oversized request body that is read and discarded, so that its sender reads the
/// response.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const BODY_DISCARDED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum size of a compact JWS, checked before it is decoded (contract §3).
/// Metric: `svc_exchange_total{result="invalid_request"}`.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Maximum nesting depth of a JSON document (contract §1).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const JSON_DEPTH_MAX: usize = 32;
/// Maximum length of a workload identifier (SPIFFE-ID §2.3, WIMSE identifier §4).
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const WORKLOAD_ID_BYTES_MAX: usize = 2048;
/// Maximum length of a trust domain name (SPIFFE-ID §2.1).
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const TRUST_DOMAIN_BYTES_MAX: usize = 255;
/// Maximum length of a `kid`.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const KID_BYTES_MAX: usize = 256;
/// Maximum length of a `nonce`, `jti`, `txn` or idempotency key.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const OPAQUE_BYTES_MAX: usize = 256;
/// Maximum length of an `htu`, `target` or audience.
/// Metric: `svc_exchange_total{result="invalid_request"}`.
pub const URI_BYTES_MAX: usize = 2048;
/// Maximum words per `scope`, and entries per `capabilities` list.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const CAPABILITIES_MAX: usize = 128;
/// Maximum length of one scope word or capability.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const CAPABILITY_BYTES_MAX: usize = 128;

/// Rows per page of a list if the request has no `limit` (contract §1).
pub const PAGE_ROWS_DEFAULT: usize = 100;
/// Maximum rows per page of a list (contract §1); beyond it: 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const PAGE_ROWS_MAX: usize = 1000;

// --- tokens ------------------------------------------------------------------------------------

/// Lifetime of an exchanged token (specification, Limits).
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// Lifetime of an execution-scoped token (specification, Limits).
pub const EXECUTION_TOKEN_LIFETIME: Duration = Duration::from_secs(30);
/// Leeway on the time claims of a credential (contract §3). The `exp` of an execution-scoped token has none.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const LEEWAY: Duration = Duration::from_secs(5);
/// Default maximum age of a credential. A chain of exchanges ends at most that long after the
/// issue of its first credential.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const CREDENTIAL_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum actors nested in `act` (contract §3).
/// Metric: `svc_exchange_total{result="delegation"}`.
pub const ACT_DEPTH_MAX: usize = 10;
/// Maximum digests in `lineage` (contract §3).
/// Metric: `svc_exchange_total{result="lineage"}`.
pub const LINEAGE_MAX: usize = 32;
/// Maximum peer fabrics in `via`.
/// Metric: `svc_exchange_total{result="lineage"}`.
pub const VIA_MAX: usize = 2;
/// Maximum NumericDate: the end of the year 9999.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const NUMERIC_DATE_MAX_SECS: i64 = 253_402_300_799;
/// Maximum length of a verified email address. RFC 3696 erratum 1690 allows 254 bytes; some issuers exceed
/// that.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const EMAIL_BYTES_MAX: usize = 320;
/// Maximum delegation depth.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const DELEGATION_DEPTH_MAX: u32 = 10;

// --- revocations ---------------------------------------------------------------------------------

/// Retention of a revocation, in elapsed time and in log time: [`CREDENTIAL_AGE_MAX`], which no credential and no
/// chain outlives, and a margin for clocks.
/// Metric: `svc_revocations`.
pub const REVOCATION_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Retention of the identity of a received SET, in elapsed time: until the SET would be rejected for its age.
/// Metric: `svc_signals_total{result="duplicate"}`.
pub const SIGNAL_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Maximum retained revocations; a signal beyond it: 503.
/// Metric: `svc_revocations`.
pub const REVOCATIONS_MAX: u64 = 12_000_000;
/// Maximum retained revocations from the signals of one issuer.
/// Metric: `svc_signals_total{result="unavailable"}`.
pub const REVOCATIONS_PER_ISSUER_MAX: u64 = 10_000_000;
/// Maximum revocations by operators on top of [`REVOCATIONS_MAX`].
/// Metric: `svc_revocations`.
pub const OPERATOR_REVOCATIONS_MAX: u64 = 100_000;
/// Maximum retained subject blocks, lifted ones included; a signal beyond it: 503.
/// Metric: `svc_signals_total{result="unavailable"}`.
pub const SUBJECT_BLOCKS_MAX: u64 = 1_000_000;
/// Maximum retained subject blocks per issuer.
/// Metric: `svc_signals_total{result="unavailable"}`.
pub const SUBJECT_BLOCKS_PER_ISSUER_MAX: u64 = 500_000;
/// Maximum subject blocks read per page of their list, lifted ones included; beyond it: the page ends early.
pub const SUBJECT_BLOCKS_READ_PER_PAGE: usize = 10_000;
/// Maximum expired revocations and subject blocks removed per log entry, unless the entry adds half as many.
pub const REVOCATIONS_EXPIRED_PER_ENTRY: usize = 256;
/// Maximum ledger entries read per page of the export, selected or not; beyond it: the page ends early.
pub const LEDGER_ROWS_READ_PER_PAGE: usize = 10_000;
/// Maximum ledger entries read per step of a scan for the buckets of an epoch, or for a response to a peer,
/// so that other requests proceed.
pub const LEDGER_ROWS_PER_STEP: usize = 1024;
/// Maximum concurrent scans of epochs for their buckets per node, for operators, and as many for peers; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const LEDGER_SCANS_MAX: usize = 1;
/// Maximum attempts to scan an epoch whose entries change meanwhile; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const LEDGER_SCAN_ATTEMPTS_MAX: usize = 3;
/// Retention of an entry of a peer's ledger after its import, in elapsed time: longer than the lifetime of a
/// token of a peer fabric. Tokens older than the newest removed entry are refused.
pub const FEDERATED_RETENTION: Duration = Duration::from_secs(65 * 60);
/// Epochs for which an entry of a peer's ledger is retained after it was written there. An entry that is
/// older when it arrives is removed at once.
pub const FEDERATED_EPOCHS: u32 = 7;
/// Maximum epochs with entries per copy of a peer's ledger; beyond it: the import is refused.
pub const FEDERATED_EPOCHS_MAX: usize = 256;
/// Maximum entries and blocks of all peers, 29 bytes each in memory; beyond it: the import is refused, and the peer becomes
/// stale.
pub const FEDERATED_ENTRIES_MAX: u32 = 6_000_000;
/// Maximum entries of a peer's ledger imported by one command; beyond it: the import is refused.
pub const FEDERATED_ENTRIES_PER_IMPORT_MAX: usize = 256;
/// Maximum expired entries of peers' ledgers removed per log entry, unless the log entry adds half as many.
pub const FEDERATED_ENTRIES_EXPIRED_PER_ENTRY: usize = 256;
/// Maximum size of the JWK Set of a peer; beyond it: the import is refused.
pub const FEDERATED_KEY_SET_BYTES_MAX: usize = 128 * 1024;
/// Maximum peers of which something was ever imported or set; beyond it: the first import of another is refused.
pub const FEDERATED_PEERS_MAX: usize = 1000;
/// Maximum replaced incarnations retained per peer: tokens of an older one are not judged.
pub const RETIRED_INCARNATIONS_MAX: usize = 16;
/// Maximum length of the `reason` of an operator's revocation.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const REVOCATION_REASON_BYTES_MAX: usize = 256;
/// Maximum concurrent scans of all agents per node. Beyond it a dry run is answered 503; a revocation is
/// applied and reports no count.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AGENT_SCANS_MAX: usize = 1;
/// Maximum duration of the count of agents that a revocation covers; beyond it: the response has no count.
pub const AGENT_COUNT_WAIT: Duration = Duration::from_secs(2);
/// Maximum agents or tools read per step of a scan, so that other requests proceed.
pub const AGENT_SCAN_ROWS_PER_STEP: usize = 256;

// --- agents ------------------------------------------------------------------------------------

/// Lifetime of an agent identity token (contract §4).
pub const AGENT_TOKEN_LIFETIME: Duration = TOKEN_LIFETIME_MAX;
/// Maximum lifetime of an agent identity; after it the token is not renewed (contract §4).
/// Metric: `svc_http_requests_total{status="403"}`.
pub const AGENT_LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Retention of an ended agent.
pub const ENDED_AGENT_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Maximum retained agents in the cluster, ended ones included.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const AGENTS_MAX: u64 = 1_000_000;
/// Maximum retained agents per caller.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const AGENTS_PER_CALLER_MAX: u64 = 500_000;
/// Maximum ended agents removed per issued agent: more than one, so that their number falls.
pub const ENDED_AGENTS_REMOVED_PER_ISSUE: usize = 2;
/// Maximum length of `agent_name`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const AGENT_NAME_BYTES_MAX: usize = 256;
/// Maximum total length of the capabilities of an agent. They are in its token twice, and a bearer token has
/// to fit into a request head.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const AGENT_CAPABILITIES_BYTES_MAX: usize = 2048;
/// Maximum entries in the `metadata` of an agent.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_MAX: usize = 64;
/// Maximum length of a name in `metadata`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_NAME_BYTES_MAX: usize = 128;
/// Maximum length of a value in `metadata`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_VALUE_BYTES_MAX: usize = 512;

// --- signals -----------------------------------------------------------------------------------

/// Maximum subject identifiers in a `sub_id` of format `aliases`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SUBJECT_ALIASES_MAX: usize = 16;
/// Maximum security events in a received SET. Transmitted SETs have one (CAEP interoperability profile).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_EVENTS_MAX: usize = 16;
/// Maximum distance of the `iat` and the event time of a SET into the future (contract §6).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_IAT_AHEAD_MAX: Duration = Duration::from_secs(60);
/// Maximum age of a SET (contract §6). The keys that sign SETs stay published for as long.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum length of an event `family` in a policy output.
/// Metric: `svc_policy_decisions_total{decision="error"}`.
pub const SIGNAL_FAMILY_BYTES_MAX: usize = 64;

// --- keys --------------------------------------------------------------------------------------

/// Time for which a signing key is published before it may sign (contract §3).
/// Metric: `svc_signing_keys{state="pending"}`.
pub const KEY_PUBLISH_AHEAD: Duration = Duration::from_secs(600);
/// Maximum lifetime of a token that a signing key signs: that of an agent identity token (contract §4). SETs
/// have no `exp`; for them see [`SET_AGE_MAX`].
/// Metric: `svc_signing_keys{state="retired"}`.
pub const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(3600);
/// Maximum signing keys in the cluster, of all algorithms. A key whose last token has expired does not count.
/// Metric: `svc_signing_keys`, `svc_http_requests_total{status="409"}`.
pub const SIGNING_KEYS_MAX: usize = 256;
/// Interval at which a node checks that it has the signing keys it needs. It also checks after each change of
/// a key.
/// Metric: `svc_signing_keys{state="pending"}`.
pub const SIGNING_KEY_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// `max-age` of a JWK Set in caches (contract §1).
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(60);
/// Maximum request body of an encryption key registration. The largest accepted RSA key has 1.4 KB.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const ENCRYPTION_KEY_BODY_BYTES_MAX: usize = 16 * 1024;
/// Maximum encryption keys per subject; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const ENCRYPTION_KEYS_PER_SUBJECT_MAX: usize = 16;
/// Maximum subjects with encryption keys per trust domain, not counting agents issued here; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const ENCRYPTION_KEY_SUBJECTS_MAX: u64 = 10_000;
/// Lifetime of an encryption key after its last registration, in elapsed time, if its subject is not an agent
/// issued here.
pub const ENCRYPTION_KEY_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum ended encryption keys removed per registration: more than one, so that their number falls.
pub const ENDED_ENCRYPTION_KEYS_REMOVED_PER_REGISTRATION: usize = 4;
/// Maximum encryption keys removed in one step when a fact is revoked. The others are not returned meanwhile:
/// the revocation is retained until they are removed.
pub const ENCRYPTION_KEYS_REMOVED_PER_STEP: usize = 64;

// --- stream requests ---------------------------------------------------------------------------

/// Maximum length of an event type URI that a stream requests; beyond it: 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const EVENT_TYPE_BYTES_MAX: usize = 256;
/// Maximum length of the `state` of a verification request; beyond it: 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const VERIFICATION_STATE_BYTES_MAX: usize = 256;
/// Maximum attempts to change a stream that others change concurrently; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_UPDATE_ATTEMPTS_MAX: u32 = 8;

// --- signal receiver ---------------------------------------------------------------------------

/// Default maximum of facts that the signals of one issuer may revoke, block or lift per minute; beyond it:
/// 429 until the next minute, or until an operator grants more.
/// Metric: `svc_signals_total{result="quota"}`.
pub const REVOCATIONS_PER_MINUTE: u32 = 6_000;
/// Maximum configurable value of that quota.
pub const REVOCATIONS_PER_MINUTE_MAX: u32 = 1_000_000;
/// Maximum credential issuers for whose subjects one signal issuer is authoritative.
pub const SUBJECT_ISSUERS_MAX: usize = 16;
/// Maximum effects of one signal: its revocations, blocks and lifts, for each fact of its subject.
/// Metric: `svc_signals_total{result="invalid"}`.
pub const SIGNAL_EFFECTS_MAX: usize = 512;
/// Maximum retained length of the reason in a signal; beyond it: truncated.
pub const SIGNAL_REASON_BYTES_MAX: usize = 256;

// --- streams and feed --------------------------------------------------------------------------

/// Maximum streams in the cluster; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAMS_MAX: u64 = 1_000;
/// Maximum streams per caller; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAMS_PER_CALLER_MAX: u64 = 100;
/// Maximum excluded subjects per stream; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const EXCLUDED_SUBJECTS_PER_STREAM_MAX: usize = 64;
/// Maximum total size of the excluded subjects of a stream, as JSON; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const EXCLUDED_SUBJECTS_BYTES_MAX: usize = 16 * 1024;
/// Maximum events of a stream that are completed out of order, ahead of its cursor; beyond it: delivered
/// again.
pub const STREAM_WINDOW: usize = 1_000;
/// Maximum backlog of a stream, in events; beyond it the oldest are dropped and the stream is paused
/// (contract §6).
pub const STREAM_BACKLOG_EVENTS_MAX: usize = 100_000;
/// Maximum time for which a stream retains an undelivered event (contract §6).
pub const STREAM_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Retention of events in the outbox, in elapsed time: a little longer than [`STREAM_RETENTION`].
pub const OUTBOX_RETENTION: Duration = Duration::from_secs(24 * 3600 + 600);
/// Maximum size of the outbox with the overhead of its rows; beyond it the oldest events are dropped: a stream that had not
/// delivered them is paused, with that reason, and counts them as dropped.
pub const OUTBOX_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Maximum events dropped per appended event, unless that one is larger: more than one, so that their number
/// falls.
pub const OUTBOX_EVENTS_DROPPED_PER_APPEND: usize = 4;
/// Maximum size of a relayed event (claims, subject identifier and `txn`, as JSON); a signal beyond it: 400.
/// The SET that carries it stays within [`TOKEN_BYTES_MAX`], so that a receiver of this product accepts it.
/// Metric: `svc_signals_total{result="invalid"}`.
pub const RELAYED_EVENT_BYTES_MAX: usize = 5 * 1024;
/// Maximum event types that a stream can request.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_EVENT_TYPES_MAX: usize = 64;
/// Maximum length of the description of a stream.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_DESCRIPTION_BYTES_MAX: usize = 256;
/// Maximum length of the reason for a stream status.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_REASON_BYTES_MAX: usize = 256;
/// Maximum retained dead letters per stream; beyond it the oldest are dropped. The counter includes dropped
/// ones.
pub const DEAD_LETTERS_PER_STREAM_MAX: usize = 1_000;
/// Maximum size of the subject identifier in a dead letter, as JSON; a larger one is left out.
pub const DEAD_LETTER_SUBJECT_BYTES_MAX: usize = 512;
/// Minimum time between two verifications of a stream, in elapsed time; sooner: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const VERIFICATION_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Maximum retained events of the live feed. A subscriber that resumes from an older one receives `reset`.
pub const FEED_EVENTS_MAX: u64 = 100_000;
/// Events of the live feed that are dropped together.
pub const FEED_EVENTS_DROPPED_TOGETHER: usize = 1_024;
/// Maximum retained length of a text in the live feed; beyond it: truncated.
pub const FEED_TEXT_BYTES_MAX: usize = 512;

// --- poll delivery -----------------------------------------------------------------------------

/// Maximum SETs per response to a poll, also if `maxEvents` is larger (RFC 8936 §2.2).
pub const POLL_EVENTS_MAX: usize = 100;
/// Size of the events in a response to a poll beyond which none is added; the next poll continues.
pub const POLL_RESPONSE_BYTES_FULL: usize = 256 * 1024;
/// Maximum request body of a poll.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const POLL_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Maximum tokens that one poll acknowledges, and that it rejects.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const POLL_OUTCOMES_MAX: usize = 1_000;
/// Maximum length of the error code with which a receiver rejects a SET.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_ERR_BYTES_MAX: usize = 64;
/// Maximum length of the description with which a receiver rejects a SET; beyond it: truncated.
pub const SET_ERR_DESCRIPTION_BYTES_MAX: usize = 256;
/// Maximum wait of a long poll. It leaves time for the work before and after the wait within
/// [`REQUEST_TIMEOUT`].
/// Metric: `svc_polls_waiting`.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum waiting polls per node; beyond it: 503.
/// Metric: `svc_polls_waiting`.
pub const POLLS_WAITING_MAX: usize = 256;
/// Maximum waiting polls per caller, enough for one per stream and a few more; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLLS_WAITING_PER_CALLER_MAX: usize = 128;
/// Maximum outbox rows read per scan of a poll.
pub const POLL_SCAN_ROWS_MAX: usize = 10_000;
/// Maximum outbox rows read per step of a scan, so that other requests proceed.
pub const POLL_SCAN_ROWS_PER_STEP: usize = 256;
/// Minimum non-matching rows for which a poll writes the cursor of its stream.
pub const POLL_CURSOR_ADVANCE_ROWS_MIN: usize = 1_000;
/// Maximum concurrent outbox scans or signings by polls per node; beyond it a poll waits for
/// [`POLL_SCAN_WAIT`].
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_SCANS_MAX: usize = 4;
/// Maximum concurrent outbox scans or signings by polls per caller; beyond it: its other polls wait.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_SCANS_PER_CALLER_MAX: usize = 2;
/// Maximum wait of a poll for a scan permit; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_SCAN_WAIT: Duration = Duration::from_secs(2);
/// Maximum attempts of a poll to record acknowledgements while others do so too; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_ADVANCE_ATTEMPTS_MAX: usize = 8;
/// Maximum size of the cache of signed SETs, which serves retries.
pub const SETS_CACHED_BYTES_MAX: u64 = 16 * 1024 * 1024;

// --- outbound calls ----------------------------------------------------------------------------

/// Maximum time to connect to another host: DNS lookup, TCP connection and TLS handshake, over all of its
/// addresses.
pub const OUTBOUND_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum calls in flight per host, for pushes and for fetches each. The others wait: a fetch within
/// [`FETCH_TIMEOUT`], a push for [`PUSH_PERMIT_WAIT_MAX`].
pub const OUTBOUND_CALLS_PER_HOST_MAX: usize = 16;
/// Maximum calls in flight, for pushes and for fetches each. The others wait as above.
pub const OUTBOUND_CALLS_MAX: usize = 256;
/// Maximum concurrent DNS lookups, for pushes and for fetches each: more than the hosts of one caller's
/// streams need. A lookup whose caller has gone counts until it ends.
/// Metric: `svc_push_total{result="no_place"}`.
pub const OUTBOUND_LOOKUPS_MAX: usize = 256;
/// Maximum wait for a lookup permit: short enough for a lookup and a connection to follow within
/// [`OUTBOUND_CONNECT_TIMEOUT`].
/// Metric: `svc_push_total{result="no_place"}`.
pub const OUTBOUND_LOOKUP_WAIT_MAX: Duration = Duration::from_secs(1);
/// Maximum concurrent DNS lookups of one name.
pub const OUTBOUND_LOOKUPS_PER_NAME_MAX: usize = 2;
/// Maximum addresses that are tried per name: few, because they share the time to connect.
pub const OUTBOUND_ADDRESSES_MAX: usize = 4;
/// Maximum idle connections kept open per host.
pub const OUTBOUND_IDLE_PER_HOST_MAX: usize = 2;
/// Maximum time for which an idle connection stays open.
pub const OUTBOUND_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum networks in `outbound.allowed_networks`.
pub const OUTBOUND_NETWORKS_MAX: usize = 64;
/// Maximum pushes in flight for all streams of one caller; the others wait for [`PUSH_PERMIT_WAIT_MAX`].
/// Metric: `svc_push_total{result="no_place"}`.
pub const PUSHES_PER_CALLER_MAX: usize = 32;
/// Maximum pushes in flight for the streams of one caller to one host, so that other callers reach it.
/// Metric: `svc_push_total{result="no_place"}`.
pub const PUSHES_PER_CALLER_AND_HOST_MAX: usize = 8;
/// Maximum wait of a push for its permit; beyond it the push is queued again and does not count as a failure
/// of the receiver.
/// Metric: `svc_push_total{result="no_place"}`.
pub const PUSH_PERMIT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum time of a push that has its permit, to the last byte of the response that is read.
pub const PUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the body of a 403 response to a push; beyond it: the status alone counts.
pub const PUSH_REFUSAL_BODY_WAIT: Duration = Duration::from_secs(1);
/// Maximum body of a 400 or 403 response to a push. The body of other responses is not read.
pub const PUSH_RESPONSE_BYTES_MAX: usize = 64 * 1024;

// --- peer fabrics ------------------------------------------------------------------------------

/// Maximum peer fabrics; beyond it: refused at start.
pub const PEER_FABRICS_MAX: usize = 300;
/// Maximum length of the name of a peer fabric.
pub const PEER_FABRIC_NAME_BYTES_MAX: usize = 32;
/// Maximum endpoints, SPIFFE IDs and trust domains per peer fabric, each.
pub const PEER_FABRIC_NODES_MAX: usize = 64;
/// Time without a response of a peer fabric after which its credentials are refused, unless it is configured.
pub const PEER_FABRIC_STALE_AFTER: Duration = Duration::from_secs(60);
/// Minimum of that time.
pub const PEER_FABRIC_STALE_AFTER_MIN: Duration = Duration::from_secs(2);
/// Maximum of that time.
pub const PEER_FABRIC_STALE_AFTER_MAX: Duration = Duration::from_secs(300);
/// Time without a response of a peer fabric after which its credentials are refused, with `honour_lease`. A fabric that waits
/// for the lease of a peer waits for that time.
pub const PEER_FABRIC_LEASE: Duration = Duration::from_secs(5);
/// Maximum peer fabrics for which revocations wait (`await`); beyond it: refused at start.
pub const AWAITED_PEERS_MAX: usize = 16;
/// Time after which a chain that came from a peer fabric must return to it, unless it is configured.
pub const PEER_FABRIC_CHAIN: Duration = Duration::from_secs(900);
/// Minimum of that time.
pub const PEER_FABRIC_CHAIN_MIN: Duration = Duration::from_secs(60);
/// `Retry-After` of the refusal of a credential whose peer fabric has not responded lately, in seconds.
/// Metric: `svc_exchange_total{result="peer_unjudged"}`.
pub const PEER_FABRIC_UNJUDGED_RETRY_SECS: u32 = 5;
/// Interval of the pings on a connection to a peer fabric.
pub const PEER_FABRIC_PING_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the response to a ping; beyond it: the connection is closed.
pub const PEER_FABRIC_PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Refresh interval that the bundle of our roots requests from its clients.
pub const BUNDLE_REFRESH_HINT: Duration = Duration::from_secs(60);
/// Maximum size of the body of a call between fabrics; beyond it: 413.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const SYNC_BODY_BYTES_MAX: usize = 4 * 1024;
/// Maximum entries in a response to a call between fabrics.
pub const SYNC_ENTRIES_MAX: usize = 5000;
/// Minimum of that number after calls that were not answered in time: each of them halves it, each response doubles it again.
pub const SYNC_ENTRIES_MIN: usize = 100;
/// Maximum size of a response to a call between fabrics; a larger one is neither sent nor accepted.
/// Metric: `svc_federation_calls_total{result="unanswered"}`.
pub const SYNC_RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of a page cursor in a response of a peer.
/// Metric: `svc_federation_calls_total{result="malformed"}`.
pub const SYNC_CURSOR_BYTES_MAX: usize = 256;
/// Maximum length of the tag of a peer's key set.
/// Metric: `svc_federation_calls_total{result="malformed"}`.
pub const SYNC_ETAG_BYTES_MAX: usize = 128;
/// Maximum token keys of a peer: as many as this product publishes ([`SIGNING_KEYS_MAX`]).
/// Metric: `svc_federation_calls_total{result="malformed"}`.
pub const PEER_FABRIC_KEYS_MAX: usize = 256;
/// Maximum time for which a call between fabrics is held while there is no entry; beyond it: 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SYNC_HOLD_MAX: Duration = Duration::from_secs(10);
/// Maximum calls of one peer that a node serves at a time; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const SYNC_HELD_PER_PEER_MAX: usize = 2;
/// Maximum calls of all peers that a node serves at a time; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const SYNC_HELD_MAX: usize = 512;
/// Interval at which a held call checks that the node still has its lease; without it: 503.
pub const SYNC_LEASE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time beyond the requested hold within which a peer must have answered a call.
/// Metric: `svc_federation_calls_total{result="unanswered"}`.
pub const SYNC_RESPONSE_WAIT: Duration = Duration::from_secs(2);
/// Minimum of that time for a peer with a short lease.
pub const SYNC_RESPONSE_WAIT_MIN: Duration = Duration::from_millis(500);
/// Minimum wait before a failed call to a peer is repeated; also the wait after a response without entries
/// that was not held, or that was imported.
pub const PEER_FABRIC_RETRY_MIN: Duration = Duration::from_millis(200);
/// Maximum wait before a failed call to a peer is repeated; the wait doubles with each failure. Also the wait after a new
/// set of keys, unless the lease of the peer is so short that a quarter of it is less.
pub const PEER_FABRIC_RETRY_MAX: Duration = Duration::from_secs(5);
/// Wait after a malformed response, one that the quota refuses, or one of a log that lost its end, once each endpoint of the
/// peer has failed; and after the second response within this time for which a ledger is read again from its beginning.
/// Metric: `svc_federation_calls_total`.
pub const PEER_FABRIC_RETRY_LASTING: Duration = Duration::from_secs(60);
/// Time for which health warns of a call that named a position beyond the end of our log. A peer that is still ahead calls
/// each endpoint again within it.
pub const PEER_FABRIC_AHEAD_RETENTION: Duration = Duration::from_secs(10 * 60);
/// Maximum entries of peers in commands in flight, so that a peer's flood does not delay other writes. A set
/// of keys counts as all of them.
pub const IMPORTS_IN_FLIGHT_MAX: usize = 256;
/// Interval at which the position in an idle peer's log is written to our log.
pub const PEER_FABRIC_POSITION_WRITE_INTERVAL: Duration = Duration::from_secs(60);

// --- live feed ---------------------------------------------------------------------------------

/// Interval of the comments that keep a connection of the live feed open (contract §7). With each, the
/// capability of the subscriber is checked again.
pub const FEED_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// `retry` of the live feed: pause of a subscriber before it reconnects (contract §7).
pub const FEED_RETRY: Duration = Duration::from_millis(3_000);
/// Maximum events published and not yet received by a subscriber, in a buffer that all subscribers share;
/// beyond it the subscriber is disconnected, and resumes.
/// Metric: `svc_event_readers_dropped_total{reason="slow"}`.
pub const FEED_QUEUED_EVENTS_MAX: usize = 1_024;
/// Maximum rows of the feed per read, for one subscriber that resumes or for all.
pub const FEED_ROWS_PER_READ: usize = 256;
/// Pause between two pages that are published to all subscribers, so that they keep up, and before each page
/// that is read for one subscriber.
pub const FEED_PAGE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pages read for single subscribers per such pause. The more subscribers resume, the longer each
/// pauses.
pub const FEED_PAGES_PER_PAUSE: usize = 4;
/// Size of a write to a subscriber beyond which no event is added.
pub const FEED_CHUNK_BYTES_FULL: usize = 16 * 1024;
/// Maximum exchanges and denials that are queued for the live feed, and that are published together; beyond
/// it: dropped and counted.
/// Metric: `svc_event_activities_dropped_total`.
pub const FEED_ACTIVITIES_QUEUED_MAX: usize = 64;
/// Minimum time between two publications of them.
/// Metric: `svc_event_activities_dropped_total`.
pub const FEED_ACTIVITY_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two attempts of a node with subscribers of the live feed to observe another member.
pub const FEED_OBSERVE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum length of a text in a published event of the live feed; beyond it: truncated.
pub const FEED_FRAME_TEXT_BYTES_MAX: usize = 2 * 1024;
/// Maximum subscribers of the live feed per node; beyond it: 503.
/// Metric: `svc_event_readers`.
pub const FEED_SUBSCRIBERS_MAX: usize = 1_000;
/// Maximum subscribers of the live feed per identity; beyond it: 429.
/// Metric: `svc_http_requests_total{route="/v1/events",status="429"}`.
pub const FEED_SUBSCRIBERS_PER_CALLER_MAX: usize = 5;

// --- issuer keys -------------------------------------------------------------------------------

/// Maximum time to fetch a JWK Set, discovery document or SPIFFE bundle.
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a fetched document.
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const FETCH_BYTES_MAX: usize = 256 * 1024;
/// Maximum keys per JWK Set: as many as this product publishes ([`SIGNING_KEYS_MAX`]).
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const KEYS_PER_SET_MAX: usize = 256;
/// Time after which fetched keys are fetched again.
/// Metric: `svc_issuer_key_fetches_total{result="fetched"}`.
pub const ISSUER_KEYS_REFRESH: Duration = Duration::from_secs(300);
/// Maximum time for which fetched keys are used while the source is unreachable.
/// Metric: `svc_exchange_total{result="issuer_unavailable"}`.
pub const ISSUER_KEYS_STALE_MAX: Duration = Duration::from_secs(900);
/// Pause of an issuer's source after an unknown `kid` or a failed fetch, however many requests need it.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const ISSUER_KEYS_RETRY_PAUSE: Duration = Duration::from_secs(30);
/// Pause of an issuer's source after a fetch that its caller abandoned. The next caller fetches.
pub const ISSUER_KEYS_ABANDONED_PAUSE: Duration = Duration::from_secs(1);
/// Minimum refresh interval that a SPIFFE bundle can request.
/// Metric: `svc_issuer_key_fetches_total{result="fetched"}`.
pub const SPIFFE_REFRESH_MIN: Duration = Duration::from_secs(10);
/// Minimum RSA modulus of an issuer's key (RFC 7518 §3.3).
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const RSA_MODULUS_BITS_MIN: usize = 2048;
/// Maximum RSA modulus of an issuer's key: bounds the cost of a verification.
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const RSA_MODULUS_BITS_MAX: usize = 8192;

// --- policy ------------------------------------------------------------------------------------

/// Maximum time to parse and compile a policy bundle; beyond it the compiling process is killed.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_LOAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to compile a policy bundle again and run its tests, before it is applied; beyond it the
/// process is killed.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_TESTS_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum time of one evaluation; beyond it: denied with 503, and the caller may retry.
/// Metric: `svc_policy_decisions_total{decision="error"}`.
pub const POLICY_DECISION_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum evaluations of one decision: one that reached its deadline with less than half of it as processor time is
/// repeated, because the machine was busy.
pub const POLICY_DECISION_ATTEMPTS_MAX: u32 = 3;
/// Maximum size of a policy bundle, all files together.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a node compiles a bundle again that it failed to compile.
/// Metric: `svc_policy_loads_total{result="failed"}`.
pub const POLICY_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Maximum concurrent compilations of bundles and explanations of decisions; the others wait.
pub const POLICY_LOADS_MAX: usize = 2;
/// Maximum request body of a policy bundle, as JSON.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const POLICY_BODY_BYTES_MAX: usize = 2 * POLICY_BYTES_MAX;
/// Maximum files per policy bundle.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_FILES_MAX: usize = 64;
/// Maximum policy bundles retained for rollback; beyond it the oldest is removed.
pub const POLICY_HISTORY_MAX: usize = 16;
/// Maximum length of a file's path in a policy bundle.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_PATH_BYTES_MAX: usize = 255;
/// Evaluation steps between two checks of the clock.
pub const POLICY_STEPS_PER_TICK: u32 = 64;
/// Maximum cached decisions per bundle; beyond it: evaluated again.
pub const POLICY_DECISIONS_CACHED_MAX: u64 = 10_000;
/// Maximum depth of rules that use each other. Each level costs the evaluating thread some stack.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_CALL_DEPTH_MAX: usize = 32;
/// Maximum time of one rule in the tests of a policy, or of an explanation.
pub const POLICY_TEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum changes of an input that an explanation tries; beyond it: the others are not tried.
pub const POLICY_CHANGES_TRIED_MAX: usize = 2_000;
/// Maximum changes of an input that an explanation shows; beyond it: the others are not shown.
pub const POLICY_CHANGES_SHOWN_MAX: usize = 10;
/// Maximum time of one evaluation of a changed input; beyond it: it does not count as allowed.
pub const POLICY_CHANGE_TIMEOUT: Duration = Duration::from_millis(5);
/// Maximum recent denials that a node retains for explanations; beyond it: the oldest are removed.
pub const DENIALS_RETAINED_MAX: usize = 10_000;
/// Maximum size of the retained denials together; beyond it: the oldest are removed.
pub const DENIALS_RETAINED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum length of the public reason of a denial; beyond it: truncated.
pub const POLICY_REASON_BYTES_MAX: usize = 512;
/// Maximum length of the message from the compiling process; beyond it: truncated.
pub const POLICY_COMPILER_MESSAGE_BYTES_MAX: usize = 4096;
/// Maximum length of a blast radius.
/// Metric: `svc_exchange_total{result="policy_failed"}`.
pub const BLAST_RADIUS_BYTES_MAX: usize = 256;
/// Maximum kinds in the order of blast radii.
pub const BLAST_RADIUS_KINDS_MAX: usize = 16;
/// Maximum entries in the parent map of blast radii.
pub const BLAST_RADIUS_PARENTS_MAX: usize = 10_000;

// --- cluster -----------------------------------------------------------------------------------

/// Maximum commands queued for proposal; beyond it: 503.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSALS_QUEUED_MAX: usize = 16 * 1024;
/// Maximum commands per log entry; the rest goes into the next entry.
pub const COMMANDS_PER_ENTRY_MAX: usize = 512;
/// Size of a log entry beyond which no command is added.
pub const ENTRY_BYTES_FULL: usize = 1024 * 1024;
/// Validity of a reading of another node's wall clock.
/// Metric: `svc_clock_agreement`.
pub const CLOCK_READING_VALID: Duration = Duration::from_secs(1);
/// Maximum round trip of a reading of another node's wall clock; beyond it: ignored.
/// Metric: `svc_clock_agreement`.
pub const CLOCK_ROUND_TRIP_MAX: Duration = Duration::from_millis(500);
/// Maximum offset of a wall clock from the median of the voters at which it agrees with them. A node with a
/// larger offset accepts no credentials of other issuers.
/// Metric: `svc_clock_offset_seconds`.
pub const CLOCK_AGREEMENT_OFFSET_MAX: Duration = Duration::from_secs(2);
/// Maximum offset of a wall clock from the median of the voters; beyond it its node verifies nothing that has
/// a time.
/// Metric: `svc_clock_offset_seconds`.
pub const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(5);
/// Maximum entries proposed and not yet applied. More would carry fewer commands each, and an entry costs
/// every member more than a command.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// Minimum commands in the last entry for another entry to be proposed before it is applied; with fewer,
/// commands wait and share the next entry.
pub const PIPELINED_COMMANDS_MIN: usize = 128;
/// Maximum wait for a command to be applied; beyond it: 503, outcome unknown.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a command with unknown outcome is sent again.
pub const PROPOSE_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Maximum distance of a sequence from the low watermark of its proposer id. It exceeds the commands that a
/// process has queued and in flight. Replies are retained for this range, and for as many that are being
/// removed.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const SUBMISSIONS_AHEAD_MAX: u64 = 32 * 1024;
/// Retention of replies for a proposer id that proposes nothing, in elapsed time: far longer than a process
/// waits for them.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSER_RETENTION: Duration = Duration::from_secs(600);
/// Maximum retained proposer ids, of some 50 bytes each; a command of another is refused.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSERS_MAX: u64 = 4096;
/// Maximum retained proposer ids whose replies have expired; beyond it those unused for longest are removed.
pub const PROPOSERS_UNUSED_MAX: usize = 1024;
/// Interval of the sweep for unused proposer ids, in elapsed time.
pub const PROPOSER_SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Replies in one row: of adjacent commands of one proposer. An entry writes and deletes a row for several commands, and
/// the row of a single command stays small.
pub const REPLIES_PER_ROW: u64 = 16;
/// Maximum rows of replies deleted per log entry because they were received, and because their process is gone: twice
/// the number that an entry adds at most, so that their number falls.
pub const REPLY_ROWS_DELETED_PER_ENTRY: u64 = 2 * COMMANDS_PER_ENTRY_MAX as u64;
/// Default of `cluster.log_bytes_max`: the size of the Raft log beyond which it is purged up to a snapshot; half of it
/// stays.
pub const LOG_BYTES_MAX_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Minimum of `cluster.log_bytes_max`. A node takes a snapshot for each half of it that is written.
pub const LOG_BYTES_MAX_LOWEST: u64 = 64 * 1024;
/// Maximum of `cluster.log_bytes_max`. A node reads its whole log when it starts.
pub const LOG_BYTES_MAX_HIGHEST: u64 = 64 * 1024 * 1024 * 1024;
/// Bytes by which the log of a leader may exceed `cluster.log_bytes_max` while a member that answers lacks its oldest
/// entries: as many as that setting, but at least these; beyond it: the log is purged, and the member needs a snapshot.
pub const LOG_HELD_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Time after the last answer of a member, or the end of a snapshot transfer to it, until the log is no longer held for
/// it.
pub const LOG_HELD_FOR_SILENT: Duration = Duration::from_secs(10);
/// Interval at which a leader checks whether a member still lacks entries that it is to purge.
pub const LOG_HELD_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum wait for an entry to be applied, and for a snapshot, before a purge; beyond it: the next entry repeats the
/// attempt.
pub const LOG_PURGE_WAIT: Duration = Duration::from_secs(60);
/// Maximum time without a freshness lease for which health reports the last known leader.
/// Metric: `svc_raft_is_leader`.
pub const LEADER_UNCONFIRMED_MAX: Duration = Duration::from_secs(2);
/// Interval at which the watchdog checks the log writer.
pub const DISK_TICK: Duration = Duration::from_millis(100);
/// Ticks without a completed write of the log after which the disk counts as hung.
/// Metric: `svc_log_disk_hangs`.
pub const DISK_HUNG_TICKS: u32 = 10;
/// Heartbeats without a completed write after which it counts as hung, if that is longer.
/// Metric: `svc_log_disk_hangs`.
pub const DISK_HUNG_HEARTBEATS: u32 = 10;
/// Ticks with a hung disk after which the node exits, if another node leads.
/// Metric: `svc_log_disk_hangs`.
pub const DISK_LOST_TICKS: u32 = 100;
/// Interval at which the free space of the data directory is measured.
pub const DISK_SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Divisor of the size of the file system of the data directory: with less than the quotient free, writes that add data
/// are refused; bounded by the next two limits.
/// Metric: `svc_disk_space_state`.
pub const DISK_LOW_DIVISOR: u64 = 10;
/// Minimum free space of the data directory on a small file system; below it: writes that add data are refused.
/// Metric: `svc_disk_space_state`.
pub const DISK_LOW_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Minimum free space of the data directory on a large file system; below it: writes that add data are refused.
/// Metric: `svc_disk_space_state`.
pub const DISK_LOW_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Divisor of that space; the quotient is the reserve: with less free, the node gives up leadership and is not ready
/// while another voter has space.
/// Metric: `svc_disk_space_state`.
pub const DISK_RESERVE_DIVISOR: u64 = 4;
/// Divisor of a limit of free space: so much more must be free until the limit counts as kept again.
/// Metric: `svc_disk_space_state`.
pub const DISK_REGAINED_DIVISOR: u64 = 4;
/// Minimum free space to open the data directory, beside that for its write-ahead logs; below it: a starting node waits. A
/// snapshot needs it too.
pub const DISK_START_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Pause before the members are polled again for a state hash that decides a dispute.
pub const DISPUTE_RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum time to hand over leadership; beyond it the node continues without.
/// Metric: `svc_raft_is_leader`.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum wait for the leader to transfer leadership, which takes [`HAND_OVER_TIMEOUT`] at most.
pub const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum wait for the report of a member; beyond it the status has none.
pub const REPORT_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum time for the chosen member to be elected; beyond it the next member is chosen.
pub const HAND_OVER_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which a node checks whether it may stand for election.
pub const CANDIDACY_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after a handover for which a node does not stand for election, while there is a leader.
/// Metric: `svc_raft_is_leader`.
pub const CANDIDACY_PAUSE: Duration = Duration::from_secs(30);
/// Maximum time without a leader for which a node that handed over does not stand for election.
/// Metric: `svc_raft_is_leader`.
pub const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// Duration of a freshness lease, from the ReadIndex request on (design §4, D).
/// Metric: `svc_freshness_lease_held`.
pub const FRESHNESS_LEASE: Duration = Duration::from_secs(1);
/// Margin subtracted from a lease, for boot clocks that run at different rates.
/// Metric: `svc_freshness_lease_held`.
pub const FRESHNESS_MARGIN: Duration = Duration::from_millis(50);
/// Maximum advance of the wall clock over the boot clock between two checks of a lease; beyond it: the lease
/// is dropped.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_CLOCK_STEP_MAX: Duration = Duration::from_millis(200);
/// Pause between a renewal of the lease and the next, unless a request waits for one.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_RENEWAL: Duration = Duration::from_millis(250);
/// Maximum wait for one renewal; beyond it: requested again. One hung request costs no lease.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause after a failed renewal.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum wait of a request for a lease, and of a verification until this node has applied the log index of
/// the token; beyond it: 503.
/// Metric: `svc_freshness_refused_total`.
pub const FRESHNESS_WAIT: Duration = Duration::from_secs(2);
/// Maximum requests that wait for a lease or, without leases, for a ReadIndex; beyond it: 503 at once.
/// Metric: `svc_freshness_refused_total`.
pub const FRESHNESS_WAITS_MAX: usize = 2_048;
/// Maximum outside sources on which a node holds leases; beyond it: no lease on another one.
pub const SOURCES_MAX: usize = 300;
/// Maximum duration of a lease on an outside source, from the leader's call on; a longer one is cut.
pub const SOURCE_LEASE_MAX: Duration = Duration::from_secs(300);
/// Part of the duration of a lease on an outside source by which a node ends it earlier, for boot clocks that
/// run at different rates: one of so many.
pub const SOURCE_LEASE_MARGIN_DIVISOR: u32 = 20;
/// Maximum wait of a read for a ReadIndex, and then for this node to apply that index; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Maximum wait for one response to ReadIndex; beyond it: requested again.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause after a failed ReadIndex.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum reads that wait for a ReadIndex; beyond it: 503 at once.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_WAITS_MAX: usize = 512;
/// Maximum wait for the barrier of a revocation; beyond it: 503, although the revocation is applied.
/// Metric: `svc_acknowledgements_total{result="unconfirmed"}`.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum wait of a revocation for an outside reader, until it acknowledges or its short lease
/// ([`PEER_FABRIC_LEASE`] and a margin) ends; beyond it: 503, although the revocation is applied.
/// Metric: `svc_federation_await_seconds`.
pub const READER_WAIT: Duration = Duration::from_secs(6);
/// Maximum outside readers whose calls a leader records; beyond it: the call is answered 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READERS_MAX: usize = 300;
/// Maximum time since the last freshness lease, or since its start, for which a node serves its JWK Set;
/// beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const JWKS_WITHOUT_LEASE_MAX: Duration = Duration::from_secs(60);
/// Interval at which a node checks its readiness for the log.
pub const READINESS_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the log repeats why a node is not ready.
pub const NOT_READY_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum wait of a member of a cluster of several nodes for the committed log: as long as the other members
/// take.
pub const MEMBER_RECOVERY_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum wait of a single node for its committed log; beyond it: the node does not start.
pub const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Size of the block cache of the state database, shared by all tables.
pub const STATE_CACHE_BYTES: usize = 64 * 1024 * 1024;
/// Size of the write buffers of the state database, shared by all tables, without those that are being
/// flushed.
pub const STATE_WRITE_BUFFERS_BYTES: usize = 32 * 1024 * 1024;
/// Maximum jobs queued for the thread that writes the log; beyond it: openraft waits.
pub const LOG_JOBS_QUEUED_MAX: usize = 4096;
/// Maximum jobs in one write batch of the log.
pub const LOG_JOBS_PER_GROUP_MAX: usize = 1024;
/// Maximum log entries in memory, besides those not durable yet.
pub const LOG_ENTRIES_CACHED_MAX: usize = 4096;
/// Maximum bytes of these entries.
pub const LOG_BYTES_CACHED_MAX: usize = 16 * 1024 * 1024;
/// Size of the write buffers of the log database, without the newest entries.
pub const LOG_WRITE_BUFFERS_BYTES: usize = 16 * 1024 * 1024;
/// Retention of a used nonce, in elapsed time: until every credential that could present it has expired.
/// Metric: `svc_exchange_total{result="nonce_spent"}`.
pub const NONCE_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Maximum retained nonces in the cluster, of some 70 bytes on disk each; beyond it: 429. None is removed
/// early.
/// Metric: `svc_exchange_total{result="too_many"}`.
pub const NONCES_MAX: u64 = 20_000_000;
/// Maximum retained nonces per caller; beyond it: 429.
/// Metric: `svc_exchange_total{result="too_many"}`.
pub const NONCES_PER_CALLER_MAX: u64 = 10_000_000;
/// Retention of a used execution-scoped token, in log time from its use. A token whose `exp` is further ahead of log
/// time than that is answered 503; one that is not ahead of it: 403.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const USED_TOKEN_RETENTION: Duration = Duration::from_secs(30 + 5 + 300);
/// Maximum retained used execution-scoped tokens in the cluster, of some 70 bytes on disk each; beyond it:
/// 429. None is removed early.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const USED_TOKENS_MAX: u64 = 20_000_000;
/// Maximum retained used execution-scoped tokens per caller; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const USED_TOKENS_PER_CALLER_MAX: u64 = 10_000_000;
/// Retention of the outcome of an `Idempotency-Key`, in elapsed time (contract §1).
/// Metric: `svc_exchange_total{result="idempotency_key"}`.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Maximum retained `Idempotency-Key`s in the cluster, of some 200 bytes on disk each; a new one beyond it:
/// 429. None is removed early.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const IDEMPOTENCY_KEYS_MAX: u64 = 10_000_000;
/// Maximum retained `Idempotency-Key`s per caller; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const IDEMPOTENCY_KEYS_PER_CALLER_MAX: u64 = 5_000_000;

// --- tools -------------------------------------------------------------------------------------

/// Maximum tools in the registry; beyond it: 409.
/// Metric: `svc_tools`, `svc_tool_writes_total{result="refused"}`.
pub const TOOLS_MAX: u64 = 2_000_000;
/// Maximum tools per caller; beyond it: 409.
/// Metric: `svc_tool_writes_total{result="refused"}`.
pub const TOOLS_PER_CALLER_MAX: u64 = 1_000_000;
/// Size of a page of tools or agents beyond which no row is added; the rest is on the next page.
pub const TOOL_PAGE_BYTES_FULL: usize = 1024 * 1024;
/// Memory for packed rows of tools; the others are read from the database.
pub const TOOLS_PACKED_BYTES_MAX: usize = 112 * 1024 * 1024;
/// Memory of a packed table for rows that were written lately and are not packed yet, within that of the table.
pub const ROWS_UNPACKED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum rows that are packed with one write: a write waits for them.
pub const ROWS_PACKED_AT_ONCE: usize = 64;
/// Maximum unpacked rows of one step of a scan of a packed table; the rest is read in the next step.
pub const ROWS_UNPACKED_PER_READ: usize = 256;
/// Memory for packed heads of the tools' audit trails; the others are read from the database.
pub const AUDIT_HEADS_PACKED_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Maximum request body of a tool entry.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const TOOL_BODY_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of a `tool_id` (contract §5).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_ID_BYTES_MAX: usize = 256;
/// Maximum length of the `name` of a tool.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// Maximum length of the `description` of a tool.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_DESCRIPTION_BYTES_MAX: usize = 4096;
/// Maximum length of the `version` of a tool.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_VERSION_BYTES_MAX: usize = 256;
/// Maximum entries of `allowed_operations`, and of `allowed_targets`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_ALLOWED_MAX: usize = 256;

// --- listeners ---------------------------------------------------------------------------------

/// Maximum wait for the first request of a connection, TLS handshake included.
/// Metric: `svc_http_connections_closed_total{reason="first_request"}`.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the first request of a connection of the reserve; beyond it: closed gracefully.
/// Metric: `svc_http_connections_closed_total{reason="first_request"}`, `svc_http_connections_closed_total{reason="reserve"}`.
pub const FIRST_REQUEST_IN_RESERVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time of a TLS handshake.
/// Metric: `svc_http_connections_refused_total{reason="handshake_timeout"}`.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time from the first to the last byte of the head of an HTTP/1.1 request.
/// Metric: `svc_http_connections_closed_total{reason="header_timeout"}`.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for which a connection without a request in flight stays open.
/// Metric: `svc_http_connections_closed_total{reason="idle"}`.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which a connection is checked. Idle and stall times are rounded up to it.
pub const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time without progress of a write: no bytes read or acknowledged by the client; beyond it: the
/// connection is aborted.
/// Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Age at which a connection without TLS is closed gracefully.
/// Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3600);
/// Maximum time for a backup in flight to finish on a connection that has reached its maximum age, or whose TLS files have
/// changed: a state of 256 GiB over 30 MB/s.
/// Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const DOWNLOAD_DRAIN_TIMEOUT: Duration = Duration::from_secs(3 * 3600);
/// Age at which a TLS connection is closed gracefully, so that its client is verified again.
/// Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const TLS_CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// Maximum time from the head of a request to the head of its response, reading of the body included.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum headers per request; beyond it: 431.
/// Metric: `svc_http_requests_total{status="431"}`.
pub const HEADERS_MAX: usize = 64;
/// Maximum head of an HTTP/1.1 request; beyond it: 431.
/// Metric: `svc_http_requests_total{status="431"}`.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Maximum request line of HTTP/1.1; beyond it: 414.
/// Metric: `svc_http_requests_total{status="414"}`.
pub const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;
/// Maximum bytes per read of an HTTP/1.1 head.
pub const HEAD_BYTES_PER_READ_MAX: usize = 4 * 1024;
/// Size of the send buffer of an HTTP/1.1 connection; beyond it the response waits.
/// Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const HTTP1_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum wait after a refused request until its sender stops sending, so that it reads the response.
/// Metric: `svc_http_connections_closed_total{reason="violation"}`.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum concurrent requests per HTTP/2 connection (RFC 9113 §5.1.2).
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// Maximum header list of an HTTP/2 request, counted as in RFC 9113 §6.5.2; beyond it: 431.
pub const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Maximum HTTP/2 requests reset by the client before they are handled; beyond it: the connection is closed.
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_PENDING_RESETS_MAX: usize = 20;
/// Maximum HTTP/2 requests reset by this node for protocol errors; beyond it: the connection is closed.
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_LOCAL_RESETS_MAX: usize = 20;
/// Flow-control window of an HTTP/2 request.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Flow-control window of an HTTP/2 connection.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Maximum HTTP/2 frame (RFC 9113 §4.2: the smallest permitted maximum).
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Size of the send buffer of an HTTP/2 response; beyond it the response waits.
/// Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const HTTP2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Interval of pings on an HTTP/2 connection.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum wait for the acknowledgement of a ping.
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum open connections of all listeners, or as many as the limit of open files leaves.
/// Metric: `svc_http_connections`, `svc_requests_refused_total{reason="reserve"}`.
pub const CONNECTIONS_MAX: usize = 10_240;
/// Maximum connections in the accept queue of a listener, which the operating system keeps and counts.
pub const CONNECTIONS_QUEUED_MAX: u32 = 1024;
/// Additional connections per listener, for health routes only.
/// Metric: `svc_http_connections_refused_total{reason="full"}`.
pub const CONNECTIONS_IN_RESERVE_MAX: usize = 64;
/// Default maximum of open connections per address; for IPv6 per /64.
/// Metric: `svc_http_connections_refused_total{reason="address"}`.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 256;
/// Default maximum of open connections per client certificate identity.
/// Metric: `svc_http_connections_refused_total{reason="identity"}`.
pub const CONNECTIONS_PER_IDENTITY_MAX: usize = 1024;
/// File descriptors reserved for the databases, the log and outbound calls.
pub const DESCRIPTORS_RESERVED: usize = 1024;
/// Maximum wait for the log index in `Svc-Min-Index` or `Last-Event-ID`; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Maximum wait for the cause of a failure after a task of the node has ended; beyond it, the cause is unknown.
pub const FAILURE_CAUSE_WAIT: Duration = Duration::from_millis(500);
/// Maximum members that observe a node; beyond it, the call is refused.
pub const OBSERVERS_MAX: usize = 64;
/// Maximum published messages queued per observer of a node; beyond it, the oldest are dropped and counted.
/// Metric: `svc_event_activities_dropped_total`.
pub const OBSERVED_MESSAGES_QUEUED_MAX: usize = 256;
/// Minimum time between two log lines about failures of the same action with the same peer or disk; in between, they are
/// counted.
pub const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum failing peers or disks that are counted per action; beyond it, the one whose last line is oldest
/// is removed.
pub const FAILURE_LOG_KEYS_MAX: usize = 256;
/// Pause after a connection could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum callers with a retained request rate; beyond it the least recently used starts anew.
pub const RATE_LIMITED_CALLERS_MAX: u64 = 100_000;
/// Retention of a caller's request rate after its last request. One second already restores the whole rate.
pub const RATE_LIMIT_RETENTION: Duration = Duration::from_secs(60);
/// Default maximum of requests per caller and second.
/// Metric: `svc_requests_refused_total{reason="rate"}`.
pub const REQUESTS_PER_SECOND_PER_CALLER: u32 = 1_000;
/// Maximum configurable value of that rate.
pub const REQUESTS_PER_SECOND_MAX: u32 = 1_000_000;
/// Maximum health requests per address and second; beyond it: 429.
/// Metric: `svc_requests_refused_total{reason="rate"}`.
pub const HEALTH_REQUESTS_PER_SECOND: u32 = 100;
/// Maximum requests in flight per caller; beyond it: 429.
/// Metric: `svc_requests_refused_total{reason="rate"}`.
pub const REQUESTS_PER_CALLER_MAX: usize = 512;
/// Maximum responses that wait until the rest of their request body is read; beyond it: answered at once.
pub const UNREAD_BODIES_MAX: usize = 1_024;
/// Maximum time of a connection of `admin.sock`, which serves one after the other; beyond it: closed.
pub const ADMIN_SOCKET_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum requests that wait for `Svc-Min-Index` or `Last-Event-ID`; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAITS_MAX: usize = 64;
/// Maximum of them per caller; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAITS_PER_CALLER_MAX: usize = 16;
/// Maximum requests in flight; beyond it: 503.
/// Metric: `svc_requests_refused_total{reason="overload"}`.
pub const REQUESTS_MAX: usize = 4_096;
/// Maximum requests for each worker thread that are read and not yet scheduled; beyond it: 503.
/// Metric: `svc_requests_refused_total{reason="overload"}`.
pub const REQUESTS_WAITING_PER_WORKER_MAX: usize = 136;
/// Maximum wait for a request body; beyond it: 408.
/// Metric: `svc_http_requests_total{status="408"}`.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for tasks and databases to end at shutdown; beyond it: the process exits.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time for them to end while the disk of the log hangs.
pub const STOP_WITH_HUNG_DISK_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum of `listen.shutdown_delay`: the time for which a node that stops still accepts connections, although it
/// is not ready. The longest stop takes this, [`DRAIN_TIMEOUT`] and [`STOP_TIMEOUT`]: less than the 45 s after which the
/// systemd unit (`TimeoutStopSec`) and `docker-compose.yml` (`stop_grace_period`) kill the process.
/// Metric: `svc_http_connections_closed_total{reason="shutdown"}`.
pub const SHUTDOWN_DELAY_MAX: Duration = Duration::from_secs(10);
/// Maximum time for requests in flight to finish at a graceful shutdown.
/// Metric: `svc_http_connections_closed_total{reason="shutdown"}`.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

// --- TLS ---------------------------------------------------------------------------------------

/// Interval at which TLS files are checked for changes.
/// Metric: `svc_tls_reloads_total`.
pub const TLS_RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum size of a file with a certificate, a private key or client CAs.
/// Metric: `svc_tls_reloads_total{with="callers",result="failed"}`.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of a file with revocation lists.
/// Metric: `svc_tls_reloads_total{with="callers",result="failed"}`.
pub const TLS_CRL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum issuers in `svc_via` of a signal before its own; beyond it: not relayed.
/// Metric: `svc_signals_total{result="ignored"}`.
pub const SIGNAL_VIA_MAX: usize = 4;
/// Maximum trust domains of clients, each with its own authorities; beyond it: refused at start.
pub const CLIENT_TRUST_DOMAINS_MAX: usize = 301;
/// Maximum intermediate certificates that a client sends; beyond it: refused in the handshake.
/// Metric: `svc_http_connections_refused_total{reason="handshake"}`.
pub const CLIENT_INTERMEDIATES_MAX: usize = 6;

// --- caches ------------------------------------------------------------------------------------

/// Maximum bytes of cached verified signatures, with their claims; beyond it: verified again. An entry of a short credential
/// takes 3 KiB.
pub const SIGNATURE_CACHE_BYTES_MAX: u64 = 256 * 1024 * 1024;

// --- push delivery -----------------------------------------------------------------------------

/// Maximum concurrent pushes per stream, each of another subject (contract §6).
pub const PUSHES_PER_STREAM_MAX: usize = 8;
/// Minimum backoff after a failed push (contract §6).
/// Metric: `svc_push_total`.
pub const PUSH_BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Maximum backoff after a failed push, also if `Retry-After` is longer.
/// Metric: `svc_push_total`.
pub const PUSH_BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Maximum attempts of an event whose sender, key, issuer or audience the receiver refuses; then a
/// verification event decides whether the event is a dead letter or the stream is paused.
/// Metric: `svc_push_total{result="refused"}`.
pub const PUSH_REFUSALS_MAX: u32 = 8;
/// Failed attempts after which an event is a dead letter if its receiver accepts other events meanwhile.
/// Metric: `svc_stream_events_total{result="dead_letter"}`.
pub const PUSH_FAILURES_ALONE_MAX: u32 = 24;
/// Maximum time for which a receiver may accept nothing, by the clock of the leader; beyond it: its stream is
/// paused.
/// Metric: `svc_streams{status="paused"}`.
pub const PUSH_FAILING_MAX: Duration = Duration::from_secs(12 * 3600);
/// Maximum time for which a delivery is not recorded. The next leader sends unrecorded deliveries again.
pub const PUSH_ADVANCE_INTERVAL: Duration = Duration::from_millis(200);
/// Deliveries after which they are recorded sooner.
pub const PUSH_ADVANCE_EVENTS: usize = 256;
/// Maximum dead letters recorded at once; the rest is recorded next.
pub const DEAD_LETTERS_PER_WRITE_MAX: usize = 64;
/// Maximum retained length of the `err` of a receiver; beyond it: truncated.
pub const PUSH_ERR_BYTES_MAX: usize = 64;
/// Maximum retained length of the `description` of a receiver; beyond it: truncated.
pub const PUSH_DESCRIPTION_BYTES_MAX: usize = 256;
/// Events beyond [`STREAM_BACKLOG_EVENTS_MAX`] at which the oldest are dropped down to it.
/// Metric: `svc_stream_events_total{result="dropped"}`.
pub const STREAM_BACKLOG_SLACK: u64 = 1_000;
/// Time beyond [`STREAM_RETENTION`] at which all events older than that are dropped. It is shorter than the
/// margin of [`OUTBOX_RETENTION`].
/// Metric: `svc_stream_events_total{result="dropped"}`.
pub const STREAM_RETENTION_SLACK: Duration = Duration::from_secs(300);
/// Interval at which the backlog of the streams is checked.
pub const STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum streams beyond their retention that are written to the log at once; the others wait.
pub const STREAMS_ENFORCED_AT_ONCE: usize = 16;
/// Maximum outbox events read per step, so that other tasks proceed.
pub const OUTBOX_ROWS_PER_STEP: usize = 128;
/// Maximum matches of events and streams per step.
pub const OUTBOX_MATCHES_PER_STEP: usize = 2_048;

// --- connections between nodes -----------------------------------------------------------------

/// Maximum members of a cluster.
pub const MEMBERS_MAX: usize = 9;
/// Largest node id that is allocated; beyond it: no join token is created.
pub const NODE_ID_MAX: u64 = 65_535;
/// Maximum unused join tokens; beyond it: refused.
pub const JOIN_TOKENS_MAX: usize = 16;
/// Lifetime of a join token, by log time.
pub const JOIN_TOKEN_LIFETIME: Duration = Duration::from_secs(600);
/// Maximum log entries by which a learner lags when it becomes a voter. A voter that lags delays commits when another
/// one fails.
pub const LEARNER_LAG_MAX: u64 = 1_000;
/// Time for one membership change, from its first entry to the last one committed.
pub const MEMBERSHIP_CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum wait of a response for a membership change; beyond it: 202 with the reason.
pub const MEMBERSHIP_ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Maximum wait of the bootstrap for the reports of all its members; beyond it the new cluster has the oldest
/// feature level.
pub const BOOTSTRAP_REPORTS_WAIT: Duration = Duration::from_secs(10);
/// Wait of a node between attempts to record its version.
pub const VERSION_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which a node compares the membership with the wanted one.
pub const MEMBERSHIP_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum message between nodes.
pub const PEER_MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size of an append message beyond which no entry is added. An entry has at most [`ENTRY_BYTES_FULL`] and
/// one command.
pub const APPEND_BYTES_FULL: usize = 4 * 1024 * 1024;
/// Maximum connections from other nodes; beyond it: closed and logged.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// Maximum connections from one other node; beyond it: closed and logged.
pub const PEER_CONNECTIONS_PER_NODE_MAX: usize = 32;
/// Maximum connections between nodes in the TLS handshake; beyond it: closed and logged.
pub const PEER_HANDSHAKES_MAX: usize = 256;
/// Maximum connections between nodes in the TLS handshake per address; beyond it: closed and logged.
pub const PEER_HANDSHAKES_PER_ADDRESS_MAX: usize = 64;
/// Maximum concurrent calls per connection between nodes; the others wait.
pub const PEER_STREAMS_MAX: u32 = 1_024;
/// Maximum header list of a call between nodes; beyond it: the connection is closed.
pub const PEER_HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Flow-control window of a call, and of a connection, between nodes.
pub const PEER_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Maximum wait for a connection to a node, TLS handshake included, and for its first response.
pub const PEER_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before entries are sent again to a node that did not accept them.
pub const PEER_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Interval of pings on a connection between nodes.
pub const PEER_PING_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the acknowledgement of such a ping; beyond it: reconnected.
pub const PEER_PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for which sent data is not acknowledged by a node; beyond it: reconnected.
pub const PEER_STALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for which the recorded progress of a member's disk is not written; a crash loses the
/// unwritten part.
pub const DISK_RECORD_UNWRITTEN_MAX: Duration = Duration::from_secs(1);
/// Interval at which the leader polls the acknowledgements of the members.
pub const DISK_RECORD_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which a node whose log contradicts the leader's reports this before it stops.
pub const CONTRADICTION_REPORT_TIME: Duration = Duration::from_millis(500);
/// Interval at which the members are polled during the bootstrap.
pub const BOOTSTRAP_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum wait of a member for an entry to be applied before it reports its applied index.
pub const APPLIED_WAIT: Duration = Duration::from_secs(1);
/// Maximum accepted index of a log entry.
pub const LOG_INDEX_MAX: u64 = 1 << 60;
/// Maximum distance of another node's term from ours.
pub const TERM_AHEAD_MAX: u64 = 1 << 20;
/// Size of the snapshot data in one message.
pub const SNAPSHOT_PART_BYTES: usize = 256 * 1024;
/// Maximum wait for the next message of a snapshot; beyond it: the transfer is restarted.
pub const SNAPSHOT_PART_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after the begin of an interrupted snapshot transfer until its files are removed: at least the timeout of a
/// transfer and the pause before the next one.
pub const SNAPSHOT_RESUME_WINDOW: Duration = Duration::from_secs(1_800);
/// Maximum messages of a snapshot queued for sending; beyond it: reading waits.
pub const SNAPSHOT_PARTS_QUEUED_MAX: usize = 8;
/// Maximum files per snapshot.
pub const SNAPSHOT_FILES_MAX: usize = 16 * 1024;
/// Maximum size of a snapshot.
pub const SNAPSHOT_BYTES_MAX: u64 = 256 * 1024 * 1024 * 1024;
/// Maximum length of a file name in a snapshot.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 64;

// --- backup ------------------------------------------------------------------------------------

/// Maximum concurrent backups of one node; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const BACKUPS_MAX: usize = 1;
/// Maximum manifest of a backup: [`SNAPSHOT_FILES_MAX`] files.
pub const BACKUP_MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Size of the parts in which a backup is read, compressed and sent.
pub const BACKUP_PART_BYTES: usize = 256 * 1024;

// --- telemetry ---------------------------------------------------------------------------------

/// Maximum log lines queued for output; beyond it: dropped and counted.
/// Metric: `svc_log_lines_dropped_total`.
pub const LOG_LINES_QUEUED_MAX: usize = 8 * 1024;
/// Bytes of log lines that are written at once while more of them are queued.
pub const LOG_BUFFER_BYTES: usize = 64 * 1024;

// --- command line ------------------------------------------------------------------------------

/// Minimum backoff of the command line before it reconnects to the live feed.
pub const EVENTS_BACKOFF_MIN: Duration = Duration::from_millis(500);
/// Maximum backoff of the command line before it reconnects to the live feed.
pub const EVENTS_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Maximum file of certificates or private keys that `pki` reads.
pub const PEM_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum lifetime of a development certificate in days.
pub const PKI_DAYS_MAX: u32 = 365;
/// Time by which the validity of a development certificate is backdated, for clocks that disagree.
pub const PKI_BACKDATED: Duration = Duration::from_secs(300);
/// Maximum length of the name of a caller in a development certificate, below its trust domain (RFC 5280
/// appendix A.1, `ub-common-name`).
pub const PKI_CALLER_BYTES_MAX: usize = 64;
/// Maximum length of a DNS name (RFC 1035 §2.3.4, as text).
pub const DNS_NAME_BYTES_MAX: usize = 253;
/// Maximum wait of the development broker for its node to become ready.
pub const DEMO_READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the development broker polls its node's readiness.
pub const DEMO_READY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum size of a configuration file.
pub const CONFIG_BYTES_MAX: usize = 1024 * 1024;
/// Minimum heartbeat interval of Raft.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// Maximum heartbeat interval of Raft.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// Maximum length of a `unit_id`.
pub const UNIT_ID_BYTES_MAX: usize = 64;

// --- audit -------------------------------------------------------------------------------------

/// Maximum audit entries queued for writing per node; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_QUEUED_MAX: usize = 8 * 1024;
/// Maximum size of an audit entry; beyond it the audited request is answered 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_ENTRY_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of the notes in an audit entry; beyond it: truncated.
pub const AUDIT_NOTES_BYTES_MAX: usize = 2 * 1024;
/// Maximum time by which an audit entry may be older than its predecessor and is moved up to it, so that a
/// trail is in the order of time: [`REQUEST_TIMEOUT`] and a margin for the writer. A clock that was set back
/// further is accepted.
pub const AUDIT_REORDERED_MAX: Duration = Duration::from_secs(20);
/// Size of a write of audit entries beyond which no entry is added.
pub const AUDIT_WRITE_BYTES_FULL: usize = 256 * 1024;
/// Maximum size of an audit block before compression; the rest goes into the next block.
pub const AUDIT_BLOCK_BYTES_MAX: usize = 1024 * 1024;
/// Interval at which audit entries are shipped into the Raft log (contract §5).
/// Metric: `svc_audit_backlog_bytes`.
pub const AUDIT_SHIP_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum pause after a failed shipment.
/// Metric: `svc_audit_blocks_total{result="failed"}`.
pub const AUDIT_SHIP_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum size of audit entries that are not yet shipped; beyond it: 503.
/// Metric: `svc_audit_backlog_bytes`.
pub const AUDIT_BACKLOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Buckets of callers, by digest. A block has entries of one, and their contents share [`AUDIT_BYTES_MAX`].
pub const AUDIT_BUCKETS: usize = 64;
/// Retention of audit entries, in elapsed time, if they stay within [`AUDIT_BYTES_MAX`]: 90 days or 1 GiB,
/// whichever comes first. Older blocks are dropped when newer ones are appended.
/// Metric: `svc_audit_blocks_dropped_total{reason="age"}`.
pub const AUDIT_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Maximum size of the contents of all audit blocks with their rows; beyond it the oldest blocks of the
/// largest bucket lose theirs.
/// Metric: `svc_audit_blocks_dropped_total{reason="bytes"}`.
pub const AUDIT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Maximum audit blocks whose headers are retained; beyond it the oldest block of all is dropped. One caller
/// on three nodes needs three days for so many.
/// Metric: `svc_audit_blocks_dropped_total{reason="age"}`.
pub const AUDIT_HEADERS_MAX: u64 = 4_000_000;
/// Size beyond which no further audit block is dropped per appended segment, unless that one is larger.
pub const AUDIT_BYTES_DROPPED_FULL: u64 = 1024 * 1024;
/// Time after a denied verification in which equal ones become one later audit entry with their number
/// (contract §5).
pub const AUDIT_DENIALS_JOINED: Duration = Duration::from_secs(60);
/// Maximum different denials of that time; beyond it each denial is an entry.
pub const AUDIT_DENIALS_MAX: usize = 4096;
/// Maximum attempts to read a segment of the audit journal; beyond it the segment is set aside, and an audit
/// entry records this.
/// Metric: `svc_audit_blocks_total{result="failed"}`.
pub const AUDIT_READ_ATTEMPTS_MAX: u32 = 10;
/// Maximum concurrent reads of audit pages; the others wait for [`AUDIT_READ_WAIT`].
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_READS_MAX: usize = 4;
/// Maximum wait for a permit to read audit pages; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_READ_WAIT: Duration = Duration::from_secs(1);
/// Maximum audit blocks opened per page; beyond it the page ends early and names the next.
pub const AUDIT_BLOCKS_PER_PAGE_MAX: usize = PAGE_ROWS_MAX;
/// Size of the decompressed audit blocks of a page beyond which no further one is opened.
pub const AUDIT_PAGE_READ_BYTES_FULL: usize = 8 * 1024 * 1024;
/// Size of a page of audit entries beyond which no row is added.
pub const AUDIT_PAGE_BYTES_FULL: usize = 2 * 1024 * 1024;
/// Maximum line of an exported audit: a block with all its entries.
pub const AUDIT_LINE_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Interval at which `audit tail --follow` polls.
pub const AUDIT_FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
