//! Compiles the protobuf definitions of the on-disk formats, without an installed `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/log.proto", "proto/command.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}
