//! Calls to a fabric, sent by hand with the certificate of a peer's node.

use super::*;

const PATH: &str = "/v1/federation/sync";

/// A fabric that serves a peer which is not there, and a client with the certificate of that peer's node.
pub(super) struct Served {
    pub(super) eu: Fabric,
    us: Client,
}

impl Served {
    pub(super) async fn start(more: &str) -> Self {
        let [one, other] = ports::free::<2>();
        let (mut eu, us) = (Fabric::new("eu", one), Fabric::new("us", other));
        let more = format!("serve = true\n{more}");
        eu.add_peer(&PeerSection { name: "us", of: &us, more: &more });
        eu.start().await;
        let us = client_of(us.caller_of_peers(), &eu.made.ca.certificate);
        Self { eu, us }
    }

    async fn sync(&self, body: &Value) -> (u16, Value) {
        call(&self.us, Method::POST, self.eu.url(PATH), Some(body)).await
    }

    pub(super) async fn answered(&self, body: &Value) -> Value {
        let (status, answer) = self.sync(body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

/// The request that continues a response.
pub(super) fn after(answer: &Value) -> Value {
    let since = format!("{}-{}", answer["incarnation"].as_str().expect("an incarnation"), answer["through"]);
    json!({"version": 1, "since": since, "keys": answer["keys"]["etag"], "floor": answer["floor_epoch"]})
}

pub(super) fn with(body: &Value, name: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[name] = value;
    body
}

fn states(answer: &Value) -> Vec<&str> {
    let entries = answer["entries"].as_array().expect("entries");
    entries.iter().map(|entry| entry["state"].as_str().expect("a state")).collect()
}

#[tokio::test]
async fn whole_ledger_is_read_once_and_then_what_is_new() {
    let served = Served::start("").await;
    served.eu.revoke("ada").await;
    let first = served.answered(&json!({"version": 1})).await;
    assert_eq!(
        (states(&first), &first["reset"], &first["from"]),
        (vec!["revoked", "blocked"], &json!(true), &json!(0))
    );
    assert_eq!((first["issuer"].as_str(), &first["next"]), (Some("https://eu.example"), &Value::Null));
    assert!(first["keys"]["keys"].as_array().is_some_and(|keys| !keys.is_empty()), "{first}");
    let (hash, count) = served.eu.hash("").await;
    assert_eq!((&first["root"], &first["count"]), (&hash, &json!(count)));
    let idle = served.answered(&after(&first)).await;
    let next = with(&after(&first), "since", json!(after(&idle)["since"]));
    assert_eq!((states(&idle).len(), &idle["reset"], &idle["keys"]), (0, &json!(false), &Value::Null));
    served.eu.revoke("bob").await;
    let second = served.answered(&next).await;
    assert_eq!((states(&second), &second["from"]), (vec!["revoked", "blocked"], &idle["through"]));
    assert_eq!(second["count"], 4, "the root is over everything");
}

#[tokio::test]
async fn pages_are_followed_to_the_end() {
    let served = Served::start("").await;
    for name in ["ada", "bob", "eve"] {
        served.eu.revoke(name).await;
    }
    let (mut body, mut entries, mut pages) = (json!({"version": 1, "limit": 4}), Vec::new(), 0);
    let last = loop {
        let answer = served.answered(&body).await;
        entries.extend(answer["entries"].as_array().expect("entries").clone());
        pages += 1;
        if answer["next"].is_null() {
            break answer;
        }
        assert_eq!(
            (&answer["root"], &answer["keys"]),
            (&Value::Null, &Value::Null),
            "only with the last page"
        );
        let last = entries.last().and_then(|entry| entry["n"].as_u64()).expect("an entry");
        assert!(
            answer["through"].as_u64().is_some_and(|through| through < last),
            "others may follow: {answer}"
        );
        body = with(&with(&after(&answer), "limit", json!(4)), "cursor", answer["next"].clone());
    };
    assert_eq!((entries.len(), pages, &last["count"]), (6, 2, &json!(6)));
    assert_eq!(last["reset"], false, "the beginning was on the first page");
}

#[tokio::test]
async fn held_call_is_answered_by_the_first_entry() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1})).await;
    let body = with(&after(&first), "hold_ms", json!(10_000));
    let revoke = async {
        until("held", || async {
            let serving = served.eu.peer("us").await["serving"].clone();
            serving["position"].is_string().then_some(())
        })
        .await;
        served.eu.revoke("ada").await
    };
    let (answer, index) = tokio::join!(served.answered(&body), revoke);
    assert_eq!(states(&answer), ["revoked", "blocked"]);
    assert_eq!(answer["through"].as_u64(), Some(index));
}

