//! Copies of ledgers: they follow their original, and nothing else.

use std::process::Command;

use super::*;

/// The copy that `reader` has of the ledger of `origin` is equal to it.
pub(super) async fn assert_is_copy(reader: &Fabric, origin: &Fabric) {
    let copy = reader.get(&format!("/v1/federation/revocation-hash?origin={}", origin.issuer())).await;
    let query = format!("?floor={}", copy["floor"]);
    let original = origin.hash(&query).await;
    assert_eq!((copy["hash"].clone(), copy["count"].as_u64().expect("a count")), original);
}

#[tokio::test]
async fn copy_follows_and_survives_that_its_origin_is_down() {
    let (mut eu, us) = eu_read_by_us().await;
    us.until_peer("eu", "live", 0).await;
    eu.revoke("ada").await;
    us.until_peer("eu", "live", 2).await;
    assert_is_copy(&us, &eu).await;
    eu.stop().await;
    let stale = us.until_peer("eu", "stale", 2).await;
    assert!(stale["error"].is_string(), "{stale}");
    let health = us.get("/v1/sys/health").await;
    assert_eq!((&health["status"], &health["missing"]), (&json!("warn"), &json!(["peer fabrics"])));
    eu.start().await;
    eu.revoke("bob").await;
    let live = us.until_peer("eu", "live", 4).await;
    assert_eq!(live.get("error"), None, "{live}");
    assert_is_copy(&us, &eu).await;
    assert_eq!(us.get("/v1/sys/health").await["status"], "pass");
}

/// The index up to which `us` acknowledges to enforce the ledger of `eu`.
async fn enforced(eu: &Fabric) -> Option<u64> {
    let serving = eu.peer("us").await["serving"].clone();
    serving["enforced"].as_str()?.split_once('-')?.1.parse().ok()
}

/// The acknowledgement is a call of its own while another one is held, also of a leader that imported nothing itself.
#[tokio::test]
async fn reader_that_honours_the_lease_acknowledges_each_entry() {
    let (eu, mut us) = eu_read_by_us().await;
    us.stop().await;
    us.peers = us.peers.replace("accept = true", "accept = true\nhonour_lease = true");
    us.start().await;
    for name in ["ada", "bob"] {
        let index = eu.revoke(name).await;
        until("acknowledged", || async { (enforced(&eu).await? >= index).then_some(()) }).await;
    }
    let before = enforced(&eu).await;
    us.stop().await;
    us.start().await;
    let index = eu.revoke("eve").await;
    until("acknowledged", || async { (enforced(&eu).await? >= index).then_some(()) }).await;
    assert!(enforced(&eu).await > before);
    us.until_peer("eu", "live", 6).await;
    assert_is_copy(&us, &eu).await;
}

/// Regression: such a reader repeated its acknowledgement of the earlier incarnation, and was refused for good.
#[tokio::test]
async fn reader_that_honours_the_lease_reads_a_new_incarnation() {
    let (mut eu, mut us) = eu_read_by_us().await;
    us.stop().await;
    us.peers = us.peers.replace("accept = true", "accept = true\nhonour_lease = true");
    us.start().await;
    let index = eu.revoke("ada").await;
    until("acknowledged", || async { (enforced(&eu).await? >= index).then_some(()) }).await;
    eu.stop().await;
    fs::rename(eu.data(), eu.directory.path().join("first")).expect("renamed");
    eu.start().await;
    eu.revoke("bob").await;
    eu.revoke("eve").await;
    us.until_peer("eu", "live", 4).await;
    assert_is_copy(&us, &eu).await;
}

#[tokio::test]
async fn reader_that_honours_no_lease_acknowledges_nothing() {
    let (eu, us) = eu_read_by_us().await;
    eu.revoke("ada").await;
    us.until_peer("eu", "live", 2).await;
    assert_eq!(enforced(&eu).await, None);
}

/// A block that is lifted, and a subject that is revoked again, have one entry each, at the latest position.
#[tokio::test]
async fn copy_follows_lifts_and_repeated_revocations() {
    let (eu, us) = eu_read_by_us().await;
    eu.revoke("ada").await;
    us.until_peer("eu", "live", 2).await;
    let blocks = eu.get("/v1/blocks").await;
    let path = format!("/v1/blocks/{}", blocks[0]["id"].as_str().expect("an id"));
    let (status, _) = eu.call(Method::DELETE, &path, None).await;
    assert_eq!(status / 100, 2);
    us.until_peer("eu", "live", 1).await;
    assert_is_copy(&us, &eu).await;
    eu.revoke("ada").await;
    us.until_peer("eu", "live", 2).await;
    assert_is_copy(&us, &eu).await;
}

