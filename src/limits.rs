//! Every limit of the product, in one table: name, value, unit and reason.
//!
//! A queue, body, list, cache or wait that grows without a line here is a bug. `make fix` writes
//! `docs/reference/limits.md` from this file, and a house rule compares the two. A doc may end with the metric
//! that shows how often the limit was exceeded; the house rule checks that the metric exists.

use std::time::Duration;

// --- input -------------------------------------------------------------------------------------

/// Largest request body in bytes; a larger one is answered 413.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Most bytes read and thrown away of a body that is too large, so that its sender reads the answer.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const BODY_DISCARDED_MAX: usize = 4 * 1024 * 1024;
/// Largest compact JWS in bytes, checked before anything is decoded (contract §3).
/// Metric: `svc_exchange_total{result="invalid_request"}`.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of a JSON document (contract §1).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const JSON_DEPTH_MAX: usize = 32;
/// Longest workload identifier in bytes (SPIFFE-ID §2.3, WIMSE identifier §4).
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const WORKLOAD_ID_BYTES_MAX: usize = 2048;
/// Longest trust domain name in bytes (SPIFFE-ID §2.1).
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const TRUST_DOMAIN_BYTES_MAX: usize = 255;
/// Longest `kid` in bytes.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const KID_BYTES_MAX: usize = 256;
/// Longest `nonce`, `jti`, `txn` or idempotency key in bytes.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const OPAQUE_BYTES_MAX: usize = 256;
/// Longest `htu`, `target` or audience in bytes.
/// Metric: `svc_exchange_total{result="invalid_request"}`.
pub const URI_BYTES_MAX: usize = 2048;
/// Most words in one `scope`, and most entries of one `capabilities` list.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const CAPABILITIES_MAX: usize = 128;
/// Longest single scope word or capability in bytes.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const CAPABILITY_BYTES_MAX: usize = 128;

/// Rows of a page, if its reader asks for no other number (contract §1, Lists).
pub const PAGE_DEFAULT: usize = 100;
/// Most rows of a page; more are answered 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const PAGE_MAX: usize = 1000;

// --- tokens ------------------------------------------------------------------------------------

/// Lifetime of a standard exchanged token (specification, Limits).
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// Lifetime of an execution-scoped token (specification, Limits).
pub const EXECUTION_TOKEN_LIFETIME: Duration = Duration::from_secs(30);
/// Leeway on the time claims of a credential (contract §3); the `exp` of an execution-scoped token has none.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const LEEWAY: Duration = Duration::from_secs(5);
/// Default age limit of a credential, and how long a chain may go on from its first credential.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const CREDENTIAL_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most actors nested in `act` (contract §3).
/// Metric: `svc_exchange_total{result="delegation"}`.
pub const ACT_DEPTH_MAX: usize = 10;
/// Most digests in `lineage` (contract §3).
/// Metric: `svc_exchange_total{result="lineage"}`.
pub const LINEAGE_MAX: usize = 32;
/// Latest NumericDate that is read: the end of the year 9999.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const NUMERIC_DATE_MAX_SECS: i64 = 253_402_300_799;
/// Longest verified email address in bytes (RFC 3696 erratum 1690 allows 254; some issuers exceed it).
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const EMAIL_BYTES_MAX: usize = 320;
/// Largest delegation depth that can be stated.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const DELEGATION_DEPTH_MAX: u32 = 10;

// --- revocations ---------------------------------------------------------------------------------

/// How long a revocation is remembered, in time that has passed: until everything that it could cover is dead. That is
/// [`CREDENTIAL_AGE_MAX`], which no issuer and no chain goes beyond, and the margins of clocks.
/// Metric: `svc_revocations`.
pub const REVOCATION_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// How long it is remembered that a security event token came, in time that has passed: until it would be refused for
/// its age.
/// Metric: `svc_signals_total{result="duplicate"}`.
pub const SIGNAL_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Most revocations that are remembered; a signal that would go beyond it is answered 503.
/// Metric: `svc_revocations`.
pub const REVOCATIONS_MAX: u64 = 12_000_000;
/// Most of them that are of one issuer's signals.
/// Metric: `svc_signals_total{result="unavailable"}`.
pub const REVOCATIONS_PER_ISSUER_MAX: u64 = 10_000_000;
/// How many more an operator may make.
/// Metric: `svc_revocations`.
pub const REVOCATIONS_OF_OPERATORS_MAX: u64 = 100_000;
/// Most blocks, lifted ones that are still remembered among them; a signal beyond it is answered 503.
/// Metric: `svc_signals_total{result="unavailable"}`.
pub const BLOCKS_MAX: u64 = 1_000_000;
/// Most of them that are of one issuer.
/// Metric: `svc_signals_total{result="unavailable"}`.
pub const BLOCKS_PER_ISSUER_MAX: u64 = 500_000;
/// Most blocks that a page of their list looks at, those that are lifted among them; it is shorter then.
pub const BLOCK_ROWS_SEEN_AT_ONCE: usize = 10_000;
/// Most revocations and blocks that one entry of the log forgets, if it does not revoke half as many.
pub const REVOCATIONS_FORGOTTEN_AT_ONCE: usize = 256;
/// Longest `reason` of an operator's revocation in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const REVOCATION_REASON_BYTES_MAX: usize = 256;
/// Most looks through all agents at once on a node. A dry run beyond it is answered 503; a revocation stands,
/// and is not counted.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AGENT_SCANS_MAX: usize = 1;
/// Longest count of the agents that a revocation hit; beyond it the answer does not say how many.
pub const AGENT_COUNT_WAIT: Duration = Duration::from_secs(2);
/// Most agents, or tools, that such a look reads before other requests have their turn.
pub const AGENT_SCAN_ROWS_AT_ONCE: usize = 256;

// --- agents ------------------------------------------------------------------------------------

/// Life of an agent's identity token (contract §4).
pub const AGENT_TOKEN_LIFETIME: Duration = TOKEN_LIFETIME_LONGEST;
/// How long an agent's identity can be renewed (contract §4).
/// Metric: `svc_http_requests_total{status="403"}`.
pub const AGENT_LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long an agent is still shown after its end.
pub const AGENT_KEPT_AFTER_END: Duration = Duration::from_secs(24 * 3600);
/// Most agents remembered in the cluster, ended ones among them.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const AGENTS_MAX: u64 = 1_000_000;
/// Most agents of one caller among them.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const AGENTS_PER_CALLER_MAX: u64 = 500_000;
/// Most ended agents that are forgotten when another one is issued; more than one, so that they get fewer.
pub const AGENTS_FORGOTTEN_AT_ONCE: usize = 2;
/// Longest `agent_name` in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const AGENT_NAME_BYTES_MAX: usize = 256;
/// Most bytes of all of an agent's capabilities, which stand in its token twice: a bearer must fit into the
/// head of a request.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const AGENT_CAPABILITIES_BYTES_MAX: usize = 2048;
/// Most members of an agent's `metadata`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_MAX: usize = 64;
/// Longest name in an agent's `metadata` in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_NAME_BYTES_MAX: usize = 128;
/// Longest value in an agent's `metadata` in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_VALUE_BYTES_MAX: usize = 512;

