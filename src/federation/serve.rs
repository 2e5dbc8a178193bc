//! Hash and export of our own ledger, and the hash of the copy of a peer's. All are linearizable reads.

use std::fmt::Display;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::sync::Semaphore;

use super::peers::{Disclosure, Peer};
use super::{Error, Federation};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Incarnation, LogPosition, WorkloadId};
use crate::limits;
use crate::state::{LedgerCursor, LedgerEntry, LedgerPage, LedgerQuery, LedgerSums, LinearizableRead, Sum};

/// Parameters of a hash, as they are sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct HashQuery<'q> {
    /// Issuer of the ledger; absent: our own.
    pub origin: Option<&'q str>,
    /// The epoch whose buckets are read.
    pub epoch: Option<&'q str>,
    /// The lowest epoch that the hash shall cover.
    pub floor: Option<&'q str>,
}

/// The hash of the ledger.
#[derive(Debug)]
pub struct LedgerHash {
    /// The root.
    pub hash: [u8; 32],
    /// Number of entries under it.
    pub count: u64,
    /// Time of the response.
    pub at: Timestamp,
    /// The lowest epoch that it covers.
    pub floor: u32,
    /// The present epoch.
    pub epoch: u32,
    /// Log position of the last change of the ledger.
    pub position: LogPosition,
    /// Sums of an epoch by the first byte of an id.
    pub buckets: Option<Box<[Sum; 256]>>,
}

/// The reader of a ledger.
#[derive(Clone, Copy, Debug)]
pub enum Reader<'r> {
    /// An operator.
    Operator,
    /// A peer fabric.
    Peer(&'r Peer),
}

impl Reader<'_> {
    fn may_read_copy_of(self, origin: &str) -> bool {
        match self {
            Self::Operator => true,
            Self::Peer(peer) => peer.issuer == origin,
        }
    }
}

/// Parameters of an export, as they are sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportQuery<'q> {
    /// Log position: only later entries.
    pub since: Option<&'q str>,
    /// Issuer of the ledger; absent: our own.
    pub origin: Option<&'q str>,
    /// Only watermarks of this epoch.
    pub epoch: Option<&'q str>,
    /// Only ids with this first byte.
    pub bucket: Option<&'q str>,
    /// Cursor of the page.
    pub cursor: Option<&'q str>,
    /// Maximum number of entries.
    pub limit: usize,
}

impl Federation {
    /// The hash of a ledger, and the buckets of an epoch of our own one if an epoch is named.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::UnknownOrigin`], [`Error::Paused`], [`Error::Busy`], [`Error::Changing`].
    pub async fn hash(
        &self,
        current: &LinearizableRead,
        reader: Reader<'_>,
        query: HashQuery<'_>,
    ) -> Result<LedgerHash, Error> {
        self.check_reader(reader)?;
        let epoch = number("epoch", query.epoch, u32::MAX)?;
        let floor = number("floor", query.floor, u32::MAX)?;
        if let Some(origin) = query.origin.filter(|origin| *origin != self.parts.issuer) {
            return self.hash_of_copy(reader, origin, epoch, floor);
        }
        let incarnation = self.incarnation()?;
        let (sums, buckets) = match epoch {
            None => (self.parts.state.ledger_sums(current)?, None),
            Some(epoch) => {
                let _permit = self.scans_of(reader).try_acquire().map_err(|_| Error::Busy)?;
                let (sums, buckets) = self.sums_and_buckets(current, epoch).await?;
                (sums, Some(buckets))
            }
        };
        // After the read, so that no entry is of a later epoch.
        let present = self.parts.state.ledger_epoch();
        check_epoch(epoch, &sums, present)?;
        check_not_ahead("floor", floor, present)?;
        let floor = floor.unwrap_or_default().max(sums.complete_from);
        Ok(LedgerHash {
            hash: sums.root(&incarnation, floor),
            count: sums.count(floor),
            at: self.parts.state.not_before_log(self.parts.clock.now()),
            floor,
            epoch: present,
            position: LogPosition { incarnation, index: sums.changed_at },
            buckets,
        })
    }

    /// Separate permits: peers that scan all the time do not keep operators from scanning.
    const fn scans_of(&self, reader: Reader<'_>) -> &Semaphore {
        match reader {
            Reader::Operator => &self.scans_of_operators,
            Reader::Peer(_) => &self.scans_of_peers,
        }
    }

