//! Clusters that are restored from a backup, or created again from one survivor.

use super::joining::{call, invite, until_ready, until_voters};
use super::*;

const ISSUER: &str = "https://localhost:8694";

impl Site {
    /// A credential of a workload that may exchange it for a token of the fabric, issued now.
    fn credential(&self) -> String {
        let issuer = pki::DevelopmentIssuer::open(&self.directory.path().join("pki")).expect("an issuer");
        issuer.credential(ISSUER, "demo", "orchestrator", &Clock::system()).expect("a credential")
    }

    fn data(&self, id: u64) -> PathBuf {
        self.directory.path().join(format!("node-{id}"))
    }

    /// `trust-fabric` with the configuration of a stopped node.
    fn program(&self, id: u64, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
        command.args(arguments).arg("--config").arg(self.configured(id));
        command
    }

    /// Runs it without a terminal: exit code and output.
    fn offline(&self, id: u64, arguments: &[&str]) -> (Option<i32>, String) {
        let ran = self.program(id, arguments).stdin(Stdio::null()).output().expect("runs");
        (ran.status.code(), String::from_utf8([ran.stdout, ran.stderr].concat()).expect("text"))
    }

    /// Lets a node with an empty data directory join, and starts it.
    async fn add(&self, id: u64, member: &Member, operator: &Client) -> Member {
        let created = invite(member, operator, json!({})).await;
        assert_eq!(created["node_id"], id, "{created}");
        let (code, text) = self.join(id, member, created["join_token"].as_str().expect("token"));
        assert_eq!(code, Some(0), "{text}");
        let joined = self.start(id);
        until_ready(&joined).await;
        joined
    }
}

/// Exchanges a token for one of `audience`: status and token.
async fn exchanged(
    member: &Member,
    operator: &Client,
    token: &str,
    kind: &str,
    audience: &str,
) -> (u16, String) {
    let body = json!({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": kind,
        "audience": audience,
    });
    let url = format!("{}/v1/exchange/token", member.https);
    let (status, answer) = call(operator, Method::POST, url, Some(body)).await;
    (status, answer["access_token"].as_str().unwrap_or_default().to_owned())
}

const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
const OWN: &str = "urn:svc:token-type:agent-a2a";

async fn tools(member: &Member, operator: &Client) -> usize {
    let (status, list) = call(operator, Method::GET, format!("{}/v1/tools", member.https), None).await;
    assert_eq!(status, 200, "{list}");
    list.as_array().expect("tools").len()
}

#[tokio::test]
async fn restored_and_joined_nodes_refuse_what_was_issued_before() {
    let site = Site::new();
    let operator = site.operator();
    let (members, leads) = ready(&site, &operator).await;
    let leader = &members[leads];
    assert_eq!(register(leader, &operator, 0).await, 201);
    let credential = site.credential();
    let (status, own) = exchanged(leader, &operator, &credential, JWT, ISSUER).await;
    assert_eq!(status, 200);
    let backup = site.directory.path().join("fabric.backup");
    let backup = backup.to_str().expect("text");
    let (code, text) = site.command(leader, &["backup", "save", backup]);
    assert_eq!(code, Some(0), "{text}");
    drop(members);
    for id in 1..=3 {
        fs::remove_dir_all(site.data(id)).expect("lost");
    }

    let (code, text) = site.offline(1, &["restore", backup]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("of node 1 alone") && !text.contains("no other node can join"), "{text}");
    let restored = site.start(1);
    until_ready(&restored).await;
    let joined = site.add(2, &restored, &operator).await;
    until_voters(&restored, &operator, &[1, 2]).await;
    for member in [&restored, &joined] {
        assert_eq!(tools(member, &operator).await, 1);
        assert_eq!(exchanged(member, &operator, &own, OWN, ISSUER).await.0, 400, "node {}", member.id);
        assert_eq!(exchanged(member, &operator, &credential, JWT, ISSUER).await.0, 400, "node {}", member.id);
    }
    // The clock of this test is that of the restore: a fresh credential is accepted 8 s later.
    for member in [&joined, &restored] {
        loop {
            let (status, token) = exchanged(member, &operator, &site.credential(), JWT, ISSUER).await;
            if status == 200 {
                assert_eq!(exchanged(&restored, &operator, &token, OWN, ISSUER).await.0, 200);
                break;
            }
        }
        assert_eq!(exchanged(member, &operator, &credential, JWT, ISSUER).await.0, 400, "node {}", member.id);
    }
    assert_eq!(register(&joined, &operator, 1).await, 201);
}

