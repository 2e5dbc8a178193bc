//! Data directories of earlier feature levels, in `tests/fixtures/`: every build opens each, answers from it, and
//! computes the recorded state hash, also when it rebuilds the state from the log.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trust_fabric::state::feature_level;

use crate::support::{self, JWT, Node, Setup, TOOL, credential, with};

const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

/// The directories, one per level.
fn fixtures() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let directories = fs::read_dir(all).expect("fixtures").map(|item| item.expect("an entry").path());
    let mut directories: Vec<PathBuf> = directories.filter(|path| path.is_dir()).collect();
    directories.sort();
    directories
}

fn setup() -> Setup {
    let more_config = "[transmitter]\nbase_url = \"https://fabric.example:8694\"\n".to_owned();
    Setup { more_config, ..Setup::default() }
}

/// A node on a recorded directory, without the parts `but`.
async fn opened(fixture: &Path, but: &'static [&'static str]) -> Node {
    let archive = fixture.join("data.tar.zst");
    let unpack = move |data: &Path| {
        DirBuilder::new().mode(0o700).create(data).expect("directory");
        let file = zstd::Decoder::new(File::open(&archive).expect("archive")).expect("zstd");
        tar::Archive::new(file).unpack(data).expect("unpacked");
        for part in but {
            fs::remove_dir_all(data.join(part)).expect("removed");
        }
    };
    Node::start_with(Setup { data: Some(Box::new(unpack)), ..setup() }).await
}

fn expected(fixture: &Path) -> Value {
    let text = fs::read(fixture.join("expected.json")).expect("expected.json");
    trust_fabric::json::parse(&text).expect("JSON")
}

fn state_hash(node: &Node) -> String {
    let (_, hash) = node.state().cluster().state_hash().expect("hash");
    support::encode(hash)
}

/// Whether every recorded member is there. A later version may answer with more.
fn contains(answered: &Value, recorded: &Value) -> bool {
    match (answered, recorded) {
        (Value::Object(answered), Value::Object(recorded)) => recorded
            .iter()
            .all(|(name, value)| answered.get(name).is_some_and(|answered| contains(answered, value))),
        (Value::Array(answered), Value::Array(recorded)) => {
            answered.len() == recorded.len()
                && answered.iter().zip(recorded).all(|(answered, recorded)| contains(answered, recorded))
        }
        _ => answered == recorded,
    }
}

async fn assert_answers(node: &Node, recorded: &Value) {
    let answers = recorded["answers"].as_object().expect("answers");
    assert!(answers.len() >= 5, "{answers:?}");
    for (path, answer) in answers {
        let answered = node.get(path).await.json();
        assert!(contains(&answered, answer), "{path}: {answered}");
    }
}

#[tokio::test]
async fn recorded_directory_opens_and_is_finalized() {
    assert!(
        fixtures().len() >= usize::try_from(feature_level::NEWEST).expect("small"),
        "one of each level before"
    );
    for fixture in fixtures() {
        let recorded = expected(&fixture);
        let level = recorded["feature_level"].clone();
        let mut node = opened(&fixture, &[]).await;
        assert_eq!(state_hash(&node), recorded["state_hash"], "{}", fixture.display());
        assert_eq!(node.get("/v1/sys/cluster").await.json()["feature_level"], level);
        assert_answers(&node, &recorded).await;

        let finalized = node.call("POST", "/v1/sys/cluster/finalize", &[], "").await.json();
        assert_eq!(finalized, json!({"feature_level": feature_level::NEWEST}));
        node.restart().await;
        let cluster = node.get("/v1/sys/cluster").await.json();
        assert_eq!(cluster["feature_level"], feature_level::NEWEST);
        if feature_level::NEWEST > 0 {
            let this = json!({"version": env!("CARGO_PKG_VERSION"), "feature_level": feature_level::NEWEST});
            assert_eq!(cluster["members"][0]["recorded"], this, "{cluster}");
        }
        assert_answers(&node, &recorded).await;
    }
}

