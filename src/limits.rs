//! Every limit of the product, by name, in one table.
//!
//! A queue, body, list, cache or wait that grows without a line here is a bug. `docs/limits.md`
//! says the same for operators; a house rule compares the two.
//!
//! The doc of each ends with the test that tries it and the metric that shows who went beyond it, or
//! why there is none; a house rule looks for both.

use std::time::Duration;

// --- input -------------------------------------------------------------------------------------

/// Largest request body in bytes; a larger one is answered 413.
/// Test: `api::body::tests::a_body_at_its_limit_is_read_and_one_byte_more_is_answered_413`. Metric: `svc_http_requests_total{status="413"}`.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Most bytes read and thrown away of a body that is too large, so that its sender reads the answer.
/// Test: `api::leftover::tests::a_body_without_an_end_is_read_on_for_a_while_only`. Metric: `svc_http_requests_total{status="413"}`.
pub const BODY_DISCARDED_MAX: usize = 4 * 1024 * 1024;
/// Largest compact JWS in bytes, checked before anything is decoded (contract §3).
/// Test: `token::jws::tests::refuses_a_token_above_the_limit_before_decoding_it`. Metric: `svc_exchange_total{result="invalid_request"}`.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of a JSON document (contract §1).
/// Test: `json::tests::refuses_nesting_beyond_the_limit_and_accepts_it_at_the_limit`. Metric: `svc_http_requests_total{status="400"}`.
pub const JSON_DEPTH_MAX: usize = 32;
/// Longest workload identifier in bytes (SPIFFE-ID §2.3, WIMSE identifier §4).
/// Test: `id::tests::a_name_at_its_longest_is_accepted_and_one_byte_longer_refused`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const WORKLOAD_ID_BYTES_MAX: usize = 2048;
/// Longest trust domain name in bytes (SPIFFE-ID §2.1).
/// Test: `id::tests::a_name_at_its_longest_is_accepted_and_one_byte_longer_refused`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const TRUST_DOMAIN_BYTES_MAX: usize = 255;
/// Longest `kid` in bytes.
/// Test: `token::jws::tests::refuses_a_kid_that_is_empty_long_or_not_printable_and_keeps_a_path_like_one_as_a_name`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const KID_BYTES_MAX: usize = 256;
/// Longest `nonce`, `jti`, `txn` or idempotency key in bytes.
/// Test: `token::subject::tests::refuses_other_claims_of_wrong_types_or_beyond_limits`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const OPAQUE_BYTES_MAX: usize = 256;
/// Longest `htu`, `target` or audience in bytes.
/// Test: `http::bad_requests::members_are_checked_and_named`. Metric: `svc_exchange_total{result="invalid_request"}`.
pub const URI_BYTES_MAX: usize = 2048;
/// Most words in one `scope`, and most entries of one `capabilities` list.
/// Test: `token::subject::tests::refuses_other_claims_of_wrong_types_or_beyond_limits`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const CAPABILITIES_MAX: usize = 128;
/// Longest single scope word or capability in bytes.
/// Test: `token::subject::tests::refuses_other_claims_of_wrong_types_or_beyond_limits`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const CAPABILITY_BYTES_MAX: usize = 128;

/// Rows of a page, if its reader asks for no other number (contract §1, Lists).
/// Test: `api::paging::tests::a_page_has_at_most_its_limit_of_rows`. Metric: none, it is not exceeded but stated.
pub const PAGE_DEFAULT: usize = 100;
/// Most rows of a page; more are answered 400.
/// Test: `api::paging::tests::a_page_has_at_most_its_limit_of_rows`. Metric: `svc_http_requests_total{status="400"}`.
pub const PAGE_MAX: usize = 1000;

// --- tokens ------------------------------------------------------------------------------------

/// Lifetime of a standard exchanged token (specification, Limits).
/// Test: `http::granted::a_kubernetes_token_of_each_algorithm_becomes_a_token_with_every_claim`. Metric: none, it is not exceeded but stated.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(300);
/// Lifetime of an execution-scoped token (specification, Limits).
/// Test: `http::granted::an_execution_scope_binds_the_token_to_one_call_and_shortens_its_life`. Metric: none, it is not exceeded but stated.
pub const EXECUTION_TOKEN_LIFETIME: Duration = Duration::from_secs(30);
/// Leeway on the time claims of a credential (contract §3); the `exp` of an execution-scoped token has none.
/// Test: `token::subject::tests::accepts_the_last_valid_instant_and_refuses_the_next`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const LEEWAY: Duration = Duration::from_secs(5);
/// Default age limit of a credential, and how long a chain may go on from its first credential.
/// Test: `token::subject::tests::a_long_lived_credential_is_good_only_for_its_issuers_age_limit`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const CREDENTIAL_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most actors nested in `act` (contract §3).
/// Test: `http::delegation::a_chain_has_at_most_ten_actors`. Metric: `svc_exchange_total{result="delegation"}`.
pub const ACT_DEPTH_MAX: usize = 10;
/// Most digests in `lineage` (contract §3).
/// Test: `http::delegation::a_token_derives_from_at_most_32_facts`. Metric: `svc_exchange_total{result="lineage"}`.
pub const LINEAGE_MAX: usize = 32;
/// Latest NumericDate that is read: the end of the year 9999.
/// Test: `token::subject::tests::refuses_a_missing_or_wrong_typed_registered_claim`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const NUMERIC_DATE_MAX_SECS: i64 = 253_402_300_799;
/// Longest verified email address in bytes (RFC 3696 erratum 1690 allows 254; some issuers exceed it).
/// Test: `token::subject::tests::believes_an_email_only_when_verified_by_an_issuer_that_is_believed`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const EMAIL_BYTES_MAX: usize = 320;
/// Largest delegation depth that can be stated.
/// Test: `token::subject::tests::refuses_other_claims_of_wrong_types_or_beyond_limits`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const DELEGATION_DEPTH_MAX: u32 = 10;

// --- revocations ---------------------------------------------------------------------------------

/// How long a revocation is remembered, in time that has passed: until everything that it could cover is dead. That is
/// [`CREDENTIAL_AGE_MAX`], which no issuer and no chain goes beyond, and the margins of clocks.
/// Test: `state::revocations::tests::a_revocation_is_kept_until_what_it_covers_is_dead_and_then_forgotten`. Metric: `svc_revocations`.
pub const REVOCATION_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// How long it is remembered that a security event token came, in time that has passed: until it would be refused for
/// its age.
/// Test: `state::signals::tests::a_signal_counts_once_for_as_long_as_it_could_come_again`. Metric: `svc_signals_total{result="duplicate"}`.
pub const SIGNAL_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Most revocations that are remembered; a signal that would go beyond it is answered 503.
/// Test: `state::signals::tests::beyond_its_limit_no_signal_revokes_and_an_operator_still_does`. Metric: `svc_revocations`.
pub const REVOCATIONS_MAX: u64 = 12_000_000;
/// Most of them that are of one issuer's signals.
/// Test: `state::signals::tests::one_issuer_takes_not_all_the_room`. Metric: `svc_signals_total{result="unavailable"}`.
pub const REVOCATIONS_PER_ISSUER_MAX: u64 = 10_000_000;
/// How many more an operator may make.
/// Test: `state::signals::tests::beyond_its_limit_no_signal_revokes_and_an_operator_still_does`. Metric: `svc_revocations`.
pub const REVOCATIONS_OF_OPERATORS_MAX: u64 = 100_000;
/// Most blocks, lifted ones that are still remembered among them; a signal beyond it is answered 503.
/// Test: `state::signals::tests::beyond_its_limit_no_signal_blocks`. Metric: `svc_signals_total{result="unavailable"}`.
pub const BLOCKS_MAX: u64 = 1_000_000;
/// Most of them that are of one issuer.
/// Test: `state::signals::tests::one_issuer_takes_not_all_the_room`. Metric: `svc_signals_total{result="unavailable"}`.
pub const BLOCKS_PER_ISSUER_MAX: u64 = 500_000;
/// Most blocks that a page of their list looks at, those that are lifted among them; it is shorter then.
/// Test: `state::blocks::tests::a_page_looks_at_only_so_many_and_says_where_the_next_begins`. Metric: none, the next page goes on.
pub const BLOCK_ROWS_SEEN_AT_ONCE: usize = 10_000;
/// Most revocations and blocks that one entry of the log forgets, if it does not revoke half as many.
/// Test: `state::revocations::tests::one_entry_forgets_only_so_many`. Metric: none, the next entry goes on.
pub const REVOCATIONS_FORGOTTEN_AT_ONCE: usize = 256;
/// Longest `reason` of an operator's revocation in bytes.
/// Test: `signals::revoke::request::tests::a_reason_is_printable_and_as_long_as_its_limit_and_no_longer`. Metric: `svc_http_requests_total{status="400"}`.
pub const REVOCATION_REASON_BYTES_MAX: usize = 256;
/// Most looks through all agents at once on a node. A dry run beyond it is answered 503; a revocation stands,
/// and is not counted.
/// Test: `http::revocations::a_second_look_through_all_agents_waits_for_nobody_and_a_revocation_neither`. Metric: `svc_http_requests_total{status="503"}`.
pub const AGENT_SCANS_MAX: usize = 1;
/// Longest count of the agents that a revocation hit; beyond it the answer does not say how many.
/// Test: `signals::revoke::tests::a_count_that_takes_too_long_is_not_waited_for`. Metric: none, the revocation stands.
pub const AGENT_COUNT_WAIT: Duration = Duration::from_secs(2);
/// Most agents, or tools, that such a look reads before other requests have their turn.
/// Test: `http::revocations::a_dry_run_names_what_a_revocation_hits_page_by_page`. Metric: none, it goes on.
pub const AGENT_SCAN_ROWS_AT_ONCE: usize = 256;

// --- agents ------------------------------------------------------------------------------------

/// Life of an agent's identity token (contract §4).
/// Test: `http::agents::an_identity_token_has_exactly_its_claims`. Metric: none, it is not exceeded but stated.
pub const AGENT_TOKEN_LIFETIME: Duration = TOKEN_LIFETIME_LONGEST;
/// How long an agent's identity can be renewed (contract §4).
/// Test: `http::agents::an_agent_is_renewed_to_its_last_second_and_not_a_second_longer`. Metric: `svc_http_requests_total{status="403"}`.
pub const AGENT_LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long an agent is still shown after its end.
/// Test: `state::agents::tests::an_ended_agent_is_shown_for_a_day_and_then_forgotten`. Metric: none, it is then unknown.
pub const AGENT_KEPT_AFTER_END: Duration = Duration::from_secs(24 * 3600);
/// Most agents remembered in the cluster, ended ones among them.
/// Test: `state::agents::tests::beyond_their_limit_no_agent_is_issued`. Metric: `svc_http_requests_total{status="409"}`.
pub const AGENTS_MAX: u64 = 1_000_000;
/// Most agents of one caller among them.
/// Test: `state::agents::tests::one_caller_does_not_fill_the_cluster_with_agents`. Metric: `svc_http_requests_total{status="409"}`.
pub const AGENTS_PER_CALLER_MAX: u64 = 500_000;
/// Most ended agents that are forgotten when another one is issued; more than one, so that they get fewer.
/// Test: `state::agents::tests::so_many_ended_agents_are_forgotten_at_once`. Metric: none, the next one forgets more.
pub const AGENTS_FORGOTTEN_AT_ONCE: usize = 2;
/// Longest `agent_name` in bytes.
/// Test: `identity::request::tests::members_are_accepted_at_their_limits_and_refused_beyond`. Metric: `svc_http_requests_total{status="400"}`.
pub const AGENT_NAME_BYTES_MAX: usize = 256;
/// Most bytes of all of an agent's capabilities, which stand in its token twice: a bearer must fit into the
/// head of a request.
/// Test: `identity::request::tests::members_are_accepted_at_their_limits_and_refused_beyond`. Metric: `svc_http_requests_total{status="400"}`.
pub const AGENT_CAPABILITIES_BYTES_MAX: usize = 2048;
/// Most members of an agent's `metadata`.
/// Test: `identity::request::tests::members_are_accepted_at_their_limits_and_refused_beyond`. Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_MAX: usize = 64;
/// Longest name in an agent's `metadata` in bytes.
/// Test: `identity::request::tests::members_are_accepted_at_their_limits_and_refused_beyond`. Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_NAME_BYTES_MAX: usize = 128;
/// Longest value in an agent's `metadata` in bytes.
/// Test: `identity::request::tests::members_are_accepted_at_their_limits_and_refused_beyond`. Metric: `svc_http_requests_total{status="400"}`.
pub const METADATA_VALUE_BYTES_MAX: usize = 512;

