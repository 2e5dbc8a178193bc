//! Nodes that join, are replaced and are removed.

use super::*;

impl Site {
    /// Runs `trust-fabric` with the operator's certificate. Returns its exit code and its output.
    pub fn command(&self, member: &Member, arguments: &[&str]) -> (Option<i32>, String) {
        let (_, operator) = &self.made.callers[0];
        let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
        command.args(arguments).arg("--server").arg(&member.https);
        command.arg("--ca").arg(&self.made.ca.certificate);
        command.arg("--cert").arg(&operator.certificate).arg("--key").arg(&operator.private_key);
        let ran = command.output().expect("runs");
        (ran.status.code(), String::from_utf8([ran.stdout, ran.stderr].concat()).expect("text"))
    }

    /// Writes a join token to a file and joins a node with it.
    pub fn join(&self, id: u64, member: &Member, token: &str) -> (Option<i32>, String) {
        let config = self.configured(id);
        let file = self.directory.path().join("token");
        fs::write(&file, token).expect("token");
        let [config, file] = [&config, &file].map(|path| path.to_str().expect("text"));
        let (_, address) = self.members.iter().find(|(known, _)| *known == id).expect("a member");
        let address = address.to_string();
        self.command(member, &["cluster", "join", file, "--config", config, "--address", &address])
    }
}

/// Sends a request to `/v1/sys/cluster` and below. Returns status and JSON.
pub async fn call(client: &Client, method: Method, url: String, body: Option<Value>) -> (u16, Value) {
    let mut request = client.request(method, url);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let answer = request.send().await.expect("answer");
    (answer.status().as_u16(), json_of(answer).await)
}

pub async fn invite(member: &Member, operator: &Client, body: Value) -> Value {
    let url = format!("{}/v1/sys/cluster/join-tokens", member.https);
    let (status, created) = call(operator, Method::POST, url, Some(body)).await;
    assert_eq!(status, 201, "{created}");
    created
}

/// The roles of the nodes by their ids, as `member` sees them.
async fn roles(member: &Member, operator: &Client) -> Vec<(u64, String)> {
    let (status, cluster) =
        call(operator, Method::GET, format!("{}/v1/sys/cluster", member.https), None).await;
    assert_eq!(status, 200, "{cluster}");
    let role = |member: &Value| {
        (member["node_id"].as_u64().expect("id"), member["role"].as_str().expect("role").to_owned())
    };
    cluster["members"].as_array().expect("members").iter().map(role).collect()
}

/// Waits until `member` sees these voters, and no other node.
pub async fn until_voters(member: &Member, operator: &Client, voters: &[u64]) {
    loop {
        let roles = roles(member, operator).await;
        let are_voters = roles.iter().all(|(_, role)| role == "leader" || role == "follower");
        if are_voters && roles.iter().map(|(id, _)| *id).eq(voters.iter().copied()) {
            return;
        }
    }
}

pub async fn until_ready(member: &Member) {
    let anonymous = client().build().expect("client");
    while member.get(&anonymous, "/readyz").await.status() != 200 {}
}

#[tokio::test]
async fn join_token_admits_one_node_once() {
    let site = Site::with_members(1);
    let operator = site.operator();
    let founder = site.start(1);
    until_ready(&founder).await;
    let created = invite(&founder, &operator, json!({})).await;
    assert_eq!(created["spiffe_id"], format!("spiffe://{TRUST_DOMAIN}/node/2"));
    let token = created["join_token"].as_str().expect("token");

    // Each is refused, and none spends the token.
    let join = |base: &str, token: &str, address: &str, disk: &str| {
        let body = json!({"token": token, "address": address, "disk_id": disk});
        let anonymous = client().tls_certs_only([site.ca()]).build().expect("client");
        let url = format!("{base}/v1/sys/cluster/join");
        async move { call(&anonymous, Method::POST, url, Some(body)).await }
    };
    let disk = "0".repeat(32);
    let (address, of_another) = ("127.0.0.1:1", another_cluster(token));
    let unknown = unknown_secret(token);
    for (base, token, address, disk, status, reason) in [
        (&founder.http, token, address, disk.as_str(), 403, "over TLS only"),
        (&founder.https, &token[1..], address, &disk, 400, "token: the join token must begin with tfj1."),
        (&founder.https, &of_another, address, &disk, 403, "token: the join token is of another cluster"),
        (&founder.https, &unknown, address, &disk, 403, "token: there is no such join token"),
        (&founder.https, token, "no port", &disk, 400, "address: must be a host and a port"),
        (&founder.https, token, address, "0", 400, "disk_id: must be 32 hexadecimal digits"),
    ] {
        let (found, answer) = join(base, token, address, disk).await;
        assert_eq!(found, status, "{answer}");
        assert!(answer["error_description"].as_str().expect("text").contains(reason), "{answer}");
    }
    // A program that does not support the feature level of the cluster.
    let (found, answer) = join(&founder.https, token, "127.0.0.1:1", &disk).await;
    let reason = answer["error_description"].as_str().expect("text");
    assert!(found == 409 && reason.contains("install a newer version on the node"), "{answer}");
    let (code, text) = site.join(3, &founder, token);
    assert!(code == Some(1) && text.contains("the join token is for node 2, and node.id is 3"), "{text}");

    let (code, text) = site.join(2, &founder, token);
    assert!(code == Some(0) && text.contains("node 2 joined the cluster"), "{text}");
    let (code, text) = site.join(2, &founder, token);
    assert_eq!(code, Some(0), "repeated by the same node: {text}");
    let joined = site.start(2);
    until_ready(&joined).await;
    until_voters(&founder, &operator, &[1, 2]).await;
    assert_eq!(register(&joined, &operator, 0).await, 201);
    let (status, answer) = join(&founder.https, token, address, &disk).await;
    assert_eq!(status, 409, "the token is spent: {answer}");
}

