//! Single use in the whole cluster: the nonce of an execution scope is used up by its exchange, and an execution-scoped
//! token by its first verification.

use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::Digest128;
use crate::limits;
use crate::state::command::{
    Command, IdempotencyRow, MintedToken, RecordExchange, Refusal, Reply, SpendToken,
};
use crate::state::machine::idempotency::{KEYS, digest};
use crate::state::tables::ttl_buckets::{QuotaLimits, TtlBuckets};
use crate::state::tables::{IDEMPOTENCY, NONCE, SPENT_TOKEN, Tables, decode};
use crate::state::{Error, Idempotency, OnBehalf, State};

const NONCES: TtlBuckets = TtlBuckets {
    table: NONCE,
    oldest: b"oldest_nonce_bucket",
    retention: limits::NONCE_RETENTION,
    bucket: Duration::from_secs(6 * 3600),
};
const NONCES_LIMITS: QuotaLimits =
    QuotaLimits { per_owner: limits::NONCES_PER_CALLER_MAX, total: limits::NONCES_MAX };

const TOKENS: TtlBuckets = TtlBuckets {
    table: SPENT_TOKEN,
    oldest: b"oldest_spent_token_bucket",
    retention: limits::USED_TOKEN_RETENTION,
    bucket: Duration::from_secs(300),
};
// The `exp` of a token of a node whose clock is ahead is within it.
const _: () = assert!(
    limits::USED_TOKEN_RETENTION.as_secs()
        > limits::EXECUTION_TOKEN_LIFETIME.as_secs() + limits::LEEWAY.as_secs()
);
const TOKENS_LIMITS: QuotaLimits =
    QuotaLimits { per_owner: limits::USED_TOKENS_PER_CALLER_MAX, total: limits::USED_TOKENS_MAX };

/// Records the token of an exchange, and uses up the nonce, if any. A retry of the same request under the same
/// `Idempotency-Key` does not get here: it receives the recorded token.
pub fn record_exchange(
    tables: &mut Tables<'_>,
    now: Timestamp,
    command: RecordExchange,
) -> Result<Reply, Corrupt> {
    let token = command.token.ok_or_else(|| Corrupt::row("an exchange command has no token"))?;
    if !command.nonce.is_empty() {
        let (nonce, owner) = (digest(&command.nonce)?, digest(&command.owner)?);
        if NONCES.find(tables, now, &nonce)?.is_some() {
            return Ok(Reply::Refused(Refusal::NonceSpent));
        }
        if !NONCES.has_capacity(tables, now, &owner, &NONCES_LIMITS)? {
            return Ok(Reply::Refused(Refusal::TooManyNonces));
        }
        NONCES.insert_owned(tables, now, &owner, &nonce, Vec::new())?;
    }
    Ok(Reply::Minted(token))
}

/// The refusal of a use of a token whose `exp` is not within the retention after log time, also of a repeated one. Rows are
/// retained by log time too, so that no token outlives its row: not when clocks are set back, since log time never is, and
/// not when it catches up with them.
pub fn refusal_by_log_time(now: Timestamp, command: &Command) -> Option<Refusal> {
    let Command::SpendToken(SpendToken { exp_millis, .. }) = command else { return None };
    let exp = Timestamp::from_millis(*exp_millis);
    let is_ahead = exp > now.plus(limits::USED_TOKEN_RETENTION);
    if exp <= now { Some(Refusal::TokenEnded) } else { is_ahead.then_some(Refusal::LogTimeBehind) }
}

/// Uses up a token.
pub fn spend_token(tables: &mut Tables<'_>, now: Timestamp, command: &SpendToken) -> Result<Reply, Corrupt> {
    let (token, owner) = (digest(&command.token)?, digest(&command.owner)?);
    if TOKENS.find(tables, now, &token)?.is_some() {
        return Ok(Reply::Refused(Refusal::TokenSpent));
    }
    if !TOKENS.has_capacity(tables, now, &owner, &TOKENS_LIMITS)? {
        return Ok(Reply::Refused(Refusal::TooManySpentTokens));
    }
    TOKENS.insert_owned(tables, now, &owner, &token, Vec::new())?;
    Ok(Reply::Done { changed: true })
}

fn bytes(digest: Digest128) -> Bytes {
    Bytes::copy_from_slice(digest.as_bytes())
}

impl State {
    /// Whether [`OnBehalf::spend_token`] would be refused on this node's state because the token is used. Only that command
    /// decides, since the token may be used meanwhile.
    ///
    /// # Errors
    /// `Refusal::IdempotencyKeyReused`, [`Error::Damaged`].
    pub fn is_spent(&self, token: Digest128, idempotency: Option<Idempotency>) -> Result<bool, Error> {
        is_spent(self.cluster.view(), token, idempotency)
    }
}