// --- signals -----------------------------------------------------------------------------------

/// Most subject identifiers in one `sub_id` of format `aliases`.
/// Test: `token::subject_id::tests::aliases_are_at_most_sixteen_and_never_empty`. Metric: `svc_http_requests_total{status="400"}`.
pub const SUBJECT_ALIASES_MAX: usize = 16;
/// Most events in one security event token; one in a signed one (CAEP interoperability profile).
/// Test: `token::set::tests::events_are_at_least_one_and_at_most_their_limit`. Metric: `svc_http_requests_total{status="400"}`.
pub const SET_EVENTS_MAX: usize = 16;
/// How far ahead of our clock `iat` of a security event token, and an event's time, may lie (contract §6).
/// Test: `token::set::tests::accepts_the_last_valid_instant_and_refuses_the_next`. Metric: `svc_http_requests_total{status="400"}`.
pub const SET_IAT_AHEAD_MAX: Duration = Duration::from_secs(60);
/// Greatest age of a security event token (contract §6). Our keys for them stay published for as long.
/// Test: `token::set::tests::accepts_the_last_valid_instant_and_refuses_the_next`. Metric: `svc_http_requests_total{status="400"}`.
pub const SET_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest `family` of events, in bytes, that a policy may say.
/// Test: `policy::signals::tests::a_family_is_one_to_sixty_four_printable_characters`. Metric: `svc_policy_decisions_total{decision="error"}`.
pub const SIGNAL_FAMILY_BYTES_MAX: usize = 64;

// --- keys --------------------------------------------------------------------------------------

/// How long a signing key is published before it may sign (contract §3, W).
/// Test: `state::machine::tests::a_key_is_not_retired_before_its_successor_is_old_enough`. Metric: `svc_signing_keys{state="pending"}`.
pub const KEY_PUBLISH_AHEAD: Duration = Duration::from_secs(600);
/// Longest life of any token a signing key signs: the agent identity token (contract §4). Security event tokens
/// have none of their own: [`SET_AGE_MAX`].
/// Test: `state::machine::tests::a_retired_key_is_forgotten_only_after_its_longest_token`. Metric: `svc_signing_keys{state="retired"}`.
pub const TOKEN_LIFETIME_LONGEST: Duration = Duration::from_secs(3600);
/// Most signing keys of the cluster, of all algorithms; those whose last token is dead do not count.
/// Test: `state::machine::tests::beyond_its_limit_no_key_is_published_until_a_dead_one_is_forgotten`. Metric: `svc_signing_keys`, `svc_http_requests_total{status="409"}`.
pub const SIGNING_KEYS_MAX: usize = 256;
/// Time between two looks at whether this node has the signing keys it needs, beside one after every change of
/// a key.
/// Test: `keyring::tests::a_successor_that_could_not_be_written_is_made_a_minute_later`. Metric: `svc_signing_keys{state="pending"}`.
pub const SIGNING_KEYS_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// How long caches may keep a JWKS (contract §1, Cache).
/// Test: `http::keys::the_key_set_may_be_cached_for_a_minute_and_says_so`. Metric: none, caches are not ours.
pub const JWKS_MAX_AGE: Duration = Duration::from_secs(60);
/// Largest body that brings an encryption key; the largest RSA key that is taken has 1.4 KB.
/// Test: `http::encryption_keys::a_key_is_registered_in_a_body_of_a_limited_size`. Metric: `svc_http_requests_total{status="413"}`.
pub const ENCRYPTION_KEY_BODY_BYTES_MAX: usize = 16 * 1024;
/// Maximum encryption keys per subject; beyond it: 429.
/// Test: `state::encryption_keys::tests::an_agent_has_a_limited_number_of_keys`. Metric: `svc_http_requests_total{status="429"}`.
pub const ENCRYPTION_KEYS_PER_SUBJECT_MAX: usize = 16;
/// Maximum subjects per trust domain that have encryption keys, agents of this fabric left out; beyond it: 429.
/// Test: `state::encryption_keys::tests::trust_domain_has_a_limit_of_subjects_with_keys`. Metric: `svc_http_requests_total{status="429"}`.
pub const ENCRYPTION_KEY_SUBJECTS_MAX: u64 = 10_000;
/// How long an encryption key of a subject that is no agent of this fabric lives after its last registration, in elapsed
/// time.
/// Test: `state::encryption_keys::tests::key_without_agent_ends_30_days_after_its_registration`. Metric: none, it is then unknown.
pub const ENCRYPTION_KEY_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum ended encryption keys that a registration forgets; more than one, so that they get fewer.
/// Test: `state::encryption_keys::tests::one_registration_forgets_only_so_many_ended_keys`. Metric: none, the next one forgets more.
pub const ENCRYPTION_KEYS_FORGOTTEN_AT_ONCE: usize = 4;
/// Maximum encryption keys that the revocation of one fact removes at once. The others are not handed out while the
/// revocation is remembered, and it is remembered until they are removed.
/// Test: `state::encryption_keys::tests::revocation_is_kept_until_its_keys_are_removed`. Metric: none, the rest goes later.
pub const ENCRYPTION_KEYS_REMOVED_AT_ONCE: usize = 64;

// --- management of streams ---------------------------------------------------------------------

/// Longest URI of an event type that a stream is asked for, in bytes; a longer one is answered 400.
/// Test: `signals::streams::request::tests::an_event_type_is_an_absolute_uri_of_a_limited_length`. Metric: `svc_http_requests_total{status="400"}`.
pub const EVENT_TYPE_BYTES_MAX: usize = 256;
/// Longest `state` of a verification in bytes; a longer one is answered 400.
/// Test: `http::streams::a_verification_has_its_longest_state_and_its_shortest_interval`. Metric: `svc_http_requests_total{status="400"}`.
pub const VERIFICATION_STATE_BYTES_MAX: usize = 256;
/// How often a change of a stream is tried while others change it; then it is answered 409.
/// Test: `http::streams::changes_at_once_are_all_made_or_refused`. Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_UPDATE_ATTEMPTS_MAX: u32 = 8;

// --- receiver of signals -----------------------------------------------------------------------

/// Default of the most facts that one issuer of signals may revoke, block or lift in a minute; beyond it:
/// 429, until the next minute or until an operator allows it more.
/// Test: `http::signals::a_hundred_thousand_subjects_in_a_minute_are_more_than_an_issuer_may_revoke`. Metric: `svc_signals_total{result="quota"}`.
pub const REVOCATIONS_PER_MINUTE: u32 = 6_000;
/// Largest number of revocations a minute that can be configured for one issuer of signals.
/// Test: `config::tests::signals::refuses_an_issuer_of_signals_that_breaks_a_rule`. Metric: none, the node does not start.
pub const REVOCATIONS_PER_MINUTE_MAX: u32 = 1_000_000;
/// Most issuers of credentials for whose subjects one issuer of signals can speak.
/// Test: `config::tests::signals::refuses_an_issuer_of_signals_that_breaks_a_rule`. Metric: none, the node does not start.
pub const SUBJECT_ISSUERS_MAX: usize = 16;
/// Most that one signal may do: its effects, on each of the facts that its subject is.
/// Test: `signals::effects::tests::one_signal_does_at_most_so_much`. Metric: `svc_signals_total{result="invalid"}`.
pub const SIGNAL_EFFECTS_MAX: usize = 512;
/// Longest reason that is kept of a signal, in bytes; the rest is cut.
/// Test: `signals::effects::tests::a_reason_is_what_the_issuer_says_to_operators_and_is_cut`. Metric: none, the rest is cut.
pub const SIGNAL_REASON_BYTES_MAX: usize = 256;

// --- streams and feed --------------------------------------------------------------------------

/// Most streams in the cluster; beyond it: 409.
/// Test: `state::streams::tests::beyond_its_limits_no_stream_is_created_until_one_is_deleted`. Metric: `svc_http_requests_total{status="409"}`.
pub const STREAMS_MAX: u64 = 1_000;
/// Most streams of one caller among them; beyond it: 409.
/// Test: `state::streams::tests::beyond_its_limits_no_stream_is_created_until_one_is_deleted`. Metric: `svc_http_requests_total{status="409"}`.
pub const STREAMS_PER_CALLER_MAX: u64 = 100;
/// Most subjects that are taken out of one stream; beyond it: 409.
/// Test: `state::streams::tests::a_stream_is_without_only_so_many_subjects`. Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_SUBJECTS_MAX: usize = 64;
/// Most bytes of all of them together, as JSON.
/// Test: `state::streams::tests::a_stream_is_without_only_so_many_subjects`. Metric: `svc_http_requests_total{status="409"}`.
pub const STREAM_SUBJECTS_BYTES_MAX: usize = 16 * 1024;
/// Most events of a stream that are done before one that is older; what is beyond it is delivered again.
/// Test: `state::streams::cursor::tests::what_is_done_is_kept_behind_the_place_only_and_up_to_the_window`. Metric: none, the rest is delivered again.
pub const STREAM_WINDOW: usize = 1_000;
/// Most events that a stream holds; the oldest beyond it are dropped, and the stream is paused (contract §6).
/// Test: none, it is for whoever delivers. Metric: none, the stream says so.
pub const STREAM_BACKLOG_MAX: usize = 100_000;
/// Longest that a stream holds an event (contract §6).
/// Test: none, it is for whoever delivers. Metric: none, the stream says so.
pub const STREAM_HELD_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long events are kept for streams, in time that has passed: a little longer than a stream holds them.
/// Test: `state::outbox::tests::events_are_kept_as_long_as_was_promised_and_then_dropped`. Metric: none, no stream holds them any more.
pub const EVENTS_KEPT: Duration = Duration::from_secs(24 * 3600 + 600);
/// Most that events for streams take, in bytes with what a row needs; beyond it the oldest are dropped.
/// Test: `state::outbox::tests::beyond_so_many_bytes_the_oldest_events_are_dropped`. Metric: none, streams count what they miss.
pub const OUTBOX_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Most events that are dropped when one is appended, unless that one is larger; more than one, so that they get
/// fewer.
/// Test: `state::outbox::tests::so_many_events_are_dropped_at_once_and_more_with_the_next`. Metric: none, the next one drops more.
pub const OUTBOX_DROPPED_AT_ONCE: usize = 4;
/// Most that an event which is passed on to streams says, its claims, subject and `txn` together, in bytes as
/// JSON; a signal with more is answered 400. With it the token that we sign is one that receivers of this fabric
/// take, which has at most [`TOKEN_BYTES_MAX`].
/// Test: `signals::transmit::sets::tests::the_largest_event_makes_a_token_that_a_receiver_takes`. Metric: `svc_signals_total{result="invalid"}`.
pub const EVENT_SAID_BYTES_MAX: usize = 5 * 1024;
/// Most types of events that a stream can ask for.
/// Test: `signals::streams::request::tests::an_event_type_is_an_absolute_uri_of_a_limited_length`. Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_EVENTS_REQUESTED_MAX: usize = 64;
/// Longest description of a stream in bytes.
/// Test: `signals::streams::request::tests::an_audience_and_a_description_are_as_long_as_their_limits_and_no_longer`. Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_DESCRIPTION_BYTES_MAX: usize = 256;
/// Longest reason for the status of a stream in bytes.
/// Test: `http::streams::a_receiver_changes_the_status_from_any_to_any`. Metric: `svc_http_requests_total{status="400"}`.
pub const STREAM_REASON_BYTES_MAX: usize = 256;
/// Most events of a stream that are remembered because its receiver refused them; the oldest beyond it are dropped.
/// Test: `state::streams::cursor::tests::only_the_newest_dead_letters_are_kept`. Metric: none, they are counted all the same.
pub const DEAD_LETTERS_PER_STREAM_MAX: usize = 1_000;
/// Longest subject identifier that is kept of one of them, in bytes as JSON; a longer one is left out.
/// Test: `state::streams::cursor::tests::a_subject_that_is_too_long_is_left_out_of_a_dead_letter`. Metric: none, the rest of the letter is kept.
pub const DEAD_LETTER_SUBJECT_BYTES_MAX: usize = 512;
/// Shortest time between two verifications of a stream, in time that has passed; sooner: 429.
/// Test: `state::streams::tests::a_stream_is_verified_once_a_minute_of_time_that_has_passed`. Metric: `svc_http_requests_total{status="429"}`.
pub const VERIFICATION_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Events that the live feed can resume from; the oldest beyond it are dropped, so many at once.
/// Test: `state::feed::tests::only_the_newest_are_kept_and_the_oldest_go_in_one_piece`. Metric: none, who resumes from before is told to begin anew.
pub const FEED_EVENTS_MAX: u64 = 100_000;
/// How many events of the live feed are dropped at once.
/// Test: `state::feed::tests::only_the_newest_are_kept_and_the_oldest_go_in_one_piece`. Metric: none, it is a granularity.
pub const FEED_DROPPED_AT_ONCE: usize = 1_024;
/// Longest text in a row of the live feed in bytes; the rest is cut.
/// Test: `state::feed::tests::a_long_text_is_cut`. Metric: none, the rest is cut.
pub const FEED_TEXT_BYTES_MAX: usize = 512;
// --- calls to others ---------------------------------------------------------------------------
// --- delivery of security events by poll -------------------------------------------------------

