//! Failover, repetition and stops.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpListener;
use trust_fabric_provider::proto::tfplugin6::StopRequest;

use super::fabric::Fabric;
use super::plugin::Plugin;
use super::proxy::{Fate, Proxy, header};
use super::workspace::{Workspace, configure, text, tool, with};

const TYPE: &str = "svc_mcp_tool";
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\n\
                    content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// An endpoint at which nothing listens.
async fn closed() -> String {
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    format!("http://{}", unused.local_addr().expect("address"))
}

#[tokio::test]
async fn lost_response_and_refusals_lead_to_one_tool() {
    let fabric = Fabric::start_in_development().await;
    let proxy = Proxy::start(fabric.http, |number| match number {
        0 => Fate::Answer(BUSY),
        1 | 2 | 4 => Fate::Lose,
        _ => Fate::Pass,
    });
    let proxy = proxy.await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &json!({ "endpoints": [closed().await, proxy.endpoint()] }))
        .await
        .expect("configured");
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let begun = Instant::now();
    workspace.apply(Some(&tool("t"))).await.expect("created");
    assert!(begun.elapsed() >= Duration::from_secs(1), "Retry-After is waited for");
    // The outcome is that of the first attempt that the node saw: no tool existed before.
    assert!(workspace.messages.is_empty(), "{:?}", workspace.messages);
    let writes = proxy.writes();
    let keys: Vec<_> = writes.iter().map(|write| header(write, "idempotency-key").expect("a key")).collect();
    assert!(keys.len() == 4 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let key = keys[0].to_owned();
    workspace.apply(Some(&with(&tool("t"), &json!({ "name": "n" })))).await.expect("changed");
    let writes = proxy.writes();
    let [.., lost, repeated] = &*writes else { panic!("{writes:?}") };
    assert_eq!(header(lost, "idempotency-key"), header(repeated, "idempotency-key"));
    assert_ne!(header(lost, "idempotency-key"), Some(&*key), "one key per change");
    assert_eq!(workspace.value("revision"), 2);
}

#[tokio::test]
async fn cluster_that_is_down_is_one_error_within_the_timeout() {
    let mut plugin = Plugin::start().await;
    let endpoints = json!({ "endpoints": [closed().await, closed().await] });
    configure(&mut plugin, &endpoints).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let config = with(&tool("t"), &json!({ "timeouts": { "create": "2s" } }));
    let begun = Instant::now();
    let refused = workspace.apply(Some(&config)).await.expect_err("refused");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(refused.len(), 1);
    assert!(text(&refused).contains("cannot be reached") && text(&refused).contains("(2 s)"), "{refused:?}");
    assert!(workspace.state.is_none());
}

#[tokio::test]
async fn silent_node_is_left_after_the_request_timeout() {
    let fabric = Fabric::start_in_development().await;
    let silent = Proxy::start(fabric.http, |_| Fate::Hang).await;
    let mut plugin = Plugin::start().await;
    let node = format!("http://{}", fabric.http);
    let config = json!({ "endpoints": [silent.endpoint(), node], "request_timeout": "1s" });
    configure(&mut plugin, &config).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&tool("t"))).await.expect("created by the second node");
    assert_eq!(silent.writes().len(), 1);

    let config = json!({ "endpoint": silent.endpoint(), "request_timeout": "1s" });
    configure(workspace.plugin, &config).await.expect("configured");
    let changed = with(&tool("t"), &json!({ "name": "n", "timeouts": { "update": "2s" } }));
    let refused = workspace.apply(Some(&changed)).await.expect_err("refused");
    assert!(text(&refused).contains("timeout of the operation"), "{refused:?}");
    assert_eq!(workspace.value("name"), "Tool");
}

#[tokio::test]
async fn stop_ends_a_wait_at_once() {
    let fabric = Fabric::start_in_development().await;
    let proxy = Proxy::start(fabric.http, |_| Fate::Hang).await;
    for endpoint in [proxy.endpoint(), closed().await] {
        let mut plugin = Plugin::start().await;
        configure(&mut plugin, &json!({ "endpoint": endpoint })).await.expect("configured");
        let mut provider = plugin.provider.clone();
        let config = tool("t");
        let mut workspace = Workspace::new(&mut plugin, TYPE);
        let applying = workspace.apply(Some(&config));
        let stopping = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            provider.stop_provider(StopRequest {}).await.expect("stopped");
            Instant::now()
        };
        let (refused, stopped) = tokio::join!(applying, stopping);
        assert!(stopped.elapsed() < Duration::from_secs(2), "{:?}", stopped.elapsed());
        assert!(text(&refused.expect_err("refused")).contains("Terraform stopped the operation"));
        assert_eq!(plugin.shut_down().await, Some(0));
    }
}