// --- signals -----------------------------------------------------------------------------------

/// Most subject identifiers in one `sub_id` of format `aliases`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SUBJECT_ALIASES_MAX: usize = 16;
/// Most events in one security event token; one in a signed one (CAEP interoperability profile).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_EVENTS_MAX: usize = 16;
/// How far ahead of our clock `iat` of a security event token, and an event's time, may lie (contract §6).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_IAT_AHEAD_MAX: Duration = Duration::from_secs(60);
/// Greatest age of a security event token (contract §6). Our keys for them stay published for as long.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest `family` of events, in bytes, that a policy may say.
/// Metric: `svc_policy_decisions_total{decision="error"}`.
pub const SIGNAL_FAMILY_BYTES_MAX: usize = 64;

// --- keys --------------------------------------------------------------------------------------

/// How long a signing key is published before it may sign (contract §3, W).
/// Metric: `svc_signing_keys{state="pending"}`.
pub const KEY_PUBLISH_AHEAD: Duration = Duration::from_secs(600);
/// Longest life of any token a signing key signs: the agent identity token (contract §4). Security event tokens
/// have none of their own: [`SET_AGE_MAX`].
/// Metric: `svc_signing_keys{state="retired"}`.
pub const TOKEN_LIFETIME_LONGEST: Duration = Duration::from_secs(3600);
/// Most signing keys of the cluster, of all algorithms; those whose last token is dead do not count.
/// Metric: `svc_signing_keys`, `svc_http_requests_total{status="409"}`.
pub const SIGNING_KEYS_MAX: usize = 256;
/// Time between two looks at whether this node has the signing keys it needs, beside one after every change of
/// a key.
/// Metric: `svc_signing_keys{state="pending"}`.
pub const SIGNING_KEYS_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// How long caches may keep a JWKS (contract §1, Cache).
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(60);
/// Largest body that brings an encryption key; the largest RSA key that is taken has 1.4 KB.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const ENCRYPTION_KEY_BODY_BYTES_MAX: usize = 16 * 1024;
/// Maximum encryption keys per subject; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const ENCRYPTION_KEYS_PER_SUBJECT_MAX: usize = 16;
/// Maximum subjects per trust domain that have encryption keys, agents of this fabric left out; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const ENCRYPTION_KEY_SUBJECTS_MAX: u64 = 10_000;
/// How long an encryption key of a subject that is no agent of this fabric lives after its last registration, in elapsed
/// time.
pub const ENCRYPTION_KEY_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum ended encryption keys that a registration forgets; more than one, so that they get fewer.
pub const ENCRYPTION_KEYS_FORGOTTEN_AT_ONCE: usize = 4;
/// Maximum encryption keys that the revocation of one fact removes at once. The others are not handed out while the
/// revocation is remembered, and it is remembered until they are removed.
pub const ENCRYPTION_KEYS_REMOVED_AT_ONCE: usize = 64;

// --- management of streams ---------------------------------------------------------------------

/// Longest URI of an event type that a stream is asked for, in bytes; a longer one is answered 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const EVENT_TYPE_BYTES_MAX: usize = 256;
/// Longest `state` of a verification in bytes; a longer one is answered 400.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const VERIFICATION_STATE_BYTES_MAX: usize = 256;
/// How often a change of a stream is tried while others change it; then it is answered 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_UPDATE_ATTEMPTS_MAX: u32 = 8;

// --- receiver of signals -----------------------------------------------------------------------

/// Default of the most facts that one issuer of signals may revoke, block or lift in a minute; beyond it:
/// 429, until the next minute or until an operator allows it more.
/// Metric: `svc_signals_total{result="quota"}`.
pub const REVOCATIONS_PER_MINUTE: u32 = 6_000;
/// Largest number of revocations a minute that can be configured for one issuer of signals.
pub const REVOCATIONS_PER_MINUTE_MAX: u32 = 1_000_000;
/// Most issuers of credentials for whose subjects one issuer of signals can speak.
pub const SUBJECT_ISSUERS_MAX: usize = 16;
/// Most that one signal may do: its effects, on each of the facts that its subject is.
/// Metric: `svc_signals_total{result="invalid"}`.
pub const SIGNAL_EFFECTS_MAX: usize = 512;
/// Longest reason that is kept of a signal, in bytes; the rest is cut.
pub const SIGNAL_REASON_BYTES_MAX: usize = 256;

// --- streams and feed --------------------------------------------------------------------------

/// Most streams in the cluster; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAMS_MAX: u64 = 1_000;
/// Most streams of one caller among them; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAMS_PER_CALLER_MAX: u64 = 100;
/// Most subjects that are taken out of one stream; beyond it: 409.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_SUBJECTS_MAX: usize = 64;
/// Most bytes of all of them together, as JSON.
/// Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_SUBJECTS_BYTES_MAX: usize = 16 * 1024;
/// Most events of a stream that are done before one that is older; what is beyond it is delivered again.
pub const STREAM_WINDOW: usize = 1_000;
/// Most events that a stream holds; the oldest beyond it are dropped, and the stream is paused (contract §6).
pub const STREAM_BACKLOG_MAX: usize = 100_000;
/// Longest that a stream holds an event (contract §6).
pub const STREAM_HELD_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long events are kept for streams, in time that has passed: a little longer than a stream holds them.
pub const EVENTS_KEPT: Duration = Duration::from_secs(24 * 3600 + 600);
/// Most that events for streams take, in bytes with what a row needs; beyond it the oldest are dropped.
pub const OUTBOX_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Most events that are dropped when one is appended, unless that one is larger; more than one, so that they get
/// fewer.
pub const OUTBOX_DROPPED_AT_ONCE: usize = 4;
/// Most that an event which is passed on to streams says, its claims, subject and `txn` together, in bytes as
/// JSON; a signal with more is answered 400. With it the token that we sign is one that receivers of this fabric
/// take, which has at most [`TOKEN_BYTES_MAX`].
/// Metric: `svc_signals_total{result="invalid"}`.
pub const EVENT_SAID_BYTES_MAX: usize = 5 * 1024;
/// Most types of events that a stream can ask for.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_EVENTS_REQUESTED_MAX: usize = 64;
/// Longest description of a stream in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_DESCRIPTION_BYTES_MAX: usize = 256;
/// Longest reason for the status of a stream in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_REASON_BYTES_MAX: usize = 256;
/// Most events of a stream that are remembered because its receiver refused them; the oldest beyond it are dropped.
pub const DEAD_LETTERS_PER_STREAM_MAX: usize = 1_000;
/// Longest subject identifier that is kept of one of them, in bytes as JSON; a longer one is left out.
pub const DEAD_LETTER_SUBJECT_BYTES_MAX: usize = 512;
/// Shortest time between two verifications of a stream, in time that has passed; sooner: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const VERIFICATION_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Events that the live feed can resume from; the oldest beyond it are dropped, so many at once.
pub const FEED_EVENTS_MAX: u64 = 100_000;
/// How many events of the live feed are dropped at once.
pub const FEED_DROPPED_AT_ONCE: usize = 1_024;
/// Longest text in a row of the live feed in bytes; the rest is cut.
pub const FEED_TEXT_BYTES_MAX: usize = 512;
// --- calls to others ---------------------------------------------------------------------------
// --- delivery of security events by poll -------------------------------------------------------