/// Most security events in one answer to a poll (RFC 8936 §2.2); who asks for more is given these.
/// Test: `signals::transmit::poll::request::tests::more_events_than_the_limit_are_not_refused_but_not_given`. Metric: none, the next poll goes on.
pub const POLL_EVENTS_MAX: usize = 100;
/// Bytes that the events of one answer say, beyond which it gets no further ones.
/// Test: `signals::transmit::poll::tests::large_events_come_in_several_answers`. Metric: none, the next poll goes on.
pub const POLL_ANSWER_BYTES_FULL: usize = 256 * 1024;
/// Largest request body of a poll.
/// Test: `http::poll::a_bad_poll_is_refused_and_its_member_named`. Metric: `svc_http_requests_total{status="413"}`.
pub const POLL_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most tokens that one poll acknowledges, and that it refuses.
/// Test: `signals::transmit::poll::request::tests::as_many_outcomes_as_the_limit_are_taken_and_no_more`. Metric: `svc_http_requests_total{status="400"}`.
pub const POLL_OUTCOMES_MAX: usize = 1_000;
/// Longest code with which a receiver refuses a token, in bytes.
/// Test: `signals::transmit::poll::request::tests::each_bad_member_is_named_with_its_rule`. Metric: `svc_http_requests_total{status="400"}`.
pub const SET_ERR_BYTES_MAX: usize = 64;
/// Longest description with which a receiver refuses a token, in bytes.
/// Test: `signals::transmit::poll::request::tests::a_description_is_cut_where_it_is_too_long_and_never_inside_a_character`. Metric: none, the rest is cut.
pub const SET_ERR_DESCRIPTION_BYTES_MAX: usize = 256;
/// Longest wait of a poll for something to give, from its begin on: shorter than [`REQUEST_TIMEOUT`] by what
/// comes before and after it.
/// Test: `signals::transmit::poll::tests::a_poll_waits_until_something_happens_and_no_longer_than_it_may`. Metric: `svc_polls_waiting`.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(10);
/// Most polls that wait on a node at once; beyond it: 503.
/// Test: `signals::transmit::poll::places::tests::beyond_so_many_that_wait_a_poll_is_told_to_come_later`. Metric: `svc_polls_waiting`.
pub const POLLS_WAITING_MAX: usize = 256;
/// Most of them of one caller, one for each of its streams and a few more; beyond it: 503.
/// Test: `signals::transmit::poll::places::tests::an_attack_with_many_polls_of_one_caller_leaves_the_others_their_places`. Metric: `svc_http_requests_total{status="503"}`.
pub const POLLS_WAITING_PER_CALLER_MAX: usize = 128;
/// Most rows of the outbox that one poll looks at, each time that it looks.
/// Test: `signals::transmit::poll::look::tests::only_so_many_rows_are_looked_at_for_one_poll`. Metric: none, the next poll goes on.
pub const POLL_ROWS_SEEN_MAX: usize = 10_000;
/// Most of them that are looked at before other requests have their turn.
/// Test: `signals::transmit::poll::look::tests::others_have_their_turn_while_many_rows_are_looked_at`. Metric: none, it goes on.
pub const POLL_ROWS_AT_ONCE: usize = 256;
/// Fewest rows that a stream is not for, for the sake of which its cursor is written.
/// Test: `signals::transmit::poll::tests::a_stream_that_is_for_little_passes_the_rest_once`. Metric: none, it is a granularity.
pub const POLL_ROWS_PASSED_MIN: usize = 1_000;
/// Most polls of a node that look through the outbox, or sign, at once; who comes beyond waits for
/// [`POLL_LOOK_WAIT`].
/// Test: `signals::transmit::poll::places::tests::only_so_many_polls_look_at_once_and_who_waits_too_long_is_told`. Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_LOOKS_MAX: usize = 4;
/// Most of them of one caller; the others of its polls wait for these, and for no longer.
/// Test: `signals::transmit::poll::places::tests::an_attack_with_many_polls_of_one_caller_leaves_the_others_their_places`. Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_LOOKS_PER_CALLER_MAX: usize = 2;
/// Longest wait for such a place; beyond it: 503.
/// Test: `signals::transmit::poll::places::tests::only_so_many_polls_look_at_once_and_who_waits_too_long_is_told`. Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_LOOK_WAIT: Duration = Duration::from_secs(2);
/// Most attempts of a poll to write down what was acknowledged while others do so too; beyond it: 503.
/// Test: `signals::transmit::poll::tests::a_poll_that_others_overtake_tries_so_often_and_no_more`. Metric: `svc_http_requests_total{status="503"}`.
pub const POLL_ADVANCES_MAX: usize = 8;
/// Bytes of signed security event tokens that are kept for a repetition.
/// Test: `signals::transmit::sets::tests::signed_tokens_are_kept_to_a_number_of_bytes`. Metric: none, what is forgotten is signed again.
pub const SETS_CACHED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Longest wait for a connection to another, its name and its handshake included, over all of its addresses.
/// Test: `outbound::client::tests::a_host_that_takes_no_connection_is_given_up`. Metric: none, the call fails.
pub const OUTBOUND_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Most calls under way to one host, of pushes and of fetches each; the others wait: fetches within their own time,
/// pushes for [`PUSH_PLACE_WAIT_MAX`].
/// Test: `outbound::client::tests::a_host_that_does_not_answer_delays_no_other`. Metric: none, the call waits.
pub const OUTBOUND_PER_HOST_MAX: usize = 16;
/// Most calls under way in all, of pushes and of fetches each; the others wait in the same way.
/// Test: `outbound::places::tests::in_all_there_are_only_so_many_places`. Metric: none, the call waits.
pub const OUTBOUND_CALLS_MAX: usize = 256;
/// Most names asked of the machine's resolver at once, of pushes and of fetches each. An answer that nobody waits for
/// any more counts until it is there. More than all names of one caller's streams need.
/// Test: `outbound::resolve::tests::beyond_so_many_lookups_a_name_is_not_asked_for_and_not_blamed`. Metric: `svc_push_total{result="no_place"}`.
pub const OUTBOUND_LOOKUPS_MAX: usize = 256;
/// Longest wait for such a place: short enough for a lookup and a connection to follow within
/// [`OUTBOUND_CONNECT_TIMEOUT`].
/// Test: `outbound::resolve::tests::beyond_so_many_lookups_a_name_is_not_asked_for_and_not_blamed`. Metric: `svc_push_total{result="no_place"}`.
pub const OUTBOUND_LOOKUP_WAIT_MAX: Duration = Duration::from_secs(1);
/// Most questions to the machine's resolver at once for one name.
/// Test: `outbound::resolve::tests::a_name_that_nobody_answers_takes_no_place_of_another`. Metric: none, the call waits.
pub const OUTBOUND_LOOKUPS_PER_NAME_MAX: usize = 2;
/// Most addresses of one name that are tried; few, because they share the time for a connection.
/// Test: `outbound::resolve::tests::of_many_addresses_of_a_name_only_so_many_are_tried`. Metric: none, the rest is left out.
pub const OUTBOUND_ADDRESSES_MAX: usize = 4;
/// Most connections to one host that are kept open between calls.
/// Test: `outbound::client::tests::a_connection_is_used_again_and_few_are_kept`. Metric: none, further ones are closed.
pub const OUTBOUND_IDLE_PER_HOST_MAX: usize = 2;
/// How long a connection is kept open between calls.
/// Test: none, the time is the library's own. Metric: none, it is closed.
pub const OUTBOUND_IDLE_MAX: Duration = Duration::from_secs(30);
/// Most networks in `outbound.allowed_networks`.
/// Test: `config::tests::outbound::refuses_a_network_that_breaks_a_rule`. Metric: none, the node does not start.
pub const OUTBOUND_NETWORKS_MAX: usize = 64;
/// Most pushes under way for all streams of one caller, whatever its receivers do; the others wait for
/// [`PUSH_PLACE_WAIT_MAX`].
/// Test: `outbound::client::tests::whoever_has_many_slow_receivers_takes_its_share_of_the_places_and_no_more`. Metric: `svc_push_total{result="no_place"}`.
pub const PUSHES_PER_OWNER_MAX: usize = 32;
/// Most of them to one host, whose places others need too.
/// Test: `outbound::client::tests::whoever_has_many_slow_receivers_takes_its_share_of_the_places_and_no_more`. Metric: `svc_push_total{result="no_place"}`.
pub const PUSHES_PER_OWNER_AT_HOST_MAX: usize = 8;
/// Longest wait of a push for its place; then it waits anew, and its receiver is not blamed.
/// Test: `signals::transmit::push::tests::fairness::a_push_that_gets_no_place_is_no_failure_of_its_receiver`. Metric: `svc_push_total{result="no_place"}`.
pub const PUSH_PLACE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Total time of one push that has its place, to the last byte of the answer that is read.
/// Test: `outbound::client::tests::hostile::a_receiver_that_never_ends_its_answer_is_given_up`. Metric: none, the push fails.
pub const PUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the body of an answer 403 to a push; beyond it: the status alone counts.
/// Test: `outbound::client::tests::hostile::a_status_counts_however_the_answer_goes_on`. Metric: none, the status counts.
pub const PUSH_REFUSAL_BODY_WAIT: Duration = Duration::from_secs(1);
/// Largest answer 400 or 403 to a push; of others nothing is read.
/// Test: `outbound::client::tests::an_answer_to_a_push_is_read_to_the_limit_and_no_further`. Metric: none, the push fails.
pub const PUSH_ANSWER_BYTES_MAX: usize = 64 * 1024;

// --- live feed ---------------------------------------------------------------------------------

/// Time between two heartbeats of the live feed, comments that keep the connection (contract §7). With each it
/// is asked again whether the reader may read.
/// Test: `signals::feed::tests::a_heartbeat_comes_every_fifteen_seconds_and_says_where_the_reader_is`. Metric: none, it is not exceeded but stated.
pub const FEED_HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a reader of the live feed should wait before it connects again (contract §7).
/// Test: `http::events::the_feed_says_at_once_how_to_read_it`. Metric: none, it is not exceeded but stated.
pub const FEED_RETRY: Duration = Duration::from_millis(3_000);
/// Most events that are told and that a reader has not taken yet, shared by all readers; who is further behind is
/// cut off, and resumes.
/// Test: `signals::feed::tests::a_reader_that_takes_nothing_is_cut_off_and_others_get_everything`. Metric: `svc_event_readers_dropped_total{reason="slow"}`.
pub const FEED_READER_QUEUE: usize = 1_024;
/// Most rows of the feed that are read at once, for one reader that resumes or for all.
/// Test: `signals::feed::tests::a_reader_far_behind_reads_page_by_page_and_joins_without_a_gap`. Metric: none, it goes on.
pub const FEED_ROWS_AT_ONCE: usize = 256;
/// Pause between two such pages when they are told to all, so that who reads keeps up, and before each that is read
/// for one reader.
/// Test: `signals::feed::tests::a_burst_of_events_cuts_off_nobody_who_reads`. Metric: none, it is a granularity.
pub const FEED_PAGE_PAUSE: Duration = Duration::from_millis(10);
/// Most such pages that are read in one such pause for single readers; the more readers, the longer each pauses.
/// Test: `signals::feed::tests::edges::all_who_read_the_past_together_read_no_faster_than_a_few`. Metric: none, all go on.
pub const FEED_PAGES_PER_PAUSE: usize = 4;
/// Size beyond which no more events go into one write to a reader.
/// Test: `signals::feed::tests::a_burst_of_events_cuts_off_nobody_who_reads`. Metric: none, the rest follows.
pub const FEED_CHUNK_BYTES_FULL: usize = 16 * 1024;
/// Most exchanges and denials that wait to be told, and that are told at once; those beyond are not told.
/// Test: `signals::feed::tests::activity_beyond_its_queue_is_not_told_and_counted`. Metric: `svc_event_activities_dropped_total`.
pub const FEED_ACTIVITIES_AT_ONCE: usize = 64;
/// Least time between two times that such are told.
/// Test: `signals::feed::tests::activity_beyond_its_queue_is_not_told_and_counted`. Metric: `svc_event_activities_dropped_total`.
pub const FEED_ACTIVITY_PAUSE: Duration = Duration::from_millis(100);
/// Longest text in an event of the live feed in bytes, whatever tells it; the rest is cut.
/// Test: `signals::feed::frame::tests::a_long_text_is_cut_between_characters`. Metric: none, the rest is cut.
pub const FEED_TEXT_SHOWN_BYTES_MAX: usize = 2 * 1024;
/// Most readers of the live feed on a node; beyond it: 503.
/// Test: `signals::feed::readers::tests::a_node_has_only_so_many_readers_and_one_that_leaves_makes_room`. Metric: `svc_event_readers`.
pub const EVENT_READERS_MAX: usize = 1_000;
/// Most of them with one identity; beyond it: 429.
/// Test: `http::events::one_identity_reads_only_so_often_at_once`. Metric: `svc_http_requests_total{route="/v1/events",status="429"}`.
pub const EVENT_READERS_PER_CALLER_MAX: usize = 5;

