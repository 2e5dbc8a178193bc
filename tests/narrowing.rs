//! No exchange widens capabilities, scope, blast radius, delegation depth or lifetime (contract §3,
//! Narrowing). Random subjects, actors, policies and requests pass through real signatures, verifiers,
//! narrowing and a compiled policy.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};
use trust_fabric::clock::Timestamp;
use trust_fabric::exchange::{Error, Grant, narrow, pair};
use trust_fabric::id::TrustDomain;
use trust_fabric::limits;
use trust_fabric::policy::blast_radius::{BlastRadius, Containment};
use trust_fabric::policy::exchange::{Allow, Party, PolicyInput, RequestedGrant};
use trust_fabric::policy::{Bundle, Source};
use trust_fabric::token::act::Act;
use trust_fabric::token::foreign::{Credential, verify_foreign};
use trust_fabric::token::issued::{Fabric, verify_own};
use trust_fabric::token::issuer::{FetchFiles, Issuer, IssuerKind, KeySource, SubjectMapping};
use trust_fabric::token::jws::{Algorithm, Compact};
use trust_fabric::token::key_set::VerifyingKey;
use trust_fabric::token::lineage;
use trust_fabric::token::signature_cache::SignatureCache;
use trust_fabric::token::signing_key::SigningKey;

const ISS: &str = "https://issuer.example";
const FABRIC: &str = "https://fabric.example";
const NOW_SECS: i64 = 1_800_000_000;
const CASES: u32 = 10_000;

/// Grants what the subject of its input states, so that one compiled policy gives every output.
const POLICY: &str = "package svc.exchange\n\nimport rego.v1\n\n\
    optional := {name: value | some name in [\"blast_radius\", \"delegation_depth\"]; value := input.subject[name]}\n\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": object.union(optional, {\
    \"audience\": input.request.audience, \"capabilities\": input.subject.capabilities, \"scopes\": input.subject.scope})}\n";

struct Environment {
    bundle: Bundle,
    key: SigningKey,
    verifying: VerifyingKey,
    issuer: Issuer,
    trust_domain: TrustDomain,
    containment: Containment,
    signatures: SignatureCache,
}

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let key = SigningKey::generate().expect("key");
    let trust_domain: TrustDomain = "trust.example".parse().expect("trust domain");
    let source = Source { path: "exchange.rego".to_owned(), text: POLICY.to_owned() };
    let order = ["workspace", "namespace", "cluster", "global"].map(str::to_owned).to_vec();
    let parents = [("namespace:pay", "cluster:eu"), ("cluster:eu", "global:all")];
    let parents =
        parents.map(|(child, parent)| (child.parse().expect("radius"), parent.parse().expect("radius")));
    Environment {
        bundle: Bundle::compile(&[source]).expect("policy"),
        verifying: VerifyingKey::from_jwk(key.public_jwk()).expect("public key"),
        key,
        issuer: Issuer {
            iss: ISS.to_owned(),
            kind: IssuerKind::Jwt { subject: SubjectMapping::Identifier },
            keys: KeySource::Discovery,
            fetch_files: FetchFiles::default(),
            algorithms: vec![Algorithm::Es256],
            audiences: vec![FABRIC.to_owned()],
            trust_domains: vec![trust_domain.clone()],
            max_credential_age: Duration::from_secs(3600),
            verified_email: false,
        },
        trust_domain,
        containment: Containment::new(order, parents.into()).expect("containment"),
        signatures: SignatureCache::default(),
    }
});

/// Claims of a credential.
#[derive(Clone, Debug)]
struct StatedClaims {
    name: &'static str,
    own: bool,
    capabilities: Option<Vec<&'static str>>,
    scope: Option<Vec<&'static str>>,
    blast_radius: Option<&'static str>,
    delegation_depth: Option<u32>,
    lifetime_secs: i64,
    root_secs: i64,
    act: Vec<&'static str>,
}

/// Output of the policy.
#[derive(Clone, Debug)]
struct PolicyGrant {
    capabilities: Vec<&'static str>,
    scopes: Vec<&'static str>,
    blast_radius: Option<&'static str>,
    delegation_depth: Option<u32>,
}

const WORDS: [&str; 6] = ["db.read", "db.write", "mail", "admin", "offline", "openid"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn words() -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(WORDS.to_vec(), 0..=WORDS.len())
}

fn radius() -> impl Strategy<Value = Option<&'static str>> {
    let radii = [
        "workspace",
        "workspace:pay/x",
        "workspace:pay/x/y",
        "workspace:shop",
        "namespace",
        "namespace:pay",
        "namespace:shop",
        "cluster",
        "cluster:eu",
        "cluster:us",
        "global",
        "global:all",
    ];
    prop::option::weighted(0.6, select(radii.to_vec()))
}

