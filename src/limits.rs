//! Every limit of the product, by name, in one table.
//!
//! A queue, body, list, cache or wait that grows without a line here is a bug. `docs/limits.md`
//! says the same for operators; a house rule compares the two.

use std::time::Duration;

// --- input -------------------------------------------------------------------------------------

/// Largest request body in bytes; a larger one is answered 413.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Most bytes read and thrown away of a body that is too large, so that its sender reads the answer.
pub const BODY_DISCARDED_MAX: usize = 4 * 1024 * 1024;
/// Largest compact JWS in bytes, checked before anything is decoded (contract §3).
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of a JSON document (contract §1).
pub const JSON_DEPTH_MAX: usize = 32;
/// Longest workload identifier in bytes (SPIFFE-ID §2.3, WIMSE identifier §4).
pub const WORKLOAD_ID_BYTES_MAX: usize = 2048;
/// Longest trust domain name in bytes (SPIFFE-ID §2.1).
pub const TRUST_DOMAIN_BYTES_MAX: usize = 255;
/// Longest `kid` in bytes.
pub const KID_BYTES_MAX: usize = 256;
/// Longest `nonce`, `jti`, `txn` or idempotency key in bytes.
pub const OPAQUE_BYTES_MAX: usize = 256;
/// Longest `htu`, `target` or audience in bytes.
pub const URI_BYTES_MAX: usize = 2048;
/// Most words in one `scope`, and most entries of one `capabilities` list.
pub const CAPABILITIES_MAX: usize = 128;
/// Longest single scope word or capability in bytes.
pub const CAPABILITY_BYTES_MAX: usize = 128;

// --- tokens ------------------------------------------------------------------------------------

/// Lifetime of a standard exchanged token (specification, Limits).
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// Lifetime of an execution-scoped token (specification, Limits).
pub const EXECUTION_TOKEN_LIFETIME: Duration = Duration::from_secs(30);
/// Leeway on the time claims of a credential (contract §3); zero for execution-scoped tokens.
pub const LEEWAY: Duration = Duration::from_secs(5);
/// Default age limit of a credential, and how long a chain may go on from its first credential.
pub const CREDENTIAL_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most actors nested in `act` (contract §3).
pub const ACT_DEPTH_MAX: usize = 10;
/// Most digests in `lineage` (contract §3).
pub const LINEAGE_MAX: usize = 32;
/// Latest NumericDate that is read: the end of the year 9999.
pub const NUMERIC_DATE_MAX_SECS: i64 = 253_402_300_799;
/// Longest verified email address in bytes (RFC 3696 erratum 1690 allows 254; some issuers exceed it).
pub const EMAIL_BYTES_MAX: usize = 320;
/// Largest delegation depth that can be stated.
pub const DELEGATION_DEPTH_MAX: u32 = 10;

// --- keys --------------------------------------------------------------------------------------

/// How long a signing key is published before it may sign (contract §3, W).
pub const KEY_PUBLISH_AHEAD: Duration = Duration::from_secs(600);
/// Longest life of any token a signing key signs: the agent identity token (contract §4).
pub const TOKEN_LIFETIME_LONGEST: Duration = Duration::from_secs(3600);
/// Most signing keys remembered in the cluster.
pub const SIGNING_KEYS_MAX: usize = 256;
/// How long caches may keep a JWKS (contract §1, Cache).
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(60);

// --- issuers' keys -----------------------------------------------------------------------------

/// Total time of one fetch of a JWKS, discovery document or SPIFFE bundle.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest document fetched.
pub const FETCH_BYTES_MAX: usize = 256 * 1024;
/// Most keys in one key set.
pub const KEYS_PER_SET_MAX: usize = 100;
/// How long fetched keys are used before they are fetched again.
pub const KEYS_FRESH: Duration = Duration::from_secs(300);
/// How long fetched keys are used when the source cannot be reached.
pub const KEYS_STALE_MAX: Duration = Duration::from_secs(900);
/// How long an issuer's source is not asked again, whatever unknown `kid` is presented and after a
/// failure.
pub const KEYS_NEGATIVE: Duration = Duration::from_secs(30);
/// How long a source is left alone after a fetch that its caller abandoned.
pub const KEYS_ABANDONED: Duration = Duration::from_secs(1);
/// Shortest refresh interval that a SPIFFE bundle can ask for.
pub const SPIFFE_REFRESH_MIN: Duration = Duration::from_secs(10);
/// Shortest RSA modulus of an issuer's key in bits (RFC 7518 §3.3).
pub const RSA_MODULUS_BITS_MIN: usize = 2048;
/// Longest RSA modulus of an issuer's key in bits: it caps the cost of a check.
pub const RSA_MODULUS_BITS_MAX: usize = 8192;

