//! The replicated resources, one file each: their commands, rows and reads.

pub(crate) mod agents;
pub(crate) mod audit_blocks;
pub(crate) mod encryption_keys;
pub(crate) mod events;
pub(crate) mod feature_levels;
pub(crate) mod feed;
pub(crate) mod issuer_quotas;
pub(crate) mod join_token;
pub(crate) mod ledger;
pub(crate) mod nodes;
pub(crate) mod nonces;
pub(crate) mod operator_revocations;
pub(crate) mod outbox;
pub(crate) mod peers;
pub(crate) mod policies;
pub(crate) mod restore;
pub(crate) mod revocation_index;
pub(crate) mod revocations;
pub(crate) mod revoked_fact;
pub(crate) mod signals;
pub(crate) mod signing_keys;
pub(crate) mod streams;
pub(crate) mod subject_blocks;
pub(crate) mod tools;
