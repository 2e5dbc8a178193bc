//! Terraform provider of the Trust Fabric: plugin protocol 6 on one side, the HTTP API of the fabric on the other.
//!
//! A call comes through `plugin` (the private socket) to `provider` (the calls of Terraform), is carried out by
//! `operations`, and there by one of `resources`, which sends its requests through `cluster`; or, for an object that no
//! state has, by `ephemeral` and one of `ephemerals`. Everything before the request (`schema`, `rules`, the plan in
//! `resource`) and after it (the state) is pure.
//!
//! `README.md` states how a resource is added.

pub mod agent;
pub mod cluster;
pub mod diagnostic;
pub mod duration;
pub mod ephemeral;
pub mod ephemerals;
pub mod failure;
pub mod identity;
pub mod kubernetes;
pub mod limits;
pub mod operations;
pub mod plugin;
pub mod private;
pub mod proto;
pub mod provider;
pub mod resource;
pub mod resources;
pub mod rules;
pub mod schema;
pub mod settings;
pub mod value;