/// Most security events in one answer to a poll (RFC 8936 §2.2); who asks for more is given these.
pub const POLL_EVENTS_MAX: usize = 100;
/// Bytes that the events of one answer say, beyond which it gets no further ones.
pub const POLL_ANSWER_BYTES_FULL: usize = 256 * 1024;
/// Largest request body of a poll.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const POLL_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most tokens that one poll acknowledges, and that it refuses.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const POLL_OUTCOMES_MAX: usize = 1_000;
/// Longest code with which a receiver refuses a token, in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const SET_ERR_BYTES_MAX: usize = 64;
/// Longest description with which a receiver refuses a token, in bytes.
pub const SET_ERR_DESCRIPTION_BYTES_MAX: usize = 256;
/// Longest wait of a poll for something to give, from its begin on: shorter than [`REQUEST_TIMEOUT`] by what
/// comes before and after it.
/// Metric: `svc_polls_waiting`.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(10);
/// Most polls that wait on a node at once; beyond it: 503.
/// Metric: `svc_polls_waiting`.
pub const POLLS_WAITING_MAX: usize = 256;
/// Most of them of one caller, one for each of its streams and a few more; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLLS_WAITING_PER_CALLER_MAX: usize = 128;
/// Most rows of the outbox that one poll looks at, each time that it looks.
pub const POLL_ROWS_SEEN_MAX: usize = 10_000;
/// Most of them that are looked at before other requests have their turn.
pub const POLL_ROWS_AT_ONCE: usize = 256;
/// Fewest rows that a stream is not for, for the sake of which its cursor is written.
pub const POLL_ROWS_PASSED_MIN: usize = 1_000;
/// Most polls of a node that look through the outbox, or sign, at once; who comes beyond waits for
/// [`POLL_LOOK_WAIT`].
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_LOOKS_MAX: usize = 4;
/// Most of them of one caller; the others of its polls wait for these, and for no longer.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_LOOKS_PER_CALLER_MAX: usize = 2;
/// Longest wait for such a place; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_LOOK_WAIT: Duration = Duration::from_secs(2);
/// Most attempts of a poll to write down what was acknowledged while others do so too; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_ADVANCES_MAX: usize = 8;
/// Bytes of signed security event tokens that are kept for a repetition.
pub const SETS_CACHED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Longest wait for a connection to another, its name and its handshake included, over all of its addresses.
pub const OUTBOUND_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Most calls under way to one host, of pushes and of fetches each; the others wait: fetches within their own time,
/// pushes for [`PUSH_PLACE_WAIT_MAX`].
pub const OUTBOUND_PER_HOST_MAX: usize = 16;
/// Most calls under way in all, of pushes and of fetches each; the others wait in the same way.
pub const OUTBOUND_CALLS_MAX: usize = 256;
/// Most names asked of the machine's resolver at once, of pushes and of fetches each. An answer that nobody waits for
/// any more counts until it is there. More than all names of one caller's streams need.
/// Metric: `svc_push_total{result="no_place"}`.
pub const OUTBOUND_LOOKUPS_MAX: usize = 256;
/// Longest wait for such a place: short enough for a lookup and a connection to follow within
/// [`OUTBOUND_CONNECT_TIMEOUT`].
/// Metric: `svc_push_total{result="no_place"}`.
pub const OUTBOUND_LOOKUP_WAIT_MAX: Duration = Duration::from_secs(1);
/// Most questions to the machine's resolver at once for one name.
pub const OUTBOUND_LOOKUPS_PER_NAME_MAX: usize = 2;
/// Most addresses of one name that are tried; few, because they share the time for a connection.
pub const OUTBOUND_ADDRESSES_MAX: usize = 4;
/// Most connections to one host that are kept open between calls.
pub const OUTBOUND_IDLE_PER_HOST_MAX: usize = 2;
/// How long a connection is kept open between calls.
pub const OUTBOUND_IDLE_MAX: Duration = Duration::from_secs(30);
/// Most networks in `outbound.allowed_networks`.
pub const OUTBOUND_NETWORKS_MAX: usize = 64;
/// Most pushes under way for all streams of one caller, whatever its receivers do; the others wait for
/// [`PUSH_PLACE_WAIT_MAX`].
/// Metric: `svc_push_total{result="no_place"}`.
pub const PUSHES_PER_OWNER_MAX: usize = 32;
/// Most of them to one host, whose places others need too.
/// Metric: `svc_push_total{result="no_place"}`.
pub const PUSHES_PER_OWNER_AT_HOST_MAX: usize = 8;
/// Longest wait of a push for its place; then it waits anew, and its receiver is not blamed.
/// Metric: `svc_push_total{result="no_place"}`.
pub const PUSH_PLACE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Total time of one push that has its place, to the last byte of the answer that is read.
pub const PUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the body of an answer 403 to a push; beyond it: the status alone counts.
pub const PUSH_REFUSAL_BODY_WAIT: Duration = Duration::from_secs(1);
/// Largest answer 400 or 403 to a push; of others nothing is read.
pub const PUSH_ANSWER_BYTES_MAX: usize = 64 * 1024;

// --- live feed ---------------------------------------------------------------------------------

/// Time between two heartbeats of the live feed, comments that keep the connection (contract §7). With each it
/// is asked again whether the reader may read.
pub const FEED_HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a reader of the live feed should wait before it connects again (contract §7).
pub const FEED_RETRY: Duration = Duration::from_millis(3_000);
/// Most events that are told and that a reader has not taken yet, shared by all readers; who is further behind is
/// cut off, and resumes.
/// Metric: `svc_event_readers_dropped_total{reason="slow"}`.
pub const FEED_READER_QUEUE: usize = 1_024;
/// Most rows of the feed that are read at once, for one reader that resumes or for all.
pub const FEED_ROWS_AT_ONCE: usize = 256;
/// Pause between two such pages when they are told to all, so that who reads keeps up, and before each that is read
/// for one reader.
pub const FEED_PAGE_PAUSE: Duration = Duration::from_millis(10);
/// Most such pages that are read in one such pause for single readers; the more readers, the longer each pauses.
pub const FEED_PAGES_PER_PAUSE: usize = 4;
/// Size beyond which no more events go into one write to a reader.
pub const FEED_CHUNK_BYTES_FULL: usize = 16 * 1024;
/// Most exchanges and denials that wait to be told, and that are told at once; those beyond are not told.
/// Metric: `svc_event_activities_dropped_total`.
pub const FEED_ACTIVITIES_AT_ONCE: usize = 64;
/// Least time between two times that such are told.
/// Metric: `svc_event_activities_dropped_total`.
pub const FEED_ACTIVITY_PAUSE: Duration = Duration::from_millis(100);
/// Longest text in an event of the live feed in bytes, whatever tells it; the rest is cut.
pub const FEED_TEXT_SHOWN_BYTES_MAX: usize = 2 * 1024;
/// Most readers of the live feed on a node; beyond it: 503.
/// Metric: `svc_event_readers`.
pub const EVENT_READERS_MAX: usize = 1_000;
/// Most of them with one identity; beyond it: 429.
/// Metric: `svc_http_requests_total{route="/v1/events",status="429"}`.
pub const EVENT_READERS_PER_CALLER_MAX: usize = 5;

