//! openraft's storage test suite.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tokio::sync::{mpsc, watch};

use crate::cluster::apply::database::Generations;
use crate::cluster::apply::snapshot::Snapshots;
use crate::cluster::apply::state_machine::StateMachine;
use crate::cluster::divergence::Divergence;
use crate::cluster::log::{LogStore, open, open_database};
use crate::cluster::type_config::TypeConfig;
use crate::cluster::{Applied, Corrupt, Machine, View, Write};
use crate::cluster::{Stamp, Submission};

/// A state machine without commands: the suite applies none.
struct Nothing;

impl Machine for Nothing {
    const TABLES: &'static [&'static str] = &["table"];

    fn can_decode(_command: &[u8]) -> bool {
        true
    }

    fn batch(_stamp: Stamp, _submissions: Vec<Submission>) -> bytes::Bytes {
        bytes::Bytes::new()
    }

    fn apply(&self, _view: &dyn View, _batch: &[u8], _index: u64) -> Result<Applied, Corrupt> {
        Ok(Applied::default())
    }

    fn project(&self, _writes: &[Write], _index: u64) -> Result<(), Corrupt> {
        Ok(())
    }

    fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
        Ok(())
    }
}

/// Keeps the writer threads: a process that exits before them, with a database open, may be aborted by it.
#[derive(Clone, Default)]
struct Builder(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl StoreBuilder<TypeConfig, LogStore, StateMachine<Nothing>, tempfile::TempDir> for Builder {
    #[expect(clippy::disallowed_methods, reason = "as in the product, the log writer needs a thread")]
    async fn build(
        &self,
    ) -> Result<(tempfile::TempDir, LogStore, StateMachine<Nothing>), StorageError<TypeConfig>> {
        let data = tempfile::tempdir().expect("directory");
        let (still_open, _) = mpsc::channel(1);
        let database = open_database(&data.path().join("raft")).expect("log");
        let database = Arc::new(database);
        let divergence = Divergence::open(Arc::clone(&database)).expect("readable");
        let opened = open(database, crate::limits::LOG_BYTES_MAX_DEFAULT, still_open.clone()).expect("log");
        self.0.lock().expect("writers").push(std::thread::spawn(opened.writer));
        let generations = Generations::new(data.path().join("state")).expect("state");
        let snapshots = data.path().join("snapshots");
        let snapshots = Snapshots::new(snapshots, Nothing::TABLES, still_open.clone()).expect("snapshots");
        // The suite applies entries that are in no log, so every index is reported as durable.
        let (_, durable) = watch::channel(u64::MAX);
        let clock = crate::clock::Clock::system();
        let machine = Arc::new(Nothing);
        let (state, _) =
            StateMachine::open(machine, generations, snapshots, (durable, divergence), still_open, clock)
                .expect("state");
        Ok((data, opened.store, state))
    }
}

#[tokio::test]
async fn storage_passes_the_openraft_suite() {
    let builder = Builder::default();
    Suite::test_all(builder.clone()).await.expect("suite");
    let writers = std::mem::take(&mut *builder.0.lock().expect("writers"));
    for writer in writers {
        writer.join().expect("a writer that ends");
    }
}
