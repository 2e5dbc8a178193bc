//! Outgoing security events (SSF 1.0; RFC 8935, RFC 8936): matching of events to streams, signed tokens, cursors, and
//! delivery by push and by poll.

mod cursor;
mod matching;
pub(crate) mod obstacle;
pub(crate) mod poll;
pub(crate) mod push;
pub(crate) mod set_builder;
pub(crate) mod streams;
