//! Peers that send too much, or that never end a response: they harm nothing but their own credentials.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Frame};

use super::fake_peer::{Body, FakeNode};
use super::tokens::{TOOL, agent, exchange, granted, set_policies};
use super::*;

/// Peers that never end a response, half of them after one byte, the others after as many as are read.
const ENDLESS: usize = 300;

/// Spaces, which end a JSON document no more than silence does.
struct Endless {
    pieces_left: usize,
}

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(left) = self.pieces_left.checked_sub(1) else { return Poll::Pending };
        self.pieces_left = left;
        let piece = if left == 0 { &b" "[..] } else { &[b' '; 16_384][..] };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(piece)))))
    }
}

fn endless(number: usize) -> Body {
    let pieces_left = if number.is_multiple_of(2) { 1 } else { usize::MAX };
    Endless { pieces_left }.boxed()
}

#[tokio::test]
async fn exchanges_go_on_beside_peers_that_never_end() {
    let [https] = ports::free::<1>();
    let mut us = Fabric::new("us", https);
    set_policies(&mut us);
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let (mut peers, mut nodes) = (Vec::new(), Vec::new());
    for number in 0..ENDLESS {
        let mut peer = Fabric::new(&format!("p{number}"), any);
        let node = FakeNode::answering(&peer, move |_| (200, endless(number))).await;
        peer.https = node.address;
        let more = "accept = true\nmax_entries = 1000";
        us.add_peer(&PeerSection { name: &peer.name, of: &peer, more });
        peers.push(peer);
        nodes.push(node);
    }
    us.start().await;
    let (_, identity) = agent(&us).await;
    let errors = until("every peer has failed", || async {
        let shown = us.get("/v1/federation/peers").await;
        let errors = shown.as_array().expect("peers").iter();
        let errors: Option<Vec<_>> = errors.map(|peer| peer["error"].as_str().map(str::to_owned)).collect();
        let (status, answer) = exchange(&us, &identity, TOOL).await;
        assert_eq!(status, 200, "{answer}");
        errors
    })
    .await;
    assert_eq!(errors.len(), ENDLESS);
    for error in &errors {
        assert!(error.contains("too large") || error.contains("time"), "{error}");
    }
    for _ in 0..100 {
        assert_eq!(exchange(&us, &identity, TOOL).await.0, 200);
    }
}

/// Entries that the peer has, and those for which it has room here.
const HAS: u64 = 30_000;
const MAX: u64 = 20_000;

/// A page of the ledger of a fabric that has revoked everything.
fn page(request: &Value) -> Value {
    let since = request["since"].as_str().and_then(|since| since.split_once('-')?.1.parse::<u64>().ok());
    let from = since.unwrap_or(0);
    let through = HAS.min(from + 5000);
    let entry = |n: u64| {
        let id = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode([n.to_be_bytes(); 2].concat());
        json!({"n": n, "e": 5, "state": "revoked", "id": id})
    };
    let next = if through < HAS { json!(through.to_string()) } else { Value::Null };
    json!({
        "version": 1, "issuer": "https://eu.example", "incarnation": "0f".repeat(16), "from": from, "through": through,
        "next": next, "floor": 0, "epoch": 5, "floor_epoch": 0, "reset": since.is_none(),
        "time": "2026-11-23T09:00:00.000Z", "root": null, "count": HAS, "keys": null,
        "entries": (from + 1..=through).map(entry).collect::<Vec<_>>(),
    })
}

#[tokio::test]
async fn peer_with_too_many_entries_fills_its_own_share() {
    let [one, two, three] = ports::free::<3>();
    let (eu, mut ap) = (Fabric::new("eu", one), Fabric::new("ap", two));
    let mut us = Fabric::new("us", three);
    set_policies(&mut us);
    let more = format!("accept = true\nmax_entries = {MAX}");
    us.add_peer(&PeerSection { name: "eu", of: &eu, more: &more });
    us.add_peer(&PeerSection { name: "ap", of: &ap, more: "accept = true\nmax_entries = 1000" });
    ap.add_peer(&PeerSection { name: "us", of: &us, more: "serve = true" });
    let _fake = FakeNode::start(&eu, |request| (200, page(&request).to_string().into_bytes())).await;
    ap.start().await;
    us.start().await;
    let full = until("over the quota", || async {
        let peer = us.peer("eu").await;
        assert!(peer["entries"].as_u64() <= Some(MAX), "{peer}");
        (peer["error"] == "the peer has more entries than max_entries").then_some(peer)
    })
    .await;
    assert_eq!((&full["state"], full["entries"].as_u64()), (&json!("joining"), Some(MAX)), "{full}");
    // The other peer, and this fabric's own signals and tokens, have their room.
    ap.revoke("ada").await;
    us.until_peer("ap", "live", 2).await;
    us.revoke("bob").await;
    granted(&us, &agent(&us).await.1, TOOL).await;
    assert_eq!(us.peer("eu").await["entries"].as_u64(), Some(MAX));
}