// --- issuers' keys -----------------------------------------------------------------------------

/// Total time of one fetch of a JWKS, discovery document or SPIFFE bundle.
/// Test: `http::issuer_sources::a_slow_source_is_given_up_and_holds_nobody_else_up`. Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest document fetched.
/// Test: `outbound::issuer_keys::tests::a_wrong_document_never_replaces_a_good_one_and_ends_only_with_time`. Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const FETCH_BYTES_MAX: usize = 256 * 1024;
/// Most keys in one key set: as many as a fabric publishes ([`SIGNING_KEYS_MAX`]).
/// Test: `token::key_set::tests::refuses_what_is_no_key_set`. Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const KEYS_PER_SET_MAX: usize = 256;
/// How long fetched keys are used before they are fetched again.
/// Test: `outbound::issuer_keys::tests::asks_once_while_keys_are_fresh`. Metric: `svc_issuer_key_fetches_total{result="fetched"}`.
pub const KEYS_FRESH: Duration = Duration::from_secs(300);
/// How long fetched keys are used when the source cannot be reached.
/// Test: `outbound::issuer_keys::tests::a_wrong_document_never_replaces_a_good_one_and_ends_only_with_time`. Metric: `svc_exchange_total{result="issuer_unavailable"}`.
pub const KEYS_STALE_MAX: Duration = Duration::from_secs(900);
/// How long an issuer's source is not asked again, whatever unknown `kid` is presented and after a
/// failure.
/// Test: `outbound::issuer_keys::tests::an_unknown_kid_asks_again_but_a_flood_of_them_does_not`. Metric: `svc_exchange_total{result="subject_token"}`.
pub const KEYS_NEGATIVE: Duration = Duration::from_secs(30);
/// How long a source is left alone after a fetch that its caller abandoned.
/// Test: `outbound::issuer_keys::tests::a_caller_that_goes_away_delays_the_others_only_briefly`. Metric: none, the next caller fetches.
pub const KEYS_ABANDONED: Duration = Duration::from_secs(1);
/// Shortest refresh interval that a SPIFFE bundle can ask for.
/// Test: `outbound::issuer_keys::tests::a_bundle_is_refreshed_as_it_hints_and_never_goes_back`. Metric: `svc_issuer_key_fetches_total{result="fetched"}`.
pub const SPIFFE_REFRESH_MIN: Duration = Duration::from_secs(10);
/// Shortest RSA modulus of an issuer's key in bits (RFC 7518 §3.3).
/// Test: `token::rsa::tests::refuses_a_modulus_below_2048_or_above_8192_bits_or_even`. Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const RSA_MODULUS_BITS_MIN: usize = 2048;
/// Longest RSA modulus of an issuer's key in bits: it caps the cost of a check.
/// Test: `token::rsa::tests::refuses_a_modulus_below_2048_or_above_8192_bits_or_even`. Metric: `svc_issuer_key_fetches_total{result="failed"}`.
pub const RSA_MODULUS_BITS_MAX: usize = 8192;

// --- policy ------------------------------------------------------------------------------------

/// Time in which a policy bundle must parse and compile; after it the loader is killed.
/// Test: `policy::a_policy_that_takes_long_to_parse_is_stopped_at_the_deadline`. Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_LOAD_DEADLINE: Duration = Duration::from_secs(2);
/// Time in which one decision must be made; after it: nothing is permitted, and the caller may ask again (503).
/// Test: `policy::a_loop_without_a_near_end_is_denied_by_the_deadline`. Metric: `svc_policy_decisions_total{decision="error"}`.
pub const POLICY_DECISION_DEADLINE: Duration = Duration::from_millis(100);
/// Largest policy bundle (all sources together).
/// Test: `policy::refuses_a_bundle_beyond_its_limits`. Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_BYTES_MAX: usize = 1024 * 1024;
/// Pause before a bundle that did not compile on this node is tried again.
/// Test: none, it takes a compiler that fails and then does not. Metric: `svc_policy_loads_total{result="failed"}`.
pub const POLICY_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Most bundles compiled, and questions explained, at once.
/// Test: none, it takes a whole node whose compilers are slow. Metric: none, who comes later waits.
pub const POLICY_LOADS_MAX: usize = 2;
/// Largest request body that brings a policy bundle, as JSON.
/// Test: `http::policy::the_policy_routes_read_their_bodies_strictly`. Metric: `svc_http_requests_total{status="413"}`.
pub const POLICY_BODY_BYTES_MAX: usize = 2 * POLICY_BYTES_MAX;
/// Most files in a policy bundle.
/// Test: `policy::refuses_a_bundle_beyond_its_limits`. Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_FILES_MAX: usize = 64;
/// Most bundles kept for rollback.
/// Test: `state::machine::tests::history_is_bounded_and_keeps_every_bundle_it_names`. Metric: none, the oldest is forgotten.
pub const POLICY_HISTORY_MAX: usize = 16;
/// Longest path of a file in a policy bundle, in bytes.
/// Test: `policy::refuses_a_bundle_beyond_its_limits`. Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_PATH_BYTES_MAX: usize = 255;
/// Steps of an evaluation between two looks at the clock.
/// Test: `policy::a_loop_without_a_near_end_is_denied_by_the_deadline`. Metric: none, it is a granularity.
pub const POLICY_STEPS_PER_TICK: u32 = 64;
/// Most answers remembered per bundle, so that a question asked again is not evaluated again.
/// Test: `policy::decider::tests::no_more_answers_are_remembered_than_the_limit`. Metric: none, what is forgotten is evaluated again.
pub const POLICY_DECISIONS_CACHED_MAX: u64 = 10_000;
/// Deepest chain of rules that use each other; each costs the evaluating thread some stack.
/// Test: `policy::refuses_functions_that_call_themselves_and_chains_that_are_too_deep`. Metric: `svc_policy_loads_total{result="refused"}`.
pub const POLICY_CALL_DEPTH_MAX: usize = 32;
/// Time in which one rule of a policy's own tests, or of an explanation, must be evaluated.
/// Test: `policy::a_test_that_does_not_end_fails_in_time`. Metric: none, its caller is told.
pub const POLICY_TEST_DEADLINE: Duration = Duration::from_secs(2);
/// Longest public reason of a denial in bytes; the rest is cut.
/// Test: `policy::denial::tests::a_public_reason_is_short_printable_ascii`. Metric: none, the rest is cut.
pub const POLICY_REASON_BYTES_MAX: usize = 512;
/// Longest message read from the process that compiles a bundle first, in bytes.
/// Test: `policy::load::tests::a_program_that_says_too_much_is_heard_to_the_limit_only`. Metric: none, the rest is cut.
pub const POLICY_VERDICT_BYTES_MAX: usize = 4096;
/// Longest blast radius in bytes.
/// Test: `policy::blast_radius::tests::refuses_what_is_not_kind_and_name`. Metric: `svc_exchange_total{result="policy_failed"}`.
pub const BLAST_RADIUS_BYTES_MAX: usize = 256;
/// Most kinds in the order of blast radii.
/// Test: `policy::blast_radius::tests::an_order_and_a_parent_map_have_their_most_entries`. Metric: none, the node does not start.
pub const BLAST_RADIUS_KINDS_MAX: usize = 16;
/// Most entries in the parent map of blast radii.
/// Test: `policy::blast_radius::tests::an_order_and_a_parent_map_have_their_most_entries`. Metric: none, the node does not start.
pub const BLAST_RADIUS_PARENTS_MAX: usize = 10_000;

// --- replicated core ---------------------------------------------------------------------------

