//! The ledger of three members: every member answers with the same entries and the same hash, also after the death of
//! the leader.

use super::joining::call;
use super::*;

async fn get(member: &Member, operator: &Client, path: &str) -> Value {
    let url = format!("{}/v1/federation/{path}", member.https);
    let (status, answer) = call(operator, Method::GET, url, None).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn revoke(member: &Member, operator: &Client, name: &str) -> u64 {
    let body = json!({"email": format!("{name}@a.example"), "issuer": "https://idp.example", "block": true});
    let (status, answer) =
        call(operator, Method::POST, format!("{}/v1/revocations", member.https), Some(body)).await;
    assert_eq!(status, 202, "{answer}");
    answer["index"].as_u64().expect("an index")
}

/// The hash without the time of the response.
async fn hash(member: &Member, operator: &Client) -> Value {
    let mut hash = get(member, operator, "revocation-hash").await;
    hash.as_object_mut().expect("an object").remove("timestamp").expect("a timestamp");
    hash
}

#[tokio::test]
async fn members_have_one_ledger_also_after_a_leader_died() {
    let site = Site::new();
    let operator = site.operator();
    let (mut members, leads) = ready(&site, &operator).await;
    for (number, member) in members.iter().enumerate() {
        let index = revoke(member, &operator, &format!("before-{number}")).await;
        for reader in &members {
            let entries = get(reader, &operator, "revocation-export").await;
            let entries = entries.as_array().expect("a list");
            assert_eq!(entries.len(), 2 * (number + 1), "a linearizable read has what was acknowledged");
            assert!(entries.iter().all(|entry| entry["seq"].as_u64().is_some_and(|seq| seq <= index)));
        }
    }
    drop(members.remove(leads));
    loop {
        let body = json!({"email": "after@a.example", "issuer": "https://idp.example"});
        let url = format!("{}/v1/revocations", members[0].https);
        let (status, _) = call(&operator, Method::POST, url, Some(body)).await;
        if status == 202 {
            break;
        }
        assert_eq!(status, 503);
    }
    let known = hash(&members[0], &operator).await;
    assert_eq!(known["count"], 7, "{known}");
    assert_eq!(hash(&members[1], &operator).await, known);
    let [one, other] = [&members[0], &members[1]].map(|member| get(member, &operator, "revocation-export"));
    let (one, other) = (one.await, other.await);
    assert_eq!((one.as_array().map(Vec::len), &one), (Some(7), &other));
}
