//! Outgoing security events (SSF 1.0; RFC 8935, RFC 8936): matching of events to streams, signed tokens, cursors, and
//! delivery by push and by poll.

mod cursor;
mod matching;
pub mod obstacle;
pub mod poll;
pub mod push;
pub mod set_builder;
pub mod streams;