/// Also: the other survivor, which returns with its data, disturbs nothing.
#[tokio::test]
async fn forced_cluster_keeps_every_acknowledged_write() {
    let site = Site::new();
    let operator = site.operator();
    let (mut members, leads) = ready(&site, &operator).await;
    let survivor = members.remove(leads);
    let credential = site.credential();
    let (status, own) = exchanged(&survivor, &operator, &credential, JWT, ISSUER).await;
    assert_eq!(status, 200);
    for number in 0..20 {
        assert_eq!(register(&survivor, &operator, number).await, 201);
    }
    let others: Vec<u64> = members.iter().map(|member| member.id).collect();
    drop(members);
    let id = survivor.id;
    drop(survivor);

    let force = ["restore", "--force-new-cluster"];
    let (code, text) = site.offline(id, &force);
    assert!(code == Some(1) && text.contains("not confirmed; nothing was changed"), "{text}");
    assert!(text.contains("vote         <T") && text.contains("last log id  T"), "{text}");
    assert!(text.contains("Compare the last log id with that of every other survivor"), "{text}");
    let (code, text) = site.offline(id, &["restore", "--force-new-cluster", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    let survivor = site.start(id);
    until_ready(&survivor).await;
    assert_eq!(tools(&survivor, &operator).await, 20);
    assert_eq!(exchanged(&survivor, &operator, &own, OWN, ISSUER).await.0, 400);
    assert_eq!(exchanged(&survivor, &operator, &credential, JWT, ISSUER).await.0, 400);
    assert_eq!(register(&survivor, &operator, 20).await, 201);
    until_voters(&survivor, &operator, &[id]).await;

    // Two nodes of the old cluster would be its majority: one alone gets no leader, and none from the new cluster.
    let returned = site.start(others[0]);
    let anonymous = client().build().expect("client");
    assert_eq!(returned.get(&anonymous, "/readyz").await.status(), 503);
    assert_eq!(register(&survivor, &operator, 21).await, 201);
    drop(returned);
    if site.data(id + 1).exists() {
        fs::remove_dir_all(site.data(id + 1)).expect("emptied");
    }
    let joined = site.add(id + 1, &survivor, &operator).await;
    assert_eq!(tools(&joined, &operator).await, 22);
}

/// The mark of an interrupted command keeps the node from starting, also on an intact log. Regression: the repeated
/// command showed the last log id that the first attempt had invented.
#[tokio::test]
async fn interrupted_creation_is_refused_by_serve_and_repeated() {
    let site = Site::with_members(1);
    let operator = site.operator();
    let founder = site.start(1);
    until_ready(&founder).await;
    assert_eq!(register(&founder, &operator, 0).await, 201);
    drop(founder);
    let (mark, force) = (site.data(1).join("restoring"), ["restore", "--force-new-cluster"]);
    let last = |text: &str| text.lines().find(|line| line.starts_with("last log id")).map(str::to_owned);
    let (_, text) = site.offline(1, &force);
    let original = last(&text).expect("a log");
    // The state cannot be switched: the command ends after its mark.
    fs::create_dir(site.data(1).join("state/CURRENT.new")).expect("in the way");
    let (code, text) = site.offline(1, &["restore", "--force-new-cluster", "--yes"]);
    assert_ne!(code, Some(0), "{text}");
    fs::remove_dir(site.data(1).join("state/CURRENT.new")).expect("removed");
    let marked = fs::read(&mark).expect("a mark");
    let (code, text) = site.offline(1, &["serve"]);
    let reason = "`trust-fabric restore --force-new-cluster` was interrupted; repeat the command";
    assert!(code == Some(1) && text.contains(reason), "{text}");
    let (code, text) = site.offline(1, &["restore", "--force-new-cluster", "--yes"]);
    assert_eq!((code, last(&text)), (Some(0), Some(original.clone())), "{text}");
    // Everything is done but the removal of the mark.
    fs::write(&mark, marked).expect("mark");
    let (code, text) = site.offline(1, &force);
    assert_eq!((code, last(&text)), (Some(1), Some(original)), "{text}");
    let (code, text) = site.offline(1, &["restore", "--force-new-cluster", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    let founder = site.start(1);
    until_ready(&founder).await;
    assert_eq!(tools(&founder, &operator).await, 1);
}

#[tokio::test]
async fn running_node_and_directory_without_log_are_refused() {
    let site = Site::with_members(1);
    let force = ["restore", "--force-new-cluster", "--yes"];
    let (code, text) = site.offline(1, &force);
    assert!(code == Some(1) && text.contains("it has no log of a cluster"), "{text}");
    let mut founder = site.start(1);
    founder.wait_for_log(
        "new cluster bootstrapped: earlier revocations under the same issuer are unknown to it",
    );
    until_ready(&founder).await;
    let (code, text) = site.offline(1, &force);
    assert!(code == Some(1) && text.contains("another process is using it"), "{text}");
}

#[tokio::test]
async fn creation_is_confirmed_on_the_terminal() {
    let site = Site::with_members(1);
    let operator = site.operator();
    let founder = site.start(1);
    until_ready(&founder).await;
    assert_eq!(register(&founder, &operator, 0).await, 201);
    drop(founder);
    let force = ["restore", "--force-new-cluster"];
    let (code, text) = site.offline(1, &force);
    assert!(code == Some(1) && !text.contains("[y/N]"), "nobody can answer: {text}");
    assert!(text.contains("set --yes to confirm without a terminal"), "{text}");
    for typed in ["n\n", "\n", "yess\n", "node 1\n", terminal::END] {
        let (code, text) = terminal::run(site.program(1, &force), typed);
        assert!(text.contains("create a new cluster of this node alone?"), "{typed:?}: {text}");
        assert!(code == Some(1) && text.contains("not confirmed; nothing was changed"), "{typed:?}: {text}");
    }
    let cluster = async |member: &Member| {
        let url = format!("{}/v1/sys/cluster", member.https);
        call(&operator, Method::GET, url, None).await.1["cluster_id"].clone()
    };
    let founder = site.start(1);
    until_ready(&founder).await;
    let before = cluster(&founder).await;
    drop(founder);
    let (code, text) = terminal::run(site.program(1, &force), "yes\n");
    assert!(code == Some(0) && text.contains("created a new cluster"), "{text}");
    let founder = site.start(1);
    until_ready(&founder).await;
    assert_ne!(cluster(&founder).await, before, "it is another cluster");
    assert_eq!(tools(&founder, &operator).await, 1);
}

/// A follower whose disk was set back is the only survivor.
#[tokio::test]
async fn node_that_was_set_back_needs_accepted_loss_for_a_creation() {
    let site = Site::new();
    let operator = site.operator();
    let (mut members, leads) = ready(&site, &operator).await;
    assert_eq!(register(&members[leads], &operator, 0).await, 201);
    let at = (leads + 1) % 3;
    let survivor = members.remove(at);
    while tools(&survivor, &operator).await != 1 {}
    let id = survivor.id;
    survivor.stop();
    let copy = site.directory.path().join("copy");
    let copied = Command::new("cp").arg("-a").args([&site.data(id), &copy]).status().expect("cp");
    assert!(copied.success());
    let survivor = site.start(id);
    until_ready(&survivor).await;
    assert_eq!(register(&survivor, &operator, 1).await, 201);
    drop(survivor);
    fs::remove_dir_all(site.data(id)).expect("removed");
    fs::rename(&copy, site.data(id)).expect("set back");
    let mut refused = site.start(id);
    let stopped = refused.wait_for_log("stopped");
    assert_eq!(refused.child.wait().expect("end").code(), Some(70), "{stopped}");
    drop(members);

    let force = ["restore", "--force-new-cluster", "--yes"];
    let (code, text) = site.offline(id, &force);
    assert!(code == Some(1) && text.contains("this disk was rejected by its cluster: "), "{text}");
    assert!(text.contains("acknowledged writes would be lost"), "{text}");
    assert!(text.contains("set --accept-loss to lose its last writes"), "{text}");
    let (code, text) = site.offline(id, &["restore", "--force-new-cluster", "--accept-loss"]);
    assert!(code == Some(1) && text.contains("not confirmed; nothing was changed"), "{text}");
    let (code, text) = site.offline(id, &[&force[..], &["--accept-loss"]].concat());
    assert!(code == Some(0) && text.contains("created a new cluster"), "{text}");
    let survivor = site.start(id);
    until_ready(&survivor).await;
    assert_eq!(tools(&survivor, &operator).await, 1, "the later one is lost");
    assert_eq!(register(&survivor, &operator, 2).await, 201);
    until_voters(&survivor, &operator, &[id]).await;
}
