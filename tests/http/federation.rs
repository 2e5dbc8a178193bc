//! The ledger of a fabric's own revocations: hash and export (contract §4, Federation).

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::join_all;
use serde_json::{Value, json};
use trust_fabric::limits;

use crate::support::{FABRIC, IDP, Node, REPORTER, Response, Setup};

const HASH: &str = "/v1/federation/revocation-hash";
const EXPORT: &str = "/v1/federation/revocation-export";
const REVOCATIONS: &str = "/v1/revocations";
const RETENTION_SECS: u64 = limits::REVOCATION_RETENTION.as_secs();

async fn revoke(node: &Node, request: &Value) -> Value {
    let answer = node.post(REVOCATIONS, request).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.json()
}

fn email(name: &str) -> Value {
    json!({"email": format!("{name}@a.example"), "issuer": IDP, "reason": "left"})
}

async fn get(node: &Node, path: &str) -> Value {
    let answer = node.get(path).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{}", answer.body);
    answer.json()
}

/// All pages of an export.
async fn export(node: &Node, query: &str) -> Vec<Value> {
    let (mut entries, mut path) = (Vec::new(), format!("{EXPORT}{query}"));
    loop {
        let answer = node.get(&path).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        entries.extend(answer.json().as_array().expect("a list").clone());
        match next_of(&answer) {
            Some(next) => path = next,
            None => return entries,
        }
    }
}

fn next_of(answer: &Response) -> Option<String> {
    let link = answer.header("link")?;
    let next = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
    Some(next.expect("a link").to_owned())
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} of {value}"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"))
}

fn bytes(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).expect("base64url")
}

/// A number modulo 2^256, in two halves.
type Number = (u128, u128);
/// Count and sum by epoch and first byte of the id.
type Buckets = BTreeMap<(u32, u8), (u64, Number)>;

fn plus(one: Number, hash: &[u8]) -> Number {
    let half = |at: usize| u128::from_be_bytes(hash[at..at + 16].try_into().expect("16 bytes"));
    let (low, carry) = one.1.overflowing_add(half(16));
    (one.0.wrapping_add(half(0)).wrapping_add(carry.into()), low)
}

/// The hash of an exported ledger, as another implementation computes it, and the sums of epochs by bucket.
fn hash_of(entries: &[Value], position: &str, floor: u32) -> (String, Buckets) {
    let (mut buckets, mut epochs, mut blocks) = (Buckets::new(), BTreeMap::new(), (0_u64, (0, 0)));
    for entry in entries {
        let id = bytes(text(entry, "id"));
        let epoch = u32::try_from(number(entry, "epoch")).expect("an epoch");
        let state = match text(entry, "state") {
            "revoked" => 1_u8,
            "blocked" => 2,
            "lifted" => continue,
            "key" => 4,
            other => panic!("{other}"),
        };
        let mut hashed = [&[0], &id[..], &[state], &number(entry, "seq").to_be_bytes()].concat();
        let places: Vec<&mut (u64, Number)> = if state == 2 {
            hashed.extend(bytes(text(entry, "by")));
            vec![&mut blocks]
        } else {
            hashed.extend(epoch.to_be_bytes());
            let bucket = buckets.entry((epoch, id[0])).or_default();
            vec![bucket, epochs.entry(epoch).or_default()]
        };
        for (count, sum) in places {
            *count += 1;
            *sum = plus(*sum, digest(&SHA256, &hashed).as_ref());
        }
    }
    let incarnation = u128::from_str_radix(&position[..32], 16).expect("an incarnation");
    let mut hashed = [&[1][..], &incarnation.to_be_bytes(), &floor.to_be_bytes()].concat();
    let of_blocks = std::iter::once((None, blocks));
    for (epoch, (count, (high, low))) in
        epochs.into_iter().map(|(epoch, sum)| (Some(epoch), sum)).chain(of_blocks)
    {
        if epoch.is_none_or(|epoch| epoch >= floor) {
            hashed.extend(epoch.map(u32::to_be_bytes).into_iter().flatten());
            hashed.extend(count.to_be_bytes());
            hashed.extend([high.to_be_bytes(), low.to_be_bytes()].concat());
        }
    }
    (URL_SAFE_NO_PAD.encode(digest(&SHA256, &hashed)), buckets)
}

