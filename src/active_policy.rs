//! The compiled policy of this node, which follows the replicated policy bundle.
//!
//! A bundle becomes current for the cluster by a command, after a child process, which can be killed, has compiled it and
//! run its tests ([`crate::policy::compile`]). Each node then compiles it for itself. Until that is done, and if it fails, the
//! node decides by the last good one.

use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use serde_json::Value;
use tokio::sync::watch;

use crate::limits;
use crate::policy::compile::Check;
use crate::policy::{self, Bundle, Explanation, Point, Source};
use crate::state::{self, CallContext, PolicySource, State};
use crate::telemetry::Metrics;

/// Compiles and checks sources outside the threads that serve requests, at most [`limits::POLICY_LOADS_MAX`] at a time.
pub type Load = Arc<
    dyn Fn(Vec<Source>, Check) -> Pin<Box<dyn Future<Output = Result<Bundle, LoadError>> + Send>>
        + Send
        + Sync,
>;

/// Evaluates a bundle with an explanation, under the same limit.
pub type Explain = Arc<
    dyn Fn(Bundle, Point, Value) -> Pin<Box<dyn Future<Output = Option<Explanation>> + Send>> + Send + Sync,
>;

/// Slow work on policies, which runs outside the threads that serve requests.
#[derive(Clone)]
pub struct Workers {
    /// Compiler.
    pub load: Load,
    /// Evaluator with explanation.
    pub explain: Explain,
}

/// Reason why sources were not compiled.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// They do not compile or fail their tests, or are not done before the deadline.
    #[error(transparent)]
    Refused(#[from] policy::Error),
    /// The compiling task has ended.
    #[error("the policy loader has stopped")]
    Stopped,
}

/// Reason why a bundle was not activated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not compile or fails its tests, or is not done before the deadline.
    #[error("policy refused: {0}")]
    Refused(policy::Error),
    /// The compiling task has ended.
    #[error("{0}")]
    LoaderFailed(LoadError),
    /// The write failed, or the current policy is not the expected one.
    #[error(transparent)]
    State(#[from] state::Error),
    /// It is current for the cluster, but this node has not compiled it before the deadline.
    #[error("the policy is current, but this node has not compiled it yet")]
    NotActive,
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Refused(error) => Self::Refused(error),
            stopped @ LoadError::Stopped => Self::LoaderFailed(stopped),
        }
    }
}

/// The compiled policy of this node. Cheap to clone.
#[derive(Clone)]
pub struct ActivePolicy {
    compiled: Arc<ArcSwapOption<Bundle>>,
    active: watch::Sender<String>,
    state: State,
    workers: Workers,
    metrics: Metrics,
}

impl ActivePolicy {
    /// No policy is compiled before [`ActivePolicy::activate_current`].
    #[must_use]
    pub fn new(state: State, workers: Workers, metrics: Metrics) -> Self {
        let compiled = Arc::new(ArcSwapOption::empty());
        Self { compiled, active: watch::Sender::new(String::new()), state, workers, metrics }
    }

    /// Slot of the compiled bundle.
    #[must_use]
    pub fn compiled(&self) -> Arc<ArcSwapOption<Bundle>> {
        Arc::clone(&self.compiled)
    }

    /// The bundle this node decides by.
    #[must_use]
    pub fn current(&self) -> Option<Bundle> {
        self.compiled.load().as_deref().cloned()
    }

    /// The output of the current policy for an input at `point`, and the rules that it came from. `None` if there is
    /// no policy.
    ///
    /// # Errors
    /// [`Error::LoaderFailed`].
    pub async fn explain(&self, point: Point, input: Value) -> Result<Option<Explanation>, Error> {
        let Some(policy) = self.current() else { return Ok(None) };
        let explanation = (self.workers.explain)(policy, point, input).await;
        explanation.map(Some).ok_or(Error::LoaderFailed(LoadError::Stopped))
    }

    /// Compiles and checks sources, makes them current for the cluster, and waits until this node decides by them. Returns the
    /// digest, and whether the current policy changed.
    ///
    /// # Errors
    /// After [`Error::NotActive`] the policy is current; after every other error nothing has changed.
    pub async fn apply(
        &self,
        (sources, check): (Vec<Source>, Check),
        caller: &CallContext,
        expected_current: String,
    ) -> Result<(String, bool), Error> {
        let bundle = (self.workers.load)(sources, check)
            .await
            .inspect_err(|_| self.metrics.policy_loads.inc(["refused"]))?;
        let digest = bundle.digest().to_owned();
        let sources = bundle
            .sources()
            .iter()
            .map(|source| PolicySource { path: source.path.clone(), text: source.text.clone() });
        let changed = self
            .state
            .on_behalf_of(caller)
            .put_policy(digest.clone(), sources.collect(), expected_current)
            .await?;
        let mut active = self.active.subscribe();
        let until_active = active.wait_for(|active| *active == digest);
        match tokio::time::timeout(limits::PROPOSE_TIMEOUT, until_active).await {
            Ok(Ok(_)) => Ok((digest, changed)),
            Ok(Err(_)) | Err(_) => Err(Error::NotActive),
        }
    }

    /// Compiles the current bundle and each later one until the state is dropped.
    pub async fn follow(self) {
        let mut changes = self.state.policy_changes();
        loop {
            changes.mark_unchanged();
            self.activate_current().await;
            let ended = if self.is_outdated() {
                // A child that timed out on a busy machine may succeed next time.
                tokio::time::timeout(limits::POLICY_RETRY_PAUSE, changes.changed()).await.unwrap_or(Ok(()))
            } else {
                changes.changed().await
            };
            if ended.is_err() {
                return;
            }
        }
    }

    /// Whether this node decides by another bundle than the cluster's current one.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        *self.active.borrow() != self.state.index().policy
    }

    /// Compiles the current bundle unless this node decides by it already.
    pub async fn activate_current(&self) {
        if self.is_outdated() {
            let digest = self.state.index().policy.clone();
            self.activate(digest).await;
        }
    }

    async fn activate(&self, digest: String) {
        let sources = match self.state.policy_sources(&digest) {
            Ok(sources) => sources.unwrap_or_default(),
            Err(error) => {
                return tracing::error!(%error, digest, "failed to read the policy; the last good one stays active");
            }
        };
        let sources =
            sources.into_iter().map(|source| Source { path: source.path, text: source.text }).collect();
        match (self.workers.load)(sources, Check::Compiles).await {
            Ok(bundle) => {
                self.metrics.policy_loads.inc(["loaded"]);
                self.compiled.store(Some(Arc::new(bundle)));
                tracing::info!(digest, "policy is active");
                self.active.send_replace(digest);
            }
            Err(error) => {
                self.metrics.policy_loads.inc(["failed"]);
                tracing::error!(%error, digest, "failed to compile the policy; the last good one stays active");
            }
        }
    }
}