    /// The hash of the copy of a peer's ledger. The copy forgets earlier than the peer.
    fn hash_of_copy(
        &self,
        reader: Reader<'_>,
        origin: &str,
        epoch: Option<u32>,
        floor: Option<u32>,
    ) -> Result<LedgerHash, Error> {
        if !reader.may_read_copy_of(origin) {
            return Err(Error::UnknownOrigin);
        }
        if epoch.is_some() {
            return Err(invalid("epoch", "must be absent with the origin of a peer"));
        }
        let copy = self.parts.state.peer_copy(origin)?.ok_or(Error::UnknownOrigin)?;
        let incarnation = copy.incarnation().ok_or(Error::UnknownOrigin)?;
        let floor = floor.unwrap_or_default().max(copy.complete_from);
        check_not_ahead("floor", Some(floor), copy.epoch.max(copy.complete_from))?;
        let (hash, count) = self.parts.state.peer_root(origin, floor)?.ok_or(Error::UnknownOrigin)?;
        Ok(LedgerHash {
            hash,
            count,
            at: self.parts.state.not_before_log(self.parts.clock.now()),
            floor,
            epoch: copy.epoch,
            position: LogPosition { incarnation, index: copy.position },
            buckets: None,
        })
    }

    /// A page of the entries, in the order of log index and id, with the facts that the reader may see.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::UnknownOrigin`], [`Error::Paused`]; [`Error::Position`] if a reader that continues
    /// from there would miss a change.
    pub fn export(
        &self,
        current: &LinearizableRead,
        reader: Reader<'_>,
        query: ExportQuery<'_>,
    ) -> Result<LedgerPage, Error> {
        self.check_reader(reader)?;
        self.check_origin(reader, query.origin)?;
        let epoch = number("epoch", query.epoch, u32::MAX)?;
        let bucket = number("bucket", query.bucket, u8::MAX)?;
        if bucket.is_some() && epoch.is_none() {
            return Err(invalid("bucket", "needs epoch"));
        }
        let since = query.since.map(|text| self.since(text)).transpose()?;
        let cursor = query.cursor.map(|text| self.read_cursor(text)).transpose()?;
        let after = cursor.or_else(|| since.map(LedgerCursor::after_index));
        let selection = LedgerQuery { after, epoch, bucket, limit: query.limit };
        let mut page = self.parts.state.ledger_page(current, &selection)?;
        // After the page, so that entries that were forgotten before it are not missed unnoticed.
        let sums = self.parts.state.ledger_sums(current)?;
        check_epoch(epoch, &sums, self.parts.state.ledger_epoch())?;
        if let Some(since) = since
            && since < sums.forgotten_to
        {
            let forgotten_to = sums.forgotten_to;
            let rule = format!("entries up to log index {forgotten_to} may be forgotten; read without since");
            return Err(Error::Position(rule));
        }
        if let Reader::Peer(peer) = reader {
            page.entries.iter_mut().for_each(|entry| self.conceal(&peer.disclose, entry));
        }
        Ok(page)
    }

    /// Leaves only the digest of a fact that a peer may not see.
    pub(super) fn conceal(&self, disclosure: &Disclosure, entry: &mut LedgerEntry) {
        if !entry.fact.as_ref().is_some_and(|fact| self.may_see(disclosure, &fact.issuer, &fact.value)) {
            (entry.fact, entry.reason) = (None, String::new());
        }
    }

    /// Whether a peer may see a fact in clear. A workload identifier has no issuer: one of our trust domain is ours.
    fn may_see(&self, disclosure: &Disclosure, issuer: &str, value: &str) -> bool {
        let is_ours = if issuer.is_empty() {
            value.parse::<WorkloadId>().is_ok_and(|id| *id.trust_domain() == self.parts.trust_domain)
        } else {
            issuer == self.parts.issuer
        };
        match disclosure {
            Disclosure::Digests => false,
            Disclosure::Own => is_ours,
            Disclosure::Issuers(issuers) => is_ours || issuers.contains(issuer),
        }
    }

    /// The text of a cursor.
    ///
    /// # Errors
    /// [`Error::NotBootstrapped`].
    pub fn write_cursor(&self, cursor: &LedgerCursor) -> Result<String, Error> {
        let (index, fact) = cursor.parts();
        let position = LogPosition { incarnation: self.incarnation()?, index };
        Ok(format!("{position}.{}", URL_SAFE_NO_PAD.encode(fact)))
    }