/// Checks the hash against the export, with the buckets of the present epoch.
async fn assert_is_hash_of(node: &Node, entries: &[Value]) -> Value {
    let hash = get(node, HASH).await;
    let (floor, epoch) = (number(&hash, "floor"), u32::try_from(number(&hash, "epoch")).expect("an epoch"));
    let (expected, buckets) =
        hash_of(entries, text(&hash, "position"), u32::try_from(floor).expect("an epoch"));
    assert_eq!(
        (text(&hash, "hash"), text(&hash, "algorithm")),
        (expected.as_str(), "svc-ledger-sum-sha256-v1")
    );
    assert_eq!(
        number(&hash, "count"),
        entries.iter().filter(|entry| entry["state"] != "lifted").count() as u64
    );
    let with_buckets = get(node, &format!("{HASH}?epoch={epoch}")).await;
    assert_eq!(with_buckets["hash"], hash["hash"]);
    let found = with_buckets["buckets"].as_array().expect("buckets");
    assert_eq!(found.len(), 256);
    for (bucket, found) in (0..=u8::MAX).zip(found) {
        let (count, (high, low)) = buckets.get(&(epoch, bucket)).copied().unwrap_or_default();
        let sum = URL_SAFE_NO_PAD.encode([high.to_be_bytes(), low.to_be_bytes()].concat());
        assert_eq!(*found, json!({"count": count, "sum": sum}), "{bucket}");
        let listed = export(node, &format!("?epoch={epoch}&bucket={bucket}")).await;
        assert_eq!(listed.len() as u64, count, "{bucket}");
    }
    hash
}

/// A node with a high rate limit, without `[federation]`, in development mode.
async fn unlimited_node() -> Node {
    let more_config = "[limits]\nrequests_per_second_per_caller = 1000000\n".to_owned();
    Node::start_with(Setup { more_config, ..Setup::default() }).await
}

#[tokio::test]
async fn export_has_the_latest_entry_of_each_fact_in_order() {
    let node = unlimited_node().await;
    assert_eq!(export(&node, "").await, Vec::<Value>::new());
    let empty = assert_is_hash_of(&node, &[]).await;
    let first = revoke(&node, &email("ada")).await;
    let blocked = revoke(&node, &json!({"subject": REPORTER, "block": true})).await;
    let token = revoke(&node, &json!({"jti": "one", "issuer": IDP})).await;
    let keys = node.get("/v1/sys/keys").await.json();
    let kid = text(&keys[0], "kid").to_owned();
    assert_eq!(node.post(&format!("/v1/sys/keys/{kid}/taint"), &json!({})).await.status, 200);
    let again = revoke(&node, &email("ada")).await;
    let entries = export(&node, "").await;
    let states: Vec<_> = entries.iter().map(|entry| (text(entry, "state"), number(entry, "seq"))).collect();
    let (block_at, token_at, last_at) =
        (number(&blocked, "index"), number(&token, "index"), number(&again, "index"));
    assert_eq!(
        states.iter().filter(|(_, at)| *at == block_at).count(),
        2,
        "revoked and blocked in one entry"
    );
    assert_eq!(states.iter().map(|(_, at)| *at).collect::<BTreeSet<_>>().len(), 4);
    assert!(states.is_sorted_by_key(|(_, at)| *at), "{states:?}");
    let at = |index: u64| entries.iter().find(|entry| number(entry, "seq") == index).expect("an entry");
    assert!(
        number(&first, "index") < block_at && states.iter().all(|(_, at)| *at != number(&first, "index"))
    );
    assert_eq!(
        *at(last_at),
        json!({
            "subject_id": "ada@a.example", "reason": "left", "revoked_at": "2027-01-15T08:00:00.000Z",
            "id": again["id"], "kind": "email", "state": "revoked", "issuer": IDP,
            "not_before": "2027-01-15T08:00:00.000Z", "expires_at": "2027-01-16T08:05:00.000Z",
            "origin": FABRIC, "seq": last_at, "epoch": 3_000_000,
        })
    );
    assert_eq!((text(at(token_at), "state"), text(at(token_at), "kind")), ("key", "token"));
    assert!(at(token_at).get("not_before").is_none(), "it covers every position");
    let tainted = entries.iter().find(|entry| text(entry, "subject_id").starts_with("urn:svc:digest:"));
    let tainted = tainted.expect("the key, by its digest");
    assert_eq!(text(tainted, "subject_id"), format!("urn:svc:digest:{}", text(tainted, "id")));
    assert_eq!((text(tainted, "state"), text(tainted, "reason"), tainted.get("kind")), ("key", "", None));
    let block = entries.iter().find(|entry| entry["state"] == "blocked").expect("a block");
    assert_eq!((text(block, "subject_id"), text(block, "id")), (REPORTER, text(&blocked, "id")));
    assert!(block.get("expires_at").is_none() && !text(block, "by").is_empty());
    let hash = assert_is_hash_of(&node, &entries).await;
    assert_ne!(hash["hash"], empty["hash"]);

    let listed = node.get("/v1/blocks").await.json();
    let lifted = node.call("DELETE", &format!("/v1/blocks/{}", text(&listed[0], "id")), &[], "").await;
    assert_eq!(lifted.status, 204);
    let since = text(&hash, "position");
    let later = export(&node, &format!("?since={since}&origin={FABRIC}")).await;
    assert_eq!(later.len(), 1, "{later:?}");
    assert_eq!(
        (text(&later[0], "state"), &later[0]["id"], &later[0]["by"]),
        ("lifted", &block["id"], &block["by"])
    );
    let entries = export(&node, "?limit=2").await;
    assert_eq!((entries.len(), &entries[4]), (5, &later[0]));
    let hash = assert_is_hash_of(&node, &entries).await;
    assert_eq!(number(&hash, "count"), 4);
}