fn stated() -> impl Strategy<Value = StatedClaims> {
    (
        (select(NAMES.to_vec()), any::<bool>()),
        prop::option::of(words()),
        prop::option::of(words()),
        radius(),
        prop::option::weighted(0.8, 0..=limits::DELEGATION_DEPTH_MAX),
        (1..7200_i64, 1..90_000_i64),
        subsequence(NAMES.to_vec(), 0..3).prop_shuffle(),
    )
        .prop_map(
            |(
                (name, own),
                capabilities,
                scope,
                blast_radius,
                delegation_depth,
                (lifetime_secs, root_secs),
                act,
            )| {
                StatedClaims {
                    name,
                    own,
                    capabilities,
                    scope,
                    blast_radius,
                    delegation_depth,
                    lifetime_secs,
                    root_secs,
                    act,
                }
            },
        )
}

fn granted() -> impl Strategy<Value = PolicyGrant> {
    (words(), words(), radius(), prop::option::weighted(0.8, 0..=limits::DELEGATION_DEPTH_MAX)).prop_map(
        |(capabilities, scopes, blast_radius, delegation_depth)| PolicyGrant {
            capabilities,
            scopes,
            blast_radius,
            delegation_depth,
        },
    )
}

fn id(name: &str) -> String {
    format!("wimse://trust.example/agent/{name}")
}

/// A verified credential with these claims.
fn credential(stated: &StatedClaims) -> Option<Credential> {
    let world = &*ENVIRONMENT;
    let mut claims = json!({
        "iss": if stated.own { FABRIC } else { ISS }, "sub": id(stated.name), "aud": FABRIC, "jti": "j",
        "iat": NOW_SECS, "exp": NOW_SECS + stated.lifetime_secs,
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            claims[name] = value;
        }
    };
    set("capabilities", stated.capabilities.as_ref().map(|words| json!(words)));
    set("scope", stated.scope.as_ref().map(|words| json!(words.join(" "))));
    set("blast_radius", stated.blast_radius.map(Value::from));
    set("delegation_depth", stated.delegation_depth.map(Value::from));
    let act = stated.act.iter().fold(None, |inner: Option<Value>, name| {
        let mut act = json!({"iss": FABRIC, "sub": id(name)});
        if let Some(inner) = inner {
            act["act"] = inner;
        }
        Some(act)
    });
    set("act", act);
    let now = Timestamp::from_secs(NOW_SECS);
    if stated.own {
        set("root_iat", Some(json!(NOW_SECS - stated.root_secs)));
        set("root_exp", Some(json!(NOW_SECS + stated.root_secs)));
        set("lineage", Some(json!([lineage::subject(ISS, stated.name).to_string()])));
        set("idx", Some(json!("000102030405060708090a0b0c0d0e0f-1")));
        let text = world.key.sign(&claims, "at+jwt").expect("signed");
        let fabric = Fabric { iss: FABRIC, trust_domains: std::slice::from_ref(&world.trust_domain) };
        let token = Compact::parse(&text).expect("compact");
        verify_own(&token, fabric, &world.verifying, &world.signatures, None, now).ok()
    } else {
        let text = world.key.sign(&claims, "at+jwt").expect("signed");
        let token = Compact::parse(&text).expect("compact");
        verify_foreign(&token, &world.issuer, &world.verifying, &world.signatures, None, now).ok()
    }
}

/// The decision of the compiled policy.
fn allow(granted: &PolicyGrant, requested: &[String]) -> Allow {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (capabilities, scopes) = (owned(&granted.capabilities), owned(&granted.scopes));
    let party = Party {
        id: "wimse://trust.example/agent/a",
        trust_domain: "trust.example",
        issuer: ISS,
        fabric: None,
        via: Vec::new(),
        kind: "jwt",
        original_sub: "a",
        email: None,
        namespace: None,
        service_account: None,
        capabilities: Some(&capabilities),
        scope: Some(&scopes),
        blast_radius: granted.blast_radius,
        delegation_depth: granted.delegation_depth,
        act: &[],
    };
    let request = RequestedGrant {
        audience: Some("x:a"),
        scope: requested,
        execution: false,
        htm: None,
        htu: None,
        exec_act: None,
        target: None,
    };
    let question = PolicyInput { subject: party, actor: None, request, caller: None };
    ENVIRONMENT.bundle.decide_exchange(&question).unwrap_or_else(|denial| panic!("{denial:?}"))
}