/// Most commands waiting to be proposed; beyond it: 503.
/// Test: `cluster::batches::tests::beyond_the_queue_nothing_is_proposed`. Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSALS_QUEUED_MAX: usize = 16 * 1024;
/// Most commands in one log entry.
/// Test: `cluster::batches::tests::an_entry_takes_so_many_commands_or_so_many_bytes`. Metric: none, the rest goes into the next entry.
pub const COMMANDS_PER_ENTRY_MAX: usize = 512;
/// Size beyond which no further command is added to a log entry.
/// Test: `cluster::batches::tests::an_entry_takes_so_many_commands_or_so_many_bytes`. Metric: none, the rest goes into the next entry.
pub const ENTRY_BYTES_FULL: usize = 1024 * 1024;
/// How long the reading of another node's wall clock is good for; older ones count for nothing.
/// Test: `cluster::clock_agreement::tests::a_reading_that_took_long_or_is_old_counts_for_nothing`. Metric: `svc_clock_agreement`.
pub const CLOCK_READING_VALID: Duration = Duration::from_secs(1);
/// Longest round trip of a reading of another node's wall clock; one that took longer is dropped.
/// Test: `cluster::clock_agreement::tests::a_reading_that_took_long_or_is_old_counts_for_nothing`. Metric: `svc_clock_agreement`.
pub const CLOCK_ROUND_TRIP_MAX: Duration = Duration::from_millis(500);
/// Most that a wall clock may be away from the median of the voters' to agree with it. A node whose clock is further
/// away judges no credentials of other issuers.
/// Test: `cluster::clock_agreement::tests::clocks_agree_if_a_majority_is_close_to_the_median`. Metric: `svc_clock_offset_seconds`.
pub const CLOCK_AGREEMENT: Duration = Duration::from_secs(2);
/// Most that a wall clock may be away from the median of the voters' for its node to judge anything by time.
/// Test: `cluster::clock_agreement::tests::a_clock_is_judged_by_its_distance_and_by_agreement`. Metric: `svc_clock_offset_seconds`.
pub const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(5);
/// Most entries proposed and not yet applied: one on its way, and one with all that came meanwhile. With more of them
/// each would carry less, and an entry costs every member more than a command in it does.
/// Test: none, it takes a log that is written slowly. Metric: none, the queue fills instead.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// Longest wait for a command to be applied; beyond it: 503, outcome unknown.
/// Test: `cluster::peers::tests::together::without_a_majority_nothing_is_written_and_no_lease_is_kept`. Metric: `svc_exchange_total{result="unavailable"}`.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a command whose outcome is open is sent again.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const PROPOSE_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Most that a command's number is ahead of the first of its process that is not answered. It is more than a process
/// has waiting and in entries under way at once; the replies in between are remembered, and up to as many that are
/// being removed.
/// Test: `state::once::tests::a_command_too_far_ahead_is_refused_and_one_at_the_limit_is_not`, `cluster::propose::tests::no_command_is_numbered_further_ahead_than_is_remembered`. Metric: `svc_exchange_total{result="unavailable"}`.
pub const SUBMISSIONS_AHEAD_MAX: u64 = 32 * 1024;
/// How long replies are remembered for a process that proposes nothing, in time that has passed; far longer than it
/// waits for them.
/// Test: `state::once::tests::a_process_that_was_not_heard_of_for_long_repeats_nothing_and_may_go_on`. Metric: `svc_exchange_total{result="unavailable"}`.
pub const ORIGIN_KEPT: Duration = Duration::from_secs(600);
/// Most processes that are remembered, by some 50 bytes each; a command of another is refused.
/// Test: `state::once::tests::beyond_their_limit_no_process_is_remembered_until_others_are_forgotten`. Metric: `svc_exchange_total{result="unavailable"}`.
pub const ORIGINS_MAX: u64 = 4096;
/// Most of them that have proposed nothing for so long that their replies are forgotten; beyond it those go that have
/// not for the longest.
/// Test: `state::once::tests::of_unused_processes_those_unused_for_the_longest_are_forgotten`. Metric: none, it is not exceeded for long.
pub const ORIGINS_UNUSED_MAX: usize = 1024;
/// How often it is looked for processes that have proposed nothing for long, in time that has passed.
/// Test: `state::once::tests::replies_to_a_process_that_is_gone_are_removed_so_many_at_once`. Metric: none, it is not exceeded but stated.
pub const ORIGINS_SWEPT_EVERY: Duration = Duration::from_secs(60);
/// Most replies that one entry removes because they were received, and most because their process is gone. Twice what an
/// entry adds, so that they get fewer.
/// Test: `state::once::tests::an_entry_removes_only_so_many_replies_and_the_next_goes_on`, `state::once::tests::replies_to_a_process_that_is_gone_are_removed_so_many_at_once`. Metric: none, the next entry goes on.
pub const REPLIES_FORGOTTEN_AT_ONCE: u64 = 2 * COMMANDS_PER_ENTRY_MAX as u64;
/// Bytes of entries beyond which the log is cut behind a snapshot; half of it then stays.
/// Test: `cluster::restarts::a_log_of_large_entries_is_cut_and_goes_on_after_a_restart`. Metric: none, the rest is in the snapshot.
pub const LOG_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How long a node may be without a lease until health says that it has no leader, whomever it last heard of.
/// Test: `freshness::without_a_lease_only_what_needs_none_is_answered`. Metric: `svc_raft_is_leader`.
pub const LEADER_UNCONFIRMED_MAX: Duration = Duration::from_secs(2);
/// Time between two looks of the watchdog at the log writer.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const DISK_TICK: Duration = Duration::from_millis(100);
/// Ticks during which a write of the log does not finish, until the disk counts as one that hangs.
/// Test: `cluster::disk::tests::a_group_that_does_not_finish_is_told_after_its_ticks`. Metric: `svc_log_disk_hangs`.
pub const DISK_HANGS_TICKS: u32 = 10;
/// Heartbeats for which it may hang, if that is longer.
/// Test: `cluster::disk::tests::slow_heartbeats_make_the_watch_more_patient`. Metric: `svc_log_disk_hangs`.
pub const DISK_HANGS_HEARTBEATS: u32 = 10;
/// Ticks during which it hangs until the node ends, if another leads.
/// Test: `cluster::disk::tests::a_group_that_does_not_finish_is_told_after_its_ticks`. Metric: `svc_log_disk_hangs`.
pub const DISK_LOST_TICKS: u32 = 100;
/// Longest wait for another member to lead when this node hands over; then it goes on without.
/// Test: `cluster::hand_over::tests::a_leader_hands_over_to_the_member_that_has_most_of_its_log`. Metric: `svc_raft_is_leader`.
pub const HAND_OVER_MAX: Duration = Duration::from_secs(3);
/// How long the member that is handed leadership may take to be elected; then the next one is named.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const HAND_OVER_ATTEMPT: Duration = Duration::from_millis(500);
/// Time between two looks at whether this node may stand for election.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const CANDIDACY_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a node does not stand for election after it handed over, while there is a leader.
/// Test: `cluster::hand_over::tests::after_a_hand_over_a_node_stands_again_when_it_may`. Metric: `svc_raft_is_leader`.
pub const CANDIDACY_PAUSE: Duration = Duration::from_secs(30);
/// How long there may be no leader until a node that handed over stands for election all the same.
/// Test: `cluster::hand_over::tests::after_a_hand_over_a_node_stands_again_when_it_may`. Metric: `svc_raft_is_leader`.
pub const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// How long a node may answer from its own memory after it asked the leader (design §4, D).
/// Test: `cluster::freshness::tests::a_lease_runs_from_when_it_was_asked_for_and_a_margin_shorter`. Metric: `svc_freshness_lease_held`.
pub const FRESHNESS_LEASE: Duration = Duration::from_secs(1);
/// What is taken off a lease, for boot clocks that do not run alike.
/// Test: `cluster::freshness::tests::a_lease_runs_from_when_it_was_asked_for_and_a_margin_shorter`. Metric: `svc_freshness_lease_held`.
pub const FRESHNESS_MARGIN: Duration = Duration::from_millis(50);
/// Maximum advance of the wall clock over the boot clock between two looks at the lease; beyond it: the lease is dropped.
/// Test: `cluster::freshness::tests::wall_clock_ahead_of_boot_clock_drops_the_lease`. Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_CLOCK_STEP_MAX: Duration = Duration::from_millis(200);
/// Time from one lease to the request for the next.
/// Test: `cluster::freshness::tests::a_lease_is_renewed_before_it_runs_out`. Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_RENEWAL: Duration = Duration::from_millis(250);
/// Longest wait for one renewal; beyond it, it is asked for again. One that hangs costs no lease.
/// Test: `cluster::freshness::tests::a_renewal_that_hangs_or_fails_is_tried_again`. Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause after a renewal that failed.
/// Test: `cluster::freshness::tests::a_renewal_that_hangs_or_fails_is_tried_again`. Metric: `svc_freshness_waits_total`.
pub const FRESHNESS_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait of a request for a lease, and of a verification until this node has applied what the token
/// was issued after; beyond it: 503.
/// Test: `cluster::freshness::tests::without_a_lease_a_request_waits_and_is_then_refused`, `http::verify::a_token_from_ahead_of_this_nodes_log_is_waited_for_and_then_answered_503`. Metric: `svc_freshness_refused_total`.
pub const FRESHNESS_WAIT: Duration = Duration::from_secs(2);
/// Most requests that wait for a lease, or without leases for the next question to the leader and for the one under way;
/// beyond it: 503 at once.
/// Test: `cluster::freshness::tests::beyond_their_limit_nobody_waits`. Metric: `svc_freshness_refused_total`.
pub const FRESHNESS_WAITS_MAX: usize = 2_048;
/// Longest wait of a read for the leader's answer, and then until this node has applied what it named; beyond
/// it: 503.
/// Test: `cluster::read_index::tests::without_a_leader_a_read_waits_and_is_then_refused`, `cluster::read_index::tests::what_the_leader_named_is_waited_for_and_no_longer_than_its_limit`. Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the leader; beyond it, it is asked anew.
/// Test: `cluster::read_index::tests::an_answer_that_comes_after_its_question_was_given_up_is_for_nobody`. Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause after a question to the leader that failed.
/// Test: `cluster::read_index::tests::who_waited_for_a_question_that_failed_shares_the_next_with_those_who_came_meanwhile`. Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Most reads that wait for the next question to the leader, and for the one under way; beyond it: 503 at once.
/// Test: `cluster::read_index::tests::beyond_their_limit_nobody_waits_for_the_leader`. Metric: `svc_http_requests_total{status="503"}`.
pub const READ_INDEX_WAITS_MAX: usize = 512;
/// Longest wait until no member can answer from before a revocation; beyond it: 503, although it is applied.
/// Test: `cluster::freshness::tests::an_entry_that_is_not_applied_is_not_acknowledged`. Metric: `svc_acknowledgements_total{result="unconfirmed"}`.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time after a node's last freshness lease, or after its start, for which it serves its JWK Set; beyond it: 503.
/// Test: `freshness::without_a_lease_for_long_no_keys_are_served`. Metric: `svc_http_requests_total{status="503"}`.
pub const JWKS_WITHOUT_LEASE_MAX: Duration = Duration::from_secs(60);
/// Time between two looks at whether the node is ready, for the log.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const READINESS_LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How often the log says why a node is not ready.
/// Test: `node::readiness::tests::what_is_missing_is_said_at_once_and_again`. Metric: none, it is a granularity.
pub const NOT_READY_SAID_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait of one of several nodes until it knows what its cluster has written: as long as the others take.
/// Test: none, it is as good as for ever. Metric: none, health and the log say what it waits for.
pub const RECOVERY_OF_MEMBER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The same, of a node that is alone.
/// Test: none, it takes a log of two minutes. Metric: none, the node does not start.
pub const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// What the tables of the state may keep in memory of what is on disk, all together.
/// Test: `cluster::database::tests::memory_does_not_grow_with_the_number_of_tables_or_rows`. Metric: none, the rest is read from disk.
pub const STATE_CACHE_BYTES: usize = 64 * 1024 * 1024;
/// What the tables of the state may keep in memory of what was written last, all together; beside it, what is
/// on its way to the disk.
/// Test: `cluster::database::tests::memory_does_not_grow_with_the_number_of_tables_or_rows`. Metric: none, it is written to disk then.
pub const STATE_WRITE_BUFFERS_BYTES: usize = 32 * 1024 * 1024;
/// What the log may keep in memory of what is in its database, beside its newest entries.
/// Test: none, the library keeps to it. Metric: none, it is written to disk then.
pub const LOG_WRITE_BUFFERS_BYTES: usize = 16 * 1024 * 1024;
/// How long a spent nonce is remembered, in elapsed time: until no credential that could present it
/// again is alive.
/// Test: `state::spent::tests::expired_nonces_leave_the_table`. Metric: `svc_exchange_total{result="nonce_spent"}`.
pub const NONCE_RETENTION: Duration = Duration::from_secs(24 * 3600 + 300);
/// Maximum nonces remembered in the cluster, by some 70 bytes on disk each; beyond it: 429. None is forgotten early.
/// Test: `state::spent::tests::callers_and_all_have_a_limit`. Metric: `svc_exchange_total{result="too_many"}`.
pub const NONCES_MAX: u64 = 20_000_000;
/// Maximum nonces remembered of one caller; beyond it: 429.
/// Test: `state::spent::tests::callers_and_all_have_a_limit`. Metric: `svc_exchange_total{result="too_many"}`.
pub const NONCES_PER_CALLER_MAX: u64 = 10_000_000;
/// How long a used execution-scoped token is remembered, in elapsed time from its use: until five minutes after its
/// `exp`, which lies at most [`EXECUTION_TOKEN_LIFETIME`] and [`LEEWAY`] ahead.
/// Test: `state::spent::tests::used_token_is_remembered_until_five_minutes_after_exp`. Metric: `svc_http_requests_total{status="403"}`.
pub const SPENT_TOKEN_RETENTION: Duration = Duration::from_secs(30 + 5 + 300);
/// Maximum used execution-scoped tokens remembered in the cluster, by some 70 bytes on disk each; beyond it: 429. None
/// is forgotten early.
/// Test: `state::spent::tests::callers_and_all_have_a_limit`. Metric: `svc_http_requests_total{status="429"}`.
pub const SPENT_TOKENS_MAX: u64 = 20_000_000;
/// Maximum used execution-scoped tokens remembered of one caller; beyond it: 429.
/// Test: `state::spent::tests::callers_and_all_have_a_limit`. Metric: `svc_http_requests_total{status="429"}`.
pub const SPENT_TOKENS_PER_CALLER_MAX: u64 = 10_000_000;
/// How long the outcome of an `Idempotency-Key` is remembered, in elapsed time (contract §1).
/// Test: `state::spent::tests::idempotency_key_is_remembered_for_a_day`. Metric: `svc_exchange_total{result="idempotency_key"}`.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Maximum `Idempotency-Key`s remembered in the cluster, by some 200 bytes on disk each; a request with a new one
/// beyond it: 429. None is forgotten early.
/// Test: `state::spent::tests::callers_and_all_have_a_limit`. Metric: `svc_http_requests_total{status="429"}`.
pub const IDEMPOTENCY_KEYS_MAX: u64 = 10_000_000;
/// Maximum `Idempotency-Key`s remembered of one caller; beyond it: 429.
/// Test: `state::spent::tests::callers_and_all_have_a_limit`. Metric: `svc_http_requests_total{status="429"}`.
pub const IDEMPOTENCY_KEYS_PER_CALLER_MAX: u64 = 5_000_000;