#[tokio::test]
async fn bad_parameters_are_refused_by_name() {
    let node = unlimited_node().await;
    revoke(&node, &email("ada")).await;
    let hash = get(&node, HASH).await;
    let position = text(&hash, "position");
    let (incarnation, index) = position.split_once('-').expect("a position");
    let beyond = format!("{EXPORT}?since={incarnation}-9999999");
    let other = format!("{EXPORT}?since={}-{index}", "0".repeat(32));
    let cursor = |text: &str| format!("{EXPORT}?cursor={}", URL_SAFE_NO_PAD.encode(text));
    let id = "A".repeat(22);
    let (short, foreign) =
        (cursor(&format!("{position}.AAAA")), cursor(&format!("{}-{index}.{id}", "0".repeat(32))));
    let whole_number = "must be a whole number from 0 to";
    for (path, status, description) in [
        (&format!("{HASH}?floor=x")[..], 400, &format!("floor: {whole_number} 4294967295")[..]),
        (&format!("{HASH}?floor=-1"), 400, "floor: must be"),
        (&format!("{HASH}?floor=%2B1"), 400, "floor: must be"),
        (&format!("{HASH}?floor=4294967296"), 400, "floor: must be"),
        (&format!("{HASH}?floor=3000001"), 400, "floor: is ahead of the epoch of this fabric, 3000000"),
        (&format!("{HASH}?epoch="), 400, "epoch: must be"),
        (&format!("{HASH}?epoch=3000001"), 400, "epoch: is ahead of the epoch of this fabric, 3000000"),
        (&format!("{HASH}?epoch=1&epoch=1"), 400, "epoch: must not be given twice"),
        (&format!("{HASH}?since={position}"), 400, "the query parameters are origin, epoch, floor"),
        (
            &format!("{HASH}?origin=https://other.example"),
            404,
            "origin: this node has no ledger of this fabric",
        ),
        (&format!("{EXPORT}?origin={FABRIC}/"), 404, "origin: this node has no ledger of this fabric"),
        (&format!("{EXPORT}?origin="), 404, "origin: this node has no ledger of this fabric"),
        (&format!("{EXPORT}?since={index}"), 400, "since: must be a log position, <incarnation>-<index>"),
        (&format!("{EXPORT}?since=2027-01-15T08:00:00Z"), 400, "since: must be a log position"),
        (&beyond, 409, "since: is ahead of the log of this fabric"),
        (&other, 409, "since: is of another incarnation of this fabric"),
        (&format!("{EXPORT}?bucket=1"), 400, "bucket: needs epoch"),
        (&format!("{EXPORT}?epoch=3000000&bucket=256"), 400, &format!("bucket: {whole_number} 255")),
        (&format!("{EXPORT}?epoch=3000000&bucket=a7"), 400, "bucket: must be"),
        (&format!("{EXPORT}?epoch=3000001"), 400, "epoch: is ahead"),
        (&format!("{EXPORT}?limit=1001"), 400, "limit: must be a whole number from 1 to 1000"),
        (&format!("{EXPORT}?floor=1"), 400, "the query parameters are since, origin"),
        (&cursor("x"), 400, "cursor: must be from a page"),
        (&short, 400, "cursor: must be from a page"),
        (&foreign, 400, "cursor: must be from a page of this incarnation"),
    ] {
        let answer = node.get(path).await;
        let code = if status == 404 { "not_found" } else { "invalid_request" };
        answer.is_refused(status, code, description);
    }
    let ends_here = export(&node, &format!("?since={position}")).await;
    assert_eq!(ends_here, Vec::<Value>::new());
    let present = get(&node, &format!("{HASH}?floor=3000000&origin={FABRIC}")).await;
    assert_eq!((number(&present, "floor"), number(&present, "count")), (3_000_000, 1));
    assert_ne!(present["hash"], hash["hash"], "the floor is in the hash");
}

