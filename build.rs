//! Compiles the protobuf definitions of the on-disk formats and of the messages between nodes, without an
//! installed `protoc`.

use tonic_prost_build::{Config, FileDescriptorSet};

/// Messages that are also answers of the HTTP interface: their comments are the descriptions of their schemas, and an
/// `optional` field that is not set is absent.
const ANSWERS: [&str; 3] = ["Tool", "Agent", "NodeReport"];

/// Attributes of their fields: enumerated texts, and a field that is not answered.
const FIELDS: [(&str, &str); 4] = [
    ("Tool.protocols", "#[schema(value_type = Vec<crate::text::values::Protocol>)]"),
    ("Agent.platform", "#[schema(value_type = crate::text::values::Platform)]"),
    ("Agent.ancestors", "#[serde(skip)]"),
    ("NodeReport.waiting_changes", "#[serde(skip)]"),
];

/// Attributes of other types.
const TYPES: [(&str, &str); 3] = [
    ("EventId", "#[derive(PartialOrd, Ord)]"),
    ("StreamStatus", "#[derive(strum::EnumString, strum::IntoStaticStr)]"),
    ("StreamStatus", "#[strum(serialize_all = \"snake_case\", const_into_str)]"),
];

/// Fields, by message, and messages that a build with `--features level-0` does not have.
const SINCE_LEVEL_1: ([(&str, &str); 4], [&str; 2]) = (
    [
        ("Command", "record_version"),
        ("Node", "recorded"),
        ("Command", "import_ledger"),
        ("Command", "set_peer"),
    ],
    ["RecordVersion", "MemberVersion"],
);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut on_disk = protox::compile(["proto/log.proto", "proto/command.proto"], ["proto"])?;
    if cfg!(feature = "level-0") {
        remove_level_1(&mut on_disk);
    }
    let mut config = Config::new();
    config.bytes(["."]).btree_map(["."]);
    derive_answers(&mut config, &on_disk);
    for (path, attribute) in TYPES {
        config.type_attribute(path, attribute);
    }
    config.compile_fds(on_disk)?;
    let between_nodes = protox::compile(["proto/peer.proto"], ["proto"])?;
    let mut messages = Config::new();
    derive_answers(&mut messages, &between_nodes);
    // Log entries are passed on in their on-disk encoding.
    messages.bytes(["."]).extern_path(".trust_fabric.log.v1", "crate::cluster::codec::proto");
    tonic_prost_build::configure().compile_fds_with_config(between_nodes, messages)?;
    Ok(())
}

/// Removes [`SINCE_LEVEL_1`].
fn remove_level_1(files: &mut FileDescriptorSet) {
    let (fields, messages) = SINCE_LEVEL_1;
    for file in &mut files.file {
        // Comments belong to positions, which change.
        file.source_code_info = None;
        file.message_type.retain(|message| !messages.contains(&message.name()));
        for message in &mut file.message_type {
            let name = message.name().to_owned();
            message.field.retain(|field| !fields.contains(&(name.as_str(), field.name())));
        }
    }
}

/// Derives the serialization and the schema of the [`ANSWERS`] among the messages of `files`.
fn derive_answers(config: &mut Config, files: &FileDescriptorSet) {
    let messages = files.file.iter().flat_map(|file| &file.message_type);
    for message in messages.filter(|message| ANSWERS.contains(&message.name())) {
        config.type_attribute(message.name(), "#[derive(serde::Serialize, utoipa::ToSchema)]");
        for field in message.field.iter().filter(|field| field.proto3_optional()) {
            let path = format!("{}.{}", message.name(), field.name());
            config.field_attribute(path, "#[serde(skip_serializing_if = \"Option::is_none\")]");
        }
    }
    for (path, attribute) in FIELDS {
        config.field_attribute(path, attribute);
    }
}
