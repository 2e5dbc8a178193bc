//! The state database: one generation of every table, and the log id up to which it is applied.
//!
//! Written without a sync: a power failure may undo applied entries, but never part of one, because an entry's rows and
//! its log id are one write batch. The log restores the rest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBRecoveryMode, DataBlockIndexType, Direction,
    IteratorMode, LruCacheOptions, Options, ReadOptions, WriteBatch, WriteOptions,
};

use super::directory::Directory;
use crate::cluster::type_config::{LogId, StoredMembership};
use crate::cluster::{Corrupt, Space, View, Write, codec, durable_file, record, torn_tail};
use crate::limits;

/// Column family of the rows below.
const CLUSTER: &str = "cluster";
const APPLIED: &[u8] = b"applied";
const MEMBERSHIP: &[u8] = b"membership";
const HASH: &[u8] = b"hash";
const INSTALLED: &[u8] = b"installed";
/// Row prefix, before an index: the state hash at that index.
const HASH_AT: &[u8] = b"hash-at/";
/// File that names the current generation.
const CURRENT: &str = "CURRENT";
const FIRST: u64 = 1;

/// Interval, in entries, of the retained state hashes, which are compared between nodes.
pub(crate) const HASH_INTERVAL: u64 = if cfg!(test) { 10 } else { 1000 };

/// Maximum retained state hashes.
pub(crate) const HASHES_KEPT_MAX: u64 = if cfg!(test) { 16 } else { 1024 };

/// Bloom filter bits per key: about 1 % false positives.
const FILTER_BITS: f64 = 10.0;

/// Digest over all applied writes.
pub type StateHash = [u8; 32];

/// One generation of the state.
pub(crate) struct Database {
    db: DB,
    tables: &'static [&'static str],
    /// Dropped after the database, which is closed by then.
    directory: Directory,
}

/// The applied entry, stored in the same write batch as its rows.
pub(crate) struct AppliedEntry<'m> {
    pub(crate) log_id: LogId,
    /// The membership, if the entry changed it.
    pub(crate) membership: Option<&'m StoredMembership>,
}

/// The directories of the state: `state/CURRENT` and `state/<generation>/`.
#[derive(Clone, Debug)]
pub(crate) struct Generations {
    root: PathBuf,
}

impl Generations {
    /// In `root`, which is created if it is missing.
    pub(crate) fn new(root: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        Ok(Self { root })
    }

    fn directory(&self, generation: u64) -> PathBuf {
        self.root.join(generation.to_string())
    }

    /// Opens the current generation, or creates the first. Incomplete generations are removed.
    ///
    /// # Errors
    /// [`Corrupt`] if it cannot be opened or a row is corrupt.
    pub(crate) fn open(
        &self,
        tables: &'static [&'static str],
        later: &'static [&'static str],
    ) -> Result<Database, Corrupt> {
        let corrupt = |error: &dyn std::fmt::Display| Corrupt::state(&self.root, error);
        let current = self.current()?;
        // Without CURRENT, only an incomplete first generation can exist; every other was named once.
        let generation = current.unwrap_or(FIRST);
        let others = self.others(generation).map_err(|error| corrupt(&error))?;
        if current.is_none() && !others.is_empty() {
            return Err(corrupt(&"CURRENT is missing: the newest generation is unknown"));
        }
        for other in others {
            fs::remove_dir_all(other).map_err(|error| corrupt(&error))?;
        }
        let database = Database::open(&self.directory(generation), tables, later)?;
        if current.is_none() {
            self.switch(FIRST).map_err(|error| corrupt(&error))?;
        }
        Ok(database)
    }

    fn current(&self) -> Result<Option<u64>, Corrupt> {
        match fs::read_to_string(self.root.join(CURRENT)) {
            Ok(text) => text
                .trim()
                .parse()
                .map(Some)
                .map_err(|_| Corrupt::state(&self.root.join(CURRENT), "not a generation number")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Corrupt::state(&self.root.join(CURRENT), error)),
        }
    }

    /// A copy of the current generation, made of hard links, with its number. It is removed at the next opening unless
    /// [`Self::switch`] makes it the current one.
    pub(crate) fn copy(
        &self,
        current: &Database,
        tables: &'static [&'static str],
    ) -> Result<(u64, Database), Corrupt> {
        let next = self.current()?.unwrap_or(0) + 1;
        let directory = self.directory(next);
        let failed = |error: io::Error| Corrupt::state(&directory, error);
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(failed)?;
        }
        current.checkpoint(&directory).map_err(failed)?;
        Ok((next, Database::open(&directory, tables, tables)?))
    }

    /// Makes a generation the current one, durably and atomically.
    pub(crate) fn switch(&self, generation: u64) -> io::Result<()> {
        durable_file::replace_file(&self.root.join(CURRENT), generation.to_string().as_bytes())
    }

    fn others(&self, than: u64) -> io::Result<Vec<PathBuf>> {
        let mut others = Vec::new();
        for item in fs::read_dir(&self.root)? {
            let item = item?;
            let generation = item.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if generation.is_some_and(|generation| generation != than) {
                others.push(item.path());
            }
        }
        Ok(others)
    }

    /// Installs the files of a snapshot as the next generation. A crash at any point leaves the old or the new
    /// generation, never a part of one.
    pub(crate) fn install(
        &self,
        files: &Path,
        tables: &'static [&'static str],
        later: &'static [&'static str],
        expected: Option<LogId>,
    ) -> io::Result<Database> {
        let next = self.current().map_err(io::Error::other)?.unwrap_or(0) + 1;
        let directory = self.directory(next);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        take_files(files, &directory)?;
        let database = Database::open(&directory, tables, later).map_err(io::Error::other)?;
        if database.applied().map_err(io::Error::other)? != expected {
            return Err(io::Error::other("the snapshot's files do not end at its last log id"));
        }
        database.mark_installed(expected)?;
        fs::File::open(&directory)?.sync_all()?;
        self.switch(next)?;
        Ok(database)
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_paranoid_checks(true);
    // After a power cut, a write-ahead log may end within a record although a later one has rows: nothing after the gap counts,
    // and the Raft log applies it again. RocksDB does not notice a log that ends between two records.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_keep_log_file_num(4);
    options.set_max_total_wal_size(256 * 1024 * 1024);
    options.set_db_write_buffer_size(limits::STATE_WRITE_BUFFERS_BYTES);
    options
}