#[tokio::test]
async fn forgotten_entries_raise_the_floor_and_refuse_old_positions() {
    let node = unlimited_node().await;
    revoke(&node, &email("ada")).await;
    let first = get(&node, HASH).await;
    revoke(&node, &email("bob")).await;
    node.advance_secs(700);
    let third = revoke(&node, &email("carol")).await;
    let before = get(&node, &format!("{HASH}?floor=3000001")).await;
    node.advance_secs(RETENTION_SECS - 100);
    // The next entry of the log removes what has expired.
    revoke(&node, &email("dan")).await;
    let entries = export(&node, "").await;
    let ids: Vec<_> = entries.iter().map(|entry| text(entry, "subject_id")).collect();
    assert_eq!(ids, ["carol@a.example", "dan@a.example"]);
    let hash = assert_is_hash_of(&node, &entries).await;
    assert_eq!((number(&hash, "floor"), number(&before, "floor")), (3_000_001, 3_000_001));
    let old = text(&first, "position");
    let answer = node.get(&format!("{EXPORT}?since={old}")).await;
    answer.is_refused(409, "invalid_request", "since: entries up to log index");
    for path in [format!("{EXPORT}?epoch=3000000"), format!("{HASH}?epoch=3000000")] {
        let answer = node.get(&path).await;
        answer.is_refused(400, "invalid_request", "epoch: entries of epochs before 3000001 may be forgotten");
    }
    let (incarnation, _) = old.split_once('-').expect("a position");
    let later = export(&node, &format!("?since={incarnation}-{}", third["index"])).await;
    assert_eq!(later.len(), 1);
}

/// A revocation that a reader misses, because it is repeated while the pages are read, is accepted at the reader.
#[tokio::test]
async fn pages_under_concurrent_writes_miss_no_entry() {
    let mut node = unlimited_node().await;
    for number in 0..20 {
        revoke(&node, &email(&number.to_string())).await;
    }
    let writes = join_all((0..40).map(|number| {
        let node = &node;
        async move { revoke(node, &email(&(number % 25).to_string())).await }
    }));
    let read = async {
        let mut reads = Vec::new();
        for _ in 0..3 {
            reads.push(export(&node, "?limit=2").await);
        }
        reads
    };
    let (_, reads) = futures::join!(writes, read);
    for entries in reads {
        let seen: BTreeSet<_> = entries.iter().map(|entry| text(entry, "subject_id")).collect();
        let missing: Vec<_> =
            (0..20).filter(|number| !seen.contains(&*format!("{number}@a.example"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(entries.is_sorted_by_key(|entry| (number(entry, "seq"), bytes(text(entry, "id")))));
    }
    let entries = export(&node, "").await;
    assert_eq!(entries.len(), 25);
    let hash = assert_is_hash_of(&node, &entries).await;
    node.restart().await;
    let after = get(&node, HASH).await;
    assert_eq!((&after["hash"], &after["position"]), (&hash["hash"], &hash["position"]));
    assert_eq!(export(&node, "").await, entries);
}

#[tokio::test]
async fn only_operators_read_the_ledger() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    for path in [HASH, EXPORT] {
        let ask = async |channel| node.call_over(&channel, "GET", path, &[], "").await;
        assert_eq!(ask(node.certified("operator")).await.status, 200);
        ask(node.certified("gateway")).await.is_refused(403, "access_denied", "cluster.admin");
        ask(node.anonymous()).await.is_refused(401, "access_denied", "");
        ask(node.plain()).await.is_refused(403, "access_denied", "over TLS only");
        let posted = node.call_over(&node.certified("operator"), "POST", path, &[], "").await;
        assert_eq!(posted.status, 405);
    }
}