// --- issuers' keys -----------------------------------------------------------------------------

/// Total time of one fetch of a JWKS, discovery document or SPIFFE bundle.
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest document fetched.
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const FETCH_BYTES_MAX: usize = 256 * 1024;
/// Most keys in one key set: as many as a fabric publishes ([`SIGNING_KEYS_MAX`]).
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const KEYS_PER_SET_MAX: usize = 256;
/// How long fetched keys are used before they are fetched again.
/// Metric: `svc_issuer_key_fetches_total{result="fetched"}`.
pub const KEYS_FRESH: Duration = Duration::from_secs(300);
/// How long fetched keys are used when the source cannot be reached.
/// Metric: `svc_exchange_total{result="issuer_unavailable"}`.
pub const KEYS_STALE_MAX: Duration = Duration::from_secs(900);
/// How long an issuer's source is not asked again, whatever unknown `kid` is presented and after a
/// failure.
/// Metric: `svc_exchange_total{result="subject_token"}`.
pub const KEYS_NEGATIVE: Duration = Duration::from_secs(30);
/// How long a source is left alone after a fetch that its caller abandoned.
pub const KEYS_ABANDONED: Duration = Duration::from_secs(1);
/// Shortest refresh interval that a SPIFFE bundle can ask for.
/// Metric: `svc_issuer_key_fetches_total{result="fetched"}`.
pub const SPIFFE_REFRESH_MIN: Duration = Duration::from_secs(10);
/// Shortest RSA modulus of an issuer's key in bits (RFC 7518 §3.3).
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const RSA_MODULUS_BITS_MIN: usize = 2048;
/// Longest RSA modulus of an issuer's key in bits: it caps the cost of a check.
/// Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const RSA_MODULUS_BITS_MAX: usize = 8192;

// --- policy ------------------------------------------------------------------------------------

/// Time in which a policy bundle must parse and compile; after it the loader is killed.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_LOAD_DEADLINE: Duration = Duration::from_secs(2);
/// Time in which one decision must be made; after it: nothing is permitted, and the caller may ask again (503).
/// Metric: `svc_policy_decisions_total{decision="error"}`.
pub const POLICY_DECISION_DEADLINE: Duration = Duration::from_millis(100);
/// Largest policy bundle (all sources together).
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a bundle that did not compile on this node is tried again.
/// Metric: `svc_policy_loads_total{result="failed"}`.
pub const POLICY_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Most bundles compiled, and questions explained, at once.
pub const POLICY_LOADS_MAX: usize = 2;
/// Largest request body that brings a policy bundle, as JSON.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const POLICY_BODY_BYTES_MAX: usize = 2 * POLICY_BYTES_MAX;
/// Most files in a policy bundle.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_FILES_MAX: usize = 64;
/// Most bundles kept for rollback.
pub const POLICY_HISTORY_MAX: usize = 16;
/// Longest path of a file in a policy bundle, in bytes.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_PATH_BYTES_MAX: usize = 255;
/// Steps of an evaluation between two looks at the clock.
pub const POLICY_STEPS_PER_TICK: u32 = 64;
/// Most answers remembered per bundle, so that a question asked again is not evaluated again.
pub const POLICY_DECISIONS_CACHED_MAX: u64 = 10_000;
/// Deepest chain of rules that use each other; each costs the evaluating thread some stack.
/// Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_CALL_DEPTH_MAX: usize = 32;
/// Time in which one rule of a policy's own tests, or of an explanation, must be evaluated.
pub const POLICY_TEST_DEADLINE: Duration = Duration::from_secs(2);
/// Longest public reason of a denial in bytes; the rest is cut.
pub const POLICY_REASON_BYTES_MAX: usize = 512;
/// Longest message read from the process that compiles a bundle first, in bytes.
pub const POLICY_VERDICT_BYTES_MAX: usize = 4096;
/// Longest blast radius in bytes.
/// Metric: `svc_exchange_total{result="policy_failed"}`.
pub const BLAST_RADIUS_BYTES_MAX: usize = 256;
/// Most kinds in the order of blast radii.
pub const BLAST_RADIUS_KINDS_MAX: usize = 16;
/// Most entries in the parent map of blast radii.
pub const BLAST_RADIUS_PARENTS_MAX: usize = 10_000;

// --- replicated core ---------------------------------------------------------------------------