// --- policy ------------------------------------------------------------------------------------

/// Time in which a policy bundle must parse and compile; after it the loader is killed.
pub const POLICY_LOAD_DEADLINE: Duration = Duration::from_secs(2);
/// Time in which one decision must be made; after it: denied.
pub const POLICY_DECISION_DEADLINE: Duration = Duration::from_millis(100);
/// Largest policy bundle (all sources together).
pub const POLICY_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a bundle that did not compile on this node is tried again.
pub const POLICY_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Most bundles compiled, and questions explained, at once.
pub const POLICY_LOADS_MAX: usize = 2;
/// Largest request body that brings a policy bundle, as JSON.
pub const POLICY_BODY_BYTES_MAX: usize = 2 * POLICY_BYTES_MAX;
/// Most files in a policy bundle.
pub const POLICY_FILES_MAX: usize = 64;
/// Most bundles kept for rollback.
pub const POLICY_HISTORY_MAX: usize = 16;
/// Longest path of a file in a policy bundle, in bytes.
pub const POLICY_PATH_BYTES_MAX: usize = 255;
/// Steps of an evaluation between two looks at the clock.
pub const POLICY_STEPS_PER_TICK: u32 = 64;
/// Most answers remembered per bundle, so that a question asked again is not evaluated again.
pub const POLICY_DECISIONS_CACHED_MAX: u64 = 10_000;
/// Deepest chain of rules that use each other; each costs the evaluating thread some stack.
pub const POLICY_CALL_DEPTH_MAX: usize = 32;
/// Time in which one rule of a policy's own tests, or of an explanation, must be evaluated.
pub const POLICY_TEST_DEADLINE: Duration = Duration::from_secs(2);
/// Longest public reason of a denial in bytes; the rest is cut.
pub const POLICY_REASON_BYTES_MAX: usize = 512;
/// Longest message read from the process that compiles a bundle first, in bytes.
pub const POLICY_VERDICT_BYTES_MAX: usize = 4096;
/// Longest blast radius in bytes.
pub const BLAST_RADIUS_BYTES_MAX: usize = 256;
/// Most kinds in the order of blast radii.
pub const BLAST_RADIUS_KINDS_MAX: usize = 16;
/// Most entries in the parent map of blast radii.
pub const BLAST_RADIUS_PARENTS_MAX: usize = 10_000;

// --- replicated core ---------------------------------------------------------------------------

/// Most commands waiting to be proposed; beyond it: 503.
pub const PROPOSALS_QUEUED_MAX: usize = 16 * 1024;
/// Most commands in one log entry.
pub const COMMANDS_PER_ENTRY_MAX: usize = 512;
/// Size beyond which no further command is added to a log entry.
pub const ENTRY_BYTES_FULL: usize = 1024 * 1024;
/// Most that the clock may be set ahead while a node runs; a larger step is not followed.
pub const CLOCK_STEP_MAX: Duration = Duration::from_secs(300);
/// Most entries proposed and not yet applied.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 16;
/// Longest wait for a command to be applied; beyond it: 503, outcome unknown.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait at start-up until everything in the log is applied.
pub const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// How long a spent nonce is remembered, by log time: until no credential that could present it
/// again is alive.
pub const NONCE_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// How long the outcome of an `Idempotency-Key` is remembered (contract §1).
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 3600);

// --- listeners ---------------------------------------------------------------------------------

