//! Attacks on the verification of a peer's tokens. Each begins with a good token and changes one thing.

use serde_json::{Value, json};

use super::*;
use crate::id::TrustDomain;
use crate::token::foreign::Kind;
use crate::token::testing::{NOW_SECS, Signer, now, with};

const OURS: &str = "https://us.example";
const PEER: &str = "https://eu.example";
const THIRD: &str = "https://ap.example";
const AGENT: &str = "wimse://eu.example/agent/mcp/1";
const ACTOR: &str = "wimse://eu.example/agent/mcp/2";

fn domains() -> Vec<TrustDomain> {
    ["eu.example", "eu-prod.example"].map(|name| name.parse().expect("trust domain")).to_vec()
}

fn header() -> Value {
    json!({"alg": "ES256", "kid": "k", "typ": "at+jwt"})
}

fn claims() -> Value {
    let lineage: Vec<String> = vec![lineage::email("https://idp.example", "ada@idp.example").to_string()];
    json!({
        "iss": PEER, "sub": AGENT, "aud": OURS, "jti": "t-1", "iat": NOW_SECS - 10, "nbf": NOW_SECS - 10,
        "exp": NOW_SECS + 290, "root_iat": NOW_SECS - 70, "root_exp": NOW_SECS + 5000, "client_id": AGENT, "txn": "x-1",
        "lineage": lineage, "idx": "000102030405060708090a0b0c0d0e0f-42", "policy": "p",
        "capabilities": ["db.read"], "scope": "db.read", "delegation_depth": 2,
        "act": {"iss": PEER, "sub": ACTOR}
    })
}

fn verify_by(
    signer: &Signer,
    key: &VerifyingKey,
    header: &Value,
    claims: &Value,
) -> Result<PeerToken, Error> {
    let text = signer.sign(header, claims);
    let domains = domains();
    let peer = Fabric { iss: PEER, trust_domains: &domains };
    verify_of_peer(&Compact::parse(&text)?, OURS, peer, key, &SignatureCache::default(), None, now())
}

fn verify(header: &Value, claims: &Value) -> Result<PeerToken, Error> {
    let signer = Signer::es256();
    verify_by(&signer, &signer.verifying("k"), header, claims)
}

fn changed(changes: &Value) -> Result<PeerToken, Error> {
    verify(&header(), &with(&claims(), changes))
}

fn refusal(changes: &Value) -> Error {
    changed(changes).expect_err("must be refused")
}

#[test]
fn token_of_a_peer_derives_from_the_peer() {
    let token = changed(&json!({})).expect("good");
    assert_eq!((token.at().index, token.sub().as_str()), (42, AGENT));
    assert_eq!(token.root_iat(), Timestamp::from_secs(NOW_SECS - 70));
    for digest in [
        lineage::fabric(PEER),
        lineage::workload(token.sub()),
        lineage::subject(PEER, AGENT),
        lineage::subject(PEER, ACTOR),
        lineage::workload(&ACTOR.parse().expect("an id")),
        lineage::token(PEER, "t-1"),
        lineage::signing_key(PEER, "k"),
        lineage::client(PEER, AGENT),
        lineage::email("https://idp.example", "ada@idp.example"),
    ] {
        assert!(token.lineage().contains(&digest));
    }
    assert_eq!(token.lineage().len(), 9);
    let credential = &token.credential;
    assert_eq!(
        (credential.kind, credential.iss.as_str(), credential.via.as_slice()),
        (Kind::AgentA2a, PEER, &[PEER.to_owned()][..])
    );
    assert_eq!(credential.idx, None, "its index is not one of our log");
    assert!(!credential.is_first_hand() && !credential.is_agent_identity);
}

#[test]
fn other_type_algorithm_or_key_name_is_refused() {
    for (changes, expected) in [
        (json!({"typ": "JWT"}), Error::TypeMismatch),
        (json!({"typ": null}), Error::TypeMismatch),
        (json!({"typ": "application/at+jwt"}), Error::TypeMismatch),
        (json!({"typ": "secevent+jwt"}), Error::TypeMismatch),
        (json!({"alg": "RS256"}), Error::AlgorithmNotAllowed),
        (json!({"alg": "none"}), Error::AlgorithmRefused),
        (json!({"alg": "HS256"}), Error::AlgorithmRefused),
        (json!({"kid": null}), Error::UnknownKey),
        (json!({"kid": "K"}), Error::UnknownKey),
        (json!({"jwk": {}}), Error::KeyInToken),
    ] {
        let refused = verify(&with(&header(), &changes), &claims()).expect_err("must be refused");
        assert_eq!(refused, expected, "{changes}");
    }
    // A key for another algorithm in the peer's set.
    let signer = Signer::ed25519();
    let eddsa = with(&header(), &json!({"alg": "EdDSA"}));
    let refused = verify_by(&signer, &signer.verifying("k"), &eddsa, &claims()).err();
    assert_eq!(refused, Some(Error::AlgorithmNotAllowed));
}

