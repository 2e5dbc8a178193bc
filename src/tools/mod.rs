//! Tools (contract §5): `registry` of tool entries, `checks` of a tool call, `verify` from request to verdict, and
//! `audit` of both.
//!
//! `checks` reads neither state nor clock.

pub(crate) mod audit;
pub mod checks;
pub(crate) mod entry;
pub(crate) mod registry;
pub(crate) mod verify;