/// Longest wait for the first request of a connection, its TLS handshake included.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a connection of the reserve, which is closed gracefully after it.
pub const FIRST_REQUEST_IN_RESERVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time from the first byte of an HTTP/1.1 request's head to its last.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection stays open without a request under way.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at what a connection is doing: what "idle" and "stalled" are rounded up to.
pub const CONNECTION_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait until the other end reads on; after it the connection is cut.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Age at which a plain connection is closed gracefully.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3600);
/// Age at which a TLS connection is closed gracefully, so that its client is verified again.
pub const TLS_CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// Longest time from a request's headers to its answer's, reading the body included.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Most headers of one request; beyond it: 431.
pub const HEADERS_MAX: usize = 64;
/// Largest head of one HTTP/1.1 request; beyond it: 431.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest request line of HTTP/1.1; beyond it: 414.
pub const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;
/// Most bytes read from an HTTP/1.1 connection at once into memory of our own.
pub const HEAD_BYTES_PER_READ_MAX: usize = 4 * 1024;
/// Most written and not yet sent of an HTTP/1.1 connection before its answer waits.
pub const HTTP1_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Longest wait after a refused request until its sender stops sending, so that it reads the answer.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests at once on one HTTP/2 connection (RFC 9113 §5.1.2).
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// Largest head of one HTTP/2 request, as RFC 9113 §6.5.2 counts it; beyond it: 431.
pub const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Most HTTP/2 requests taken back before they were looked at; beyond it the connection is closed.
pub const HTTP2_PENDING_RESETS_MAX: usize = 20;
/// Most HTTP/2 requests that we end because of their sender's mistakes; beyond it: closed.
pub const HTTP2_LOCAL_RESETS_MAX: usize = 20;
/// What one HTTP/2 request may send before we have read it, in bytes.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// What all requests of one HTTP/2 connection may send before we have read it, in bytes.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Largest HTTP/2 frame (RFC 9113 §4.2: the least that can be stated).
pub const HTTP2_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Most written and not yet sent of one HTTP/2 answer before it waits.
pub const HTTP2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Time between two pings on an HTTP/2 connection.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Longest wait for the answer to one.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Most open connections of all listeners; what the limit of open files leaves, if that is less.
pub const CONNECTIONS_MAX: usize = 10_240;
/// Most connections that the system keeps for us until they are accepted, on each listener.
pub const CONNECTIONS_QUEUED_MAX: u32 = 1024;
/// Further connections of each listener, answered on health routes only.
pub const CONNECTIONS_IN_RESERVE_MAX: usize = 64;
/// Default of the most open connections from one address; of IPv6, from one /64.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 256;
/// Default of the most open connections with one client certificate's identity.
pub const CONNECTIONS_PER_IDENTITY_MAX: usize = 1024;
/// Open files kept free of connections, for the database, the log and calls to others.
pub const DESCRIPTORS_RESERVED: usize = 1024;
/// Longest wait for the index that `Svc-Min-Index` names; beyond it: 503.
pub const MIN_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most callers whose rate is remembered; beyond it the least used start anew.
pub const RATES_REMEMBERED_MAX: u64 = 100_000;
/// How long a caller's rate is remembered after its last request.
pub const RATES_REMEMBERED_IDLE: Duration = Duration::from_secs(60);
/// Default number of requests that one caller may send in a second.
pub const REQUESTS_PER_SECOND_PER_CALLER: u32 = 1_000;
/// Largest number of requests a second that can be configured for one caller.
pub const REQUESTS_PER_SECOND_MAX: u32 = 1_000_000;
/// Requests for health that one address may send in a second; beyond it: 429.
pub const HEALTH_REQUESTS_PER_SECOND: u32 = 100;
/// Most requests of one caller under way at once; beyond it: 429.
pub const REQUESTS_OF_CALLER_MAX: usize = 512;
/// Most requests that wait for their `Svc-Min-Index` at once; beyond it: 503.
pub const MIN_INDEX_WAITS_MAX: usize = 256;
/// Most requests under way at once; beyond it: 503.
pub const REQUESTS_MAX: usize = 4_096;
/// Most requests that were read and have not had their first turn; beyond it: 503.
pub const REQUESTS_WAITING_MAX: usize = 512;
/// Longest wait for a request's body; beyond it: 408.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a graceful shutdown waits for requests under way.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

// --- TLS ---------------------------------------------------------------------------------------

/// Time between two looks at the files of TLS.
pub const TLS_RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Largest file with our certificate, our private key, or the client CAs.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Largest file with revocation lists.
pub const TLS_CRL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most certificates a client may send beside its own; beyond it: refused in the handshake.
pub const CLIENT_INTERMEDIATES_MAX: usize = 6;

// --- caches ------------------------------------------------------------------------------------

/// Most verified signatures remembered, counting one for each started KiB of payload.
pub const SIGNATURES_CACHED_MAX: u64 = 100_000;

// --- telemetry ---------------------------------------------------------------------------------

/// Most log lines waiting for their reader; what comes beyond is dropped and counted.
pub const LOG_LINES_QUEUED_MAX: usize = 8 * 1024;

// --- command line ------------------------------------------------------------------------------

/// Longest wait of the command line for the answer of a node.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer that the command line reads: a whole policy bundle as JSON.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
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
