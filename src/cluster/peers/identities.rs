//! The SPIFFE IDs by which nodes are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::{TrustDomain, WorkloadId};

/// SPIFFE IDs of the nodes of a cluster: `spiffe://<trust domain>/node/<id>`, unless another one is configured for an id.
#[derive(Clone, Debug)]
pub struct NodeIdentities {
    trust_domain: TrustDomain,
    configured: Arc<BTreeMap<u64, WorkloadId>>,
}

/// Reason why a SPIFFE ID cannot be that of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentity {
    /// It belongs to another trust domain.
    #[error("must be a SPIFFE ID of the trust domain of the fabric")]
    TrustDomain,
    /// It is the default of another node.
    #[error("is the SPIFFE ID of another node")]
    OtherNode,
    /// It is configured for another node.
    #[error("duplicate")]
    Duplicate,
}

impl NodeIdentities {
    /// Without a configured identity.
    pub(crate) fn new(trust_domain: TrustDomain) -> Self {
        Self { trust_domain, configured: Arc::default() }
    }

    /// Adds the identity of a node.
    ///
    /// # Errors
    /// [`InvalidIdentity`].
    pub(crate) fn insert(&mut self, node_id: u64, identity: WorkloadId) -> Result<(), InvalidIdentity> {
        if *identity.trust_domain() != self.trust_domain || !identity.as_str().starts_with("spiffe://") {
            return Err(InvalidIdentity::TrustDomain);
        }
        if self.default_node_of(&identity).is_some_and(|default| default != node_id) {
            return Err(InvalidIdentity::OtherNode);
        }
        if self.configured.iter().any(|(other, known)| *other != node_id && *known == identity) {
            return Err(InvalidIdentity::Duplicate);
        }
        Arc::make_mut(&mut self.configured).insert(node_id, identity);
        Ok(())
    }

    /// SPIFFE ID that the certificate of a node must have.
    pub(crate) fn of(&self, node_id: u64) -> String {
        let configured = self.configured.get(&node_id).map(|identity| identity.as_str().to_owned());
        configured.unwrap_or_else(|| self.default_of(node_id))
    }

    /// The node that a SPIFFE ID names.
    pub(crate) fn node_of(&self, certified: &WorkloadId) -> Option<u64> {
        let configured = self.configured.iter().find(|(_, identity)| *identity == certified);
        let default = || self.default_node_of(certified).filter(|id| !self.configured.contains_key(id));
        configured.map(|(node_id, _)| *node_id).or_else(default)
    }

    fn default_of(&self, node_id: u64) -> String {
        format!("spiffe://{}/node/{node_id}", self.trust_domain)
    }

    fn default_node_of(&self, certified: &WorkloadId) -> Option<u64> {
        let node_id = certified.as_str().rsplit('/').next()?.parse().ok()?;
        (certified.as_str() == self.default_of(node_id)).then_some(node_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkloadId {
        text.parse().expect("an id")
    }

    fn identities() -> NodeIdentities {
        NodeIdentities::new("a.example".parse().expect("trust domain"))
    }

    #[test]
    fn default_identity_names_one_node() {
        let identities = identities();
        assert_eq!(identities.of(3), "spiffe://a.example/node/3");
        assert_eq!(identities.node_of(&id("spiffe://a.example/node/3")), Some(3));
        for other in [
            "spiffe://b.example/node/3",
            "spiffe://a.example/node/03",
            "spiffe://a.example/x/node/3",
            "spiffe://a.example/node/x",
            "wimse://a.example/node/3",
        ] {
            assert_eq!(identities.node_of(&id(other)), None, "{other}");
        }
    }

    /// The default identity of a node with a configured one names no node any more.
    #[test]
    fn configured_identity_replaces_the_default() {
        let mut identities = identities();
        let pod = id("spiffe://a.example/ns/fabric/pod/trust-fabric-2");
        identities.insert(3, pod.clone()).expect("valid");
        assert_eq!((identities.of(3).as_str(), identities.node_of(&pod)), (pod.as_str(), Some(3)));
        assert_eq!(identities.node_of(&id("spiffe://a.example/node/3")), None);
        assert_eq!(identities.node_of(&id("spiffe://a.example/node/2")), Some(2));
    }

    #[test]
    fn identity_of_two_nodes_is_refused() {
        let mut identities = identities();
        let pod = "spiffe://a.example/pod/2";
        identities.insert(3, id(pod)).expect("valid");
        for (node_id, text, reason) in [
            (2, pod, InvalidIdentity::Duplicate),
            (2, "spiffe://a.example/node/1", InvalidIdentity::OtherNode),
            (2, "spiffe://b.example/pod/2", InvalidIdentity::TrustDomain),
            (2, "wimse://a.example/pod/2", InvalidIdentity::TrustDomain),
        ] {
            assert_eq!(identities.insert(node_id, id(text)), Err(reason), "{text}");
        }
    }
}
