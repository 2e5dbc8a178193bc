//! Other versions of the plugin protocol: calls that this provider does not have, and messages with fields that it does not
//! know. Terraform of 6.4 states no capabilities, one of 6.8 does.

use prost::Message;
use prost::bytes::{Buf as _, BufMut as _};
use serde_json::json;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use trust_fabric_provider::proto::tfplugin6 as proto;
use trust_fabric_provider::resources;
use trust_fabric_provider::value::{json, msgpack};

use super::plugin::Plugin;

/// Messages as bytes.
#[derive(Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(bytes.to_vec()))
    }
}

async fn call(plugin: &Plugin, method: &str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(plugin.channel.clone());
    client.ready().await.expect("ready");
    let path = PathAndQuery::try_from(format!("/tfplugin6.Provider/{method}")).expect("a path");
    client.unary(Request::new(message), path, Bytes).await.map(tonic::Response::into_inner)
}

/// Field `number` with a message of `deferral_allowed` and `write_only_attributes_allowed`.
fn capabilities(number: u8) -> Vec<u8> {
    vec![(number << 3) | 2, 4, 0x08, 1, 0x10, 1]
}

#[tokio::test]
async fn calls_of_other_versions_are_unimplemented() {
    let plugin = Plugin::start().await;
    // Of 6.4 and before, of 6.5, and of versions after 6.8.
    for method in [
        "ValidateDataResourceConfig",
        "ReadDataSource",
        "GetMetadata",
        "MoveResourceState",
        "GetFunctions",
        "CallFunction",
        "GetResourceIdentitySchemas",
        "UpgradeResourceIdentity",
        "ListResource",
        "PlanAction",
        "NeverHeardOf",
    ] {
        let refused = call(&plugin, method, Vec::new()).await.expect_err(method);
        assert_eq!(refused.code(), Code::Unimplemented, "{method}");
    }
    call(&plugin, "GetProviderSchema", Vec::new()).await.expect("served");
}

#[tokio::test]
async fn capabilities_and_later_fields_change_no_response() {
    let plugin = Plugin::start().await;
    for resource in resources::all() {
        let table = resource.table();
        let stored = std::fs::read(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/golden/state-0")
                .join(table.name)
                .with_extension("json"),
        );
        let stored = serde_json::from_slice(&stored.expect("a golden file")).expect("JSON");
        let state = json::decode(&stored, table.attributes).expect("a state");
        let value = |object| {
            Some(proto::DynamicValue { msgpack: msgpack::encode(object, table.attributes), json: Vec::new() })
        };
        let type_name = table.name.to_owned();
        let validate = proto::ValidateResourceRequest {
            type_name: type_name.clone(),
            config: value(Some(&state)),
            client_capabilities: None,
        };
        let read = proto::ReadRequest {
            type_name: type_name.clone(),
            current_state: value(Some(&state)),
            private: vec![],
        };
        let plan = proto::PlanRequest {
            type_name,
            prior_state: value(None),
            proposed_new_state: value(Some(&state)),
            config: value(Some(&state)),
            prior_private: vec![],
        };
        for (method, message, number) in [
            ("ValidateResourceConfig", validate.encode_to_vec(), 3),
            ("ReadResource", read.encode_to_vec(), 5),
            ("PlanResourceChange", plan.encode_to_vec(), 7),
        ] {
            let plain = call(&plugin, method, message.clone()).await.expect(method);
            for more in [capabilities(number), vec![(15 << 3) | 2, 3, 1, 2, 3], vec![14 << 3, 7]] {
                let extended = call(&plugin, method, [&message[..], &more].concat()).await.expect(method);
                assert!(extended == plain, "{method} of {}", table.name);
            }
        }
    }
    // An object as JSON instead of MessagePack, as the protocol permits.
    let config = proto::DynamicValue {
        msgpack: vec![],
        json: json!({ "tool_id": "a/b", "name": "n" }).to_string().into(),
    };
    let request = proto::ValidateResourceRequest {
        type_name: "svc_mcp_tool".to_owned(),
        config: Some(config),
        client_capabilities: None,
    };
    let answer = call(&plugin, "ValidateResourceConfig", request.encode_to_vec()).await.expect("served");
    let answer = proto::DiagnosticsResponse::decode(&answer[..]).expect("a response");
    assert_eq!(answer.diagnostics.len(), 1);
}