/// The rules of narrowing, written a second time.
fn check(
    grant: &Grant,
    parties: &[StatedClaims],
    policy: &PolicyGrant,
    requested: &[String],
) -> Result<(), TestCaseError> {
    let of_policy: BTreeSet<&str> = policy.capabilities.iter().chain(&policy.scopes).copied().collect();
    for capability in &grant.capabilities {
        prop_assert!(policy.capabilities.contains(&capability.as_str()), "{capability} is not the policy's");
        prop_assert!(grant.scope.contains(capability), "{capability} is not in scope");
        for party in parties {
            let stated = party.capabilities.as_ref();
            prop_assert!(
                stated.is_none_or(|stated| stated.contains(&capability.as_str())),
                "{capability}: {party:?}"
            );
        }
    }
    prop_assert!(!grant.scope.is_empty());
    for word in &grant.scope {
        prop_assert!(of_policy.contains(word.as_str()), "{word} is not the policy's");
        prop_assert!(requested.is_empty() || requested.contains(word), "{word} was not asked for");
        for party in parties {
            let stated = party.scope.as_ref();
            prop_assert!(stated.is_none_or(|stated| stated.contains(&word.as_str())), "{word}: {party:?}");
        }
    }
    for limit in parties.iter().map(|party| party.blast_radius).chain([policy.blast_radius]).flatten() {
        let limit: BlastRadius = limit.parse().expect("radius");
        let radius = grant.blast_radius.as_ref();
        prop_assert!(
            radius.is_some_and(|radius| ENVIRONMENT.containment.fits(radius, &limit)),
            "{radius:?} in {limit}"
        );
    }
    let depth = grant.delegation_depth;
    prop_assert!(depth <= policy.delegation_depth.unwrap_or(0));
    prop_assert!(parties[0].delegation_depth.is_none_or(|stated| depth <= stated));
    if let Some(actor) = parties.get(1) {
        prop_assert!(depth < actor.delegation_depth.unwrap_or(0), "the actor spends a hop");
    }
    for party in parties {
        let root = if party.own { party.root_secs } else { party.lifetime_secs.min(3600) };
        prop_assert!(grant.pair.root_exp().secs() <= NOW_SECS + root, "{party:?}");
        let begun = if party.own { NOW_SECS - party.root_secs } else { NOW_SECS };
        prop_assert!(grant.pair.root_iat().secs() <= begun, "{party:?}");
    }
    Ok(())
}

/// The chain has every party once, the actor first.
fn check_chain(grant: &Grant, parties: &[StatedClaims]) -> Result<(), TestCaseError> {
    let actors: Vec<&str> = grant.pair.act.iter().flat_map(Act::chain).map(|act| act.sub.as_str()).collect();
    prop_assert!(actors.len() <= limits::ACT_DEPTH_MAX);
    for party in parties {
        prop_assert!(
            party.act.iter().all(|name| actors.contains(&id(name).as_str())),
            "an actor is gone: {actors:?}"
        );
    }
    if let Some(actor) = parties.get(1) {
        prop_assert_eq!(actors[0], id(actor.name));
        prop_assert_eq!(
            actors.iter().collect::<BTreeSet<_>>().len(),
            actors.len(),
            "an actor twice: {:?}",
            actors
        );
        prop_assert!(!actors.contains(&id(parties[0].name).as_str()), "the subject acts for itself");
    }
    prop_assert!(grant.pair.lineage.len() <= limits::LINEAGE_MAX);
    Ok(())
}

#[test]
fn no_exchange_widens_anything() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcomes = std::cell::RefCell::new([0_u32; 2]);
    let case = (stated(), prop::option::of(stated()), granted(), prop::option::of(words()));
    let result = runner.run(&case, |(subject, actor, policy, requested)| {
        let requested: Vec<String> = requested.unwrap_or_default().into_iter().map(str::to_owned).collect();
        let parties: Vec<StatedClaims> = [Some(subject), actor].into_iter().flatten().collect();
        let credentials: Option<Vec<Credential>> = parties.iter().map(credential).collect();
        let mut credentials = credentials.expect("every generated credential is good").into_iter();
        let subject = credentials.next().expect("a subject");
        let outcome = pair(subject, credentials.next())
            .and_then(|pair| narrow(allow(&policy, &requested), pair, &requested, &ENVIRONMENT.containment));
        match outcome {
            Ok(grant) => {
                outcomes.borrow_mut()[0] += 1;
                check(&grant, &parties, &policy, &requested)?;
                check_chain(&grant, &parties)
            }
            Err(
                Error::NothingGranted { .. }
                | Error::BlastRadius { .. }
                | Error::DelegationDepthExhausted
                | Error::ActorLoop
                | Error::ChainTooLong
                | Error::LineageTooLong,
            ) => {
                outcomes.borrow_mut()[1] += 1;
                Ok(())
            }
            Err(error) => Err(TestCaseError::fail(format!("{error}"))),
        }
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let [passed, refused] = outcomes.into_inner();
    // Both outcomes must be common for the property to mean anything.
    assert!(passed > CASES / 10 && refused > CASES / 10, "{passed} passed, {refused} refused");
}
