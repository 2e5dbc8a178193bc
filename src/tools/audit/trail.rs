//! Reads audit. To be written.