/// Most commands waiting to be proposed; beyond it: 503.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSALS_QUEUED_MAX: usize = 16 * 1024;
/// Most commands in one log entry.
pub const COMMANDS_PER_ENTRY_MAX: usize = 512;
/// Size beyond which no further command is added to a log entry.
pub const ENTRY_BYTES_FULL: usize = 1024 * 1024;
/// How long the reading of another node's wall clock is good for; older ones count for nothing.
/// Metric: `svc_clock_agreement`.
pub const CLOCK_READING_VALID: Duration = Duration::from_secs(1);
/// Longest round trip of a reading of another node's wall clock; one that took longer is dropped.
/// Metric: `svc_clock_agreement`.
pub const CLOCK_ROUND_TRIP_MAX: Duration = Duration::from_millis(500);
/// Most that a wall clock may be away from the median of the voters' to agree with it. A node whose clock is further
/// away judges no credentials of other issuers.
/// Metric: `svc_clock_offset_seconds`.
pub const CLOCK_AGREEMENT: Duration = Duration::from_secs(2);
/// Most that a wall clock may be away from the median of the voters' for its node to judge anything by time.
/// Metric: `svc_clock_offset_seconds`.
pub const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(5);
/// Most entries proposed and not yet applied: one on its way, and one with all that came meanwhile. With more of them
/// each would carry less, and an entry costs every member more than a command in it does.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// Longest wait for a command to be applied; beyond it: 503, outcome unknown.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a command whose outcome is open is sent again.
pub const PROPOSE_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Most that a command's number is ahead of the first of its process that is not answered. It is more than a process
/// has waiting and in entries under way at once; the replies in between are remembered, and up to as many that are
/// being removed.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const SUBMISSIONS_AHEAD_MAX: u64 = 32 * 1024;
/// How long replies are remembered for a process that proposes nothing, in time that has passed; far longer than it
/// waits for them.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const ORIGIN_KEPT: Duration = Duration::from_secs(600);
/// Most processes that are remembered, by some 50 bytes each; a command of another is refused.
/// Metric: `svc_exchange_total{result="unavailable"}`.
pub const ORIGINS_MAX: u64 = 4096;
/// Most of them that have proposed nothing for so long that their replies are forgotten; beyond it those go that have
/// not for the longest.
pub const ORIGINS_UNUSED_MAX: usize = 1024;
/// How often it is looked for processes that have proposed nothing for long, in time that has passed.
pub const ORIGINS_SWEPT_EVERY: Duration = Duration::from_secs(60);
/// Most replies that one entry removes because they were received, and most because their process is gone. Twice what an
/// entry adds, so that they get fewer.
pub const REPLIES_FORGOTTEN_AT_ONCE: u64 = 2 * COMMANDS_PER_ENTRY_MAX as u64;
/// Bytes of entries beyond which the log is cut behind a snapshot; half of it then stays.
pub const LOG_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How long a node may be without a lease until health says that it has no leader, whomever it last heard of.
/// Metric: `svc_raft_is_leader`.
pub const LEADER_UNCONFIRMED_MAX: Duration = Duration::from_secs(2);
/// Time between two looks of the watchdog at the log writer.
pub const DISK_TICK: Duration = Duration::from_millis(100);
/// Ticks during which a write of the log does not finish, until the disk counts as one that hangs.
/// Metric: `svc_log_disk_hangs`.
pub const DISK_HANGS_TICKS: u32 = 10;
/// Heartbeats for which it may hang, if that is longer.
/// Metric: `svc_log_disk_hangs`.
pub const DISK_HANGS_HEARTBEATS: u32 = 10;
/// Ticks during which it hangs until the node ends, if another leads.
/// Metric: `svc_log_disk_hangs`.
pub const DISK_LOST_TICKS: u32 = 100;
/// Longest wait for another member to lead when this node hands over; then it goes on without.
/// Metric: `svc_raft_is_leader`.
pub const HAND_OVER_MAX: Duration = Duration::from_secs(3);
/// How long the member that is handed leadership may take to be elected; then the next one is named.
pub const HAND_OVER_ATTEMPT: Duration = Duration::from_millis(500);
/// Time between two looks at whether this node may stand for election.
pub const CANDIDACY_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a node does not stand for election after it handed over, while there is a leader.
/// Metric: `svc_raft_is_leader`.
pub const CANDIDACY_PAUSE: Duration = Duration::from_secs(30);
/// How long there may be no leader until a node that handed over stands for election all the same.
/// Metric: `svc_raft_is_leader`.
pub const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// How long a node may answer from its own memory after it asked the leader (design §4, D).
/// Metric: `svc_freshness_lease_held`.
pub const FRESHNESS_LEASE: Duration = Duration::from_secs(1);
/// What is taken off a lease, for boot clocks that do not run alike.
/// Metric: `svc_freshness_lease_held`.
pub const FRESHNESS_MARGIN: Duration = Duration::from_millis(50);
/// Maximum advance of the wall clock over the boot clock between two looks at the lease; beyond it: the lease is dropped.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_CLOCK_STEP_MAX: Duration = Duration::from_millis(200);
/// Time from one lease to the request for the next.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_RENEWAL: Duration = Duration::from_millis(250);
/// Longest wait for one renewal; beyond it, it is asked for again. One that hangs costs no lease.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause after a renewal that failed.
/// Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait of a request for a lease, and of a verification until this node has applied what the token
/// was issued after; beyond it: 503.
/// Metric: `svc_freshness_refused_total`.
pub const FRESHNESS_WAIT: Duration = Duration::from_secs(2);
/// Most requests that wait for a lease, or without leases for the next question to the leader and for the one under way;
/// beyond it: 503 at once.
/// Metric: `svc_freshness_refused_total`.
pub const FRESHNESS_WAITS_MAX: usize = 2_048;
/// Longest wait of a read for the leader's answer, and then until this node has applied what it named; beyond
/// it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the leader; beyond it, it is asked anew.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause after a question to the leader that failed.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Most reads that wait for the next question to the leader, and for the one under way; beyond it: 503 at once.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_WAITS_MAX: usize = 512;
/// Longest wait until no member can answer from before a revocation; beyond it: 503, although it is applied.
/// Metric: `svc_acknowledgements_total{result="unconfirmed"}`.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time after a node's last freshness lease, or after its start, for which it serves its JWK Set; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const JWKS_WITHOUT_LEASE_MAX: Duration = Duration::from_secs(60);
/// Time between two looks at whether the node is ready, for the log.
pub const READINESS_LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How often the log says why a node is not ready.
pub const NOT_READY_SAID_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait of one of several nodes until it knows what its cluster has written: as long as the others take.
pub const RECOVERY_OF_MEMBER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The same, of a node that is alone.
pub const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// What the tables of the state may keep in memory of what is on disk, all together.
pub const STATE_CACHE_BYTES: usize = 64 * 1024 * 1024;
/// What the tables of the state may keep in memory of what was written last, all together; beside it, what is
/// on its way to the disk.
pub const STATE_WRITE_BUFFERS_BYTES: usize = 32 * 1024 * 1024;
/// What the log may keep in memory of what is in its database, beside its newest entries.
pub const LOG_WRITE_BUFFERS_BYTES: usize = 16 * 1024 * 1024;
/// How long a spent nonce is remembered, in elapsed time: until no credential that could present it
/// again is alive.
/// Metric: `svc_exchange_total{result="nonce_spent"}`.
pub const NONCE_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Maximum nonces remembered in the cluster, by some 70 bytes on disk each; beyond it: 429. None is forgotten early.
/// Metric: `svc_exchange_total{result="too_many"}`.
pub const NONCES_MAX: u64 = 20_000_000;
/// Maximum nonces remembered of one caller; beyond it: 429.
/// Metric: `svc_exchange_total{result="too_many"}`.
pub const NONCES_PER_CALLER_MAX: u64 = 10_000_000;
/// How long a used execution-scoped token is remembered, in elapsed time from its use: until five minutes after its
/// `exp`, which lies at most [`EXECUTION_TOKEN_LIFETIME`] and [`LEEWAY`] ahead.
/// Metric: `svc_http_requests_total{status="403"}`.
pub const SPENT_TOKEN_RETENTION: Duration = Duration::from_secs(30 + 5 + 300);
/// Maximum used execution-scoped tokens remembered in the cluster, by some 70 bytes on disk each; beyond it: 429. None
/// is forgotten early.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const SPENT_TOKENS_MAX: u64 = 20_000_000;
/// Maximum used execution-scoped tokens remembered of one caller; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const SPENT_TOKENS_PER_CALLER_MAX: u64 = 10_000_000;
/// How long the outcome of an `Idempotency-Key` is remembered, in elapsed time (contract §1).
/// Metric: `svc_exchange_total{result="idempotency_key"}`.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Maximum `Idempotency-Key`s remembered in the cluster, by some 200 bytes on disk each; a request with a new one
/// beyond it: 429. None is forgotten early.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const IDEMPOTENCY_KEYS_MAX: u64 = 10_000_000;
/// Maximum `Idempotency-Key`s remembered of one caller; beyond it: 429.
/// Metric: `svc_http_requests_total{status="429"}`.
pub const IDEMPOTENCY_KEYS_PER_CALLER_MAX: u64 = 5_000_000;