// --- tools -------------------------------------------------------------------------------------

/// Most tools in the registry; beyond it: 409.
/// Test: `state::tools::tests::beyond_its_limit_no_tool_is_registered_until_one_is_deregistered`. Metric: `svc_tools`, `svc_tool_writes_total{result="refused"}`.
pub const TOOLS_MAX: u64 = 2_000_000;
/// Most tools of one caller among them; beyond it: 409.
/// Test: `state::tools::tests::one_caller_does_not_fill_the_registry`. Metric: `svc_tool_writes_total{result="refused"}`.
pub const TOOLS_PER_CALLER_MAX: u64 = 1_000_000;
/// Size of the rows beyond which no further tool, or agent, is added to a page of a list; the rest is on
/// the next.
/// Test: `state::tools::tests::a_page_ends_where_it_is_full`. Metric: none, the rest goes to the next page.
pub const TOOL_PAGE_BYTES_FULL: usize = 1024 * 1024;
/// Memory for tools, in which they are compressed.
/// Test: `state::leaves::tests::beyond_its_bytes_rows_are_elsewhere_and_never_absent`. Metric: none, the rest is read from the database.
pub const TOOLS_IN_MEMORY_BYTES: usize = 112 * 1024 * 1024;
/// Memory for the heads of their audit trails.
/// Test: `state::leaves::tests::beyond_its_bytes_rows_are_elsewhere_and_never_absent`. Metric: none, the rest is read from the database.
pub const AUDIT_HEADS_IN_MEMORY_BYTES: usize = 80 * 1024 * 1024;
/// Largest request body that brings a tool entry.
/// Test: `http::tools::an_entry_larger_than_its_limits_is_refused`. Metric: `svc_http_requests_total{status="413"}`.
pub const TOOL_BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest `tool_id` in bytes (contract §5).
/// Test: `tools::entry::tests::a_member_at_its_longest_passes_and_one_byte_more_is_refused`. Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_ID_BYTES_MAX: usize = 256;
/// Longest `name` of a tool in bytes.
/// Test: `tools::entry::tests::a_member_at_its_longest_passes_and_one_byte_more_is_refused`. Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// Longest `description` of a tool in bytes.
/// Test: `tools::entry::tests::a_member_at_its_longest_passes_and_one_byte_more_is_refused`. Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_DESCRIPTION_BYTES_MAX: usize = 4096;
/// Longest `version` of a tool in bytes.
/// Test: `tools::entry::tests::a_member_at_its_longest_passes_and_one_byte_more_is_refused`. Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_VERSION_BYTES_MAX: usize = 256;
/// Most entries of `allowed_operations`, and of `allowed_targets`.
/// Test: `tools::entry::tests::a_list_at_its_longest_passes_and_one_entry_more_is_refused`. Metric: `svc_http_requests_total{status="400"}`.
pub const TOOL_ALLOWED_MAX: usize = 256;

// --- listeners ---------------------------------------------------------------------------------

/// Longest wait for the first request of a connection, its TLS handshake included.
/// Test: `api::listener::tests::deadlines::a_connection_without_a_request_is_closed_in_time`. Metric: `svc_http_connections_closed_total{reason="first_request"}`.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a connection of the reserve, which is closed gracefully after it.
/// Test: `api::listener::tests::network::a_silent_connection_of_the_reserve_is_closed_sooner`. Metric: `svc_http_connections_closed_total{reason="first_request"}`, `svc_http_connections_closed_total{reason="reserve"}`.
pub const FIRST_REQUEST_IN_RESERVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest TLS handshake.
/// Test: `api::listener::tests::network::a_handshake_that_does_not_begin_is_ended_in_time`. Metric: `svc_http_connections_refused_total{reason="handshake_timeout"}`.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time from the first byte of an HTTP/1.1 request's head to its last.
/// Test: `api::listener::tests::deadlines::a_head_in_single_bytes_gains_no_time`. Metric: `svc_http_connections_closed_total{reason="header_timeout"}`.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection stays open without a request under way.
/// Test: `api::listener::tests::deadlines::an_idle_connection_is_closed`. Metric: `svc_http_connections_closed_total{reason="idle"}`.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at what a connection is doing: what "idle" and "stalled" are rounded up to.
/// Test: `api::listener::tests::deadlines::an_idle_connection_is_closed`. Metric: none, it is a granularity.
pub const CONNECTION_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait until the other end reads on, or its machine says that it has what was sent; after it the connection
/// is cut.
/// Test: `api::listener::tests::deadlines::a_reader_that_stops_is_cut`. Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Age at which a plain connection is closed gracefully.
/// Test: `api::listener::tests::deadlines::an_old_connection_is_closed_however_busy`. Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3600);
/// Age at which a TLS connection is closed gracefully, so that its client is verified again.
/// Test: `api::listener::tests::deadlines::an_old_connection_is_closed_however_busy`. Metric: `svc_http_connections_closed_total{reason="age"}`.
pub const TLS_CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// Longest time from a request's headers to its answer's, reading the body included.
/// Test: none, no route is that slow. Metric: `svc_http_requests_total{status="503"}`.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Most headers of one request; beyond it: 431.
/// Test: `api::listener::tests::framing::heads_at_their_limits_pass_and_beyond_them_are_refused`. Metric: `svc_http_requests_total{status="431"}`.
pub const HEADERS_MAX: usize = 64;
/// Largest head of one HTTP/1.1 request; beyond it: 431.
/// Test: `api::listener::tests::framing::heads_at_their_limits_pass_and_beyond_them_are_refused`. Metric: `svc_http_requests_total{status="431"}`.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest request line of HTTP/1.1; beyond it: 414.
/// Test: `api::listener::tests::framing::heads_at_their_limits_pass_and_beyond_them_are_refused`. Metric: `svc_http_requests_total{status="414"}`.
pub const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;
/// Most bytes read from an HTTP/1.1 connection at once into memory of our own.
/// Test: `api::listener::tests::framing::heads_at_their_limits_pass_and_beyond_them_are_refused`. Metric: none, the rest is read next.
pub const HEAD_BYTES_PER_READ_MAX: usize = 4 * 1024;
/// Most written and not yet sent of an HTTP/1.1 connection before its answer waits.
/// Test: `api::listener::tests::deadlines::a_reader_that_stops_is_cut`. Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const HTTP1_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Longest wait after a refused request until its sender stops sending, so that it reads the answer.
/// Test: `api::listener::tests::deadlines::who_was_refused_and_sends_nothing_more_is_not_waited_for_long`. Metric: `svc_http_connections_closed_total{reason="violation"}`.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests at once on one HTTP/2 connection (RFC 9113 §5.1.2).
/// Test: `api::listener::tests::http2::one_request_more_than_stated_is_refused`. Metric: none, the library refuses the request by itself.
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// Largest head of one HTTP/2 request, as RFC 9113 §6.5.2 counts it; beyond it: 431.
/// Test: `api::listener::tests::http2::a_head_larger_than_stated_reaches_nobody`. Metric: none, the library answers by itself.
pub const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Most HTTP/2 requests taken back before they were looked at; beyond it the connection is closed.
/// Test: `api::listener::tests::http2::requests_taken_back_at_once_end_the_connection`. Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_PENDING_RESETS_MAX: usize = 20;
/// Most HTTP/2 requests that we end because of their sender's mistakes; beyond it: closed.
/// Test: `api::listener::tests::http2::requests_that_we_must_end_end_the_connection`. Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_LOCAL_RESETS_MAX: usize = 20;
/// What one HTTP/2 request may send before we have read it, in bytes.
/// Test: `api::listener::tests::http2::the_limits_are_stated`. Metric: none, the sender waits.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// What all requests of one HTTP/2 connection may send before we have read it, in bytes.
/// Test: `api::listener::tests::http2::the_limits_are_stated`. Metric: none, the sender waits.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Largest HTTP/2 frame (RFC 9113 §4.2: the least that can be stated).
/// Test: `api::listener::tests::http2::a_frame_larger_than_stated_ends_the_connection`. Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Most written and not yet sent of one HTTP/2 answer before it waits.
/// Test: `api::listener::tests::deadlines::an_http2_reader_that_opens_no_window_is_cut`. Metric: `svc_http_connections_closed_total{reason="write_stall"}`.
pub const HTTP2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Time between two pings on an HTTP/2 connection.
/// Test: `api::listener::tests::http2::a_peer_that_does_not_answer_a_ping_is_cut`. Metric: none, it is a granularity.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Longest wait for the answer to one.
/// Test: `api::listener::tests::http2::a_peer_that_does_not_answer_a_ping_is_cut`. Metric: `svc_http_connections_closed_total{reason="failed"}`.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Most open connections of all listeners; what the limit of open files leaves, if that is less.
/// Test: `api::listener::descriptors::tests::connections_shrink_to_what_the_limit_of_open_files_leaves`. Metric: `svc_http_connections`, `svc_requests_refused_total{reason="reserve"}`.
pub const CONNECTIONS_MAX: usize = 10_240;
/// Most connections that the system keeps for us until they are accepted, on each listener.
/// Test: none, the system's own queue. Metric: none, the system counts them.
pub const CONNECTIONS_QUEUED_MAX: u32 = 1024;
/// Further connections of each listener, answered on health routes only.
/// Test: `api::listener::places::tests::beyond_the_usual_places_there_is_a_reserve_and_beyond_it_nothing`. Metric: `svc_http_connections_refused_total{reason="full"}`.
pub const CONNECTIONS_IN_RESERVE_MAX: usize = 64;
/// Default of the most open connections from one address; of IPv6, from one /64.
/// Test: `config::tests::production_has_tls_and_everything_else_as_documented`. Metric: `svc_http_connections_refused_total{reason="address"}`.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 256;
/// Default of the most open connections with one client certificate's identity.
/// Test: `config::tests::production_has_tls_and_everything_else_as_documented`. Metric: `svc_http_connections_refused_total{reason="identity"}`.
pub const CONNECTIONS_PER_IDENTITY_MAX: usize = 1024;
/// Open files kept free of connections, for the database, the log and calls to others.
/// Test: `api::listener::descriptors::tests::connections_shrink_to_what_the_limit_of_open_files_leaves`. Metric: none, fewer connections are let in.
pub const DESCRIPTORS_RESERVED: usize = 1024;
/// Longest wait for the index that `Svc-Min-Index` or `Last-Event-ID` names; beyond it: 503.
/// Test: `http::around::an_answer_can_be_asked_for_at_an_index`. Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAIT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
/// Test: none, it takes a machine without descriptors. Metric: none, it is said in the log.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most callers whose rate is remembered; beyond it the least used start anew.
/// Test: `api::rates::tests::no_more_callers_are_remembered_than_the_limit`. Metric: none, who is forgotten starts anew.
pub const RATES_REMEMBERED_MAX: u64 = 100_000;
/// How long a caller's rate is remembered after its last request.
/// Test: none, a second restores the whole rate anyway. Metric: none, nobody is refused by it.
pub const RATES_REMEMBERED_IDLE: Duration = Duration::from_secs(60);
/// Default number of requests that one caller may send in a second.
/// Test: `config::tests::production_has_tls_and_everything_else_as_documented`. Metric: `svc_requests_refused_total{reason="rate"}`.
pub const REQUESTS_PER_SECOND_PER_CALLER: u32 = 1_000;
/// Largest number of requests a second that can be configured for one caller.
/// Test: `config::tests::production_refuses_what_its_edge_cannot_be`. Metric: none, the node does not start.
pub const REQUESTS_PER_SECOND_MAX: u32 = 1_000_000;
/// Requests for health that one address may send in a second; beyond it: 429.
/// Test: `http::edges::health_has_a_rate_of_its_own`. Metric: `svc_requests_refused_total{reason="rate"}`.
pub const HEALTH_REQUESTS_PER_SECOND: u32 = 100;
/// Most requests of one caller under way at once; beyond it: 429.
/// Test: `api::rates::tests::one_caller_has_only_so_many_requests_under_way_whatever_its_rate`. Metric: `svc_requests_refused_total{reason="rate"}`.
pub const REQUESTS_OF_CALLER_MAX: usize = 512;
/// Most requests whose answer waits until the rest of their body is read; beyond it: answered at once.
/// Test: none, the others are answered as before. Metric: none, nobody is refused by it.
pub const LEFTOVERS_MAX: usize = 1_024;
/// Longest time for one connection of `admin.sock`, which are served one after the other; beyond it: closed.
/// Test: `http::admin_socket::silent_client_does_not_hold_up_the_next`. Metric: none, nobody else is refused by it.
pub const ADMIN_SOCKET_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests that wait for their `Svc-Min-Index` or `Last-Event-ID` at once; beyond it: 503.
/// Test: `http::edges::waiting_for_an_index_takes_nobodys_place`. Metric: `svc_http_requests_total{status="503"}`.
pub const MIN_INDEX_WAITS_MAX: usize = 64;
/// Most requests under way at once; beyond it: 503.
/// Test: `api::overload::tests::beyond_the_limit_a_request_is_refused_and_an_ended_one_makes_room`. Metric: `svc_requests_refused_total{reason="overload"}`.
pub const REQUESTS_MAX: usize = 4_096;
/// Most requests that were read and have not had their first turn; beyond it: 503.
/// Test: `api::overload::tests::requests_that_come_at_once_wait_up_to_a_limit_and_the_rest_is_refused_at_once`. Metric: `svc_requests_refused_total{reason="overload"}`.
pub const REQUESTS_WAITING_MAX: usize = 136;
/// Longest wait for a request's body; beyond it: 408.
/// Test: `api::body::tests::a_body_that_does_not_come_is_answered_408`. Metric: `svc_http_requests_total{status="408"}`.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a node that stops waits for its tasks and its databases to end; then the process is ended all the same.
/// Test: none, nothing takes that long but a disk that hangs. Metric: none, the process ends.
pub const STOP_MAX: Duration = Duration::from_secs(20);
/// The same, while the disk of the log hangs.
/// Test: `storage_failures::a_node_whose_disk_hangs_ends_when_it_is_told_to`. Metric: none, the process ends.
pub const STOP_OF_HUNG_MAX: Duration = Duration::from_secs(1);
/// How long a graceful shutdown waits for requests under way.
/// Test: `api::listener::tests::deadlines::a_stop_waits_no_longer_than_the_drain`. Metric: `svc_http_connections_closed_total{reason="shutdown"}`.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

