//! Commands about nodes, proposed by this node.

use bytes::Bytes;

use super::{AdmittedJoiner, Joiner, admit};
use crate::state::command::{
    AllocateNode, Command, JoinNode, Node, NodeRole, NodeWritten, Replied, Reply, WantRole,
};
use crate::state::{Error, OnBehalf, State};

impl State {
    /// Refuses a wrong token without an entry in the log.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub async fn admit_joiner(&self, joiner: Joiner) -> Result<AdmittedJoiner, Error> {
        let look = || Ok::<_, Error>(self.index().nodes.get(&joiner.node_id).map(|node| Node::clone(node)));
        admit(self.confirmed(look).await?, &joiner.token_digest).map_err(Error::from)?;
        Ok(AdmittedJoiner(joiner))
    }
}

impl OnBehalf<'_> {
    /// Allocates a node id for the holder of the token with this digest. The repeated outcome of an earlier request is
    /// that of its token, not of this one.
    ///
    /// # Errors
    /// [`Error::Refused`], `Refusal::IdempotencyKeyReused`.
    pub async fn allocate_node(
        self,
        token_digest: [u8; 32],
        role: NodeRole,
        replaces: Option<u64>,
    ) -> Result<Replied<Node>, Error> {
        let token_digest = Bytes::copy_from_slice(&token_digest);
        let command = AllocateNode { token_digest, role: role.into(), replaces, caller: self.name() };
        let Replied { outcome, is_repeated } = self.propose_once(Command::AllocateNode(command)).await?;
        node_of(outcome).map(|(_, outcome)| Replied { outcome, is_repeated })
    }

    /// Records address and disk of a node that joins; false if it had joined with them before.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub async fn join_node(self, AdmittedJoiner(joiner): AdmittedJoiner) -> Result<(bool, Node), Error> {
        let Joiner { node_id, token_digest, address, disk_id, feature_level } = joiner;
        let [token_digest, disk_id] = [&token_digest[..], &disk_id].map(Bytes::copy_from_slice);
        let command = JoinNode { node_id, token_digest, address, disk_id, feature_level };
        node_of(self.propose_once(Command::JoinNode(command)).await?.outcome)
    }

    /// Changes the role that a node shall have to voter or removed; false if it shall have it already.
    ///
    /// # Errors
    /// [`Error::Refused`], `Refusal::IdempotencyKeyReused`.
    pub async fn want_role(self, node_id: u64, role: NodeRole) -> Result<bool, Error> {
        let command = WantRole { node_id, role: role.into(), caller: self.name() };
        self.propose_once(Command::WantRole(command)).await?.outcome.changed()
    }
}

fn node_of(reply: Reply) -> Result<(bool, Node), Error> {
    match reply {
        Reply::Node(NodeWritten { changed, node: Some(node) }) => Ok((changed, node)),
        _ => Err(Error::Undecodable),
    }
}
