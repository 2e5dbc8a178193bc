//! Checks exported audit. To be written.