#[test]
fn key_of_another_fabric_with_the_same_name_is_refused() {
    let (peer, third) = (Signer::es256(), Signer::es256());
    let refused = verify_by(&third, &peer.verifying("k"), &header(), &claims()).err();
    assert_eq!(refused, Some(Error::SignatureInvalid));
}

#[test]
fn peer_speaks_for_no_other_issuer() {
    for iss in [OURS, THIRD, "https://eu.example/", "https://EU.example", "https://eu.example.evil"] {
        assert_eq!(refusal(&json!({ "iss": iss })), Error::IssuerMismatch, "{iss}");
    }
    assert_eq!(refusal(&json!({"iss": null})), Error::ClaimMissing("iss"));
}

/// A token that the peer's policy granted for this fabric has it as its only audience.
#[test]
fn token_for_another_audience_is_refused() {
    for aud in [
        json!(PEER),
        json!(THIRD),
        json!("https://us.example/"),
        json!("https://us.example/tool"),
        json!([OURS, PEER]),
        json!([PEER, OURS]),
        json!([OURS, OURS]),
    ] {
        assert_eq!(refusal(&json!({ "aud": aud })), Error::AudienceMismatch, "{aud}");
    }
    assert!(changed(&json!({"aud": [OURS]})).is_ok());
}

#[test]
fn execution_scoped_token_of_a_peer_is_refused() {
    for name in ["htm", "htu", "nonce", "inp_hash", "exec_act", "target"] {
        for value in [json!("x"), json!(1), json!({})] {
            assert_eq!(refusal(&json!({ name: value })), Error::ExecutionScoped, "{name}");
        }
    }
}

/// The ledger is retained for 65 minutes: a token that lives longer would outlive its revocation.
#[test]
fn long_lived_token_of_a_peer_is_refused() {
    let from = NOW_SECS - 10;
    assert!(changed(&json!({"exp": from + 300})).is_ok());
    for exp in [from + 301, from + 3600, limits::NUMERIC_DATE_MAX_SECS] {
        assert_eq!(refusal(&json!({ "exp": exp })), Error::LifetimeTooLong, "{exp}");
    }
}

#[test]
fn token_outside_its_times_is_refused() {
    let times = |iat: i64, exp: i64| json!({"iat": iat, "nbf": iat, "exp": exp});
    let n = NOW_SECS;
    for (changes, expected) in [
        (times(n + 6, n + 300), Error::NotYetValid),
        (json!({"iat": n + 6, "nbf": null, "exp": n + 300}), Error::IssuedAhead),
        (times(n - 100, n - 5), Error::Expired),
        (times(n - 10, n - 10), Error::ClaimMalformed("exp")),
        (json!({"nbf": n + 6}), Error::NotYetValid),
        (json!({"root_exp": n}), Error::ChainExpired),
        (json!({"root_exp": n - 1}), Error::ChainExpired),
        (json!({"root_iat": null}), Error::ClaimMissing("root_iat")),
        (json!({"root_iat": -1}), Error::ClaimMalformed("root_iat")),
        (json!({"root_exp": null}), Error::ClaimMissing("root_exp")),
        (json!({"root_exp": "1"}), Error::ClaimMalformed("root_exp")),
    ] {
        assert_eq!(refusal(&changes), expected, "{changes}");
    }
    for good in [times(n + 5, n + 300), times(n - 100, n - 4), json!({"root_exp": n + 1})] {
        assert!(changed(&good).is_ok(), "{good}");
    }
}

#[test]
fn bound_token_without_its_certificate_is_refused() {
    let digest = CertificateDigest::from_bytes([7; 32]);
    let bound = with(&claims(), &json!({"cnf": {"x5t#S256": digest.to_string()}}));
    assert_eq!(verify(&header(), &bound).err(), Some(Error::NotItsHolder));
    let (signer, domains) = (Signer::es256(), domains());
    let text = signer.sign(&header(), &bound);
    let by = |presented: &CertificateDigest| {
        let (token, key) = (Compact::parse(&text).expect("compact"), signer.verifying("k"));
        let peer = Fabric { iss: PEER, trust_domains: &domains };
        verify_of_peer(&token, OURS, peer, &key, &SignatureCache::default(), Some(presented), now())
    };
    assert_eq!(by(&CertificateDigest::from_bytes([8; 32])).err(), Some(Error::NotItsHolder));
    assert!(by(&digest).expect("its holder").credential.is_bound);
    assert_eq!(refusal(&json!({"cnf": {"jkt": "x"}})), Error::NotItsHolder);
    assert_eq!(refusal(&json!({"cnf": {}})), Error::ClaimMalformed("cnf"));
}

