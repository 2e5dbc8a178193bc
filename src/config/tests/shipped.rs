//! The configurations in `cluster/`.

use serde_json::{Value, json};

use super::*;

const MACHINE: [&str; 3] = [
    include_str!("../../../cluster/node-1.toml"),
    include_str!("../../../cluster/node-2.toml"),
    include_str!("../../../cluster/node-3.toml"),
];
const CONTAINERS: &str = include_str!("../../../cluster/compose.toml");
const COMPOSE: &str = include_str!("../../../docker-compose.yml");
const COMPOSE_REGIONS: &str = include_str!("../../../docker-compose.regions.yml");
const UNIT: &str = include_str!("../../../packaging/trust-fabric.service");
const PRODUCTION: &str = include_str!("../../../cluster/production.example.toml");

/// For the end of the process itself.
const MARGIN: Duration = Duration::from_secs(5);

/// Environment of node `id` in `docker-compose.yml`.
fn environment_in_compose(id: u64) -> Vec<(String, String)> {
    let (_, service) = COMPOSE.split_once(&format!("\n  node-{id}:\n")).expect("the service");
    let (_, environment) = service.split_once("environment:\n").expect("its environment");
    let lines = environment.lines().take_while(|line| line.trim_start().starts_with("TRUST_FABRIC__"));
    let pair = |line: &str| {
        let (name, value) = line.trim().split_once(": ").expect("a value");
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    lines.map(pair).collect()
}

fn in_compose(id: u64) -> Config {
    let mut environment = environment_in_compose(id).into_iter();
    load(Some(file(CONTAINERS).path()), &mut environment, &Overrides::default()).expect("good")
}

fn shown(text: &str, environment: Vec<(String, String)>) -> Value {
    show(Some(file(text).path()), &mut environment.into_iter(), &Overrides::default()).expect("good")
}

#[test]
fn local_nodes_name_each_others_listeners() {
    let nodes = MACHINE.map(good);
    for (node, id) in nodes.iter().zip(1..) {
        assert_eq!(node.node.id, id);
        let peers = node.cluster.peers.as_ref().expect("others");
        assert!(peers.listen.ip().is_loopback() && node.listen.http.ip().is_loopback());
        for other in &nodes {
            let listen = other.cluster.peers.as_ref().expect("others").listen;
            assert_eq!(peers.members[&other.node.id], listen.to_string());
        }
    }
}

#[test]
fn local_nodes_differ_only_in_their_own_settings() {
    let [first, second, third] = MACHINE.map(|text| {
        let mut all = shown(text, Vec::new());
        for (section, key) in [
            ("node", "id"),
            ("node", "data_dir"),
            ("listen", "http"),
            ("listen", "https"),
            ("cluster", "listen"),
            ("cluster", "certificate"),
            ("cluster", "private_key"),
        ] {
            assert!(all[section][key].take() != Value::Null, "{section}.{key}");
        }
        all
    });
    assert_eq!((&second, &third), (&first, &first));
}

#[test]
fn container_nodes_equal_local_nodes() {
    let nodes = [1, 2, 3].map(in_compose);
    for (node, id) in nodes.iter().zip(1..) {
        let peers = node.cluster.peers.as_ref().expect("others");
        assert_eq!((node.node.id, peers.members[&id].as_str()), (id, format!("node-{id}:8695").as_str()));
        let certificate = peers.files.own.certificate.display().to_string();
        assert_eq!(certificate, format!("/pki/peer-{id}.pem"));
    }
    let machine = shown(MACHINE[0], Vec::new());
    let mut containers = shown(CONTAINERS, environment_in_compose(1));
    // Prometheus runs in containers only.
    let prometheus = containers["callers"].as_array_mut().expect("callers").pop();
    assert_eq!(
        prometheus,
        Some(json!({"id": "spiffe://dev.trust-fabric.local/prometheus", "capabilities": ["metrics.read"]}))
    );
    assert_eq!(containers["callers"], machine["callers"]);
    assert_eq!(containers["fabric"], machine["fabric"]);
}

#[test]
fn production_example_is_a_node_of_three() {
    let config = good(PRODUCTION);
    let peers = config.cluster.peers.expect("others");
    assert_eq!(peers.members.len(), 3);
    assert!(config.tls.is_some() && peers.members.contains_key(&config.node.id));
}

/// Regression: containers were killed after 20 s. A killed node has not handed leadership over, and loses requests.
#[test]
fn supervisors_wait_longer_than_the_longest_stop() {
    let served = limits::SHUTDOWN_DELAY_MAX.max(limits::HAND_OVER_TIMEOUT);
    let longest = served + limits::DRAIN_TIMEOUT + limits::STOP_TIMEOUT;
    let stops = [
        (COMPOSE, "stop_grace_period: "),
        (COMPOSE_REGIONS, "stop_grace_period: "),
        (UNIT, "TimeoutStopSec="),
    ];
    for (text, setting) in stops {
        let values: Vec<&str> =
            text.lines().filter_map(|line| line.trim_start().strip_prefix(setting)).collect();
        let [value] = values[..] else { panic!("{setting}{values:?}") };
        let secs = value.strip_suffix('s').and_then(|secs| secs.parse().ok()).expect("seconds");
        assert!(
            Duration::from_secs(secs) >= longest + MARGIN,
            "{setting}{value}, a stop takes up to {longest:?}"
        );
    }
}
