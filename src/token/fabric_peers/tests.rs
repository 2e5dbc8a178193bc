//! Attempts to bring more than the ceiling allows.

use serde_json::{Value, json};

use super::*;
use crate::id::TrustDomain;
use crate::token::federated::verify_of_peer;
use crate::token::issued::Fabric;
use crate::token::jws::Compact;
use crate::token::signature_cache::SignatureCache;
use crate::token::testing::{NOW_SECS, Signer, now, with};

const OURS: &str = "https://us.example";
const PEER: &str = "https://eu.example";

fn radius(text: &str) -> BlastRadius {
    text.parse().expect("a blast radius")
}

fn ceiling() -> Ceiling {
    Ceiling {
        roles: BTreeSet::from([Role::Subject, Role::Actor]),
        capabilities: ["db.read", "db.list"].map(str::to_owned).into(),
        max_blast_radius: Some(radius("namespace:shared")),
        blast_radius: BTreeMap::from([
            (radius("namespace:prod"), radius("workspace:shared/eu")),
            (radius("namespace:all"), radius("cluster")),
            (radius("namespace:other"), radius("namespace:elsewhere")),
        ]),
        max_delegation_depth: 1,
        max_chain: Duration::from_secs(900),
    }
}

/// A verified token with changed claims.
fn token(changes: &Value) -> PeerToken {
    let claims = json!({
        "iss": PEER, "sub": "wimse://eu.example/a", "aud": OURS, "jti": "t", "iat": NOW_SECS, "exp": NOW_SECS + 300,
        "root_iat": NOW_SECS - 70, "root_exp": NOW_SECS + 5000, "lineage": [], "idx": "000102030405060708090a0b0c0d0e0f-42",
        "capabilities": ["db.read", "db.write"], "scope": "db.read db.write openid", "delegation_depth": 3,
        "blast_radius": "namespace:prod"
    });
    let signer = Signer::es256();
    let text = signer.sign(&json!({"alg": "ES256", "kid": "k", "typ": "at+jwt"}), &with(&claims, changes));
    let domain: TrustDomain = "eu.example".parse().expect("trust domain");
    let peer = Fabric { iss: PEER, trust_domains: std::slice::from_ref(&domain) };
    let (compact, key) = (Compact::parse(&text).expect("compact"), signer.verifying("k"));
    verify_of_peer(&compact, OURS, peer, &key, &SignatureCache::default(), None, now()).expect("good")
}

fn limit_by(ceiling: &Ceiling, changes: &Value) -> Result<Credential, AboveCeiling> {
    ceiling.limit(token(changes), Role::Subject, &Containment::default(), now())
}

fn limited(changes: &Value) -> Credential {
    limit_by(&ceiling(), changes).expect("within the ceiling")
}

fn words(credential: &Credential) -> [Vec<&str>; 2] {
    [credential.capabilities.as_deref(), credential.scope.as_deref()]
        .map(|words| words.expect("stated").iter().map(String::as_str).collect())
}

#[test]
fn only_listed_capabilities_and_scopes_cross() {
    assert_eq!(words(&limited(&json!({}))), [["db.read"], ["db.read"]]);
    let none = json!({"capabilities": ["db.write"], "scope": "openid"});
    assert_eq!(words(&limited(&none)), [[""; 0], [""; 0]]);
    // A claim that the token lacks would restrict nothing by itself.
    let unstated = json!({"capabilities": null, "scope": null});
    assert_eq!(words(&limited(&unstated)), [["db.list", "db.read"], ["db.list", "db.read"]]);
    let closed = Ceiling { capabilities: BTreeSet::new(), ..ceiling() };
    for changes in [json!({}), unstated] {
        assert_eq!(words(&limit_by(&closed, &changes).expect("nothing crosses")), [[""; 0], [""; 0]]);
    }
}

#[test]
fn role_that_is_not_accepted_is_refused() {
    for (accepted, other) in [(Role::Subject, Role::Actor), (Role::Actor, Role::Subject)] {
        let one = Ceiling { roles: BTreeSet::from([accepted]), ..ceiling() };
        let limit = |role| one.limit(token(&json!({})), role, &Containment::default(), now());
        assert!(limit(accepted).is_ok());
        assert_eq!(limit(other).err(), Some(AboveCeiling::Role));
    }
}

#[test]
fn blast_radius_counts_by_its_counterpart_only() {
    let of = |credential: &Credential| credential.blast_radius.clone();
    assert_eq!(of(&limited(&json!({}))).as_deref(), Some("workspace:shared/eu"));
    let unlimited = Ceiling { max_blast_radius: None, ..ceiling() };
    assert_eq!(
        of(&limit_by(&unlimited, &json!({"blast_radius": "namespace:all"})).expect("mapped")).as_deref(),
        Some("cluster")
    );
    // One that means something here by its spelling alone, also if it is smaller than the ceiling.
    for stated in [
        "namespace:shared",
        "workspace:shared/eu",
        "namespace",
        "namespace:prod/x",
        "cluster",
        "x y",
        "galaxy",
    ] {
        for ceiling in [&ceiling(), &unlimited] {
            let refused = limit_by(ceiling, &json!({ "blast_radius": stated })).err();
            assert_eq!(refused, Some(AboveCeiling::BlastRadiusUnmapped), "{stated}");
        }
    }
    let elsewhere = limit_by(&ceiling(), &json!({"blast_radius": "namespace:other"})).err();
    assert_eq!(elsewhere, Some(AboveCeiling::BlastRadiusNotComparable));
}

#[test]
fn token_never_reaches_beyond_the_largest_blast_radius() {
    let wide = limited(&json!({"blast_radius": "namespace:all"}));
    assert_eq!(wide.blast_radius.as_deref(), Some("namespace:shared"));
    let unstated = limited(&json!({"blast_radius": null}));
    assert_eq!(unstated.blast_radius.as_deref(), Some("namespace:shared"));
}

#[test]
fn delegation_depth_is_limited() {
    for (stated, expected) in [(json!(3), 1), (json!(1), 1), (json!(0), 0), (Value::Null, 0)] {
        let credential = limited(&json!({ "delegation_depth": stated }));
        assert_eq!(credential.delegation_depth, Some(expected), "{stated}");
    }
}

#[test]
fn chain_ends_with_the_ceiling_or_before() {
    assert_eq!(limited(&json!({})).root_exp, Timestamp::from_secs(NOW_SECS + 900));
    let short = limited(&json!({"root_exp": NOW_SECS + 60}));
    assert_eq!(short.root_exp, Timestamp::from_secs(NOW_SECS + 60));
}

#[test]
fn limited_credential_keeps_its_origin() {
    let credential = limited(&json!({}));
    assert_eq!(credential.via, [PEER]);
    assert!(credential.lineage.contains(&crate::token::lineage::fabric(PEER)));
}
