//! What a node waits for and writes before it does its work: it must know what its cluster has written, and the first
//! of a cluster begins its life. Meanwhile its ports are open, and health says what it waits for.

use std::future::Future;
use std::time::Duration;

use super::{Error, draw};
use crate::cluster;
use crate::config::Config;
use crate::state::{self, State};
use crate::{keyring, limits, policy};

/// How long a node waits for each step. One of several waits for the others as long as they take; alone, it has
/// nobody to wait for.
pub(super) const fn patience(config: &Config) -> Duration {
    if config.cluster.peers.is_some() { limits::RECOVERY_OF_MEMBER_MAX } else { limits::RECOVERY_MAX }
}

/// Waits until everything that was in the log at the start is applied.
pub(super) async fn until_recovered(state: &State, patience: Duration) -> Result<(), Error> {
    state.core().until_recovered(patience).await.map_err(Error::NotRecovered)
}

/// Waits until this node knows what the cluster has written before: what it then misses was never there.
pub(super) async fn until_current(state: &State, patience: Duration) -> Result<(), Error> {
    let current = async { while state.current().await.is_err() {} };
    let waited = tokio::time::timeout(patience, current).await;
    waited.map_err(|_| Error::NotRecovered("the cluster has no leader".to_owned()))
}

/// Writes what a start has to write; again if the leader was lost meanwhile. What is written stands once, however
/// often it is tried.
pub(super) async fn despite_elections<W>(
    state: &State,
    patience: Duration,
    write: impl Fn() -> W,
) -> Result<(), Error>
where
    W: Future<Output = Result<(), Error>>,
{
    let written = async {
        loop {
            match write().await {
                Err(error) if passes(&error) => {
                    tracing::warn!(%error, "write what a start has to write; it is tried again");
                }
                written => return written,
            }
            until_current(state, patience).await?;
        }
    };
    let limited = tokio::time::timeout(patience, written).await;
    limited
        .unwrap_or_else(|_| Err(Error::NotRecovered("the cluster has no leader for long enough".to_owned())))
}

/// Whether what was in the way of a write may be gone with the next leader.
fn passes(error: &Error) -> bool {
    use cluster::Error::{NoLeader, OutcomeUnknown, Overloaded, UnknownCommand};
    use keyring::Error::State as OfKeyring;
    use state::Error::Write;
    match error {
        Error::State(Write(error)) | Error::Keyring(OfKeyring(Write(error))) => {
            matches!(error, NoLeader | OutcomeUnknown | Overloaded | UnknownCommand)
        }
        _ => false,
    }
}

/// Begins the cluster's life if it has not begun: its name, and its first policy. Other nodes may be at the same:
/// whoever is first has done it for all. The policy is read only if there is none.
pub(super) async fn bootstrap<P>(state: &State, first_policy: impl Fn() -> P) -> Result<(), Error>
where
    P: Future<Output = Result<policy::Bundle, Error>>,
{
    if state.position().is_none() {
        let cluster_id =
            state.core().cluster_id().ok_or_else(|| Error::NotRecovered("no cluster".to_owned()))?;
        match state.bootstrap(cluster_id, draw()?).await {
            Ok(()) | Err(state::Error::AlreadyBootstrapped) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !state.index().policy.is_empty() {
        return Ok(());
    }
    let bundle = first_policy().await?;
    let sources = bundle
        .sources()
        .iter()
        .map(|source| state::PolicySource { path: source.path.clone(), text: source.text.clone() })
        .collect();
    match state.seed_policy(bundle.digest().to_owned(), sources).await {
        Ok(()) | Err(state::Error::PolicyChanged) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