/// Shards of the cache, as a power of two. RocksDB's default makes each too small for an index and the blocks it leads
/// to: every read would fetch the index again.
const CACHE_PARTS_BITS: i32 = 2;

/// The tables share one cache: memory must not grow with the number of tables or of their rows, so indexes and filters
/// are in the cache too.
fn families(tables: &'static [&'static str]) -> impl Iterator<Item = ColumnFamilyDescriptor> {
    let mut cache = LruCacheOptions::default();
    cache.set_capacity(limits::STATE_CACHE_BYTES);
    cache.set_num_shard_bits(CACHE_PARTS_BITS);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache_opts(&cache));
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_bloom_filter(FILTER_BITS, false);
    // Most reads are point reads.
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    tables.iter().chain([&CLUSTER]).map(move |name| {
        let mut options = Options::default();
        options.set_block_based_table_factory(&blocks);
        ColumnFamilyDescriptor::new(*name, options)
    })
}

/// Whether RocksDB never changes the file.
pub(crate) fn is_table_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}

/// Takes the durable files of a snapshot. RocksDB never changes a table file, so these are linked, which needs neither
/// time nor space. The others are copied: the source remains a database that others open.
fn take_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        let (source, target) = (item.path(), to.join(item.file_name()));
        // On another file system it cannot be linked.
        if is_table_file(&source) && fs::hard_link(&source, &target).is_ok() {
            continue;
        }
        fs::copy(&source, &target)?;
        fs::File::open(&target)?.sync_all()?;
    }
    Ok(())
}