/// A token of another cluster with the same node id.
fn another_cluster(token: &str) -> String {
    altered(token, 0)
}

/// A token that nobody has created.
fn unknown_secret(token: &str) -> String {
    altered(token, 40)
}

/// The token with one byte changed and a checksum that matches.
fn altered(token: &str, at: usize) -> String {
    use aws_lc_rs::digest::{SHA256, digest};
    let mut bytes = URL_SAFE_NO_PAD.decode(&token[5..]).expect("base64url");
    bytes[at] ^= 1;
    let body = bytes.len() - 4;
    let checksum = digest(&SHA256, &bytes[..body]);
    bytes[body..].copy_from_slice(&checksum.as_ref()[..4]);
    format!("tfj1.{}", URL_SAFE_NO_PAD.encode(bytes))
}

#[tokio::test]
async fn node_without_members_waits_for_no_bootstrap() {
    let site = Site::with_members(1);
    let file = site.configured(2);
    let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
    let ran = command.arg("serve").arg("--config").arg(file).output().expect("runs");
    let log = String::from_utf8(ran.stderr).expect("text");
    assert_eq!(ran.status.code(), Some(1), "{log}");
    assert!(log.contains("run `trust-fabric cluster join`"), "{log}");
}

/// Also: the leader is removed, and a removed node does not return.
#[tokio::test]
async fn dead_voter_is_replaced_and_the_leader_removed() {
    let site = Site::new();
    let operator = site.operator();
    let (mut members, leads) = ready(&site, &operator).await;
    let leader = members.remove(leads);
    let dead = members.remove(0).id;
    let other = members.remove(0);
    let created = invite(&leader, &operator, json!({"replaces": dead})).await;
    let (code, text) = site.join(4, &other, created["join_token"].as_str().expect("token"));
    assert_eq!(code, Some(0), "{text}");
    let joined = site.start(4);
    let mut voters = [leader.id, other.id, 4];
    voters.sort_unstable();
    until_voters(&leader, &operator, &voters).await;
    until_ready(&joined).await;
    assert_eq!(register(&joined, &operator, 0).await, 201);

    let mut returned = site.start(dead);
    let stopped = returned.wait_for_log("stopped");
    assert!(stopped["cause"].as_str().expect("cause").contains("was removed from the cluster"), "{stopped}");
    assert_eq!(returned.child.wait().expect("end").code(), Some(70));

    let removed = leader.id.to_string();
    let (code, text) = site.command(&other, &["cluster", "remove", &removed]);
    assert!(code == Some(0) && text.contains(&format!("node {removed}: removed")), "{text}");
    let mut leader = leader;
    let stopped = leader.wait_for_log("stopped");
    assert!(stopped["cause"].as_str().expect("cause").contains("was removed from the cluster"), "{stopped}");
    let mut left = [other.id, 4];
    left.sort_unstable();
    until_voters(&joined, &operator, &left).await;
    assert_eq!(register(&other, &operator, 1).await, 201);

    for to in left {
        let (code, text) = site.command(&joined, &["cluster", "transfer", &to.to_string()]);
        assert!(code == Some(0) && text.contains(&format!("node {to} leads")), "{text}");
    }
    let (code, text) = site.command(&joined, &["cluster", "status"]);
    assert!(code == Some(0) && text.contains("leader node") && text.contains("held"), "{text}");
}
