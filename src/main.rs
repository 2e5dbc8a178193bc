//! The `trust-fabric` program. Everything is in the library.

use std::process::ExitCode;

/// For RocksDB's part of the process too, which is the larger one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    trust_fabric::cli::main(std::env::args_os())
}