// --- TLS ---------------------------------------------------------------------------------------

/// Time between two looks at the files of TLS.
/// Test: `tls::tests::reload::a_new_certificate_and_a_new_revocation_list_are_taken_over`. Metric: `svc_tls_reloads_total`.
pub const TLS_RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Largest file with our certificate, our private key, or the client CAs.
/// Test: `tls::tests::load::a_file_larger_than_its_limit_is_refused`. Metric: `svc_tls_reloads_total{with="callers",result="failed"}`.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Largest file with revocation lists.
/// Test: `tls::tests::load::a_file_larger_than_its_limit_is_refused`. Metric: `svc_tls_reloads_total{with="callers",result="failed"}`.
pub const TLS_CRL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum issuers in `svc_via` of a signal, through which it came before its own; beyond it: ignored, and not passed on.
/// Test: `signals::passed_on::tests::signal_that_came_back_is_a_loop`. Metric: `svc_signals_total{result="ignored"}`.
pub const SIGNAL_VIA_MAX: usize = 4;
/// Maximum trust domains whose clients a node accepts, each with authorities of its own; beyond it: refused at start.
/// Test: `config::tests::each_trust_domain_of_clients_has_its_own_ca`. Metric: none, the configuration is refused.
pub const CLIENT_TRUST_DOMAINS_MAX: usize = 301;
/// Most certificates a client may send beside its own; beyond it: refused in the handshake.
/// Test: `tls::tests::certificates::only_certificates_with_a_good_path_pass`. Metric: `svc_http_connections_refused_total{reason="handshake"}`.
pub const CLIENT_INTERMEDIATES_MAX: usize = 6;

// --- caches ------------------------------------------------------------------------------------

/// Most verified signatures remembered, counting one for each started KiB of payload.
/// Test: `token::signature_cache::tests::large_payloads_count_for_more_and_the_limit_holds`. Metric: none, what is forgotten is verified again.
pub const SIGNATURES_CACHED_MAX: u64 = 100_000;

// --- pushes ------------------------------------------------------------------------------------

/// Most pushes of one stream at once, each of another subject (contract §6).
/// Test: `signals::transmit::push::tests::so_many_subjects_at_once_and_never_two_of_one`. Metric: none, the others wait.
pub const PUSHES_PER_STREAM_MAX: usize = 8;
/// Shortest wait after a push that failed (contract §6).
/// Test: `signals::transmit::push::backoff::tests::a_wait_is_anywhere_between_a_second_and_a_bound_that_doubles_up_to_five_minutes`. Metric: `svc_push_total`.
pub const PUSH_WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest one, also if the receiver asks for more.
/// Test: `signals::transmit::push::backoff::tests::a_receiver_is_left_alone_as_long_as_it_asks_for_but_not_for_ever`. Metric: `svc_push_total`.
pub const PUSH_WAIT_MAX: Duration = Duration::from_secs(300);
/// Maximum attempts of an event whose sender, key, issuer or audience the receiver refuses; then a verification event
/// decides whether the event is a dead letter or the stream is paused.
/// Test: `signals::transmit::push::tests::refusals::event_refused_alone_is_a_dead_letter_after_a_verification`. Metric: `svc_push_total{result="refused"}`.
pub const PUSH_REFUSALS_MAX: u32 = 8;
/// How often an event is not taken by a receiver that takes others meanwhile before it is a dead letter.
/// Test: `signals::transmit::push::tests::refusals::an_event_that_is_never_taken_while_others_are_becomes_a_dead_letter`. Metric: `svc_stream_events_total{result="dead_letter"}`.
pub const PUSH_FAILURES_ALONE_MAX: u32 = 24;
/// How long a receiver may take nothing before its stream is paused, by the clock of the node that leads.
/// Test: `signals::transmit::push::tests::a_receiver_that_fails_for_too_long_is_paused_and_begins_anew_when_resumed`. Metric: `svc_streams{status="paused"}`.
pub const PUSH_FAILING_MAX: Duration = Duration::from_secs(12 * 3600);
/// Longest time that a delivery is not recorded; what was not is sent again by the next leader.
/// Test: `signals::transmit::push::tests::going_on::many_deliveries_are_recorded_by_few_entries`. Metric: none, it is a granularity.
pub const PUSH_ADVANCE_INTERVAL: Duration = Duration::from_millis(200);
/// Deliveries that are recorded before that.
/// Test: `signals::transmit::push::tests::going_on::many_deliveries_are_recorded_by_few_entries`. Metric: none, it is a granularity.
pub const PUSH_ADVANCE_EVENTS: usize = 256;
/// Most dead letters that are recorded at once; the rest is recorded next.
/// Test: `signals::transmit::push::ledger::tests::only_so_many_dead_letters_are_recorded_at_once`. Metric: none, the rest is recorded next.
pub const DEAD_LETTERS_AT_ONCE_MAX: usize = 64;
/// Longest `err` of a receiver that is kept, in bytes.
/// Test: `signals::transmit::push::verdict::tests::what_a_receiver_writes_is_cut_and_printable`. Metric: none, the rest is cut.
pub const PUSH_ERR_BYTES_MAX: usize = 64;
/// Longest `description` of a receiver that is kept, in bytes.
/// Test: `signals::transmit::push::verdict::tests::what_a_receiver_writes_is_cut_and_printable`. Metric: none, the rest is cut.
pub const PUSH_DESCRIPTION_BYTES_MAX: usize = 256;
/// How many events beyond [`STREAM_BACKLOG_MAX`] must wait before the oldest are dropped down to it.
/// Test: `signals::transmit::push::backlog::tests::a_stream_holds_so_many_events_and_a_few_more_before_some_are_dropped`. Metric: `svc_stream_events_total{result="dropped"}`.
pub const STREAM_BACKLOG_SLACK: u64 = 1_000;
/// How much longer than [`STREAM_HELD_MAX`] an event must wait before all beyond that are dropped. Less than what
/// [`EVENTS_KEPT`] is more.
/// Test: `signals::transmit::push::backlog::tests::a_stream_holds_an_event_so_long_and_a_little_more_before_it_is_dropped`. Metric: `svc_stream_events_total{result="dropped"}`.
pub const STREAM_HELD_SLACK: Duration = Duration::from_secs(300);
/// Time between two looks at what streams hold.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const STREAM_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Most events of the outbox that are read before others have their turn.
/// Test: `signals::transmit::push::tests::going_on::a_stream_that_was_behind_gets_all_it_holds_in_order`. Metric: none, the rest is read next.
pub const OUTBOX_ROWS_PER_TURN: usize = 128;
/// Most times that a stream is looked at for one of them before that.
/// Test: `signals::transmit::push::engine::tests::many_streams_are_told_of_a_few_events_before_others_have_their_turn`. Metric: none, the rest is read next.
pub const OUTBOX_TOLD_PER_TURN: usize = 2_048;

// --- between nodes -----------------------------------------------------------------------------

/// Most members that a cluster is founded with.
/// Test: `config::tests::cluster::refuses_members_that_break_their_rules`. Metric: none, the node does not start.
pub const MEMBERS_MAX: usize = 9;
/// Largest message between nodes.
/// Test: `cluster::peers::tests::bad::a_message_beyond_the_limit_is_refused`. Metric: none, the other node is told.
pub const PEER_MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size beyond which no further entry is sent in one message. An entry is no larger than
/// [`ENTRY_BYTES_FULL`] and one command.
/// Test: `cluster::log::tests::entries_are_read_up_to_a_size_and_at_least_one`. Metric: none, the rest is sent next.
pub const APPEND_BYTES_FULL: usize = 4 * 1024 * 1024;
/// Most connections of other nodes.
/// Test: `cluster::peers::connection::tests::no_more_places_are_taken_of_one_or_of_all_than_there_may_be`. Metric: none, it is logged.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// Most connections of one other node.
/// Test: `cluster::peers::connection::tests::no_more_places_are_taken_of_one_or_of_all_than_there_may_be`. Metric: none, it is logged.
pub const PEER_CONNECTIONS_OF_NODE_MAX: usize = 32;
/// Most connections between nodes of which it is not known yet who makes them.
/// Test: `cluster::peers::connection::tests::no_more_places_are_taken_of_one_or_of_all_than_there_may_be`. Metric: none, it is logged.
pub const PEER_HANDSHAKES_MAX: usize = 256;
/// The same from one address.
/// Test: `cluster::peers::tests::bad::connections_that_say_nothing_are_given_up_and_hold_up_nobody`. Metric: none, it is logged.
pub const PEER_HANDSHAKES_OF_ADDRESS_MAX: usize = 64;
/// Most calls under way in one connection.
/// Test: none, the library keeps it. Metric: none, the others wait.
pub const PEER_STREAMS_MAX: u32 = 1_024;
/// Largest list of headers of a call.
/// Test: none, the library keeps it. Metric: none, the connection is closed.
pub const PEER_HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes that may be under way in one call and in one connection.
/// Test: none, it is a granularity. Metric: none, the others wait.
pub const PEER_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Longest wait for a connection to a node, its handshake included, and for the first answer over it.
/// Test: `cluster::peers::tests::bad::a_half_open_connection_is_given_up_by_whoever_asks_over_it`. Metric: none, it is tried again.
pub const PEER_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before entries are sent again to a node that did not take them.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const PEER_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks whether the other end of a connection is there.
/// Test: `cluster::peers::tests::bad::a_half_open_connection_is_given_up_by_whoever_asks_over_it`. Metric: none, it is a granularity.
pub const PEER_PING_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for an answer to that.
/// Test: `cluster::peers::tests::bad::a_half_open_connection_is_given_up_by_whoever_asks_over_it`. Metric: none, it is connected again.
pub const PEER_PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time that what was sent to a node is not received there.
/// Test: `cluster::peers::tests::bad::a_half_open_connection_is_given_up_by_whoever_asks_over_it`. Metric: none, it is connected again.
pub const PEER_SILENCE_MAX: Duration = Duration::from_secs(3);
/// Maximum time that a memory of a member's disk is not written; a crash loses what is not.
/// Test: `cluster::peers::tests::set_back::memory_of_a_disk_survives_the_leader_and_a_restart`. Metric: none, it is a granularity.
pub const MEMORY_UNWRITTEN_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at what the members have acknowledged, while this node leads.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const MEMORY_PAUSE: Duration = Duration::from_millis(50);
/// Time for which a node whose log contradicts the leader's answers so before it stops.
/// Test: `cluster::peers::tests::bad::append_over_a_committed_entry_stops_the_node`. Metric: none, the node stops.
pub const CONTRADICTION_TOLD_FOR: Duration = Duration::from_millis(500);
/// Time between two rounds of asking the members that a cluster is founded with.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const FOUNDING_PAUSE: Duration = Duration::from_millis(250);
/// How long a member that is asked whether it has applied an entry waits until it has, before it says how far it
/// has come.
/// Test: none, it is asked again. Metric: none, it is a granularity.
pub const APPLIED_WAIT: Duration = Duration::from_secs(1);
/// Largest index of a log entry that is believed.
/// Test: `cluster::peers::tests::bad::a_peer_that_lies_about_its_term_is_refused`. Metric: none, the other node is told.
pub const LOG_INDEX_MAX: u64 = 1 << 60;
/// How far the term of another node may be ahead of ours.
/// Test: `cluster::peers::tests::bad::a_peer_that_lies_about_its_term_is_refused`. Metric: none, the other node is told.
pub const TERM_AHEAD_MAX: u64 = 1 << 20;
/// Bytes of a snapshot in one message.
/// Test: none, it is a granularity. Metric: none, the rest comes next.
pub const SNAPSHOT_PART_BYTES: usize = 256 * 1024;
/// Longest wait for the next message of a snapshot that is received.
/// Test: `cluster::peers::tests::snapshots::a_sender_that_says_no_more_is_given_up`. Metric: none, it is sent again.
pub const SNAPSHOT_PART_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of a snapshot that wait to be sent.
/// Test: none, it is a granularity. Metric: none, reading waits.
pub const SNAPSHOT_PARTS_QUEUED_MAX: usize = 8;
/// Most files of a snapshot.
/// Test: `cluster::peers::tests::snapshots::a_head_that_promises_too_much_is_refused`. Metric: none, the other node is told.
pub const SNAPSHOT_FILES_MAX: usize = 16 * 1024;
/// Largest snapshot in bytes.
/// Test: `cluster::peers::tests::snapshots::a_head_that_promises_too_much_is_refused`. Metric: none, the other node is told.
pub const SNAPSHOT_BYTES_MAX: u64 = 256 * 1024 * 1024 * 1024;
/// Longest name of a file of a snapshot in bytes.
/// Test: `cluster::peers::tests::snapshots::names_that_lead_elsewhere_are_refused`. Metric: none, the other node is told.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 64;

