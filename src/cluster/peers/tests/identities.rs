//! Members with configured identities.

use super::*;

/// The certificate with the default name of such a member is no node's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_with_a_configured_identity_is_known_by_it_only() {
    let mut site = Site::new(3);
    let pod = format!("spiffe://{TRUST_DOMAIN}/pod/trust-fabric-1");
    site.identities.insert(2, pod.parse().expect("an id")).expect("valid");
    let nodes = site.cluster().await;
    let index = nodes[1].write("through node 2").await;
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(index)).await.expect("applied");
    }
    let (cluster_id, disk) = (nodes[0].handle.cluster_id(), nodes[1].disk_id());
    for path in ["node/2", "pod/trust-fabric-2"] {
        let caller = site.caller(path, (2, disk), cluster_id);
        let client = site.client_of(&caller, 1, Some(nodes[0].disk_id()));
        let answer = client.peer().hello(client.request(proto::HelloRequest::default())).await;
        let status = answer.expect_err("the connection is refused");
        assert!(status.code() != Code::PermissionDenied, "{path}: {status}");
    }
    let caller = site.caller("pod/trust-fabric-1", (3, nodes[2].disk_id()), cluster_id);
    let client = site.client_of(&caller, 1, Some(nodes[0].disk_id()));
    let answer = client.peer().hello(client.request(proto::HelloRequest::default())).await;
    let status = answer.expect_err("refused");
    assert!(status.message().contains("the certificate names"), "{status}");
    stop_all(nodes).await;
}
