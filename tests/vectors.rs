//! The language-neutral vectors of `tests/vectors/`, run through the pure functions of the library.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/python.rs"]
#[expect(dead_code, reason = "these programs have no input")]
mod python;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use strum::VariantArray as _;
use trust_fabric::clock::Timestamp;
use trust_fabric::id::{Digest128, DigestKind, LogPosition, TrustDomain};
use trust_fabric::policy::blast_radius::{BlastRadius, Containment};
use trust_fabric::policy::signals::{EventEffect, PolicyInput};
use trust_fabric::policy::{Bundle, Source};
use trust_fabric::state::command::Tool;
use trust_fabric::state::{Epoch, RevocationIndex};
use trust_fabric::token::BodyHash;
use trust_fabric::token::foreign::Credential;
use trust_fabric::token::issued::Fabric;
use trust_fabric::token::key_set::VerifyingKey;
use trust_fabric::token::security_event::{Rules, UncheckedSet};
use trust_fabric::token::signature_cache::SignatureCache;
use trust_fabric::tools::checks::{
    self, Check, CheckOutcome, CheckTrace, Failure, Keys, RevocationStatus, ToolCall, Verified,
};

const CHECKS: &str = include_str!("vectors/checks/manifest.json");

/// Fields: `tests/vectors/checks/README.md`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    now: i64,
    issuer: String,
    trust_domains: Vec<String>,
    incarnation: String,
    jwks: BTreeMap<String, Vec<Value>>,
    blast_radius: Order,
    spent: Vec<UsedToken>,
    revocations: Vec<Revocation>,
    tools: Vec<Entry>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    order: Vec<String>,
    parents: BTreeMap<String, String>,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct UsedToken {
    iss: String,
    jti: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Revocation {
    kind: String,
    issuer: String,
    value: String,
    digest: String,
    index: u64,
    at: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    tool_id: String,
    name: String,
    resource_uri: Option<String>,
    required_capabilities: Vec<String>,
    max_blast_radius: Option<String>,
    requires_execution: bool,
    allowed_operations: Vec<String>,
    allowed_targets: Vec<String>,
    protocols: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    tool_id: String,
    token: String,
    protocol: Option<String>,
    request_body_hash: Option<String>,
    cnf: Option<BTreeMap<String, String>>,
    expected: String,
    reason: Option<String>,
    trace: Vec<Step>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Step {
    check: String,
    result: String,
}

impl From<Entry> for Tool {
    fn from(entry: Entry) -> Self {
        Self {
            tool_id: entry.tool_id,
            name: entry.name,
            resource_uri: entry.resource_uri,
            required_capabilities: entry.required_capabilities,
            max_blast_radius: entry.max_blast_radius,
            requires_execution: entry.requires_execution,
            allowed_operations: entry.allowed_operations,
            allowed_targets: entry.allowed_targets,
            protocols: entry.protocols,
            description: None,
            version: None,
        }
    }
}

/// State of the node in a manifest.
struct NodeState {
    now: Timestamp,
    issuer: String,
    trust_domains: Vec<TrustDomain>,
    position: LogPosition,
    keys: BTreeMap<String, Arc<VerifyingKey>>,
    containment: Containment,
    spent: Vec<UsedToken>,
    revocations: RevocationIndex,
    tools: BTreeMap<String, Tool>,
}

impl NodeState {
    fn read(manifest: Manifest) -> (Self, Vec<Case>) {
        assert_eq!(manifest.format, 1);
        let radius = |text: &str| text.parse::<BlastRadius>().expect("blast radius");
        let parents = manifest.blast_radius.parents.iter();
        let parents = parents.map(|(child, parent)| (radius(child), radius(parent))).collect();
        let revocations = RevocationIndex::default();
        for revocation in &manifest.revocations {
            let (index, at) = match revocation.kind.as_str() {
                "token" => RevocationIndex::EVERYTHING,
                _ => (revocation.index, Timestamp::from_secs(revocation.at)),
            };
            revocations.put(revocation.digest(), index, at).expect("fits");
        }
        let key = |jwk: &Value| {
            let key = VerifyingKey::from_jwk(jwk).expect("key");
            (key.kid().expect("kid").to_owned(), Arc::new(key))
        };
        let known = Self {
            now: Timestamp::from_secs(manifest.now),
            issuer: manifest.issuer,
            trust_domains: manifest.trust_domains.iter().map(|name| name.parse().expect("name")).collect(),
            position: format!("{}-0", manifest.incarnation).parse().expect("incarnation"),
            keys: manifest.jwks["keys"].iter().map(key).collect(),
            containment: Containment::new(manifest.blast_radius.order, parents).expect("order"),
            spent: manifest.spent,
            revocations,
            tools: manifest.tools.into_iter().map(|tool| (tool.tool_id.clone(), tool.into())).collect(),
        };
        (known, manifest.cases)
    }

    fn status(&self, credential: &Credential) -> RevocationStatus {
        let this =
            UsedToken { iss: credential.iss.clone(), jti: credential.jti.clone().expect("one of our own") };
        let epoch = Epoch { incarnation: Some(self.position.incarnation), floor: None };
        let (lineage, idx, iat) = (&credential.lineage, credential.idx, credential.iat);
        RevocationStatus {
            is_revoked: self.revocations.covers(epoch, lineage, idx, iat),
            is_spent: credential.execution.is_some() && self.spent.contains(&this),
        }
    }

    fn verify(&self, case: &Case) -> Result<Verified, Failure> {
        let signatures = SignatureCache::default();
        let fabric = Fabric { iss: &self.issuer, trust_domains: &self.trust_domains };
        let key = |kid: &str| self.keys.get(kid).cloned();
        let keys = Keys { fabric, key: &key, signatures: &signatures };
        let seen = case.cnf.as_ref().map(|cnf| cnf["x5t#S256"].parse().expect("a digest"));
        let authentic = checks::authenticate(&case.token, &keys, seen.as_ref(), self.now)?;
        let status = self.status(authentic.credential());
        let body: Option<BodyHash> =
            case.request_body_hash.as_ref().map(|hash| hash.parse().expect("a digest"));
        let protocol = case.protocol.as_deref().unwrap_or("mcp");
        let call = ToolCall { protocol, request_body_hash: body.as_ref(), is_for_peer: false };
        checks::verify(authentic, status, call, &self.tools[&case.tool_id], &self.containment)
    }
}

impl Revocation {
    /// Its digest, which must equal the stated one.
    fn digest(&self) -> Digest128 {
        let kind = match self.kind.as_str() {
            "subject" => DigestKind::Subject,
            "email" => DigestKind::Email,
            "client" => DigestKind::Client,
            "token" => DigestKind::Token,
            "signing_key" => DigestKind::SigningKey,
            other => panic!("{other}"),
        };
        let digest = Digest128::of(kind, self.issuer.as_bytes(), self.value.as_bytes());
        assert_eq!(digest.to_string(), self.digest, "{}", self.value);
        digest
    }
}

fn steps(trace: &CheckTrace) -> Vec<Step> {
    let step = |(check, outcome): &(Check, CheckOutcome)| Step {
        check: check.into_str().to_owned(),
        result: outcome.into_str().to_owned(),
    };
    trace.iter().map(step).collect()
}

fn manifest() -> Manifest {
    serde_json::from_str(CHECKS).expect("the manifest")
}

#[test]
fn every_vector_of_the_nine_checks_ends_as_expected() {
    let (known, cases) = NodeState::read(manifest());
    let mut wrong = Vec::new();
    for case in &cases {
        let (outcome, reason, trace) = match known.verify(case) {
            Ok(verified) => ("pass", None, steps(verified.trace())),
            Err(failure) => (failure.check.into_str(), Some(failure.reason.clone()), steps(&failure.trace)),
        };
        if (outcome, &reason, &trace) != (case.expected.as_str(), &case.reason, &case.trace) {
            wrong.push(format!(
                "{}: {outcome} {reason:?}, expected {} {:?}",
                case.name, case.expected, case.reason
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn vectors_cover_every_check_every_pair_and_every_skip() {
    let cases = manifest().cases;
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "no name twice");
    for (at, check) in Check::VARIANTS.iter().enumerate() {
        assert!(names.contains(format!("{check} fails alone").as_str()), "{check}");
        for later in &Check::VARIANTS[at + 1..] {
            let name = format!("{check} and {later} fail together");
            let case = cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(case.expected, check.into_str(), "the earlier is named");
        }
        let is_skipped = |step: &Step| step.check == check.into_str() && step.result == "skip";
        let can_be_skipped = !matches!(check, Check::Token | Check::Revocation | Check::Protocol);
        let skipped = cases.iter().any(|case| case.trace.iter().any(is_skipped));
        assert_eq!(skipped, can_be_skipped, "{check}");
    }
}

#[test]
fn vectors_equal_the_output_of_their_program() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/checks/make.py");
    let outcome = Command::new(python::python()).arg(program).arg("--check").status().expect("python");
    assert!(outcome.success());
}

#[test]
fn independent_implementation_agrees_on_every_vector() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = root.join("tests/vectors/checks/manifest.json");
    let program = python::script("check_vectors.py");
    let outcome = Command::new(python::python()).arg(program).arg(manifest).output().expect("python");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stdout));
}

/// Fields: `tests/vectors/signals/README.md`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    name: String,
    spec: String,
    set: Value,
    effect: Value,
}

fn shipped_policy() -> Bundle {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    let read = |name: &str| {
        let text = std::fs::read_to_string(root.join(name)).expect("shipped policy");
        Source { path: name.to_owned(), text }
    };
    Bundle::compile(&["data.json", "exchange.rego", "signals.rego"].map(read)).expect("compiles")
}

#[test]
fn specification_examples_have_the_stated_effect() {
    let examples: Vec<Example> =
        serde_json::from_str(include_str!("vectors/signals/examples.json")).expect("examples");
    let policy = shipped_policy();
    let audiences = ["https://fabric.example".to_owned()];
    let now = Timestamp::from_secs(1_800_000_000);
    let rules = Rules { audiences: &audiences, algorithms: &[], iss: "https://idp.example", now };
    for Example { name, spec, set, effect } in &examples {
        let set = UncheckedSet::unsigned(set.clone(), &rules).and_then(|set| set.check(&rules));
        let set = set.unwrap_or_else(|error| panic!("{name}: {error}"));
        let question = PolicyInput { set: trust_fabric::set_input(&set), caller: None, is_signed: true };
        let permit = policy.decide_signal(&question).unwrap_or_else(|denial| panic!("{name}: {denial:?}"));
        let family = || effect["family"].as_str().expect("family").to_owned();
        let expected = match effect["effect"].as_str().expect("effect") {
            "none" => EventEffect::None,
            "watermark" => EventEffect::Watermark,
            "block" => EventEffect::Block { family: family() },
            "lift" => EventEffect::Lift { family: family() },
            other => panic!("{name}: {other}"),
        };
        let [event] = set.events.as_slice() else { panic!("{name}: one event") };
        assert_eq!(permit.effect(&event.uri), Some(&expected), "{name}, {spec}");
    }
    // 13 examples of CAEP and 5 of RISC are tokens from the specifications.
    let shown = |spec: &str| {
        let of_spec =
            |example: &&Example| example.spec.starts_with(spec) && !example.spec.ends_with("no example");
        examples.iter().filter(of_spec).count()
    };
    assert_eq!((shown("CAEP"), shown("RISC")), (13, 5));
}
