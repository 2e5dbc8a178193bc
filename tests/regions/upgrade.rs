//! A fabric of feature level 0, which copies no ledger, beside one of the newest: each serves the other, and the level is
//! raised while both revoke.

use std::os::unix::fs::DirBuilderExt as _;

use super::copies::assert_is_copy;
use super::*;

/// Puts the recorded data directory of level 0 in the place of a new one.
fn of_level_0(fabric: &Fabric) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/level-0/data.tar.zst");
    fs::DirBuilder::new().mode(0o700).create(fabric.data()).expect("directory");
    let file = zstd::Decoder::new(fs::File::open(archive).expect("archive")).expect("zstd");
    tar::Archive::new(file).unpack(fabric.data()).expect("unpacked");
}

async fn level(fabric: &Fabric) -> u64 {
    fabric.get("/v1/sys/cluster").await["feature_level"].as_u64().expect("a level")
}

#[tokio::test]
async fn raise_of_the_level_under_load_begins_the_copy() {
    let [one, other] = ports::free::<2>();
    let (mut eu, mut us) = (Fabric::new("eu", one), Fabric::new("us", other));
    of_level_0(&us);
    let more = "accept = true\nserve = true";
    eu.add_peer(&PeerSection { name: "us", of: &us, more });
    us.add_peer(&PeerSection { name: "eu", of: &eu, more });
    eu.start().await;
    us.start().await;
    assert_eq!((level(&us).await, level(&eu).await), (0, 1));
    eu.revoke("ada").await;
    // The recorded directory has a revocation of its own.
    let recorded = us.hash("").await.1;
    us.revoke("bob").await;
    eu.until_peer("us", "live", recorded + 2).await;
    assert_is_copy(&eu, &us).await;
    let joining = us.until_peer("eu", "joining", 0).await;
    assert!(joining.get("position").is_none(), "{joining}");

    let finalize = async {
        let refused = until("refused", || async { us.peer("eu").await["error"].as_str().map(str::to_owned) });
        let refused = refused.await;
        let finalized = us.call(Method::POST, "/v1/sys/cluster/finalize", None).await;
        assert_eq!(finalized, (200, json!({"feature_level": 1})), "{refused}");
        until("live", || async { (us.peer("eu").await["state"] == "live").then_some(refused.clone()) }).await
    };
    let mut revoked = 1;
    let load = async {
        loop {
            eu.revoke(&format!("of-eu-{revoked}")).await;
            us.revoke(&format!("of-us-{revoked}")).await;
            revoked += 1;
        }
    };
    let refused = tokio::select! {
        refused = finalize => refused,
        () = load => unreachable!("it goes on"),
    };
    assert!(refused.contains("feature level"), "{refused}");
    let (of_eu, of_us) = (eu.hash("").await.1, us.hash("").await.1);
    us.until_peer("eu", "live", of_eu).await;
    eu.until_peer("us", "live", of_us).await;
    assert!(of_eu > 2 && of_us > recorded + 2, "{of_eu} {of_us}");
    assert_is_copy(&us, &eu).await;
    assert_is_copy(&eu, &us).await;
}
