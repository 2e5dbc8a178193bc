//! Startup writes: waits until this node has applied what the cluster has written, and bootstraps a new cluster.
//! Meanwhile the listeners are open and health reports the missing parts.

use std::future::Future;
use std::time::Duration;

use super::{Error, draw};
use crate::cluster;
use crate::config::Config;
use crate::state::{self, Refusal, State, feature_level};
use crate::{keyring, limits, policy};

/// Timeout of each step. A member waits long for the others; a cluster of one has none to wait for.
pub(super) const fn startup_timeout(config: &Config) -> Duration {
    if config.cluster.peers.is_some() { limits::MEMBER_RECOVERY_TIMEOUT } else { limits::RECOVERY_TIMEOUT }
}

/// Waits until all entries that were in the log at startup are applied.
pub(super) async fn until_recovered(state: &State, startup_timeout: Duration) -> Result<(), Error> {
    state.cluster().until_recovered(startup_timeout).await.map_err(Error::NotRecovered)
}

/// Waits for a linearizable read: absence from the state is then known to be true.
pub(super) async fn until_current(state: &State, startup_timeout: Duration) -> Result<(), Error> {
    let current = async { while state.current().await.is_err() {} };
    let waited = tokio::time::timeout(startup_timeout, current).await;
    waited.map_err(|_| Error::NotRecovered("the cluster has no leader".to_owned()))
}

/// Retries a write while the leader changes. The commands are idempotent.
pub(super) async fn despite_elections<W>(
    state: &State,
    startup_timeout: Duration,
    write: impl Fn() -> W,
) -> Result<(), Error>
where
    W: Future<Output = Result<(), Error>>,
{
    let written = async {
        loop {
            match write().await {
                Err(error) if is_retryable(&error) => {
                    tracing::warn!(%error, "startup write failed; retrying");
                }
                written => return written,
            }
            until_current(state, startup_timeout).await?;
        }
    };
    let limited = tokio::time::timeout(startup_timeout, written).await;
    limited.unwrap_or_else(|_| Err(Error::NotRecovered("the cluster has had no stable leader".to_owned())))
}

/// Whether another attempt with the next leader may succeed.
fn is_retryable(error: &Error) -> bool {
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

/// The newest feature level that every initial member supports. All of them run at a bootstrap; if one has
/// just failed, the oldest level, which an operator can raise.
async fn initial_level(state: &State) -> u32 {
    let asked = async {
        loop {
            let members = state.member_levels().await;
            let levels: Option<Vec<u32>> =
                members.into_iter().map(|member| member.report.ok().map(|(_, newest)| newest)).collect();
            if let Some(level) = levels.and_then(|levels| levels.into_iter().min()) {
                return level;
            }
            if state.position().is_some() {
                return feature_level::OLDEST;
            }
            tokio::time::sleep(limits::BOOTSTRAP_POLL_INTERVAL).await;
        }
    };
    let level = tokio::time::timeout(limits::BOOTSTRAP_REPORTS_WAIT, asked).await;
    level.unwrap_or(feature_level::OLDEST).min(feature_level::NEWEST)
}

/// Records the version of this program whenever the cluster records versions and does not have it. Runs for ever.
pub(super) async fn keep_version_recorded(state: State) {
    loop {
        state.cluster().until_state(|| state.owes_version()).await;
        if let Err(error) = state.record_version().await {
            tracing::warn!(%error, "failed to record the version of this node");
            tokio::time::sleep(limits::VERSION_RETRY_PAUSE).await;
        }
    }
}

/// Bootstraps the cluster unless that is done: its incarnation, and its first policy. Concurrent attempts of other nodes
/// are fine. The policy is read only if there is none. Between the two, the version of this program is recorded.
pub(super) async fn bootstrap<P>(state: &State, first_policy: impl Fn() -> P) -> Result<(), Error>
where
    P: Future<Output = Result<policy::Bundle, Error>>,
{
    if state.position().is_none() {
        let cluster_id =
            state.cluster().cluster_id().ok_or_else(|| Error::NotRecovered("no cluster".to_owned()))?;
        match state.bootstrap(cluster_id, draw()?, initial_level(state).await).await {
            // Once, on the node whose command it was.
            Ok(()) => tracing::warn!(
                "new cluster bootstrapped: earlier revocations under the same issuer are unknown to it"
            ),
            Err(state::Error::Refused(Refusal::AlreadyBootstrapped)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    state.record_version().await?;
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
        Ok(()) | Err(state::Error::Refused(Refusal::PolicyChanged)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