/// A copy is not restarted by a restart of its fabric, nor by another name of the peer.
#[tokio::test]
async fn copy_stays_with_its_issuer_through_restart_and_renaming() {
    let (eu, mut us) = eu_read_by_us().await;
    eu.revoke("ada").await;
    let before = us.until_peer("eu", "live", 2).await;
    us.stop().await;
    us.peers = us.peers.replace("name = \"eu\"", "name = \"europe\"");
    us.start().await;
    let after = us.until_peer("europe", "live", 2).await;
    let index = |peer: &Value| {
        let position = peer["position"].as_str().expect("a position");
        let (incarnation, index) = position.split_once('-').expect("two parts");
        (incarnation.to_owned(), index.parse::<u64>().expect("an index"))
    };
    assert_eq!(index(&after).0, index(&before).0);
    assert!(index(&after).1 >= index(&before).1, "the position never decreases");
    // Another issuer is another peer, which joins anew; here no endpoint is that issuer's.
    us.stop().await;
    us.peers = us.peers.replace("https://eu.example\"\n", "https://asia.example\"\n");
    us.start().await;
    let other = us.until_peer("europe", "joining", 0).await;
    assert_eq!((other["issuer"].as_str(), other.get("position")), (Some("https://asia.example"), None));
    until("refused", || async {
        let peer = us.peer("europe").await;
        peer["error"].as_str().is_some_and(|error| error.starts_with("issuer: ")).then_some(())
    })
    .await;
}

/// No fabric passes on what it has read from another.
#[tokio::test]
async fn ring_of_three_copies_each_entry_once() {
    let [one, two, three] = ports::free::<3>();
    let mut ring = [Fabric::new("eu", one), Fabric::new("us", two), Fabric::new("ap", three)];
    for reader in 0..3 {
        let origin = (reader + 2) % 3;
        let [reading, read] = ring.get_disjoint_mut([reader, origin]).expect("two fabrics");
        reading.add_peer(&PeerSection { name: &read.name.clone(), of: read, more: "accept = true" });
        read.add_peer(&PeerSection { name: &reading.name.clone(), of: reading, more: "serve = true" });
    }
    for fabric in &mut ring {
        fabric.start().await;
    }
    let [eu, us, ap] = &ring;
    for (reader, origin) in [(us, eu), (ap, us), (eu, ap)] {
        reader.until_peer(&origin.name, "live", 0).await;
    }
    eu.revoke("ada").await;
    us.until_peer("eu", "live", 2).await;
    // The own revocations of us after the import are read by ap, and the import is not.
    us.revoke("bob").await;
    ap.until_peer("us", "live", 2).await;
    ap.revoke("eve").await;
    eu.until_peer("ap", "live", 2).await;
    for fabric in &ring {
        assert_eq!(fabric.hash("").await.1, 2, "the own ledger of {}", fabric.name);
    }
    for (reader, origin) in [(us, eu), (ap, us), (eu, ap)] {
        assert_is_copy(reader, origin).await;
    }
}

#[tokio::test]
async fn paused_peer_is_refused_until_it_is_resumed() {
    let (eu, us) = eu_read_by_us().await;
    us.until_peer("eu", "live", 0).await;
    let (status, paused) = eu.set_peer("us", "pause").await;
    assert_eq!((status, &paused["state"]), (200, &json!("paused")), "{paused}");
    let refused = us.until_peer("eu", "stale", 0).await;
    assert_eq!(refused["error"], "answered with status 403");
    eu.revoke("ada").await;
    let (status, _) = eu.set_peer("us", "resume").await;
    assert_eq!(status, 200);
    us.until_peer("eu", "live", 2).await;
    // A pause at the reader refuses credentials only: the ledger is read on.
    assert_eq!(us.set_peer("eu", "pause").await.0, 200);
    eu.revoke("bob").await;
    us.until_peer("eu", "paused", 4).await;
    assert_eq!(us.set_peer("eu", "resume").await.0, 200);
    us.until_peer("eu", "live", 4).await;
    assert_eq!(us.set_peer("eu", "forget").await.0, 200);
    us.until_peer("eu", "live", 4).await;
    for (name, verb, status) in [("nobody", "pause", 404), ("eu", "delete", 404), ("eu", "approve", 409)] {
        assert_eq!(us.set_peer(name, verb).await.0, status, "{verb} {name}");
    }
}

