//! Calls from a cluster whose feature level this node does not support.

use futures::FutureExt as _;
use tonic::Request;

use super::*;
use crate::cluster::disk_rollback::DiskRecord;

/// A node of an older version stops before it meets a command that it does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_of_a_newer_feature_level_stops_the_node() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let gone = nodes.remove(2);
    let (from, from_disk) = (gone.handle.node_id(), gone.disk_id());
    gone.stop().await;
    let called = &nodes[0];
    let cluster_id = called.handle.cluster_id();
    let caller = site.caller(&format!("node/{from}"), (from, from_disk), cluster_id);
    let client = site.client_of(&caller, called.handle.node_id(), Some(called.disk_id()));
    let report = async |feature_level: u32| {
        let mut request = Request::new(proto::ReportRequest {});
        let call = CallMetadata {
            cluster_id,
            from,
            from_disk,
            to: called.handle.node_id(),
            to_disk: Some(called.disk_id()),
            life: caller.channels.local.life,
            known: None,
            feature_level,
        };
        call.write(request.metadata_mut());
        client.peer().report(request).await
    };
    assert_eq!(report(0).await.expect("answered").into_inner().feature_level, 0);
    // Regression: a node that is no member stopped it.
    let stranger = site.caller("node/9", (9, rand()), cluster_id);
    let client_of_stranger = site.client_of(&stranger, called.handle.node_id(), Some(called.disk_id()));
    let mut request = Request::new(proto::VoteRequest::default());
    let call = CallMetadata {
        cluster_id,
        from: 9,
        from_disk: stranger.channels.local.disk_id,
        to: called.handle.node_id(),
        to_disk: Some(called.disk_id()),
        life: stranger.channels.local.life,
        known: Some(DiskRecord {
            life: stranger.channels.local.life,
            vote: None,
            held: None,
            contradiction: None,
        }),
        feature_level: u32::MAX,
    };
    call.write(request.metadata_mut());
    let refused = client_of_stranger.peer().pre_vote(request).await.expect_err("refused");
    assert!(refused.message().contains("supports at most 0"), "{refused}");
    assert!(called.handle.until_failed().now_or_never().is_none(), "it goes on");
    let status = report(1).await.expect_err("refused");
    let text = format!(
        "the cluster has feature level 1, and node {} supports at most 0: install a newer version on node",
        called.handle.node_id()
    );
    assert!(status.code() == Code::FailedPrecondition && status.message().contains(&text), "{status}");
    let failure = timeout(LONG, called.handle.until_failed()).await.expect("it stops");
    assert!(failure.contains(&text), "{failure}");
    stop_all(nodes).await;
}