#[tokio::test]
async fn held_call_ends_without_entries_when_its_time_is_over() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1})).await;
    let idle = served.answered(&with(&after(&first), "hold_ms", json!(50))).await;
    assert_eq!(states(&idle).len(), 0);
    assert!(idle["through"].as_u64() >= first["through"].as_u64(), "{idle}");
    assert!(idle["root"].is_string());
}

#[tokio::test]
async fn held_call_ends_when_the_node_stops() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1})).await;
    let body = with(&after(&first), "hold_ms", json!(10_000));
    let stop = async {
        until("held", || async {
            let serving = served.eu.peer("us").await["serving"].clone();
            serving["position"].is_string().then_some(())
        })
        .await;
        served.eu.begin_stop();
    };
    let (answer, ()) = tokio::join!(served.answered(&body), stop);
    assert_eq!(states(&answer).len(), 0, "an early response without entries");
}

/// Attack: one peer holds as many calls as all peers may.
#[tokio::test]
async fn third_call_of_a_peer_is_refused() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1})).await;
    let body = with(&after(&first), "hold_ms", json!(1000));
    let statuses = futures::future::join_all((0..3).map(|_| served.sync(&body))).await;
    let mut statuses: Vec<_> = statuses.into_iter().map(|(status, _)| status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429]);
    served.answered(&after(&first)).await;
}

#[tokio::test]
async fn call_that_breaks_a_rule_is_refused() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1})).await;
    let valid = after(&first);
    let ahead = format!("{}-{}", first["incarnation"].as_str().expect("text"), 1_u64 << 40);
    let other = format!("{}-{}", "0f".repeat(16), 1_u64 << 40);
    for (name, value, status) in [
        ("version", json!(2), 400),
        ("version", Value::Null, 400),
        ("since", json!("7"), 400),
        ("since", json!(7), 400),
        ("hold_ms", json!(10_001), 400),
        ("hold_ms", json!(-1), 400),
        ("limit", json!(0), 400),
        ("limit", json!(5001), 400),
        ("floor", json!(-1), 400),
        ("floor", json!(u32::MAX), 200),
        ("cursor", json!("elsewhere"), 400),
        ("keys", json!("x".repeat(4096)), 413),
        ("since", json!(ahead), 409),
        ("since", json!(other), 200),
        ("later", json!({"member": true}), 200),
        ("honours_lease", json!(true), 200),
        ("honours_lease", json!(1), 400),
        ("enforced", json!(0), 400),
        ("enforced", json!(-1), 400),
    ] {
        let (got, answer) = served.sync(&with(&valid, name, value.clone())).await;
        assert_eq!(got, status, "{name} {value}: {answer}");
        let text = answer["error_description"].as_str().unwrap_or(name);
        assert!(status == 413 || text.contains(name), "names the field: {answer}");
    }
}

/// Attack: a peer acknowledges what it cannot have, or without the lease that makes its acknowledgement worth something.
#[tokio::test]
async fn acknowledgement_is_of_what_the_caller_has() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1})).await;
    assert_eq!(first["lease_ms"], Value::Null, "only for a caller that honours it");
    let valid = with(&after(&first), "honours_lease", json!(true));
    let through = first["through"].as_u64().expect("an index");
    let (status, refused) = served.sync(&with(&valid, "enforced", json!(through + 1))).await;
    let text = refused["error_description"].as_str().expect("a text");
    assert_eq!((status, text.contains("enforced: must not be after since")), (400, true), "{refused}");
    let (status, _) = served.sync(&json!({"version": 1, "honours_lease": true, "enforced": 0})).await;
    assert_eq!(status, 400, "without since");
    let answer = served.answered(&valid).await;
    assert_eq!(answer["lease_ms"], 5000);
    assert_eq!(served.eu.peer("us").await["serving"].get("enforced"), None);
    served.answered(&with(&valid, "enforced", json!(through))).await;
    served.answered(&valid).await;
    // A call of a deposed leader arrives late, and one of another incarnation states nothing about this one.
    served.answered(&with(&valid, "enforced", json!(through - 1))).await;
    let other = with(&valid, "since", json!(format!("{}-{through}", "0".repeat(32))));
    // Regression: it was refused, so that the caller never learned of the new incarnation.
    assert_eq!(served.answered(&with(&other, "enforced", json!(through))).await["reset"], true);
    let serving = served.eu.peer("us").await["serving"].clone();
    assert_eq!(serving["enforced"], valid["since"], "later calls without one leave it");
}