#[test]
fn peer_vouches_for_no_subject_of_another_domain() {
    for sub in [
        "wimse://us.example/agent/mcp/1",
        "spiffe://us.example/ns/shop/sa/cart",
        "wimse://ap.example/a",
        "wimse://eu.example.evil/a",
        "wimse://sub.eu.example/a",
        "wimse://eu-example/a",
    ] {
        assert_eq!(refusal(&json!({ "sub": sub })), Error::TrustDomainNotAllowed, "{sub}");
    }
    for sub in
        ["ada@eu.example", "https://eu.example/a", "wimse://eu.example", "wimse://eu.example/../us.example/a"]
    {
        assert_eq!(refusal(&json!({ "sub": sub })), Error::SubjectMalformed, "{sub}");
    }
    assert!(changed(&json!({"sub": "spiffe://eu-prod.example/ns/a"})).is_ok(), "its second domain");
}

#[test]
fn peer_vouches_for_no_actor_of_another_fabric() {
    let theirs = |iss: &str, sub: &str| json!({"iss": iss, "sub": sub});
    for act in [
        theirs(OURS, "wimse://us.example/agent/mcp/1"),
        theirs(PEER, "wimse://us.example/agent/mcp/1"),
        theirs(OURS, ACTOR),
        theirs(THIRD, "wimse://ap.example/agent/mcp/1"),
        theirs("https://eu.example/", ACTOR),
        theirs(PEER, "wimse://eu.example.evil/a"),
        theirs(PEER, "operator"),
        json!({"sub": "wimse://us.example/agent/mcp/1"}),
        json!({"iss": PEER, "sub": ACTOR, "act": theirs(OURS, "wimse://us.example/a")}),
        json!({"iss": PEER, "sub": ACTOR, "act": theirs(PEER, "wimse://us.example/a")}),
        json!({"iss": PEER, "sub": ACTOR, "act": {"iss": PEER, "sub": "wimse://eu.example/b", "act": theirs(THIRD, "x")}}),
    ] {
        assert_eq!(refusal(&json!({ "act": act })), Error::ActorNotOfIssuer, "{act}");
    }
    assert_eq!(refusal(&json!({"act": {"sub": 1}})), Error::ClaimMalformed("act"));
    assert_eq!(refusal(&json!({"act": "x"})), Error::ClaimMalformed("act"));
    // Without `iss` an actor has the issuer of the token.
    assert!(changed(&json!({"act": {"sub": ACTOR}})).is_ok());
    assert!(changed(&json!({"act": null})).is_ok());
}

/// No fabric vouches for a token of a third one.
#[test]
fn token_that_came_through_another_fabric_is_refused() {
    for via in [json!([THIRD]), json!([OURS]), json!([PEER]), json!([]), json!("x"), json!({}), json!(false)]
    {
        assert_eq!(refusal(&json!({ "via": via })), Error::ThroughAnotherFabric, "{via}");
    }
}

#[test]
fn identity_token_of_a_peers_agent_is_refused() {
    for platform in [json!("mcp"), json!(1), json!({})] {
        assert_eq!(refusal(&json!({ "platform": platform })), Error::IdentityOfAnotherFabric);
    }
}

#[test]
fn token_without_lineage_or_position_is_refused() {
    for name in ["jti", "lineage", "idx"] {
        assert_eq!(refusal(&json!({ name: null })), Error::ClaimMissing(name));
    }
    let digest = lineage::subject(PEER, "x").to_string();
    for value in [json!("x"), json!([1]), json!(["short"]), json!(vec![digest; limits::LINEAGE_MAX + 1])] {
        assert_eq!(refusal(&json!({ "lineage": value })), Error::ClaimMalformed("lineage"));
    }
    for value in [json!("42"), json!("xyz-42"), json!(42), json!("000102030405060708090a0b0c0d0e0f-")] {
        assert_eq!(refusal(&json!({ "idx": value })), Error::ClaimMalformed("idx"), "{value}");
    }
}