impl Database {
    /// Opens the database in `directory` and verifies every row, except for the tables `later`, which are verified when
    /// they are read.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is corrupt.
    pub(crate) fn open(
        directory: &Path,
        tables: &'static [&'static str],
        later: &[&str],
    ) -> Result<Self, Corrupt> {
        torn_tail::check_for(directory, Corrupt::state)?;
        let db = DB::open_cf_descriptors(&options(), directory, families(tables))
            .map_err(|error| Corrupt::unopened(&error, Corrupt::state(directory, &error)))?;
        let database = Self { db, tables, directory: Directory::new(directory.to_owned(), true) };
        database.verify(later)?;
        Ok(database)
    }

    /// Opens the database in `directory` read-only, without a lock. Rows are verified when they are read.
    pub(crate) fn read(directory: &Path, tables: &'static [&'static str]) -> Result<Self, Corrupt> {
        torn_tail::check_for(directory, Corrupt::state)?;
        let unopened = |error| Corrupt::unopened(&error, Corrupt::state(directory, &error));
        // A snapshot of an earlier version lacks tables, and read-only access cannot create them.
        let there = DB::list_cf(&options(), directory).map_err(unopened)?;
        let families = families(tables).filter(|family| there.iter().any(|name| name == family.name()));
        let db =
            DB::open_cf_descriptors_read_only(&options(), directory, families, false).map_err(unopened)?;
        Ok(Self { db, tables, directory: Directory::new(directory.to_owned(), true) })
    }

    /// Removes its directory once it is closed: another generation has taken its place.
    pub(crate) fn discard(&self) {
        self.directory.discard();
    }

    /// Verifies every row of every table that is there.
    pub(crate) fn verify_all(&self) -> Result<(), Corrupt> {
        let missing: Vec<_> =
            self.tables.iter().copied().filter(|table| self.db.cf_handle(table).is_none()).collect();
        self.verify(&missing)
    }

    fn verify(&self, later: &[&str]) -> Result<(), Corrupt> {
        for table in self.tables.iter().chain([&CLUSTER]).filter(|table| !later.contains(table)) {
            self.read_from(table, &[], once(), &mut |_, _| true)?;
        }
        Ok(())
    }

    fn read_from(
        &self,
        table: &str,
        from: &[u8],
        options: ReadOptions,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        let mode = IteratorMode::From(from, Direction::Forward);
        for item in self.db.iterator_cf_opt(self.family(table)?, options, mode) {
            let (key, sealed) = item.map_err(|error| self.corrupt(error))?;
            let payload = record::open(&key, &sealed).map_err(|error| self.corrupt(error))?;
            if !visit(&key, payload) {
                break;
            }
        }
        Ok(())
    }

    fn family(&self, table: &str) -> Result<&rocksdb::ColumnFamily, Corrupt> {
        self.db.cf_handle(table).ok_or_else(|| self.corrupt(format!("table {table} is missing")))
    }

    fn corrupt(&self, what: impl std::fmt::Display) -> Corrupt {
        Corrupt::state(self.db.path(), what)
    }

    /// Log id of the last applied entry.
    pub(crate) fn applied(&self) -> Result<Option<LogId>, Corrupt> {
        self.log_id_under(APPLIED)
    }

    /// The last applied membership.
    pub(crate) fn membership(&self) -> Result<StoredMembership, Corrupt> {
        let row = self.get(CLUSTER, MEMBERSHIP)?;
        row.map_or_else(
            || Ok(StoredMembership::default()),
            |bytes| codec::decode_membership(&bytes).map_err(|error| self.corrupt(error)),
        )
    }

    /// The current state hash.
    pub(crate) fn hash(&self) -> Result<StateHash, Corrupt> {
        let row = self.get(CLUSTER, HASH)?;
        row.map_or(Ok([0; 32]), |bytes| {
            bytes.try_into().map_err(|_| self.corrupt("state hash is not 32 bytes"))
        })
    }

    /// The state hash at `index`, if it is retained.
    pub(crate) fn hash_at(&self, index: u64) -> Result<Option<StateHash>, Corrupt> {
        let row = self.get(CLUSTER, &hash_at_key(index))?;
        row.map(|bytes| bytes.try_into().map_err(|_| self.corrupt("state hash is not 32 bytes"))).transpose()
    }

    /// The last entry of the snapshot from which this generation was installed, if it was. The log before it may not be
    /// replaced yet.
    pub(crate) fn installed(&self) -> Result<Option<LogId>, Corrupt> {
        self.log_id_under(INSTALLED)
    }

    fn log_id_under(&self, key: &[u8]) -> Result<Option<LogId>, Corrupt> {
        let row = self.get(CLUSTER, key)?;
        row.map(|bytes| codec::decode_log_id(&bytes).map_err(|error| self.corrupt(error))).transpose()
    }

    fn mark_installed(&self, last: Option<LogId>) -> io::Result<()> {
        let Some(last) = last else { return Ok(()) };
        let cluster = self.family(CLUSTER).map_err(io::Error::other)?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        let row = record::seal(INSTALLED, &codec::encode_log_id(&last));
        self.db.put_cf_opt(cluster, INSTALLED, row, &synced).map_err(io::Error::other)
    }

    /// Writes the rows of one entry and its log id in one write batch. Returns the new state hash.
    pub(crate) fn commit(&self, writes: &[Write], mark: &AppliedEntry<'_>) -> io::Result<StateHash> {
        let hash = next_hash(self.hash().map_err(io::Error::other)?, mark.log_id.index, writes);
        let mut batch = WriteBatch::default();
        for write in writes {
            match write {
                Write::Put { table, key, value } => {
                    let family = self.family(table).map_err(io::Error::other)?;
                    batch.put_cf(family, key, record::seal(key, value));
                }
                Write::Delete { table, key } => {
                    batch.delete_cf(self.family(table).map_err(io::Error::other)?, key);
                }
                Write::DeleteRange { table, from, to } => {
                    batch.delete_range_cf(self.family(table).map_err(io::Error::other)?, from, to);
                }
            }
        }
        let cluster = self.family(CLUSTER).map_err(io::Error::other)?;
        let put = |batch: &mut WriteBatch, key: &[u8], value: &[u8]| {
            batch.put_cf(cluster, key, record::seal(key, value));
        };
        put(&mut batch, APPLIED, &codec::encode_log_id(&mark.log_id));
        put(&mut batch, HASH, &hash);
        if mark.log_id.index.is_multiple_of(HASH_INTERVAL) {
            put(&mut batch, &hash_at_key(mark.log_id.index), &hash);
            let oldest = mark.log_id.index.saturating_sub(HASHES_KEPT_MAX * HASH_INTERVAL);
            batch.delete_range_cf(cluster, hash_at_key(0), hash_at_key(oldest));
        }
        if let Some(membership) = mark.membership {
            put(&mut batch, MEMBERSHIP, &codec::encode_membership(membership));
        }
        self.db.write(batch).map_err(io::Error::other)?;
        Ok(hash)
    }

    /// Error without space for a checkpoint, which copies the write-ahead log, and for some writes of the Raft log after it.
    pub(crate) fn require_space_of_checkpoint(&self) -> io::Result<()> {
        let log = Space::unflushed(self.db.path(), limits::STATE_WRITE_BUFFERS_BYTES);
        Space::require(self.db.path(), log.saturating_add(limits::DISK_START_BYTES_MIN))
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.db.flush_wal(true).map_err(io::Error::other)?;
        durable_file::sync_name_of(&self.db.path().join(CURRENT))
    }

    /// Creates a checkpoint in the new `directory`, from hard links.
    ///
    /// Without a flush, which would delay every later entry while the memory table is written.
    pub(crate) fn checkpoint(&self, directory: &Path) -> io::Result<()> {
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint_with_log_size(directory, u64::MAX))
            .map_err(io::Error::other)
    }
}

