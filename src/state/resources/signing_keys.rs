//! Signing keys of every node, public halves only (contract §3, Keys).
//!
//! The log has the times at which a key was published, retired or tainted. Its state, its presence in the JWK
//! Set and its deletion follow from these and from elapsed time, so that a wrong wall clock ages no key.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;

use super::revocations::RevocationDetails;
use super::{feed, nodes, revocations};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{PublishSigningKey, Refusal, Reply, SigningKeyRow, TaintSigningKey};
use crate::state::machine::idempotency;
use crate::state::tables::{BOOTSTRAPPED_AT, EntryTime, META, REVOCATION, SIGNING_KEY, Tables, eight_bytes};
use crate::token::signing_key::SigningAlgorithm;

/// A published signing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKeyRecord {
    /// RFC 7638 thumbprint.
    pub kid: String,
    /// Node that has the private half.
    pub node_id: u64,
    /// The public half, a JWK as JSON (RFC 7517).
    pub jwk: String,
    /// Algorithm, which determines whether it signs tokens or security events.
    pub algorithm: SigningAlgorithm,
    /// Log time of publication.
    pub published_at: Timestamp,
    /// Log time of retirement: it no longer signs.
    pub retired_at: Option<Timestamp>,
    /// Log time of the taint: none of its signatures is accepted.
    pub tainted_at: Option<Timestamp>,
    /// Elapsed time of publication.
    pub published_elapsed: Timestamp,
    /// Elapsed time from which it may sign.
    pub usable_from: Timestamp,
    /// Elapsed time of retirement, or of a later taint.
    pub ended_elapsed: Option<Timestamp>,
}

/// State of a key at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SigningKeyState {
    /// Published, but not old enough to sign.
    Pending,
    /// May sign.
    Active,
    /// No longer signs; its signatures are still accepted.
    Retired,
    /// Retired, and everything that it signed has expired.
    Dead,
    /// None of its signatures is accepted.
    Tainted,
}

/// The key with which a node mints tokens, now or once it is old enough: its oldest live one.
pub fn minting_key(keys: &BTreeMap<String, SigningKeyRecord>, node_id: u64) -> Option<&SigningKeyRecord> {
    let of_node =
        |key: &&SigningKeyRecord| key.node_id == node_id && key.algorithm == SigningAlgorithm::Es256;
    keys.values().filter(of_node).filter(|key| key.is_live()).min_by_key(|key| key.usable_from)
}

/// Time for which signatures of a retired key can be accepted: of a token until it expires, of a security event token,
/// which does not expire, until its maximum age (contract §6).
const fn outlived_by(algorithm: SigningAlgorithm) -> Duration {
    let longest = match algorithm {
        SigningAlgorithm::Es256 => limits::TOKEN_LIFETIME_MAX,
        SigningAlgorithm::Rs256 => limits::SET_AGE_MAX,
    };
    Duration::from_secs(longest.as_secs() + limits::LEEWAY.as_secs())
}

impl SigningKeyRecord {
    /// State at `elapsed`, in elapsed time.
    #[must_use]
    pub fn state(&self, elapsed: Timestamp) -> SigningKeyState {
        match (self.tainted_at, self.retired_at) {
            (Some(_), _) => SigningKeyState::Tainted,
            (None, Some(_)) if self.has_outlived(self.algorithm, elapsed) => SigningKeyState::Dead,
            (None, Some(_)) => SigningKeyState::Retired,
            (None, None) if elapsed >= self.usable_from => SigningKeyState::Active,
            (None, None) => SigningKeyState::Pending,
        }
    }

    /// Whether its signatures may be accepted at `elapsed`, so that it is in the JWK Set.
    #[must_use]
    pub fn verifies(&self, elapsed: Timestamp) -> bool {
        !matches!(self.state(elapsed), SigningKeyState::Tainted | SigningKeyState::Dead)
    }

    /// Log time from which it can sign, for display.
    #[must_use]
    pub fn usable_at(&self) -> Timestamp {
        self.published_at.plus(self.usable_from.since(self.published_elapsed))
    }

