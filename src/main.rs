//! The `trust-fabric` executable; everything else is in the library.

use std::process::ExitCode;

/// Also used by RocksDB, which allocates most.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    trust_fabric::cli::main(std::env::args_os())
}