// --- tools -------------------------------------------------------------------------------------

/// Most tools in the registry; beyond it: 409.
/// Metric: `svc_tools`, `svc_tool_writes_total{result="refused"}`.
pub const TOOLS_MAX: u64 = 2_000_000;
/// Most tools of one caller among them; beyond it: 409.
/// Metric: `svc_tool_writes_total{result="refused"}`.
pub const TOOLS_PER_CALLER_MAX: u64 = 1_000_000;
/// Size of the rows beyond which no further tool, or agent, is added to a page of a list; the rest is on
/// the next.
pub const TOOL_PAGE_BYTES_FULL: usize = 1024 * 1024;
/// Memory for tools, in which they are compressed.
pub const TOOLS_IN_MEMORY_BYTES: usize = 112 * 1024 * 1024;
/// Memory for the heads of their audit trails.
pub const AUDIT_HEADS_IN_MEMORY_BYTES: usize = 80 * 1024 * 1024;
/// Largest request body that brings a tool entry.
/// Metric: `svc_http_requests_total{status="413"}`.
pub const TOOL_BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest `tool_id` in bytes (contract §5).
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_ID_BYTES_MAX: usize = 256;
/// Longest `name` of a tool in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// Longest `description` of a tool in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_DESCRIPTION_BYTES_MAX: usize = 4096;
/// Longest `version` of a tool in bytes.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_VERSION_BYTES_MAX: usize = 256;
/// Most entries of `allowed_operations`, and of `allowed_targets`.
/// Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_ALLOWED_MAX: usize = 256;

// --- listeners ---------------------------------------------------------------------------------

/// Longest wait for the first request of a connection, its TLS handshake included.
/// Metric: `svc_http_connections_closed_total{reason="first_request"}`.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a connection of the reserve, which is closed gracefully after it.
/// Metric: `svc_http_connections_closed_total{reason="first_request"}`, `svc_http_connections_closed_total{reason="reserve"}`.
pub const FIRST_REQUEST_IN_RESERVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest TLS handshake.
/// Metric: `svc_http_connections_refused_total{reason="handshake_timeout"}`.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time from the first byte of an HTTP/1.1 request's head to its last.
/// Metric: `svc_http_connections_closed_total{reason="header_timeout"}`.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection stays open without a request under way.
/// Metric: `svc_http_connections_closed_total{reason="idle"}`.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at what a connection is doing: what "idle" and "stalled" are rounded up to.
pub const CONNECTION_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait until the other end reads on, or its machine says that it has what was sent; after it the connection
/// is cut.
/// Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Age at which a plain connection is closed gracefully.
/// Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3600);
/// Age at which a TLS connection is closed gracefully, so that its client is verified again.
/// Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const TLS_CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// Longest time from a request's headers to its answer's, reading the body included.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Most headers of one request; beyond it: 431.
/// Metric: `svc_http_requests_total{status="431"}`.
pub const HEADERS_MAX: usize = 64;
/// Largest head of one HTTP/1.1 request; beyond it: 431.
/// Metric: `svc_http_requests_total{status="431"}`.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest request line of HTTP/1.1; beyond it: 414.
/// Metric: `svc_http_requests_total{status="414"}`.
pub const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;
/// Most bytes read from an HTTP/1.1 connection at once into memory of our own.
pub const HEAD_BYTES_PER_READ_MAX: usize = 4 * 1024;
/// Most written and not yet sent of an HTTP/1.1 connection before its answer waits.
/// Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const HTTP1_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Longest wait after a refused request until its sender stops sending, so that it reads the answer.
/// Metric: `svc_http_connections_closed_total{reason="violation"}`.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests at once on one HTTP/2 connection (RFC 9113 §5.1.2).
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// Largest head of one HTTP/2 request, as RFC 9113 §6.5.2 counts it; beyond it: 431.
pub const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Most HTTP/2 requests taken back before they were looked at; beyond it the connection is closed.
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_PENDING_RESETS_MAX: usize = 20;
/// Most HTTP/2 requests that we end because of their sender's mistakes; beyond it: closed.
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_LOCAL_RESETS_MAX: usize = 20;
/// What one HTTP/2 request may send before we have read it, in bytes.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// What all requests of one HTTP/2 connection may send before we have read it, in bytes.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Largest HTTP/2 frame (RFC 9113 §4.2: the least that can be stated).
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Most written and not yet sent of one HTTP/2 answer before it waits.
/// Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const HTTP2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Time between two pings on an HTTP/2 connection.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Longest wait for the answer to one.
/// Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Most open connections of all listeners; what the limit of open files leaves, if that is less.
/// Metric: `svc_http_connections`, `svc_requests_refused_total{reason="reserve"}`.
pub const CONNECTIONS_MAX: usize = 10_240;
/// Most connections that the system keeps for us until they are accepted, on each listener.
pub const CONNECTIONS_QUEUED_MAX: u32 = 1024;
/// Further connections of each listener, answered on health routes only.
/// Metric: `svc_http_connections_refused_total{reason="full"}`.
pub const CONNECTIONS_IN_RESERVE_MAX: usize = 64;
/// Default of the most open connections from one address; of IPv6, from one /64.
/// Metric: `svc_http_connections_refused_total{reason="address"}`.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 256;
/// Default of the most open connections with one client certificate's identity.
/// Metric: `svc_http_connections_refused_total{reason="identity"}`.
pub const CONNECTIONS_PER_IDENTITY_MAX: usize = 1024;
/// Open files kept free of connections, for the database, the log and calls to others.
pub const DESCRIPTORS_RESERVED: usize = 1024;
/// Longest wait for the index that `Svc-Min-Index` or `Last-Event-ID` names; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most callers whose rate is remembered; beyond it the least used start anew.
pub const RATES_REMEMBERED_MAX: u64 = 100_000;
/// How long a caller's rate is remembered after its last request.
pub const RATES_REMEMBERED_IDLE: Duration = Duration::from_secs(60);
/// Default number of requests that one caller may send in a second.
/// Metric: `svc_requests_refused_total{reason="rate"}`.
pub const REQUESTS_PER_SECOND_PER_CALLER: u32 = 1_000;
/// Largest number of requests a second that can be configured for one caller.
pub const REQUESTS_PER_SECOND_MAX: u32 = 1_000_000;
/// Requests for health that one address may send in a second; beyond it: 429.
/// Metric: `svc_requests_refused_total{reason="rate"}`.
pub const HEALTH_REQUESTS_PER_SECOND: u32 = 100;
/// Most requests of one caller under way at once; beyond it: 429.
/// Metric: `svc_requests_refused_total{reason="rate"}`.
pub const REQUESTS_OF_CALLER_MAX: usize = 512;
/// Most requests whose answer waits until the rest of their body is read; beyond it: answered at once.
pub const LEFTOVERS_MAX: usize = 1_024;
/// Longest time for one connection of `admin.sock`, which are served one after the other; beyond it: closed.
pub const ADMIN_SOCKET_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests that wait for their `Svc-Min-Index` or `Last-Event-ID` at once; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAITS_MAX: usize = 64;
/// Most requests under way at once; beyond it: 503.
/// Metric: `svc_requests_refused_total{reason="overload"}`.
pub const REQUESTS_MAX: usize = 4_096;
/// Most requests that were read and have not had their first turn; beyond it: 503.
/// Metric: `svc_requests_refused_total{reason="overload"}`.
pub const REQUESTS_WAITING_MAX: usize = 136;
/// Longest wait for a request's body; beyond it: 408.
/// Metric: `svc_http_requests_total{status="408"}`.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a node that stops waits for its tasks and its databases to end; then the process is ended all the same.
pub const STOP_MAX: Duration = Duration::from_secs(20);
/// The same, while the disk of the log hangs.
pub const STOP_OF_HUNG_MAX: Duration = Duration::from_secs(1);
/// How long a graceful shutdown waits for requests under way.
/// Metric: `svc_http_connections_closed_total{reason="shutdown"}`.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