fn is_spent(view: &dyn View, token: Digest128, idempotency: Option<Idempotency>) -> Result<bool, Error> {
    let tables = Tables::new(view);
    let elapsed = tables.elapsed()?;
    // Entries are applied meanwhile. The token is read first: one entry writes it and the key.
    let is_spent = TOKENS.find(&tables, tables.log_time()?, &token)?.is_some();
    let known = idempotency.map(|idempotency| KEYS.find(&tables, elapsed, &idempotency.key)).transpose()?;
    if let (Some(idempotency), Some(row)) = (idempotency, known.flatten()) {
        let row = decode::<IdempotencyRow>(IDEMPOTENCY, &row)?;
        let is_retry = digest(&row.request)? == idempotency.request;
        // The stored request has used the token.
        return if is_retry { Ok(false) } else { Err(Error::Refused(Refusal::IdempotencyKeyReused)) };
    }
    Ok(is_spent)
}

impl OnBehalf<'_> {
    /// Records the token of an exchange, as the outcome under an `Idempotency-Key`, and uses up its nonce in the whole
    /// cluster. Returns the token to mint: `token`, or that of the first request under the key. The nonce counts for
    /// `owner`.
    ///
    /// # Errors
    /// `Refusal::NonceSpent`, `Refusal::TooManyNonces`, `Refusal::TooManyIdempotencyKeys`,
    /// `Refusal::IdempotencyKeyReused`.
    pub async fn record_exchange(
        self,
        nonce: Option<Digest128>,
        owner: Digest128,
        token: MintedToken,
    ) -> Result<MintedToken, Error> {
        let nonce = nonce.map_or_else(Bytes::new, bytes);
        let command = RecordExchange { nonce, owner: bytes(owner), token: Some(token) };
        match self.propose_once(Command::RecordExchange(command)).await?.outcome {
            Reply::Minted(token) => Ok(token),
            _ => Err(Error::Undecodable),
        }
    }

    /// Uses up an execution-scoped token in the whole cluster, which ends at `exp`. It counts for `owner`.
    ///
    /// # Errors
    /// `Refusal::TokenSpent`, `Refusal::TokenEnded`, `Refusal::LogTimeBehind`, `Refusal::TooManySpentTokens`,
    /// `Refusal::TooManyIdempotencyKeys`, `Refusal::IdempotencyKeyReused`.
    pub async fn spend_token(self, token: Digest128, exp: Timestamp, owner: Digest128) -> Result<(), Error> {
        let command = SpendToken { token: bytes(token), owner: bytes(owner), exp_millis: exp.millis() };
        self.propose_once(Command::SpendToken(command)).await?.outcome.changed().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::cluster::Stamp;
    use crate::state;
    use crate::state::command::{self, Idempotency, encode_once};
    use crate::state::testing::{Rows, StateHarness};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const DONE: Reply = Reply::Done { changed: true };
    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A command with its idempotency key and request.
    type Brought = (Command, Option<Idempotency>);

    fn sixteen(byte: u8) -> Bytes {
        Bytes::from(vec![byte; 16])
    }

    fn token(jti: &str) -> MintedToken {
        MintedToken { jti: jti.to_owned(), iat: START.secs(), exp: START.secs() + 30 }
    }

    /// An exchange that mints a token with this `jti`; without a nonce if `nonce` is 0.
    fn exchange(owner: u8, nonce: u8, jti: &str) -> Command {
        let nonce = if nonce == 0 { Bytes::new() } else { sixteen(nonce) };
        let owner = sixteen(owner);
        Command::RecordExchange(RecordExchange { nonce, owner, token: Some(token(jti)) })
    }

    fn minted(jti: &str) -> Reply {
        Reply::Minted(token(jti))
    }

    /// Uses up a token that ends at `exp`.
    fn used_until(exp: Timestamp, owner: u8, token: u8) -> Command {
        let (token, owner) = (sixteen(token), sixteen(owner));
        Command::SpendToken(SpendToken { token, owner, exp_millis: exp.millis() })
    }

    fn used(owner: u8, token: u8) -> Command {
        used_until(START.plus(limits::EXECUTION_TOKEN_LIFETIME), owner, token)
    }

    fn under(key: u8, request: u8, command: Command) -> Brought {
        let idempotency = Idempotency { key: sixteen(key), request: sixteen(request), owner: sixteen(1) };
        (command, Some(idempotency))
    }

    impl StateHarness {
        fn brought(&mut self, at: Timestamp, (command, idempotency): Brought) -> Reply {
            self.encoded(at, vec![encode_once(command, idempotency)]).remove(0)
        }

        fn rows_of(&self, table: &str) -> usize {
            self.rows.0.keys().filter(|(of, key)| of == table && key.len() == 24).count()
        }

        /// Sets the count of `owner`, or the total, of this bucket.
        fn put_count(&mut self, bucketed: &TtlBuckets, at: Timestamp, owner: Option<u8>, count: u64) {
            let owner = owner.map(|owner| Digest128::from_bytes([owner; 16]));
            let key = bucketed.count_key_at(at, owner);
            self.rows.0.insert((bucketed.table.to_owned(), key), count.to_be_bytes().to_vec());
        }
    }

    #[test]
    fn nonce_and_token_are_single_use_also_in_one_entry() {
        let mut harness = StateHarness::default();
        let replies =
            harness.apply(START, vec![exchange(1, 1, "a"), exchange(2, 1, "b"), exchange(1, 2, "c")]);
        assert_eq!(replies, [minted("a"), Reply::Refused(Refusal::NonceSpent), minted("c")]);
        let replies = harness.apply(START, vec![used(1, 1), used(2, 1), used(1, 2)]);
        assert_eq!(replies, [DONE, Reply::Refused(Refusal::TokenSpent), DONE]);
    }

    /// The rows as they were until so many reads, and then as they are now.
    struct Switching<'r> {
        before: &'r Rows,
        now: &'r Rows,
        reads_before: Cell<usize>,
    }

    impl Switching<'_> {
        fn rows(&self) -> &Rows {
            match self.reads_before.get().checked_sub(1) {
                Some(left) => {
                    self.reads_before.set(left);
                    self.before
                }
                None => self.now,
            }
        }
    }

    impl View for Switching<'_> {
        fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
            self.rows().get(table, key)
        }

        fn scan(
            &self,
            table: &str,
            from: &[u8],
            visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
        ) -> Result<(), Corrupt> {
            self.rows().scan(table, from, visit)
        }
    }

    /// Regression: a retry that was sent beside the first request was refused, if the entry of the first was applied between
    /// two reads.
    #[test]
    fn retry_beside_the_first_request_is_not_refused() {
        let mut harness = StateHarness::default();
        harness.one(START, used(1, 9));
        let before = Rows(harness.rows.0.clone());
        assert_eq!(harness.brought(START, under(7, 5, used(1, 1))), DONE);
        let (token, sixteen) = (Digest128::from_bytes([1; 16]), |byte| Digest128::from_bytes([byte; 16]));
        for reads in 0..12 {
            let view = || Switching { before: &before, now: &harness.rows, reads_before: Cell::new(reads) };
            let own = state::Idempotency { key: sixteen(7), request: sixteen(5), owner: sixteen(1) };
            assert!(!is_spent(&view(), token, Some(own)).expect("read"), "after {reads} reads");
            let other = state::Idempotency { key: sixteen(8), ..own };
            if reads == 0 {
                assert!(is_spent(&view(), token, Some(other)).expect("read"), "another key");
            }
        }
    }

    #[test]
    fn nonce_is_single_use_during_its_retention() {
        let mut harness = StateHarness::default();
        harness.one(START, exchange(1, 1, "a"));
        for hour in 1..=24 {
            let at = START.plus(Duration::from_secs(hour * 3600));
            let reply = harness.one(at, exchange(1, 1, "a"));
            assert_eq!(reply, Reply::Refused(Refusal::NonceSpent), "hour {hour}");
        }
    }

    #[test]
    fn expired_nonces_are_deleted() {
        let mut harness = StateHarness::default();
        for nonce in 1..=100 {
            harness.one(START, exchange(nonce, nonce, "a"));
        }
        let later = START.plus(limits::NONCE_RETENTION).plus(Duration::from_secs(6 * 3600 + 1));
        harness.one(later, exchange(1, 200, "a"));
        // The nonce, its owner's count, and the total.
        let rows = harness.rows.0.keys().filter(|(table, _)| table == NONCE).count();
        assert_eq!((rows, harness.rows_of(NONCE)), (3, 1));
    }

    #[test]
    fn clock_set_back_does_not_release_a_nonce() {
        let mut harness = StateHarness::default();
        harness.one(START, exchange(1, 1, "a"));
        let earlier = START.minus(Duration::from_secs(30 * 24 * 3600));
        assert_eq!(harness.one(earlier, exchange(1, 1, "a")), Reply::Refused(Refusal::NonceSpent));
    }

    /// A token is accepted up to its `exp`, and is used up until then: log time alone decides both.
    #[test]
    fn token_is_not_accepted_after_its_row_is_deleted() {
        let mut harness = StateHarness::default();
        // The last moment of a bucket, whose rows are retained for the shortest time.
        let start = START.plus(TOKENS.bucket).minus(MILLISECOND);
        let exp = start.plus(limits::USED_TOKEN_RETENTION);
        assert_eq!(harness.one(start, used_until(exp, 1, 1)), DONE);
        let last = harness.one(exp.minus(MILLISECOND), used_until(exp, 1, 1));
        assert_eq!(last, Reply::Refused(Refusal::TokenSpent));
        assert_eq!(harness.one(exp, used_until(exp, 1, 1)), Reply::Refused(Refusal::TokenEnded));
        // Rows are deleted by buckets of five minutes.
        let later = exp.plus(TOKENS.bucket);
        harness.one(later, used_until(later.plus(MILLISECOND), 1, 2));
        assert_eq!(harness.rows_of(SPENT_TOKEN), 1);
        assert_eq!(harness.one(later, used_until(exp, 1, 1)), Reply::Refused(Refusal::TokenEnded));
    }

    fn stamp(time: Timestamp, elapsed: Duration) -> Stamp {
        Stamp { time, latest: time, elapsed: START.plus(elapsed) }
    }

    fn spent_at(harness: &mut StateHarness, stamp: Stamp, exp: Timestamp) -> Reply {
        harness.stamped_as(stamp, vec![command::encode(used_until(exp, 1, 1))]).remove(0).outcome
    }

    /// Regression: the use was retained by elapsed time, and the token was valid a second time by clocks that were set back.
    #[test]
    fn clocks_set_back_do_not_release_a_token() {
        let exp = START.plus(limits::EXECUTION_TOKEN_LIFETIME);
        for elapsed in [0, 60, 1_000, 100_000].map(Duration::from_secs) {
            let mut harness = StateHarness::default();
            assert_eq!(spent_at(&mut harness, stamp(START, Duration::ZERO), exp), DONE);
            // Another token removes rows that have expired.
            let other = command::encode(used_until(exp, 1, 2));
            harness.stamped_as(stamp(START, elapsed), vec![other]);
            let again = spent_at(&mut harness, stamp(START, elapsed), exp);
            assert_eq!(again, Reply::Refused(Refusal::TokenSpent), "{elapsed:?}");
        }
    }

    /// Log time lags after a stop of all nodes, until the clocks of a majority agree. It then leaps.
    #[test]
    fn leap_of_lagging_log_time_does_not_release_a_token() {
        for lag in [60, 305, 306, 3_600].map(Duration::from_secs) {
            let mut harness = StateHarness::default();
            let exp = START.plus(lag).plus(limits::EXECUTION_TOKEN_LIFETIME);
            let first = spent_at(&mut harness, stamp(START, Duration::ZERO), exp);
            let leapt = spent_at(&mut harness, stamp(START.plus(lag), Duration::ZERO), exp);
            let expected = match lag.as_secs() {
                ..=305 => [DONE, Reply::Refused(Refusal::TokenSpent)],
                _ => [Reply::Refused(Refusal::LogTimeBehind), DONE],
            };
            assert_eq!([first, leapt], expected, "{lag:?}");
        }
    }

    /// Regression: a retry drew another `jti`, so that each of the tokens of one request was accepted once.
    #[test]
    fn retry_under_its_key_returns_the_recorded_token() {
        let mut harness = StateHarness::default();
        for nonce in [0, 1] {
            let key = 9 - nonce;
            assert_eq!(harness.brought(START, under(key, 5, exchange(1, nonce, "first"))), minted("first"));
            let retry = harness.brought(START.plus(MILLISECOND), under(key, 5, exchange(1, nonce, "second")));
            assert_eq!(retry, minted("first"));
            let other = harness.brought(START, under(key, 6, exchange(1, nonce, "third")));
            assert_eq!(other, Reply::Refused(Refusal::IdempotencyKeyReused));
        }
        for (key, request) in [(7, 5), (7, 5)] {
            let reply = harness.brought(START, under(key, request, exchange(1, 1, "other")));
            assert_eq!(reply, Reply::Refused(Refusal::NonceSpent), "another key does not release the nonce");
        }
        let reply = harness.brought(START, under(7, 6, exchange(1, 2, "fresh")));
        assert_eq!(reply, minted("fresh"), "a refusal leaves the key unused");
    }

    #[test]
    fn retried_verification_succeeds_under_its_key_only() {
        let mut harness = StateHarness::default();
        for _ in 0..2 {
            assert_eq!(harness.brought(START, under(9, 5, used(1, 1))), DONE);
        }
        let refused = Reply::Refused(Refusal::TokenSpent);
        assert_eq!(harness.brought(START, under(8, 5, used(1, 1))), refused);
        assert_eq!(harness.one(START, used(1, 1)), refused);
        let reused = Reply::Refused(Refusal::IdempotencyKeyReused);
        assert_eq!(harness.brought(START, under(9, 6, used(1, 2))), reused);
    }

    /// The stored outcome of a use is not repeated once the token has ended by log time.
    #[test]
    fn retried_verification_fails_after_the_end_of_its_token() {
        let mut harness = StateHarness::default();
        let exp = START.plus(limits::EXECUTION_TOKEN_LIFETIME);
        let ended = Reply::Refused(Refusal::TokenEnded);
        for (at, expected) in
            [(START, DONE), (exp.minus(MILLISECOND), DONE), (exp, ended.clone()), (START, ended)]
        {
            assert_eq!(harness.brought(at, under(9, 5, used_until(exp, 1, 1))), expected, "{at:?}");
        }
    }

    #[test]
    fn idempotency_key_is_stored_for_a_day() {
        let mut harness = StateHarness::default();
        harness.brought(START, under(9, 5, exchange(1, 0, "a")));
        let kept = START.plus(limits::IDEMPOTENCY_RETENTION);
        let reused = Reply::Refused(Refusal::IdempotencyKeyReused);
        assert_eq!(harness.brought(kept, under(9, 6, exchange(1, 0, "b"))), reused);
        // Rows are deleted by whole buckets.
        let later = kept.plus(Duration::from_secs(6 * 3600 + 1));
        assert_eq!(harness.brought(later, under(9, 6, exchange(1, 0, "b"))), minted("b"));
    }

    /// Regression: nothing limited the rows that one caller, or all, caused the cluster to store for a day.
    #[test]
    fn rows_per_caller_and_in_total_are_limited() {
        let bring = |at: Timestamp, of: &TtlBuckets, harness: &mut StateHarness, owner: u8, number: u8| {
            match of.table {
                NONCE => harness.one(at, exchange(owner, number, "a")),
                SPENT_TOKEN => harness.one(at, used_until(at.plus(MILLISECOND), owner, number)),
                _ => {
                    let (key, request, owner) = (sixteen(number), sixteen(5), sixteen(owner));
                    let idempotency = Idempotency { key, request, owner };
                    harness.brought(at, (exchange(1, 0, "a"), Some(idempotency)))
                }
            }
        };
        let key_limits = QuotaLimits {
            per_owner: limits::IDEMPOTENCY_KEYS_PER_CALLER_MAX,
            total: limits::IDEMPOTENCY_KEYS_MAX,
        };
        for (of, most, refusal) in [
            (&NONCES, &NONCES_LIMITS, Refusal::TooManyNonces),
            (&TOKENS, &TOKENS_LIMITS, Refusal::TooManySpentTokens),
            (&KEYS, &key_limits, Refusal::TooManyIdempotencyKeys),
        ] {
            let mut harness = StateHarness::default();
            bring(START, of, &mut harness, 1, 1);
            harness.put_count(of, START, Some(1), most.per_owner - 1);
            let refused = Reply::Refused(refusal);
            assert_ne!(bring(START, of, &mut harness, 1, 2), refused);
            let rows = harness.rows.without_deduplication();
            assert_eq!(bring(START, of, &mut harness, 1, 3), refused);
            let last = START.plus(of.retention);
            assert_eq!(bring(last, of, &mut harness, 1, 3), refused, "no row is deleted early");
            assert!(rows.keys().all(|row| harness.rows.0.contains_key(row)));
            // Known rows are found as before, and another caller has its own quota.
            assert_ne!(bring(last, of, &mut harness, 1, 2), refused);
            assert_ne!(bring(last, of, &mut harness, 2, 4), refused);
            // One row is in a later bucket.
            harness.put_count(of, START, None, most.total - 2);
            assert_ne!(bring(last, of, &mut harness, 2, 5), refused);
            assert_eq!(bring(last, of, &mut harness, 2, 6), refused);
            let after_retention = START.plus(of.retention).plus(of.bucket);
            assert_ne!(bring(after_retention, of, &mut harness, 1, 7), refused);
        }
    }
}