/// The node that has to wait may be another one: every call is reported to the leader.
#[tokio::test]
async fn call_at_a_node_that_awaits_no_peer_is_reported() {
    let served = Served::start("").await;
    let first = served.answered(&json!({"version": 1, "honours_lease": true})).await;
    assert_eq!(served.eu.peer("us").await.get("acknowledged"), None);
    let call =
        with(&with(&after(&first), "honours_lease", json!(true)), "enforced", first["through"].clone());
    served.answered(&call).await;
    let peer = served.eu.peer("us").await;
    assert_eq!((&peer["acknowledged"], &peer["awaited"]), (&call["since"], &json!(false)), "{peer}");
}

/// The operator decides what a peer learns in clear; the digests are the same in any case.
#[tokio::test]
async fn peer_sees_in_clear_only_what_is_disclosed_to_it() {
    for (disclose, of_idp, of_own) in [
        ("", false, true),
        ("disclose = \"digests\"", false, false),
        ("disclose = [\"https://idp.example\"]", true, true),
    ] {
        let served = Served::start(disclose).await;
        served.eu.revoke("ada").await;
        for subject in ["spiffe://eu.example/agent/mcp/1", "spiffe://us.example/agent/mcp/1"] {
            let body = json!({"subject": subject, "reason": "leaked"});
            let (status, answer) = served.eu.call(Method::POST, "/v1/revocations", Some(&body)).await;
            assert_eq!(status, 202, "{answer}");
        }
        let answer = served.answered(&json!({"version": 1})).await;
        let entry = |value: &str| {
            let entries = answer["entries"].as_array().expect("entries");
            entries.iter().any(|entry| entry["value"] == value)
        };
        assert_eq!(entry("ada@x.example"), of_idp, "{disclose}: {answer}");
        assert_eq!(entry("spiffe://eu.example/agent/mcp/1"), of_own, "{disclose}: {answer}");
        assert!(!entry("spiffe://us.example/agent/mcp/1"), "{disclose}: {answer}");
        let path = served.eu.url("/v1/federation/revocation-export");
        let (status, export) = call(&served.us, Method::GET, path, None).await;
        let listed =
            |value: &str| export.as_array().expect("rows").iter().any(|row| row["subject_id"] == value);
        assert_eq!((status, listed("ada@x.example")), (200, of_idp), "{export}");
        let reasons = export.to_string().matches("leaked").count();
        assert_eq!(reasons, usize::from(of_own), "the reason goes with the fact: {export}");
    }
}

/// A peer reads the copy of its own ledger, and of no other's.
#[tokio::test]
async fn copy_of_another_peer_is_not_read() {
    let (eu, us) = eu_read_by_us().await;
    us.until_peer("eu", "live", 0).await;
    let path =
        |origin: &str| us.url(&format!("/v1/federation/revocation-hash?origin=https://{origin}.example"));
    let as_operator = |origin: &'static str| call(&us.operator, Method::GET, path(origin), None);
    assert_eq!(as_operator("eu").await.0, 200);
    assert_eq!(as_operator("ap").await.0, 404);
    let node_of_us = client_of(us.caller_of_peers(), &eu.made.ca.certificate);
    // A copy has digests only, and is not exported.
    for (origin, status, error) in
        [("eu", 400, "origin: the copy of a peer's ledger"), ("ap", 404, "origin: ")]
    {
        let path = us.url(&format!("/v1/federation/revocation-export?origin=https://{origin}.example"));
        let (got, answer) = call(&us.operator, Method::GET, path, None).await;
        let text = answer["error_description"].as_str().unwrap_or_default();
        assert_eq!((got, text.starts_with(error)), (status, true), "{answer}");
    }
    let own = eu.url("/v1/federation/revocation-hash?origin=https://eu.example");
    assert_eq!(call(&node_of_us, Method::GET, own, None).await.0, 200);
    for origin in ["us", "ap"] {
        let path = eu.url(&format!("/v1/federation/revocation-hash?origin=https://{origin}.example"));
        let (status, answer) = call(&node_of_us, Method::GET, path, None).await;
        assert_eq!(status, 404, "{answer}");
    }
}