/// Reads that do not fill the cache, for rows that are read once.
pub(crate) struct ReadOnce<'d>(pub &'d Database);

impl View for ReadOnce<'_> {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        self.0.get(table, key)
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        self.0.read_from(table, from, once(), visit)
    }
}

fn once() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options
}

impl View for Database {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        let sealed = self.db.get_pinned_cf(self.family(table)?, key).map_err(|error| self.corrupt(error))?;
        let Some(sealed) = sealed else { return Ok(None) };
        let payload = record::open(key, &sealed).map_err(|error| self.corrupt(error))?;
        Ok(Some(payload.to_vec()))
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        self.read_from(table, from, ReadOptions::default(), visit)
    }

    fn scan_between(
        &self,
        table: &str,
        (from, to): (&[u8], &[u8]),
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(to);
        self.read_from(table, from, options, visit)
    }
}

fn hash_at_key(index: u64) -> Vec<u8> {
    [HASH_AT, &index.to_be_bytes()].concat()
}

/// Hash chain over every write of every entry, in order.
fn next_hash(previous: StateHash, index: u64, writes: &[Write]) -> StateHash {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&previous);
    context.update(&index.to_be_bytes());
    let mut part = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    for write in writes {
        let (kind, table, key, value) = match write {
            Write::Put { table, key, value } => (b"put", table, key, value.as_slice()),
            Write::Delete { table, key } => (b"del", table, key, &[][..]),
            Write::DeleteRange { table, from, to } => (b"rng", table, from, to.as_slice()),
        };
        part(kind);
        part(table.as_bytes());
        part(key);
        part(value);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt as _;

    use openraft::alias::CommittedLeaderIdOf;
    use openraft::vote::RaftLeaderId as _;
    use rocksdb::WaitForCompactOptions;

    use super::*;
    use crate::cluster::type_config::TypeConfig;

    const TABLES: &[&str] = &["one", "two", "three"];

    #[test]
    fn memory_is_bounded_for_any_number_of_tables_and_rows() {
        const ROW_BYTES: usize = 64 * 1024;
        let directory = tempfile::tempdir().expect("directory");
        let database = Database::open(directory.path(), TABLES, &[]).expect("opens");
        // Each table stays below RocksDB's limit for one table, and the sum exceeds the cache.
        let rows = limits::STATE_CACHE_BYTES / ROW_BYTES / TABLES.len();
        for at in 0..rows as u64 {
            // Incompressible.
            let value = |table: &str| {
                let seed = digest::digest(&digest::SHA256, format!("{table}{at}").as_bytes());
                let mut state = u64::from_be_bytes(seed.as_ref()[..8].try_into().expect("8 bytes"));
                let mut next = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    state.to_be_bytes()[0]
                };
                (0..ROW_BYTES).map(|_| next()).collect::<Vec<u8>>()
            };
            let key = at.to_be_bytes().to_vec();
            let writes: Vec<Write> = TABLES
                .iter()
                .map(|table| Write::Put { table, key: key.clone(), value: value(table) })
                .collect();
            let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), at + 1);
            database.commit(&writes, &AppliedEntry { log_id, membership: None }).expect("commits");
            // RocksDB counts a table that is being flushed, and starts no second flush of it: on a slow disk, the
            // loop would fill the buffers meanwhile.
            database.db.wait_for_compact(&WaitForCompactOptions::default()).expect("flushed");
        }
        database.verify(&[]).expect("reads");
        let cached_by_verify = database.cached();
        for table in TABLES {
            database.scan(table, &[], &mut |_, _| true).expect("reads");
        }
        let of_all = |property: &str| -> u64 {
            let value = |table: &&str| {
                let family = database.family(table).expect("family");
                database.db.property_int_value_cf(family, property).expect("property").expect("known")
            };
            TABLES.iter().map(value).sum()
        };
        let buffers = of_all("rocksdb.cur-size-all-mem-tables");
        assert!(buffers <= limits::STATE_WRITE_BUFFERS_BYTES as u64, "{buffers}");
        let cached = database.cached();
        assert!(cached <= limits::STATE_CACHE_BYTES as u64, "{cached}");
        assert!(cached > limits::STATE_CACHE_BYTES as u64 / 2, "the cache is used: {cached}");
        assert!(
            cached_by_verify < cached / 2,
            "reads of rows that are read once fill the cache: {cached_by_verify}"
        );
    }

    impl Database {
        /// Each table reports the usage of the shared cache.
        fn cached(&self) -> u64 {
            let family = self.family("one").expect("family");
            let usage = self.db.property_int_value_cf(family, "rocksdb.block-cache-usage");
            usage.expect("property").expect("known")
        }
    }

    /// Commits a row under each of some keys of every table, as entry `index`.
    fn commit_rows(database: &Database, index: u64, keys: &[u8]) {
        let rows = TABLES.iter().flat_map(|table| keys.iter().map(move |key| (table, key)));
        let put = |(table, key): (&&'static str, &u8)| Write::Put {
            table,
            key: vec![*key],
            value: b"row".to_vec(),
        };
        let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index);
        let writes: Vec<Write> = rows.map(put).collect();
        database.commit(&writes, &AppliedEntry { log_id, membership: None }).expect("commits");
    }

    /// Regression: the installation of a large state copied all of it, and needed twice its space.
    #[test]
    fn installed_state_shares_the_table_files_of_the_snapshot() {
        let place = tempfile::tempdir().expect("directory");
        let made = Database::open(&place.path().join("made"), TABLES, &[]).expect("opens");
        commit_rows(&made, 1, &[1]);
        made.db.flush_cf(made.family("one").expect("family")).expect("flushed");
        commit_rows(&made, 2, &[2]);
        let files = place.path().join("files");
        made.checkpoint(&files).expect("checkpoint");
        let generations = Generations::new(place.path().join("state")).expect("state");
        let last = made.applied().expect("mark");
        let installed = generations.install(&files, TABLES, &[], last).expect("installed");

        let tables = fs::read_dir(&files).expect("directory").map(|item| item.expect("item").path());
        let tables: Vec<_> = tables.filter(|path| path.extension().is_some_and(|end| end == "sst")).collect();
        let inode = |path: &Path| fs::metadata(path).expect("file").ino();
        assert!(!tables.is_empty());
        for table in tables {
            let name = table.file_name().expect("name");
            assert_eq!(inode(&table), inode(&installed.db.path().join(name)));
        }
        commit_rows(&installed, 3, &[3]);
        let received = Database::read(&files, TABLES).expect("is read");
        assert_eq!(received.applied().expect("mark"), last, "the received files stay as they are");
        let has = |key: u8| received.get("one", &[key]).expect("reads").is_some();
        assert_eq!([has(1), has(2), has(3)], [true, true, false]);
    }

    /// After a power cut, a write-ahead log may end within a record although the next one has rows.
    #[test]
    fn rows_after_a_gap_between_write_ahead_logs_do_not_count() {
        let place = tempfile::tempdir().expect("directory");
        let directory = place.path().join("state");
        let mut options = options();
        // Each full buffer begins a write-ahead log, and none is written to a table.
        options.set_write_buffer_size(64 * 1024);
        options.set_max_write_buffer_number(16);
        options.set_min_write_buffer_number_to_merge(15);
        let families = || {
            TABLES.iter().chain([&CLUSTER]).map(|name| ColumnFamilyDescriptor::new(*name, options.clone()))
        };
        let db = DB::open_cf_descriptors(&options, &directory, families()).expect("opens");
        let database = Database { db, tables: TABLES, directory: Directory::new(directory.clone(), true) };
        let logs = || {
            let paths = fs::read_dir(&directory).expect("directory").map(|item| item.expect("item").path());
            let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "log"));
            logs.filter(|path| fs::metadata(path).expect("file").len() > 0).collect::<BTreeSet<_>>()
        };
        let mut last = 0;
        while logs().len() < 2 {
            last += 1;
            commit_rows(&database, last, &[0, 1, 2, 3, 4, 5, 6, 7]);
        }
        last += 1;
        commit_rows(&database, last, &[0]);
        drop(database);
        let older = logs().pop_first().expect("a log");
        let file = fs::OpenOptions::new().write(true).open(&older).expect("opened");
        file.set_len(file.metadata().expect("file").len() - 3).expect("cut");
        let opened = Database::open(&directory, TABLES, &[]).expect("opens");
        let applied = opened.applied().expect("mark").map_or(0, |applied| applied.index);
        assert!((1..last - 1).contains(&applied), "{applied} of {last}");
    }

    #[test]
    fn corrupt_row_is_detected_at_open_or_when_read() {
        let directory = tempfile::tempdir().expect("directory");
        let database = Database::open(directory.path(), TABLES, &[]).expect("opens");
        commit_rows(&database, 1, &[1]);
        let family = database.family("two").expect("family");
        database.db.put_cf(family, [1], b"never sealed").expect("writes");
        drop(database);
        assert!(Database::open(directory.path(), TABLES, &["one"]).is_err(), "another table");
        let database = Database::open(directory.path(), TABLES, &["two"]).expect("opens");
        assert!(database.get("two", &[1]).is_err() && database.scan("two", &[], &mut |_, _| true).is_err());
        assert!(database.get("one", &[1]).expect("reads").is_some());
    }

    #[test]
    fn database_without_a_new_table_is_read_and_upgraded() {
        let directory = tempfile::tempdir().expect("directory");
        let database = Database::open(directory.path(), &["one", "two"], &[]).expect("opens");
        let write = Write::Put { table: "two", key: vec![1], value: b"row".to_vec() };
        let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), 7);
        database.commit(&[write], &AppliedEntry { log_id, membership: None }).expect("commits");
        drop(database);
        let read = Database::read(directory.path(), TABLES).expect("is read");
        assert_eq!(read.applied().expect("mark"), Some(log_id));
        assert!(read.get("two", &[1]).expect("row").is_some() && read.get("three", &[1]).is_err());
        drop(read);
        let upgraded = Database::open(directory.path(), TABLES, &[]).expect("opens");
        assert_eq!(upgraded.get("three", &[1]).expect("reads"), None);
    }

    #[test]
    fn first_between_stays_within_its_range() {
        let directory = tempfile::tempdir().expect("directory");
        let database = Database::open(directory.path(), TABLES, &[]).expect("opens");
        commit_rows(&database, 1, &[2, 4]);
        let first = |from: u8, to: u8| {
            database.first_between("one", &[from], &[to]).expect("reads").map(|(key, _)| key)
        };
        assert_eq!((first(1, 9), first(2, 3), first(3, 9)), (Some(vec![2]), Some(vec![2]), Some(vec![4])));
        assert_eq!((first(1, 2), first(3, 4), first(5, 9)), (None, None, None));
    }
}
