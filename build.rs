//! Compiles the protobuf definitions of the on-disk formats and of the messages between nodes, without an
//! installed `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let on_disk = protox::compile(["proto/log.proto", "proto/command.proto"], ["proto"])?;
    tonic_prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(on_disk)?;
    let between_nodes = protox::compile(["proto/peer.proto"], ["proto"])?;
    let mut messages = tonic_prost_build::Config::new();
    // Log entries are passed on in their on-disk encoding.
    messages.bytes(["."]).extern_path(".trust_fabric.log.v1", "crate::cluster::codec::proto");
    tonic_prost_build::configure().compile_fds_with_config(between_nodes, messages)?;
    Ok(())
}
