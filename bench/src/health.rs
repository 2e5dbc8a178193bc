//! Polls the health of the nodes: leader and readiness.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::members::Members;
use crate::wire::{self, Connection, Target};

/// Maximum wait at the start. The signing key of a node that joined is published for ten minutes before it may
/// sign.
const NEW_CLUSTER_TIMEOUT: Duration = Duration::from_secs(780);

/// Poll interval per node.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum wait for a response; a slower node counts as absent.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// Health of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// The id of the leader that it knows.
    pub leader: Option<u64>,
    /// Whether it is ready.
    pub is_ready: bool,
}

/// Health of all nodes; `None` for a node without a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View(pub Vec<Option<NodeHealth>>);

impl View {
    /// Index of the leader: a node that reports that it leads, and that most nodes name.
    pub fn leader(&self) -> Option<usize> {
        self.leader_of(&self.all())
    }

    /// The same among some of the nodes.
    pub fn leader_of(&self, nodes: &[usize]) -> Option<usize> {
        nodes.iter().copied().find(|leader| {
            let names_it = |node: &usize| {
                let said = self.0.get(*node).copied().flatten();
                said.and_then(|said| said.leader) == Some(*leader as u64 + 1)
            };
            names_it(leader) && nodes.iter().filter(|node| names_it(node)).count() * 2 > nodes.len()
        })
    }

    fn all(&self) -> Vec<usize> {
        (0..self.0.len()).collect()
    }

    /// Whether every node is ready and names this leader.
    pub fn is_ready(&self) -> bool {
        self.is_ready_at(&self.all())
    }

    /// The same of some of the nodes.
    pub fn is_ready_at(&self, nodes: &[usize]) -> bool {
        let leader = self.leader_of(nodes);
        leader.is_some_and(|leader| {
            nodes.iter().all(|node| {
                let said = self.0.get(*node).copied().flatten();
                said.is_some_and(|said| said.is_ready && said.leader == Some(leader as u64 + 1))
            })
        })
    }
}

/// Polls all nodes until it is dropped.
pub struct Health {
    view: watch::Receiver<View>,
    _asking: JoinSet<()>,
}

impl Health {
    /// Polls as a caller that may see the details.
    pub fn watch(targets: Vec<Target>) -> Self {
        let (sender, view) = watch::channel(View(vec![None; targets.len()]));
        let mut asking = JoinSet::new();
        for (node, target) in targets.into_iter().enumerate() {
            let sender = sender.clone();
            asking.spawn(async move {
                let mut connection = None;
                loop {
                    let said = timeout(RESPONSE_TIMEOUT, call(&target, &mut connection)).await.ok().flatten();
                    sender.send_if_modified(|view| std::mem::replace(&mut view.0[node], said) != said);
                    sleep(PAUSE).await;
                }
            });
        }
        Self { view, _asking: asking }
    }

    /// Waits until all nodes are ready.
    pub async fn of(members: &Members) -> Result<Self> {
        Self::at(members, &(0..members.count()).collect::<Vec<_>>()).await
    }

    /// Waits until some of the nodes are ready; the others are watched too.
    pub async fn at(members: &Members, nodes: &[usize]) -> Result<Self> {
        let health = Self::watch(members.targets("operator")?);
        let are_ready = |view: &View| view.is_ready_at(nodes);
        health.until("not all nodes were ready", NEW_CLUSTER_TIMEOUT, are_ready).await?;
        Ok(health)
    }

    /// The latest view.
    pub fn now(&self) -> View {
        self.view.borrow().clone()
    }

    /// Notifies on each change.
    pub fn changes(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// Waits until `is_so`, up to a maximum. Returns the waiting time.
    pub async fn until(
        &self,
        what: &str,
        longest: Duration,
        is_so: impl Fn(&View) -> bool,
    ) -> Result<Duration> {
        let begun = Instant::now();
        let mut view = self.view.clone();
        let waited = timeout(longest, view.wait_for(|view| is_so(view))).await;
        match waited {
            Ok(Ok(_)) => Ok(begun.elapsed()),
            _ => bail!("after {longest:?} {what}: {:?}", self.now()),
        }
    }
}

async fn call(target: &Target, kept: &mut Option<Connection>) -> Option<NodeHealth> {
    // Taken out, so that an abandoned request drops its connection.
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => target.connect().await.ok()?,
    };
    let answer = connection.call(&wire::request("GET", "/v1/sys/health", &target.host, "")).await.ok()?;
    *kept = Some(connection);
    said(answer.status, answer.body())
}

fn said(status: u16, body: &[u8]) -> Option<NodeHealth> {
    let health: Value = serde_json::from_slice(body).ok()?;
    Some(NodeHealth {
        leader: health.get("leader").and_then(Value::as_u64),
        is_ready: status == 200 && health.get("status").and_then(Value::as_str) == Some("pass"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(leaders: &[Option<u64>]) -> View {
        View(
            leaders
                .iter()
                .map(|leader| leader.map(|leader| NodeHealth { leader: Some(leader), is_ready: true }))
                .collect(),
        )
    }

    #[test]
    fn leader_reports_itself_and_is_named_by_most() {
        assert_eq!(view(&[Some(2), Some(2), None]).leader(), Some(1));
        assert_eq!(view(&[Some(1), Some(2), None]).leader(), None, "one vote each");
        assert_eq!(view(&[None, Some(1), Some(1)]).leader(), None, "it does not answer");
        assert_eq!(view(&[Some(2), Some(2), Some(2)]).leader(), Some(1));
        assert_eq!(view(&[Some(1)]).leader(), Some(0));
    }

    #[test]
    fn view_is_ready_if_all_nodes_are_and_agree() {
        assert!(view(&[Some(2), Some(2), Some(2)]).is_ready());
        assert!(!view(&[Some(2), Some(2), Some(1)]).is_ready());
        assert!(!view(&[Some(2), Some(2), None]).is_ready());
        let mut ill = view(&[Some(2), Some(2), Some(2)]);
        ill.0[0] = Some(NodeHealth { leader: Some(2), is_ready: false });
        assert!(!ill.is_ready());
        assert_eq!(ill.leader(), Some(1));
        assert!(ill.is_ready_at(&[1, 2]), "the node that is not ready does not count");
        assert!(!ill.is_ready_at(&[0, 2]), "without the leader");
    }

    #[test]
    fn node_that_waits_for_its_lease_is_present_and_not_ready() {
        let said = |status, text: &str| said(status, text.as_bytes());
        assert_eq!(
            said(200, r#"{"status":"pass","leader":3}"#),
            Some(NodeHealth { leader: Some(3), is_ready: true })
        );
        assert_eq!(
            said(200, r#"{"status":"warn","leader":3}"#),
            Some(NodeHealth { leader: Some(3), is_ready: false })
        );
        assert_eq!(said(503, r#"{"status":"fail"}"#), Some(NodeHealth { leader: None, is_ready: false }));
        assert_eq!(said(429, ""), None);
    }
}
