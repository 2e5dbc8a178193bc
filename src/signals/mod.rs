//! Revocations: what an operator takes back.

pub mod revoke;