    /// Whether it ended so long ago that no signature of a key of this algorithm from before is accepted.
    fn has_outlived(&self, algorithm: SigningAlgorithm, elapsed: Timestamp) -> bool {
        self.ended_elapsed.is_some_and(|ended| elapsed >= ended.plus(outlived_by(algorithm)))
    }

    /// Whether it signs or will sign.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.retired_at.is_none() && self.tainted_at.is_none()
    }

    fn is_deletable(&self, elapsed: Timestamp) -> bool {
        // A tainted key is in no JWK Set; it is listed for a while, an event key no longer than a token key.
        let shown_as = if self.tainted_at.is_some() { SigningAlgorithm::Es256 } else { self.algorithm };
        self.has_outlived(shown_as, elapsed)
    }

    /// Decodes its row.
    ///
    /// # Errors
    /// [`Corrupt`] if `kid` is not UTF-8, or the row has an unknown algorithm.
    pub fn from_row(kid: &[u8], row: SigningKeyRow) -> Result<Self, Corrupt> {
        let instant = |millis: i64| (millis != 0).then(|| Timestamp::from_millis(millis));
        Ok(Self {
            kid: String::from_utf8(kid.to_vec()).map_err(|_| Corrupt::row("a kid is not UTF-8"))?,
            node_id: row.node_id,
            jwk: row.jwk,
            algorithm: read_algorithm(&row.algorithm)?,
            published_at: Timestamp::from_millis(row.published_at_millis),
            retired_at: instant(row.retired_at_millis),
            tainted_at: instant(row.tainted_at_millis),
            published_elapsed: Timestamp::from_millis(row.published_elapsed_millis),
            usable_from: Timestamp::from_millis(row.usable_from_millis),
            ended_elapsed: instant(row.ended_elapsed_millis),
        })
    }

    fn to_row(&self) -> Vec<u8> {
        let millis = |instant: Option<Timestamp>| instant.map_or(0, Timestamp::millis);
        SigningKeyRow {
            node_id: self.node_id,
            jwk: self.jwk.clone(),
            published_at_millis: self.published_at.millis(),
            usable_from_millis: self.usable_from.millis(),
            retired_at_millis: millis(self.retired_at),
            tainted_at_millis: millis(self.tainted_at),
            algorithm: write_algorithm(self.algorithm),
            published_elapsed_millis: self.published_elapsed.millis(),
            ended_elapsed_millis: millis(self.ended_elapsed),
        }
        .encode_to_vec()
    }
}

fn append_feed_event(
    tables: &mut Tables<'_>,
    now: Timestamp,
    kid: &str,
    detail: &str,
) -> Result<(), Corrupt> {
    feed::append(
        tables,
        now,
        feed::NewFeedEvent { kind: feed::FeedKind::Key, subject: kid, target: "", detail },
    )
}

/// Algorithm in the log: ES256 is the empty text.
#[must_use]
pub fn write_algorithm(algorithm: SigningAlgorithm) -> String {
    match algorithm {
        SigningAlgorithm::Es256 => String::new(),
        SigningAlgorithm::Rs256 => algorithm.into_str().to_owned(),
    }
}

fn read_algorithm(text: &str) -> Result<SigningAlgorithm, Corrupt> {
    SigningAlgorithm::ALL
        .into_iter()
        .find(|algorithm| write_algorithm(*algorithm) == text)
        .ok_or_else(|| Corrupt::row("a signing key has an unknown algorithm"))
}

