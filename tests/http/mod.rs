//! The tests, one file per subject.

mod agent_commands;
mod agents;
mod around;
mod audit;
mod bad_credentials;
mod bad_requests;
mod bound_tokens;
mod callers;
mod certificates;
mod delegation;
mod edges;
mod encryption_keys;
mod form;
mod freshness;
mod front_door;
mod granted;
mod issuer_sources;
mod keys;
mod peers;
mod policy;
mod process;
mod revocations;
mod single_use;
mod tool_servers;
mod tools;
mod verify;