    pub(super) fn read_cursor(&self, text: &str) -> Result<LedgerCursor, Error> {
        let incarnation = self.incarnation()?;
        let cursor = text.split_once('.').and_then(|(position, fact)| {
            let position: LogPosition = position.parse().ok()?;
            let fact = URL_SAFE_NO_PAD.decode(fact).ok()?;
            let cursor = LedgerCursor::after_entry(position.index, &fact)?;
            (position.incarnation == incarnation).then_some(cursor)
        });
        cursor.ok_or_else(|| invalid("cursor", "must be from a page of this incarnation of the fabric"))
    }

    /// The log index of a position from which the ledger is read.
    fn since(&self, text: &str) -> Result<u64, Error> {
        let position: LogPosition =
            text.parse().map_err(|_| invalid("since", "must be a log position, <incarnation>-<index>"))?;
        let here = self.parts.state.position().ok_or(Error::NotBootstrapped)?;
        if position.incarnation != here.incarnation {
            let rule = "is of another incarnation of this fabric; read without since".to_owned();
            return Err(Error::Position(rule));
        }
        if position.index > here.index {
            let rule = format!("is ahead of the log of this fabric, which ends at {}", here.index);
            return Err(Error::Position(rule));
        }
        Ok(position.index)
    }

    pub(super) fn incarnation(&self) -> Result<Incarnation, Error> {
        self.parts.state.index().incarnation.ok_or(Error::NotBootstrapped)
    }

    fn check_reader(&self, reader: Reader<'_>) -> Result<(), Error> {
        match reader {
            Reader::Operator => Ok(()),
            Reader::Peer(peer) => self.check_not_paused(peer),
        }
    }

    /// A copy has digests only, so there is nothing of it to read but its hash.
    fn check_origin(&self, reader: Reader<'_>, origin: Option<&str>) -> Result<(), Error> {
        let Some(origin) = origin.filter(|origin| *origin != self.parts.issuer) else { return Ok(()) };
        if self.parts.peers.by_issuer(origin).is_some() && reader.may_read_copy_of(origin) {
            let rule =
                "the copy of a peer's ledger has digests only and is not exported: compare revocation-hash";
            return Err(invalid("origin", rule));
        }
        Err(Error::UnknownOrigin)
    }

    /// Sums, and buckets that add up to the sum of their epoch: then both are of the same instant.
    async fn sums_and_buckets(
        &self,
        current: &LinearizableRead,
        epoch: u32,
    ) -> Result<(LedgerSums, Box<[Sum; 256]>), Error> {
        let mut sums = self.parts.state.ledger_sums(current)?;
        for _ in 0..limits::LEDGER_SCAN_ATTEMPTS_MAX {
            let buckets = self.parts.state.ledger_buckets(current, epoch).await?;
            let total = buckets.iter().fold(Sum::default(), Sum::plus);
            if total == sums.of_epoch(epoch) {
                return Ok((sums, buckets));
            }
            let later = self.parts.state.ledger_sums(current)?;
            if later.changed_at == sums.changed_at {
                return Err(Corrupt::row("the ledger has another sum than its entries").into());
            }
            sums = later;
        }
        Err(Error::Changing)
    }
}

pub(super) fn invalid(field: &'static str, rule: impl Display) -> Error {
    Error::Invalid { field, rule: rule.to_string() }
}

/// Parses a parameter in decimal digits.
fn number<N: FromStr + Display + Copy>(
    field: &'static str,
    text: Option<&str>,
    largest: N,
) -> Result<Option<N>, Error> {
    let Some(text) = text else { return Ok(None) };
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = if is_decimal { text.parse().ok() } else { None };
    let rule = || invalid(field, format_args!("must be a whole number from 0 to {largest}"));
    parsed.map(Some).ok_or_else(rule)
}

fn check_not_ahead(field: &'static str, epoch: Option<u32>, present: u32) -> Result<(), Error> {
    match epoch {
        Some(epoch) if epoch > present => {
            Err(invalid(field, format_args!("is ahead of the epoch of this fabric, {present}")))
        }
        _ => Ok(()),
    }
}

fn check_epoch(epoch: Option<u32>, sums: &LedgerSums, present: u32) -> Result<(), Error> {
    check_not_ahead("epoch", epoch, present)?;
    match epoch {
        Some(epoch) if epoch < sums.complete_from => {
            let rule = format_args!("entries of epochs before {} may be forgotten", sums.complete_from);
            Err(invalid("epoch", rule))
        }
        _ => Ok(()),
    }
}