/// Publishes a key. It becomes active after [`limits::KEY_PUBLISH_AHEAD`], so that verifiers with a cached JWK Set know it
/// by then. Two kinds of keys are active at once ("waived at bootstrap", contract §3):
///
/// 1. the very first key of its algorithm in the cluster: no verifier can have cached keys without it and need it
/// 2. the first key of its algorithm of a node while the cluster is younger than [`limits::KEY_PUBLISH_AHEAD`], so that
///    all nodes of a bootstrap sign. A cached JWK Set is minutes old at most, is valid for 60 s, and a verifier that meets
///    an unknown `kid` fetches it again.
///
/// A removed node publishes none: its keys were retired with it, and one that was in progress would sign for good.
///
/// A second key of a node is always pending first, also if the first one is retired or tainted: its row is retained for
/// longer than the cluster is young.
pub fn publish(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: &PublishSigningKey,
) -> Result<Reply, Corrupt> {
    let EntryTime { now, elapsed, .. } = time;
    if nodes::is_removed_node(tables, command.node_id)? {
        return Ok(Reply::Refused(Refusal::NodeRemoved));
    }
    let known = all(tables)?;
    if known.iter().any(|key| key.kid == command.kid) {
        return Ok(Reply::Done { changed: false });
    }
    if known.iter().filter(|key| !key.is_deletable(elapsed)).count() >= limits::SIGNING_KEYS_MAX {
        return Ok(Reply::Refused(Refusal::TooManySigningKeys));
    }
    let algorithm = read_algorithm(&command.algorithm)?;
    let alike: Vec<_> = known.into_iter().filter(|key| key.algorithm == algorithm).collect();
    let is_first_ever = alike.is_empty();
    let is_first_of_node = alike.iter().all(|key| key.node_id != command.node_id);
    let signs_at_once = is_first_ever || (is_first_of_node && is_young(tables, elapsed)?);
    // Only keys of the same algorithm: if the last one is deleted, the next does not count as the first.
    for key in alike.into_iter().filter(|key| key.is_deletable(elapsed)) {
        tables.delete(SIGNING_KEY, key.kid.as_bytes());
    }
    let facts = SigningKeyRecord {
        kid: command.kid.clone(),
        node_id: command.node_id,
        jwk: command.jwk.clone(),
        algorithm,
        published_at: now,
        retired_at: None,
        tainted_at: None,
        published_elapsed: elapsed,
        usable_from: if signs_at_once { elapsed } else { elapsed.plus(limits::KEY_PUBLISH_AHEAD) },
        ended_elapsed: None,
    };
    tables.put(SIGNING_KEY, facts.kid.as_bytes(), facts.to_row());
    append_feed_event(tables, now, &facts.kid, "published")?;
    Ok(Reply::Done { changed: true })
}

/// Whether the cluster was bootstrapped less than [`limits::KEY_PUBLISH_AHEAD`] ago.
fn is_young(tables: &Tables<'_>, elapsed: Timestamp) -> Result<bool, Corrupt> {
    let Some(row) = tables.row(META, BOOTSTRAPPED_AT)? else { return Ok(false) };
    let millis = i64::try_from(eight_bytes(BOOTSTRAPPED_AT, row)?).unwrap_or(i64::MAX);
    Ok(elapsed < Timestamp::from_millis(millis).plus(limits::KEY_PUBLISH_AHEAD))
}

/// Retires a key, if its node has another active one of its algorithm.
pub fn retire(tables: &mut Tables<'_>, time: EntryTime, kid: &str) -> Result<Reply, Corrupt> {
    let known = all(tables)?;
    let Some(key) = known.iter().find(|key| key.kid == kid) else {
        return Ok(Reply::Refused(Refusal::UnknownSigningKey));
    };
    if key.retired_at.is_some() || key.tainted_at.is_some() {
        return Ok(Reply::Done { changed: false });
    }
    let successor = known.iter().any(|other| {
        other.kid != kid
            && (other.node_id, other.algorithm) == (key.node_id, key.algorithm)
            && other.state(time.elapsed) == SigningKeyState::Active
    });
    if !successor {
        return Ok(Reply::Refused(Refusal::NoAgedSuccessor));
    }
    put_retired(tables, (time.now, time.elapsed), key.clone())?;
    Ok(Reply::Done { changed: true })
}

/// Retires the keys of a removed node, which sign no more. Its tokens remain valid until they expire.
pub fn retire_of_node(tables: &mut Tables<'_>, node_id: u64) -> Result<(), Corrupt> {
    let times = (tables.log_time()?, tables.elapsed()?);
    for key in all(tables)?.into_iter().filter(|key| key.node_id == node_id && key.is_live()) {
        put_retired(tables, times, key)?;
    }
    Ok(())
}

/// Deletes every key: in a restored cluster, no earlier key verifies.
pub fn delete_all(tables: &mut Tables<'_>) -> Result<(), Corrupt> {
    for key in all(tables)? {
        tables.delete(SIGNING_KEY, key.kid.as_bytes());
    }
    Ok(())
}