/// Every build applies the commands of earlier levels in the same way.
#[tokio::test]
async fn state_rebuilt_from_a_recorded_log_is_the_same() {
    for fixture in fixtures() {
        let node = opened(&fixture, &["state"]).await;
        assert_eq!(state_hash(&node), expected(&fixture)["state_hash"], "{}", fixture.display());
    }
}

/// Fills a node, and returns the paths whose answers are recorded.
async fn fill(node: &Node) -> Vec<String> {
    let tool = json!({
        "tool_id": "sql-query", "name": "SQL", "resource_uri": TOOL, "required_capabilities": ["db.read"],
        "protocols": ["mcp"],
    });
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    let source = credential(&node.issuers.reporter(), JWT);
    let token = node.granted(&with(&source, &json!({"audience": TOOL}))).await.token;
    let call = json!({"tool_id": "sql-query", "token": token});
    assert_eq!(node.post("/v1/mcp/verify", &call).await.status, 200);
    let agent = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let agent = node.post("/v1/identity/agent", &agent).await.json();
    let agent = agent["agent_id"].as_str().expect("agent_id").replace(':', "%3A").replace('/', "%2F");
    let stream = json!({
        "aud": "https://receiver.example", "events_requested": [REVOKED],
        "delivery": {"method": "urn:ietf:rfc:8936"},
    });
    let stream = node.post("/v1/signals/stream", &stream).await.json();
    let stream = stream["stream_id"].as_str().expect("stream_id").to_owned();
    let revocation = json!({"subject": support::REPORTER, "reason": "recorded"});
    assert_eq!(node.post("/v1/revocations", &revocation).await.status, 202);
    assert_eq!(node.post("/v1/mcp/verify", &call).await.status, 403);
    vec![
        "/v1/tools/sql-query".to_owned(),
        "/v1/tools/sql-query/audit".to_owned(),
        format!("/v1/identity/agents/{agent}"),
        format!("/v1/signals/stream?stream_id={stream}"),
        "/v1/revocations".to_owned(),
        "/v1/federation/revocation-export".to_owned(),
        "/v1/identity/jwks".to_owned(),
        "/v1/sys/policy/history".to_owned(),
    ]
}

/// Removes files of RocksDB that describe the machine, and that no database needs.
fn remove_descriptions(directory: &Path) {
    for item in fs::read_dir(directory).expect("directory") {
        let path = item.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            remove_descriptions(&path);
        } else if ["LOG", "LOCK", "OPTIONS-"].iter().any(|prefix| name.starts_with(prefix)) {
            fs::remove_file(&path).expect("removed");
        }
    }
}

/// Records the directory of this build's level: tests/fixtures/README.md.
#[tokio::test]
#[ignore = "writes tests/fixtures/"]
async fn directory_of_this_level_is_recorded() {
    let level = feature_level::NEWEST;
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/level-{level}"));
    fs::create_dir_all(&fixture).expect("directory");
    let mut node = Node::start_with(setup()).await;
    let paths = fill(&node).await;
    // The journal of the audit is shipped at the end.
    node.stop().await;
    let data = node.directory.path().join("data");
    remove_descriptions(&data);
    let file = File::create(fixture.join("data.tar.zst")).expect("archive");
    let mut archive = tar::Builder::new(zstd::Encoder::new(file, 19).expect("zstd"));
    for part in ["identity.json", "mode", "raft", "state", "snapshots", "keys", "audit"] {
        let path = data.join(part);
        if path.is_dir() {
            archive.append_dir_all(part, &path).expect("archived");
        } else if path.exists() {
            archive.append_path_with_name(&path, part).expect("archived");
        }
    }
    archive.into_inner().expect("archived").finish().expect("archived");
    node.start_again().await;
    let hash = state_hash(&node);
    let mut answers = serde_json::Map::new();
    for path in paths {
        let answer = node.get(&path).await.json();
        answers.insert(path, answer);
    }
    let recorded = json!({"feature_level": level, "state_hash": hash, "answers": answers});
    let text = format!("{}\n", serde_json::to_string_pretty(&recorded).expect("JSON"));
    fs::write(fixture.join("expected.json"), text).expect("written");
}