// --- TLS ---------------------------------------------------------------------------------------

/// Time between two looks at the files of TLS.
/// Metric: `svc_tls_reloads_total`.
pub const TLS_RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Largest file with our certificate, our private key, or the client CAs.
/// Metric: `svc_tls_reloads_total{with="callers",result="failed"}`.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Largest file with revocation lists.
/// Metric: `svc_tls_reloads_total{with="callers",result="failed"}`.
pub const TLS_CRL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum issuers in `svc_via` of a signal, through which it came before its own; beyond it: ignored, and not passed on.
/// Metric: `svc_signals_total{result="ignored"}`.
pub const SIGNAL_VIA_MAX: usize = 4;
/// Maximum trust domains whose clients a node accepts, each with authorities of its own; beyond it: refused at start.
pub const CLIENT_TRUST_DOMAINS_MAX: usize = 301;
/// Most certificates a client may send beside its own; beyond it: refused in the handshake.
/// Metric: `svc_http_connections_refused_total{reason="handshake"}`.
pub const CLIENT_INTERMEDIATES_MAX: usize = 6;

// --- caches ------------------------------------------------------------------------------------

/// Most verified signatures remembered, counting one for each started KiB of payload.
pub const SIGNATURES_CACHED_MAX: u64 = 100_000;

// --- pushes ------------------------------------------------------------------------------------

/// Most pushes of one stream at once, each of another subject (contract §6).
pub const PUSHES_PER_STREAM_MAX: usize = 8;
/// Shortest wait after a push that failed (contract §6).
/// Metric: `svc_push_total`.
pub const PUSH_WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest one, also if the receiver asks for more.
/// Metric: `svc_push_total`.
pub const PUSH_WAIT_MAX: Duration = Duration::from_secs(300);
/// Maximum attempts of an event whose sender, key, issuer or audience the receiver refuses; then a verification event
/// decides whether the event is a dead letter or the stream is paused.
/// Metric: `svc_push_total{result="refused"}`.
pub const PUSH_REFUSALS_MAX: u32 = 8;
/// How often an event is not taken by a receiver that takes others meanwhile before it is a dead letter.
/// Metric: `svc_stream_events_total{result="dead_letter"}`.
pub const PUSH_FAILURES_ALONE_MAX: u32 = 24;
/// How long a receiver may take nothing before its stream is paused, by the clock of the node that leads.
/// Metric: `svc_streams{status="paused"}`.
pub const PUSH_FAILING_MAX: Duration = Duration::from_secs(12 * 3600);
/// Longest time that a delivery is not recorded; what was not is sent again by the next leader.
pub const PUSH_ADVANCE_INTERVAL: Duration = Duration::from_millis(200);
/// Deliveries that are recorded before that.
pub const PUSH_ADVANCE_EVENTS: usize = 256;
/// Most dead letters that are recorded at once; the rest is recorded next.
pub const DEAD_LETTERS_AT_ONCE_MAX: usize = 64;
/// Longest `err` of a receiver that is kept, in bytes.
pub const PUSH_ERR_BYTES_MAX: usize = 64;
/// Longest `description` of a receiver that is kept, in bytes.
pub const PUSH_DESCRIPTION_BYTES_MAX: usize = 256;
/// How many events beyond [`STREAM_BACKLOG_MAX`] must wait before the oldest are dropped down to it.
/// Metric: `svc_stream_events_total{result="dropped"}`.
pub const STREAM_BACKLOG_SLACK: u64 = 1_000;
/// How much longer than [`STREAM_HELD_MAX`] an event must wait before all beyond that are dropped. Less than what
/// [`EVENTS_KEPT`] is more.
/// Metric: `svc_stream_events_total{result="dropped"}`.
pub const STREAM_HELD_SLACK: Duration = Duration::from_secs(300);
/// Time between two looks at what streams hold.
pub const STREAM_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Most events of the outbox that are read before others have their turn.
pub const OUTBOX_ROWS_PER_TURN: usize = 128;
/// Most times that a stream is looked at for one of them before that.
pub const OUTBOX_TOLD_PER_TURN: usize = 2_048;

// --- between nodes -----------------------------------------------------------------------------

/// Most members that a cluster is founded with.
pub const MEMBERS_MAX: usize = 9;
/// Largest message between nodes.
pub const PEER_MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size beyond which no further entry is sent in one message. An entry is no larger than
/// [`ENTRY_BYTES_FULL`] and one command.
pub const APPEND_BYTES_FULL: usize = 4 * 1024 * 1024;
/// Most connections of other nodes.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// Most connections of one other node.
pub const PEER_CONNECTIONS_OF_NODE_MAX: usize = 32;
/// Most connections between nodes of which it is not known yet who makes them.
pub const PEER_HANDSHAKES_MAX: usize = 256;
/// The same from one address.
pub const PEER_HANDSHAKES_OF_ADDRESS_MAX: usize = 64;
/// Most calls under way in one connection.
pub const PEER_STREAMS_MAX: u32 = 1_024;
/// Largest list of headers of a call.
pub const PEER_HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes that may be under way in one call and in one connection.
pub const PEER_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Longest wait for a connection to a node, its handshake included, and for the first answer over it.
pub const PEER_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before entries are sent again to a node that did not take them.
pub const PEER_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks whether the other end of a connection is there.
pub const PEER_PING_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for an answer to that.
pub const PEER_PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time that what was sent to a node is not received there.
pub const PEER_SILENCE_MAX: Duration = Duration::from_secs(3);
/// Maximum time that a memory of a member's disk is not written; a crash loses what is not.
pub const MEMORY_UNWRITTEN_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at what the members have acknowledged, while this node leads.
pub const MEMORY_PAUSE: Duration = Duration::from_millis(50);
/// Time for which a node whose log contradicts the leader's answers so before it stops.
pub const CONTRADICTION_TOLD_FOR: Duration = Duration::from_millis(500);
/// Time between two rounds of asking the members that a cluster is founded with.
pub const FOUNDING_PAUSE: Duration = Duration::from_millis(250);
/// How long a member that is asked whether it has applied an entry waits until it has, before it says how far it
/// has come.
pub const APPLIED_WAIT: Duration = Duration::from_secs(1);
/// Largest index of a log entry that is believed.
pub const LOG_INDEX_MAX: u64 = 1 << 60;
/// How far the term of another node may be ahead of ours.
pub const TERM_AHEAD_MAX: u64 = 1 << 20;
/// Bytes of a snapshot in one message.
pub const SNAPSHOT_PART_BYTES: usize = 256 * 1024;
/// Longest wait for the next message of a snapshot that is received.
pub const SNAPSHOT_PART_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of a snapshot that wait to be sent.
pub const SNAPSHOT_PARTS_QUEUED_MAX: usize = 8;
/// Most files of a snapshot.
pub const SNAPSHOT_FILES_MAX: usize = 16 * 1024;
/// Largest snapshot in bytes.
pub const SNAPSHOT_BYTES_MAX: u64 = 256 * 1024 * 1024 * 1024;
/// Longest name of a file of a snapshot in bytes.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 64;

