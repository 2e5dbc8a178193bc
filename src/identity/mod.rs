//! Agents: their identity, its renewal and its end, and the keys to which others encrypt for them.

pub mod encryption_keys;