// --- telemetry ---------------------------------------------------------------------------------

/// Most log lines waiting for their reader; what comes beyond is dropped and counted.
/// Test: `telemetry::logs::tests::lines_beyond_the_queue_are_dropped_and_counted`. Metric: `svc_log_lines_dropped_total`.
pub const LOG_LINES_QUEUED_MAX: usize = 8 * 1024;

// --- command line ------------------------------------------------------------------------------

/// Longest wait of the command line for the answer of a node.
/// Test: `outbound::admin::tests::a_node_that_does_not_answer_is_given_up`. Metric: none, its user is told.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer that the command line reads: a whole policy bundle as JSON.
/// Test: `outbound::admin::tests::an_answer_is_read_to_the_limit_and_no_further`. Metric: none, its user is told.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most rows of a list that the command line reads, in all its pages.
/// Test: `outbound::admin::tests::a_list_is_read_page_by_page_to_its_end_and_to_the_limit`. Metric: none, its user is told.
pub const ADMIN_ROWS_MAX: usize = 100_000;
/// Longest line of the live feed that the command line reads, and most bytes of one event.
/// Test: `outbound::events::tests::a_line_and_an_event_are_read_to_the_limit_and_no_further`. Metric: none, its user is told.
pub const EVENT_BYTES_MAX: usize = 64 * 1024;
/// Longest silence of the live feed, its heartbeats included, before the command line connects again.
/// Test: `outbound::admin::tests::a_feed_that_falls_silent_is_given_up`. Metric: none, its user is told.
pub const EVENTS_SILENCE_MAX: Duration = Duration::from_secs(45);
/// Longest time that the command line reads the live feed over one request.
/// Test: none, a node ends it sooner. Metric: none, it connects again.
pub const EVENTS_REQUEST_MAX: Duration = Duration::from_secs(24 * 3600);
/// First pause before the command line connects again to read the live feed; it doubles up to the longest.
/// Test: `cli::events::tests::pauses_double_up_to_the_longest`. Metric: none, its user is told.
pub const EVENTS_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest such pause.
/// Test: `cli::events::tests::pauses_double_up_to_the_longest`. Metric: none, its user is told.
pub const EVENTS_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Most bytes read of a file of certificates or private keys on the command line.
/// Test: `outbound::admin::tests::a_file_is_read_to_the_limit_and_no_further`. Metric: none, its user is told.
pub const PEM_BYTES_MAX: u64 = 1024 * 1024;
/// Longest life of a development certificate in days.
/// Test: `cli::tests::wrong_usage_ends_with_2_and_help_with_0`. Metric: none, its user is told.
pub const PKI_DAYS_MAX: u32 = 365;
/// How long before it is made a development certificate is valid already, for clocks that disagree.
/// Test: `pki::tests::what_ended_a_second_ago_is_refused_and_not_replaced`. Metric: none, it is not exceeded but stated.
pub const PKI_BACKDATED: Duration = Duration::from_secs(300);
/// Longest name of a caller with a development certificate, below its trust domain, in bytes
/// (RFC 5280 appendix A.1, `ub-common-name`).
/// Test: `pki::names::tests::a_caller_that_leaves_the_directory_or_the_trust_domain_is_refused_by_name`. Metric: none, its user is told.
pub const PKI_CALLER_BYTES_MAX: usize = 64;
/// Longest DNS name in bytes (RFC 1035 §2.3.4, in text).
/// Test: `pki::names::tests::a_host_is_an_address_or_one_dns_name`. Metric: none, its user is told.
pub const DNS_NAME_BYTES_MAX: usize = 253;
/// Longest wait of the development broker for its own node to become ready.
/// Test: none, it takes a development broker that does not start. Metric: none, its user is told.
pub const DEMO_READY_MAX: Duration = Duration::from_secs(30);
/// Time between two looks at whether it is.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const DEMO_READY_PAUSE: Duration = Duration::from_millis(50);
/// Largest configuration file.
/// Test: `config::tests::refuses_a_file_that_is_missing_too_large_or_no_toml`. Metric: none, the node does not start.
pub const CONFIG_BYTES_MAX: usize = 1024 * 1024;
/// Shortest heartbeat of the replicated core.
/// Test: `config::tests::refuses_a_value_beyond_its_rule`. Metric: none, the node does not start.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// Longest heartbeat of the replicated core.
/// Test: `config::tests::refuses_a_value_beyond_its_rule`. Metric: none, the node does not start.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// Longest name of a node in bytes.
/// Test: `config::tests::the_name_of_a_node_has_its_longest`. Metric: none, the node does not start.
pub const UNIT_ID_BYTES_MAX: usize = 64;

// --- audit -------------------------------------------------------------------------------------

/// Most audit entries that wait to be written on this node; beyond it: 503.
/// Test: `tools::audit::tests::beyond_its_queue_nothing_is_recorded`. Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_QUEUED_MAX: usize = 8 * 1024;
/// Largest audit entry in bytes; what it is about is answered 503.
/// Test: `tools::audit::writer::tests::an_entry_beyond_its_size_is_refused_and_long_notes_are_cut`. Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_ENTRY_BYTES_MAX: usize = 64 * 1024;
/// Longest notes of an audit entry in bytes; the rest is cut.
/// Test: `tools::audit::writer::tests::an_entry_beyond_its_size_is_refused_and_long_notes_are_cut`. Metric: none, the rest is cut.
pub const AUDIT_NOTES_BYTES_MAX: usize = 2 * 1024;
/// Most that an entry's time may be behind the entry before it and is still moved up to it, so that a trail
/// is in the order of time: as long as a request may take ([`REQUEST_TIMEOUT`]), and a little for the writer.
/// A clock that was set back further is believed.
/// Test: `tools::audit::writer::tests::times_do_not_go_back_but_a_clock_set_back_is_believed`. Metric: none, it is a granularity.
pub const AUDIT_REORDERED_MAX: Duration = Duration::from_secs(20);
/// Size beyond which no more audit entries are written at once.
/// Test: `tools::audit::tests::many_entries_become_several_blocks_and_stay_one_trail`. Metric: none, the rest is written next.
pub const AUDIT_WRITE_BYTES_FULL: usize = 256 * 1024;
/// Largest block of audit entries in bytes, before it is compressed.
/// Test: `tools::audit::tests::many_entries_become_several_blocks_and_stay_one_trail`. Metric: none, the rest goes into the next block.
pub const AUDIT_BLOCK_BYTES_MAX: usize = 1024 * 1024;
/// Time between two shipments of audit entries into the log (contract §5).
/// Test: `tools::audit::tests::what_was_recorded_is_shipped_without_being_asked_for`. Metric: `svc_audit_backlog_bytes`.
pub const AUDIT_SHIP_INTERVAL: Duration = Duration::from_millis(200);
/// Longest pause after a shipment that failed.
/// Test: none, how often is no promise. Metric: `svc_audit_blocks_total{result="failed"}`.
pub const AUDIT_SHIP_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Most bytes of audit entries that wait to be shipped; beyond it: 503.
/// Test: `tools::audit::tests::beyond_its_backlog_nothing_is_recorded`. Metric: `svc_audit_backlog_bytes`.
pub const AUDIT_BACKLOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How long audit entries are kept, by elapsed time, if they take no more than [`AUDIT_BYTES_MAX`]: 90 days or
/// 1 GiB, whichever comes first. Older ones go when newer ones come.
/// Test: `state::audit::tests::blocks_are_kept_as_long_as_was_promised_and_then_dropped_with_all_their_rows`. Metric: `svc_audit_blocks_dropped_total{reason="age"}`.
pub const AUDIT_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Most that blocks of audit entries take, in bytes with all their rows; beyond it the oldest are dropped.
/// Test: `state::audit::tests::beyond_so_many_bytes_the_oldest_blocks_are_dropped`. Metric: `svc_audit_blocks_dropped_total{reason="bytes"}`.
pub const AUDIT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Size beyond which no more blocks of audit entries are dropped when one is appended, unless that one is
/// larger.
/// Test: `state::audit::tests::so_much_is_dropped_at_once_and_more_with_the_next`. Metric: none, the next one drops more.
pub const AUDIT_BYTES_DROPPED_FULL: u64 = 1024 * 1024;
/// How often a segment of the audit's journal is tried before it is put aside and an entry says so.
/// Test: `tools::audit::tests::lost::a_segment_that_cannot_be_read_does_not_hold_up_the_others`. Metric: `svc_audit_blocks_total{result="failed"}`.
pub const AUDIT_READ_ATTEMPTS_MAX: u32 = 10;
/// Most pages of the audit that are read at once; who comes beyond waits for [`AUDIT_READ_WAIT`].
/// Test: `tools::audit::tests::so_many_read_at_once_and_who_comes_beyond_waits_not_long`. Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_READS_MAX: usize = 4;
/// Longest wait for such a place; beyond it: 503.
/// Test: `tools::audit::tests::so_many_read_at_once_and_who_comes_beyond_waits_not_long`. Metric: `svc_http_requests_total{status="503"}`.
pub const AUDIT_READ_WAIT: Duration = Duration::from_secs(1);
/// Most blocks of audit entries opened for one page; it may have fewer rows then, and says where to go on.
/// Test: `tools::audit::tests::a_page_opens_so_many_blocks_and_says_where_to_go_on`. Metric: none, the page says where to go on.
pub const AUDIT_BLOCKS_PER_PAGE_MAX: usize = 64;
/// Size beyond which a page of audit entries gets no more rows.
/// Test: `tools::audit::tests::a_page_has_so_many_bytes`. Metric: none, the page says where to go on.
pub const AUDIT_PAGE_BYTES_FULL: usize = 2 * 1024 * 1024;
/// Longest line of an exported audit that is read: a block with all its entries.
/// Test: `cli::audit::tests::a_line_longer_than_any_is_not_read_to_its_end`. Metric: none, its user is told.
pub const AUDIT_LINE_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Time between two looks of `audit tail --follow`.
/// Test: none, how often is no promise. Metric: none, it is a granularity.
pub const AUDIT_FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