// --- telemetry ---------------------------------------------------------------------------------

/// Most log lines waiting for their reader; what comes beyond is dropped and counted.
/// Metric: `svc_log_lines_dropped_total`.
pub const LOG_LINES_QUEUED_MAX: usize = 8 * 1024;

// --- command line ------------------------------------------------------------------------------

/// Longest wait of the command line for the answer of a node.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer that the command line reads: a whole policy bundle as JSON.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most rows of a list that the command line reads, in all its pages.
pub const ADMIN_ROWS_MAX: usize = 100_000;
/// Longest line of the live feed that the command line reads, and most bytes of one event.
pub const EVENT_BYTES_MAX: usize = 64 * 1024;
/// Longest silence of the live feed, its heartbeats included, before the command line connects again.
pub const EVENTS_SILENCE_MAX: Duration = Duration::from_secs(45);
/// Longest time that the command line reads the live feed over one request.
pub const EVENTS_REQUEST_MAX: Duration = Duration::from_secs(24 * 3600);
/// First pause before the command line connects again to read the live feed; it doubles up to the longest.
pub const EVENTS_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest such pause.
pub const EVENTS_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Most bytes read of a file of certificates or private keys on the command line.
pub const PEM_BYTES_MAX: u64 = 1024 * 1024;
/// Longest life of a development certificate in days.
pub const PKI_DAYS_MAX: u32 = 365;
/// How long before it is made a development certificate is valid already, for clocks that disagree.
pub const PKI_BACKDATED: Duration = Duration::from_secs(300);
/// Longest name of a caller with a development certificate, below its trust domain, in bytes
/// (RFC 5280 appendix A.1, `ub-common-name`).
pub const PKI_CALLER_BYTES_MAX: usize = 64;
/// Longest DNS name in bytes (RFC 1035 §2.3.4, in text).
pub const DNS_NAME_BYTES_MAX: usize = 253;
/// Longest wait of the development broker for its own node to become ready.
pub const DEMO_READY_MAX: Duration = Duration::from_secs(30);
/// Time between two looks at whether it is.
pub const DEMO_READY_PAUSE: Duration = Duration::from_millis(50);
/// Largest configuration file.
pub const CONFIG_BYTES_MAX: usize = 1024 * 1024;
/// Shortest heartbeat of the replicated core.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// Longest heartbeat of the replicated core.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// Longest name of a node in bytes.
pub const UNIT_ID_BYTES_MAX: usize = 64;

// --- audit -------------------------------------------------------------------------------------

/// Most audit entries that wait to be written on this node; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_QUEUED_MAX: usize = 8 * 1024;
/// Largest audit entry in bytes; what it is about is answered 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_ENTRY_BYTES_MAX: usize = 64 * 1024;
/// Longest notes of an audit entry in bytes; the rest is cut.
pub const AUDIT_NOTES_BYTES_MAX: usize = 2 * 1024;
/// Most that an entry's time may be behind the entry before it and is still moved up to it, so that a trail
/// is in the order of time: as long as a request may take ([`REQUEST_TIMEOUT`]), and a little for the writer.
/// A clock that was set back further is believed.
pub const AUDIT_REORDERED_MAX: Duration = Duration::from_secs(20);
/// Size beyond which no more audit entries are written at once.
pub const AUDIT_WRITE_BYTES_FULL: usize = 256 * 1024;
/// Largest block of audit entries in bytes, before it is compressed.
pub const AUDIT_BLOCK_BYTES_MAX: usize = 1024 * 1024;
/// Time between two shipments of audit entries into the log (contract §5).
/// Metric: `svc_audit_backlog_bytes`.
pub const AUDIT_SHIP_INTERVAL: Duration = Duration::from_millis(200);
/// Longest pause after a shipment that failed.
/// Metric: `svc_audit_blocks_total{result="failed"}`.
pub const AUDIT_SHIP_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Most bytes of audit entries that wait to be shipped; beyond it: 503.
/// Metric: `svc_audit_backlog_bytes`.
pub const AUDIT_BACKLOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How long audit entries are kept, by elapsed time, if they take no more than [`AUDIT_BYTES_MAX`]: 90 days or
/// 1 GiB, whichever comes first. Older ones go when newer ones come.
/// Metric: `svc_audit_blocks_dropped_total{reason="age"}`.
pub const AUDIT_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Most that blocks of audit entries take, in bytes with all their rows; beyond it the oldest are dropped.
/// Metric: `svc_audit_blocks_dropped_total{reason="bytes"}`.
pub const AUDIT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Size beyond which no more blocks of audit entries are dropped when one is appended, unless that one is
/// larger.
pub const AUDIT_BYTES_DROPPED_FULL: u64 = 1024 * 1024;
/// How often a segment of the audit's journal is tried before it is put aside and an entry says so.
/// Metric: `svc_audit_blocks_total{result="failed"}`.
pub const AUDIT_READ_ATTEMPTS_MAX: u32 = 10;
/// Most pages of the audit that are read at once; who comes beyond waits for [`AUDIT_READ_WAIT`].
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_READS_MAX: usize = 4;
/// Longest wait for such a place; beyond it: 503.
/// Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_READ_WAIT: Duration = Duration::from_secs(1);
/// Most blocks of audit entries opened for one page; it may have fewer rows then, and says where to go on.
pub const AUDIT_BLOCKS_PER_PAGE_MAX: usize = 64;
/// Size beyond which a page of audit entries gets no more rows.
pub const AUDIT_PAGE_BYTES_FULL: usize = 2 * 1024 * 1024;
/// Longest line of an exported audit that is read: a block with all its entries.
pub const AUDIT_LINE_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Time between two looks of `audit tail --follow`.
pub const AUDIT_FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
