//! Security events on their way out (SSF 1.0; RFC 8935, RFC 8936): which events a stream is for, the tokens they
//! become, how far a stream has come, and how they are pushed.

pub mod streams;

pub mod cursor;
pub mod matching;
pub mod obstacle;
pub mod poll;
pub mod push;
pub mod set_builder;