fn put_retired(
    tables: &mut Tables<'_>,
    (now, elapsed): (Timestamp, Timestamp),
    key: SigningKeyRecord,
) -> Result<(), Corrupt> {
    let retired = SigningKeyRecord { retired_at: Some(now), ended_elapsed: Some(elapsed), ..key };
    tables.put(SIGNING_KEY, retired.kid.as_bytes(), retired.to_row());
    append_feed_event(tables, now, &retired.kid, "retired")
}

/// Taints a key, even if its node is left without one: none of its signatures is accepted any more, nor any token that
/// derives from one, whichever key signed it.
pub fn taint(tables: &mut Tables<'_>, time: EntryTime, command: &TaintSigningKey) -> Result<Reply, Corrupt> {
    let digest = idempotency::digest(&command.digest)?;
    let known = all(tables)?;
    let Some(key) = known.iter().find(|key| key.kid == command.kid) else {
        return Ok(Reply::Refused(Refusal::UnknownSigningKey));
    };
    if key.tainted_at.is_some() && tables.row(REVOCATION, digest.as_bytes())?.is_some() {
        return Ok(Reply::Done { changed: false });
    }
    if key.tainted_at.is_none() {
        append_feed_event(tables, time.now, &command.kid, "tainted")?;
    }
    let (tainted_at, ended_elapsed) = (Some(time.now), Some(time.elapsed));
    let tainted = SigningKeyRecord { tainted_at, ended_elapsed, ..key.clone() };
    tables.put(SIGNING_KEY, command.kid.as_bytes(), tainted.to_row());
    let details = RevocationDetails { is_own_key: true, ..RevocationDetails::default() };
    revocations::revoke(tables, time, digest.as_bytes(), details)?;
    Ok(Reply::Done { changed: true })
}

fn all(tables: &Tables<'_>) -> Result<Vec<SigningKeyRecord>, Corrupt> {
    let rows = tables.messages::<SigningKeyRow>(SIGNING_KEY)?;
    rows.into_iter().map(|(kid, row)| SigningKeyRecord::from_row(&kid, row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDED: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn retired(algorithm: SigningAlgorithm) -> SigningKeyRecord {
        SigningKeyRecord {
            kid: "k".to_owned(),
            node_id: 1,
            jwk: "{}".to_owned(),
            algorithm,
            published_at: Timestamp::from_secs(1),
            retired_at: Some(Timestamp::from_secs(2)),
            tainted_at: None,
            published_elapsed: Timestamp::from_secs(1),
            usable_from: Timestamp::from_secs(1),
            ended_elapsed: Some(ENDED),
        }
    }

    /// A receiver accepts an event for a day. Regression: it could verify the event for an hour only.
    #[test]
    fn retired_key_is_published_until_its_last_signature_expires() {
        for (algorithm, secs) in
            [(SigningAlgorithm::Es256, 3_600 + 5), (SigningAlgorithm::Rs256, 24 * 3_600 + 5)]
        {
            let (facts, dead) = (retired(algorithm), ENDED.plus(Duration::from_secs(secs)));
            let last = dead.minus(Duration::from_millis(1));
            assert_eq!(
                (facts.state(last), facts.state(dead)),
                (SigningKeyState::Retired, SigningKeyState::Dead)
            );
            assert_eq!((facts.verifies(last), facts.verifies(dead)), (true, false));
            assert_eq!((facts.is_deletable(last), facts.is_deletable(dead)), (false, true));
        }
    }

    /// Tainting one key after the other would otherwise exhaust the limit of keys for a day.
    #[test]
    fn tainted_key_is_deleted_after_the_time_of_a_token_key() {
        for algorithm in SigningAlgorithm::ALL {
            let facts = SigningKeyRecord { tainted_at: Some(ENDED), ..retired(algorithm) };
            let forgotten = ENDED.plus(Duration::from_secs(3_600 + 5));
            assert!(!facts.verifies(ENDED) && facts.is_deletable(forgotten));
            assert!(!facts.is_deletable(forgotten.minus(Duration::from_millis(1))));
        }
    }
}