/// Output of a command of the program against a fabric, as its operator.
pub(super) fn command(fabric: &Fabric, arguments: &[&str]) -> (bool, String) {
    let operator = &fabric.made.callers[0].1;
    let mut command = Command::new(PROGRAM);
    command.arg("federation").args(arguments).arg("--server").arg(fabric.url(""));
    command.arg("--ca").arg(&fabric.made.ca.certificate);
    command.arg("--cert").arg(&operator.certificate).arg("--key").arg(&operator.private_key);
    let output = command.output().expect("run the program");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[tokio::test]
async fn commands_show_and_change_peers() {
    let (_eu, us) = eu_read_by_us().await;
    us.until_peer("eu", "live", 0).await;
    let (is_done, table) = command(&us, &["status"]);
    assert!(is_done && table.contains("https://eu.example") && table.contains("live"), "{table}");
    let (is_done, shown) = command(&us, &["status", "--output", "json"]);
    let peers: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((is_done, &peers[0]["name"]), (true, &json!("eu")), "{shown}");
    assert_eq!(command(&us, &["pause", "eu"]), (true, "eu: pause is done, the peer is paused\n".to_owned()));
    assert!(command(&us, &["resume", "eu"]).0);
    let (is_done, refused) = command(&us, &["approve", "eu"]);
    assert!(!is_done && refused.contains("no fault"), "{refused}");
    let (is_done, refused) = command(&us, &["forget", "nobody"]);
    assert!(!is_done && refused.contains("no peer with this name"), "{refused}");
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for item in fs::read_dir(from).expect("directory") {
        let item = item.expect("an item");
        let target = to.join(item.file_name());
        let kind = item.file_type().expect("a type");
        if kind.is_dir() {
            copy_directory(&item.path(), &target);
        } else if kind.is_file() {
            fs::copy(item.path(), &target).expect("copied");
        }
    }
    fs::set_permissions(to, fs::metadata(from).expect("metadata").permissions()).expect("permissions");
}

/// A fabric that was set back to an earlier state of its disk issues tokens by indexes that were used before.
#[tokio::test]
async fn peer_whose_log_lost_its_end_is_held() {
    let (mut eu, us) = eu_read_by_us().await;
    eu.revoke("ada").await;
    us.until_peer("eu", "live", 2).await;
    eu.stop().await;
    let earlier = eu.directory.path().join("earlier");
    copy_directory(&eu.data(), &earlier);
    eu.start().await;
    for name in ["bob", "eve", "mallory"] {
        eu.revoke(name).await;
    }
    us.until_peer("eu", "live", 8).await;
    eu.stop().await;
    fs::remove_dir_all(eu.data()).expect("removed");
    fs::rename(&earlier, eu.data()).expect("set back");
    eu.start().await;
    let held = us.until_peer("eu", "held", 8).await;
    assert_eq!(held["fault"], "rolled_back");
    let (status, refused) = us.set_peer("eu", "approve").await;
    assert_eq!(status, 409, "a log in place is not accepted: {refused}");
}

/// Two clusters under one issuer, as after a second foundation: the present one replaces the former, which never comes
/// back.
#[tokio::test]
async fn incarnation_that_was_replaced_does_not_come_back() {
    let (mut eu, us) = eu_read_by_us().await;
    eu.revoke("ada").await;
    let before = us.until_peer("eu", "live", 2).await;
    eu.stop().await;
    let first = eu.directory.path().join("first");
    fs::rename(eu.data(), &first).expect("renamed");
    eu.start().await;
    eu.revoke("bob").await;
    eu.revoke("eve").await;
    let after = us.until_peer("eu", "live", 4).await;
    assert_ne!(before["position"], after["position"]);
    assert_is_copy(&us, &eu).await;
    eu.stop().await;
    fs::rename(eu.data(), eu.directory.path().join("second")).expect("renamed");
    fs::rename(&first, eu.data()).expect("renamed");
    eu.start().await;
    let held = us.until_peer("eu", "held", 4).await;
    assert_eq!(held["fault"], "incarnation_reused");
}

/// Nodes that treat a peer differently show it: each states the digest of its settings, without paths of files.
#[tokio::test]
async fn settings_of_a_peer_have_a_digest() {
    let (_eu, mut us) = eu_read_by_us().await;
    let digests = async |us: &Fabric| {
        let cluster = us.get("/v1/sys/cluster").await;
        let of_node = cluster["members"][0]["report"]["federation_digest"].clone();
        let of_peer = us.peer("eu").await["config_digest"].clone();
        assert!(of_node.is_string() && of_peer.is_string(), "{cluster}");
        [of_node, of_peer]
    };
    let before = digests(&us).await;
    let moved = us.directory.path().join("moved.json");
    let bundle = us.peers.split('"').find(|text| text.ends_with("bundle.json")).expect("a bundle").to_owned();
    fs::copy(&bundle, &moved).expect("copied");
    us.stop().await;
    us.peers = us.peers.replace(&bundle, &moved.display().to_string());
    us.start().await;
    assert_eq!(digests(&us).await, before);
    us.stop().await;
    us.peers = us.peers.replace("accept = true", "accept = true\nmax_delegation_depth = 1");
    us.start().await;
    let after = digests(&us).await;
    assert!(after[0] != before[0] && after[1] != before[1], "{after:?}");
}

/// A call is held for half a second, which is not a part of the round trip.
#[tokio::test]
async fn round_trip_is_the_time_of_a_call_without_its_hold() {
    let (_eu, us) = eu_read_by_us().await;
    us.until_peer("eu", "live", 0).await;
    until("a round trip on loopback", || async {
        let peer = us.peer("eu").await;
        (peer["heard_ms_ago"].as_u64()? > 300 && peer["round_trip_ms"].as_u64()? < 300).then_some(())
    })
    .await;
}
