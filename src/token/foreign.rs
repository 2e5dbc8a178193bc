//! Verification of a credential of a foreign issuer, and the checks of `typ` and `kid` that all kinds share.
//!
//! Revocation is checked by the use-cases; keys are fetched by `outbound`.

use super::claims::Claims;
use super::confirmation::{self, CertificateDigest};
use super::issuer::{Issuer, IssuerKind};
use super::jws::{Compact, Header};
use super::key_set::VerifyingKey;
use super::signature_cache::SignatureCache;
use super::subject_mapping;
use super::{Error, credential, issued, lineage, mint};
use crate::clock::Timestamp;
use crate::limits;

pub use super::credential::{Credential, CredentialClaims, Kind};

/// Verifies a credential of a foreign issuer, in this order:
///
/// 1. `typ` is allowed for the kind; a JWT-SVID has no header fields besides `alg`, `typ`, `kid`
/// 2. `alg` is in the issuer's allow-list
/// 3. `kid` names `key`
/// 4. signature
/// 5. `iss` is the issuer, byte for byte
/// 6. `aud` holds an accepted value, byte for byte
/// 7. `nbf`, `iat`, `exp`, age
/// 8. `cnf`, if present, names `presented`
/// 9. `sub` follows the issuer's mapping and is of an allowed trust domain
/// 10. no `via`: the token came through a peer fabric, whose ledger is not consulted for it
/// 11. types and limits of all other claims that are used
///
/// `key` is a key of `issuer`; size, form and header were checked by [`Compact::parse`]. `presented` is the
/// certificate of the connection of the token.
pub fn verify_foreign(
    token: &Compact<'_>,
    issuer: &Issuer,
    key: &VerifyingKey,
    signatures: &SignatureCache,
    presented: Option<&CertificateDigest>,
    now: Timestamp,
) -> Result<Credential, Error> {
    let header = token.header();
    let kind = match issuer.kind {
        IssuerKind::Jwt { .. } => Kind::Jwt,
        IssuerKind::Spiffe => Kind::SpiffeSvid,
    };
    check_type(kind, header)?;
    // RFC 8725 §3.1: "verify that the algorithm is the one expected".
    if !issuer.algorithms.contains(&header.algorithm) {
        return Err(Error::AlgorithmNotAllowed);
    }
    check_key_name(header, key)?;
    let claims = signatures.verify(token, &issuer.iss, key, now)?;
    match (&claims.iss, kind) {
        (Some(iss), _) if *iss == issuer.iss => {}
        (None, Kind::SpiffeSvid) => {}
        (Some(_), _) => return Err(Error::IssuerMismatch),
        (None, _) => return Err(Error::ClaimMissing("iss")),
    }
    if !claims.aud.iter().any(|aud| issuer.audiences.contains(aud)) {
        return Err(Error::AudienceMismatch);
    }
    claims.check_times(now, issuer.max_credential_age, limits::LEEWAY)?;
    let is_bound = confirmation::check(&claims, presented)?;
    let (sub, kubernetes) = subject_mapping::map(issuer, &claims)?;
    if claims.others.contains_key(issued::VIA) {
        return Err(Error::ThroughAnotherFabric);
    }
    let email = if issuer.verified_email { verified_email(&claims)? } else { None };
    // Contract §3, `root_exp`: the expiry of the first credential, capped by the issuer's age limit.
    let root_exp = claims.exp.min(claims.iat.plus(issuer.max_credential_age));
    let mut credential = credential::read(kind, &issuer.iss, sub, (claims.iat, root_exp), key, &claims)?;
    credential.kubernetes = kubernetes;
    credential.is_bound = is_bound;
    credential.lineage.push(lineage::subject(&issuer.iss, &claims.sub));
    if let Some(email) = &email {
        credential.lineage.push(lineage::email(&issuer.iss, email));
    }
    credential.email = email;
    Ok(credential.with_own_lineage())
}

/// RFC 8725 §3.11: explicit typing keeps tokens of one kind from being used as another. A foreign JWT may be an
/// ordinary one or an access token, never an event, a proof or a logout token.
pub(super) fn check_type(kind: Kind, header: &Header) -> Result<(), Error> {
    let typ = header.typ.as_deref();
    let fits = match kind {
        Kind::Jwt => typ.is_none() || is_type(header, "JWT") || is_type(header, mint::TYP),
        // JWT-SVID §2.3: "JWT" or "JOSE" if set; §2: no other header parameters.
        Kind::SpiffeSvid => {
            (typ.is_none() || is_type(header, "JWT") || is_type(header, "JOSE")) && !header.has_other_fields
        }
        Kind::AgentA2a => typ == Some(mint::TYP),
    };
    if fits { Ok(()) } else { Err(Error::TypeMismatch) }
}

/// Whether `typ` is present and is `name`: a media type, compared without case, with optional prefix "application/"
/// (RFC 7515 §4.1.9).
pub(super) fn is_type(header: &Header, name: &str) -> bool {
    header.typ.as_deref().is_some_and(|typ| {
        let bare = match typ.split_at_checked("application/".len()) {
            Some((prefix, bare)) if prefix.eq_ignore_ascii_case("application/") => bare,
            _ => typ,
        };
        bare.eq_ignore_ascii_case(name)
    })
}

pub(super) fn check_key_name(header: &Header, key: &VerifyingKey) -> Result<(), Error> {
    match &header.kid {
        Some(kid) if key.kid() != Some(kid) => Err(Error::UnknownKey),
        _ => Ok(()),
    }
}

/// OpenID Connect Core §5.1: an address is verified only if `email_verified` is the boolean `true`.
fn verified_email(claims: &Claims) -> Result<Option<String>, Error> {
    if claims.others.get("email_verified").and_then(serde_json::Value::as_bool) != Some(true) {
        return Ok(None);
    }
    claims.text("email", limits::EMAIL_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::id::TrustDomain;
    use crate::token::act::Act;
    use crate::token::issued::{Fabric, verify_own};
    use crate::token::issuer::{ALGORITHMS_DEFAULT, FetchFiles, Issuers, KeySource, SubjectMapping};
    use crate::token::subject_mapping::Kubernetes;
    use crate::token::testing::{NOW_SECS, Signer, now, with};

    const ISS: &str = "https://issuer.example";
    const FABRIC: &str = "https://fabric.example";
    const ID: &str = "wimse://trust.example/ns/shop/sa/cart";

    fn trust_domain() -> TrustDomain {
        "trust.example".parse().expect("trust domain")
    }

    fn issuer(subject: SubjectMapping) -> Issuer {
        Issuer {
            iss: ISS.to_owned(),
            kind: IssuerKind::Jwt { subject },
            keys: KeySource::Discovery,
            fetch_files: FetchFiles::default(),
            algorithms: ALGORITHMS_DEFAULT.to_vec(),
            audiences: vec![FABRIC.to_owned()],
            trust_domains: vec![trust_domain()],
            max_credential_age: limits::CREDENTIAL_AGE_MAX,
            verified_email: true,
        }
    }

    fn spiffe() -> Issuer {
        let keys = KeySource::SpiffeBundleFile("bundle.json".into());
        let iss = "spiffe://trust.example".to_owned();
        Issuer { iss, kind: IssuerKind::Spiffe, keys, ..issuer(SubjectMapping::Identifier) }
    }

    fn header() -> Value {
        json!({"alg": "ES256", "kid": "k"})
    }

    fn claims() -> Value {
        json!({"iss": ISS, "sub": ID, "aud": FABRIC, "iat": NOW_SECS - 10, "exp": NOW_SECS + 600})
    }

    fn own_claims() -> Value {
        let lineage: Vec<String> = vec![lineage::subject(ISS, "origin").to_string()];
        json!({
            "iss": FABRIC, "sub": ID, "aud": FABRIC, "jti": "t-1", "iat": NOW_SECS - 10, "nbf": NOW_SECS - 10,
            "exp": NOW_SECS + 290, "root_iat": NOW_SECS - 70, "root_exp": NOW_SECS + 5000, "client_id": ID, "txn": "x-1",
            "lineage": lineage, "idx": "000102030405060708090a0b0c0d0e0f-42", "policy": "p",
            "capabilities": ["read"], "scope": "read", "delegation_depth": 2
        })
    }

    fn foreign(issuer: &Issuer, header: &Value, claims: &Value, at: Timestamp) -> Result<Credential, Error> {
        let signer = Signer::es256();
        let text = signer.sign(header, claims);
        verify_foreign(
            &Compact::parse(&text)?,
            issuer,
            &signer.verifying("k"),
            &SignatureCache::default(),
            None,
            at,
        )
    }

    /// Verifies changed claims of an issuer with the mapping `Identifier`.
    fn changed(changes: &Value) -> Result<Credential, Error> {
        foreign(&issuer(SubjectMapping::Identifier), &header(), &with(&claims(), changes), now())
    }

    fn refusal(changes: &Value) -> Error {
        changed(changes).expect_err("must be refused")
    }

    fn own(header: &Value, claims: &Value) -> Result<Credential, Error> {
        let (signer, trust_domain) = (Signer::es256(), trust_domain());
        let text = signer.sign(header, claims);
        let fabric = Fabric { iss: FABRIC, trust_domains: std::slice::from_ref(&trust_domain) };
        let cache = SignatureCache::default();
        verify_own(&Compact::parse(&text)?, fabric, &signer.verifying("k"), &cache, None, now())
    }

    fn own_header() -> Value {
        json!({"alg": "ES256", "kid": "k", "typ": "at+jwt"})
    }

    fn own_refusal(changes: &Value) -> Error {
        own(&own_header(), &with(&own_claims(), changes)).expect_err("must be refused")
    }

    #[test]
    fn only_the_three_token_types_parse() {
        assert_eq!("urn:ietf:params:oauth:token-type:jwt".parse(), Ok(Kind::Jwt));
        assert_eq!("urn:svc:token-type:spiffe-svid".parse(), Ok(Kind::SpiffeSvid));
        assert_eq!("urn:svc:token-type:agent-a2a".parse(), Ok(Kind::AgentA2a));
        for other in
            ["", "jwt", "urn:ietf:params:oauth:token-type:access_token", "urn:svc:token-type:agent-a2a "]
        {
            assert_eq!(other.parse::<Kind>(), Err(Error::UnsupportedTokenType), "{other}");
        }
    }

    #[test]
    fn credential_is_accepted_with_its_lineage() {
        let credential = changed(&json!({
            "jti": "j", "client_id": "c", "email": "a@b.example", "email_verified": true, "scope": "x y"
        }))
        .expect("good");
        assert_eq!((credential.kind, credential.iss.as_str(), credential.sub.as_str()), (Kind::Jwt, ISS, ID));
        assert_eq!(credential.scope.as_deref(), Some(&["x".to_owned(), "y".to_owned()][..]));
        assert_eq!(credential.capabilities, None);
        for digest in [
            lineage::workload(&credential.sub),
            lineage::subject(ISS, ID),
            lineage::email(ISS, "a@b.example"),
            lineage::token(ISS, "j"),
            lineage::client(ISS, "c"),
            lineage::signing_key(ISS, "k"),
        ] {
            assert!(credential.lineage.contains(&digest));
        }
        assert_eq!(credential.lineage.len(), 6);
    }

    #[test]
    fn missing_or_mistyped_registered_claim_is_refused() {
        for name in ["iss", "sub", "aud", "exp", "iat"] {
            assert_eq!(refusal(&json!({ name: null })), Error::ClaimMissing(name));
            for wrong in
                [json!({}), json!(true), json!(""), json!([]), json!([1]), json!(-1), json!("5"), json!(1.5)]
            {
                let error = refusal(&json!({ name: wrong }));
                let expected = [Error::ClaimMalformed(name), Error::IssuerMismatch, Error::AudienceMismatch];
                let sub_is_text = name == "sub" && error == Error::SubjectMalformed;
                assert!(expected.contains(&error) || sub_is_text, "{name} {wrong}: {error}");
            }
        }
        assert_eq!(refusal(&json!({"nbf": "1"})), Error::ClaimMalformed("nbf"));
        assert_eq!(refusal(&json!({"jti": 1})), Error::ClaimMalformed("jti"));
        assert!(changed(&json!({"exp": limits::NUMERIC_DATE_MAX_SECS})).is_ok());
        assert_eq!(refusal(&json!({"exp": limits::NUMERIC_DATE_MAX_SECS + 1})), Error::ClaimMalformed("exp"));
        assert_eq!(refusal(&json!({"exp": 1e308})), Error::ClaimMalformed("exp"));
        assert_eq!(refusal(&json!({"exp": "9999999999"})), Error::ClaimMalformed("exp"));
    }

    /// Attack: a token of a third fabric comes through a fabric that is configured as an issuer only.
    #[test]
    fn foreign_token_that_came_through_a_fabric_is_refused() {
        for via in [json!(["https://peer.example"]), json!([]), json!("x")] {
            assert_eq!(refusal(&json!({ "via": via })), Error::ThroughAnotherFabric, "{via}");
        }
    }

    #[test]
    fn iss_and_aud_are_compared_byte_for_byte() {
        for iss in [
            "https://issuer.example/",
            "https://ISSUER.example",
            "https://issuer.exampl",
            "https://issuer.example.evil",
        ] {
            assert_eq!(refusal(&json!({"iss": iss})), Error::IssuerMismatch, "{iss}");
        }
        for aud in
            [json!("https://fabric.example/"), json!(["https://other"]), json!("https://FABRIC.example")]
        {
            assert_eq!(refusal(&json!({"aud": aud})), Error::AudienceMismatch, "{aud}");
        }
        assert!(changed(&json!({"aud": ["https://other", FABRIC]})).is_ok());
    }

    #[test]
    fn times_are_accepted_at_their_limits_and_refused_beyond() {
        let issuer = issuer(SubjectMapping::Identifier);
        let at = |millis: i64| {
            let at = Timestamp::from_millis((NOW_SECS + 600) * 1000 + millis);
            foreign(&issuer, &header(), &claims(), at).err()
        };
        assert_eq!(at(4_999), None);
        assert_eq!(at(5_000), Some(Error::Expired));
        assert_eq!(at(6_000), Some(Error::Expired));
        assert!(changed(&json!({"nbf": NOW_SECS + 5})).is_ok());
        assert_eq!(refusal(&json!({"nbf": NOW_SECS + 6})), Error::NotYetValid);
        assert!(changed(&json!({"iat": NOW_SECS + 5})).is_ok());
        assert_eq!(refusal(&json!({"iat": NOW_SECS + 6})), Error::IssuedAhead);
        assert_eq!(refusal(&json!({"iat": NOW_SECS + 4, "exp": NOW_SECS + 4})), Error::ClaimMalformed("exp"));
    }

    #[test]
    fn long_lived_credential_ends_with_the_issuers_age_limit() {
        let day = 24 * 3600;
        let year = NOW_SECS + 365 * day;
        assert_eq!(refusal(&json!({"iat": NOW_SECS - day, "exp": year})), Error::TooOld);
        let credential = changed(&json!({"iat": NOW_SECS - day + 1, "exp": year})).expect("young enough");
        assert_eq!(credential.root_exp, Timestamp::from_secs(NOW_SECS + 1));
        let short = changed(&json!({})).expect("good");
        assert_eq!(short.root_exp, short.exp);
    }

    #[test]
    fn algorithm_outside_the_issuers_list_is_refused() {
        let signer = Signer::ed25519();
        let text = signer.sign(&json!({"alg": "EdDSA", "kid": "k"}), &claims());
        let compact = Compact::parse(&text).expect("compact");
        let (issuer, cache) = (issuer(SubjectMapping::Identifier), SignatureCache::default());
        let refused = verify_foreign(&compact, &issuer, &signer.verifying("k"), &cache, None, now()).err();
        assert_eq!(refused, Some(Error::AlgorithmNotAllowed));
    }

    #[test]
    fn token_signed_by_another_issuer_with_same_kid_is_refused() {
        let (a, b) = (Signer::es256(), Signer::es256());
        let text = b.sign(&header(), &claims());
        let compact = Compact::parse(&text).expect("compact");
        let (issuer, cache) = (issuer(SubjectMapping::Identifier), SignatureCache::default());
        let refused = verify_foreign(&compact, &issuer, &a.verifying("k"), &cache, None, now()).err();
        assert_eq!(refused, Some(Error::SignatureInvalid));
        // The cached signature of B does not verify a token of A.
        let issuer_b = Issuer { iss: "https://b.example".to_owned(), ..issuer.clone() };
        let key_b = b.verifying("k");
        assert_eq!(
            verify_foreign(&compact, &issuer_b, &key_b, &cache, None, now()).err(),
            Some(Error::IssuerMismatch)
        );
        let refused = verify_foreign(&compact, &issuer, &a.verifying("k"), &cache, None, now()).err();
        assert_eq!(refused, Some(Error::SignatureInvalid));
    }

    #[test]
    fn key_with_another_kid_is_refused() {
        let other = with(&header(), &json!({"kid": "other"}));
        let refused = foreign(&issuer(SubjectMapping::Identifier), &other, &claims(), now()).err();
        assert_eq!(refused, Some(Error::UnknownKey));
        let nameless = with(&header(), &json!({"kid": null}));
        assert!(foreign(&issuer(SubjectMapping::Identifier), &nameless, &claims(), now()).is_ok());
    }

    #[test]
    fn typ_is_accepted_only_for_its_kinds() {
        let foreign_jwt = |typ: &str| {
            let header = with(&header(), &json!({ "typ": typ }));
            foreign(&issuer(SubjectMapping::Identifier), &header, &claims(), now()).err()
        };
        for typ in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
            assert_eq!(foreign_jwt(typ), None, "{typ}");
        }
        for typ in
            ["secevent+jwt", "dpop+jwt", "wit+jwt", "wpt+jwt", "logout+jwt", "JOSE", "", "application/"]
        {
            assert_eq!(foreign_jwt(typ), Some(Error::TypeMismatch), "{typ}");
        }
        for typ in
            [json!(null), json!("JWT"), json!("AT+JWT"), json!("application/at+jwt"), json!("secevent+jwt")]
        {
            let header = with(&own_header(), &json!({ "typ": typ }));
            assert_eq!(own(&header, &own_claims()).err(), Some(Error::TypeMismatch), "{typ}");
        }
    }

    #[test]
    fn service_account_maps_and_cannot_leave_its_segment() {
        let issuer = issuer(SubjectMapping::Kubernetes);
        let map = |sub: &str, bound: Value| {
            let changes = json!({"sub": sub, "kubernetes.io": bound});
            foreign(&issuer, &header(), &with(&claims(), &changes), now())
        };
        let bound = json!({
            "namespace": "shop", "serviceaccount": {"name": "cart", "uid": "u"}, "pod": {"name": "cart-0", "uid": "v"}
        });
        let credential = map("system:serviceaccount:shop:cart", bound.clone()).expect("good");
        assert_eq!(credential.sub.as_str(), ID);
        assert_eq!(credential.original_sub, "system:serviceaccount:shop:cart");
        let pod = Some("cart-0".to_owned());
        let expected = Kubernetes { namespace: "shop".to_owned(), service_account: "cart".to_owned(), pod };
        assert_eq!(credential.kubernetes.as_ref(), Some(&expected));
        for sub in [
            ID,
            "system:serviceaccount:shop",
            "system:serviceaccount::cart",
            "system:serviceaccount:shop:cart:x",
            "system:serviceaccount:shop:../sa/x",
            "system:serviceaccount:shop/sa/x:cart",
            "system:serviceaccount:..:cart",
            "System:serviceaccount:shop:cart",
            "system:serviceaccount:shop:c%61rt",
        ] {
            assert_eq!(map(sub, Value::Null).err(), Some(Error::SubjectMalformed), "{sub}");
        }
        for other in [
            with(&bound, &json!({"namespace": "other"})),
            with(&bound, &json!({"serviceaccount": {"name": "other"}})),
            json!({}),
            json!("shop"),
        ] {
            let refused = map("system:serviceaccount:shop:cart", other).err();
            assert_eq!(refused, Some(Error::SubjectDisagrees));
        }
    }

    #[test]
    fn issuer_names_only_its_own_trust_domains() {
        for sub in ["wimse://other.example/a", "wimse://trust.example.evil/a", "spiffe://other.example/a"] {
            assert_eq!(refusal(&json!({"sub": sub})), Error::TrustDomainNotAllowed, "{sub}");
        }
        for sub in
            ["alice", "https://trust.example/a", "wimse://trust.example", "wimse://trust.example/a/../b"]
        {
            assert_eq!(refusal(&json!({"sub": sub})), Error::SubjectMalformed, "{sub}");
        }
    }

    #[test]
    fn opaque_mapping_is_injective() {
        let issuer = issuer(SubjectMapping::Opaque);
        let map = |sub: &str| {
            let credential = foreign(&issuer, &header(), &with(&claims(), &json!({ "sub": sub })), now());
            credential.expect("good").sub.as_str().to_owned()
        };
        let subjects =
            ["alice", "Alice", "auth0|alice", "..", ".", "a/b", "sub64", "YXV0aDB8YWxpY2U", "a b", "ä"];
        let mapped: std::collections::BTreeSet<String> = subjects.iter().map(|sub| map(sub)).collect();
        assert_eq!(mapped.len(), subjects.len());
        assert_eq!(map("alice"), "wimse://trust.example/sub/alice");
        assert_eq!(map("auth0|alice"), "wimse://trust.example/sub64/YXV0aDB8YWxpY2U");
        let long = with(&claims(), &json!({"sub": "ä".repeat(1000)}));
        assert_eq!(foreign(&issuer, &header(), &long, now()).err(), Some(Error::SubjectMalformed));
    }

    #[test]
    fn jwt_svid_follows_its_own_rules() {
        let claims = with(&claims(), &json!({"iss": null, "sub": "spiffe://trust.example/a"}));
        let svid = |header: &Value, claims: &Value| foreign(&spiffe(), header, claims, now());
        let credential = svid(&header(), &claims).expect("good");
        assert_eq!(credential.kind, Kind::SpiffeSvid);
        assert_eq!(credential.sub.as_str(), "spiffe://trust.example/a");
        assert_eq!(credential.iss, "spiffe://trust.example");
        for typ in ["JWT", "JOSE"] {
            assert!(svid(&with(&header(), &json!({ "typ": typ })), &claims).is_ok(), "{typ}");
        }
        let refused = |header: &Value, claims: &Value| svid(header, claims).expect_err("must be refused");
        assert_eq!(refused(&with(&header(), &json!({"typ": "at+jwt"})), &claims), Error::TypeMismatch);
        assert_eq!(refused(&with(&header(), &json!({"x5t": "A"})), &claims), Error::TypeMismatch);
        assert_eq!(refused(&header(), &with(&claims, &json!({"iss": ISS}))), Error::IssuerMismatch);
        assert_eq!(refused(&header(), &with(&claims, &json!({"sub": ID}))), Error::SubjectMalformed);
        let other = with(&claims, &json!({"sub": "spiffe://other.example/a"}));
        assert_eq!(refused(&header(), &other), Error::TrustDomainNotAllowed);
        assert_eq!(refused(&header(), &with(&claims, &json!({"aud": null}))), Error::ClaimMissing("aud"));
    }

    #[test]
    fn email_counts_only_if_verified_by_a_trusted_issuer() {
        for verified in [json!(false), json!("true"), json!(1), Value::Null] {
            let credential = changed(&json!({"email": "a@b.example", "email_verified": verified}));
            assert_eq!(credential.expect("good").email, None);
        }
        let of = |bytes: usize| json!({"email": "a".repeat(bytes), "email_verified": true});
        assert!(changed(&of(limits::EMAIL_BYTES_MAX)).is_ok());
        assert_eq!(refusal(&of(limits::EMAIL_BYTES_MAX + 1)), Error::ClaimMalformed("email"));
        let doubted = Issuer { verified_email: false, ..issuer(SubjectMapping::Identifier) };
        let claims = with(&claims(), &json!({"email": "a@b.example", "email_verified": true}));
        let credential = foreign(&doubted, &header(), &claims, now()).expect("good");
        assert_eq!(credential.email, None);
        assert!(!credential.lineage.contains(&lineage::email(ISS, "a@b.example")));
    }

    #[test]
    fn mistyped_or_oversized_other_claims_are_refused() {
        let many = vec!["x"; limits::CAPABILITIES_MAX + 1];
        for (name, value) in [
            ("capabilities", json!("read")),
            ("capabilities", json!([1])),
            ("capabilities", json!(["a b"])),
            ("capabilities", json!([""])),
            ("capabilities", json!(many)),
            ("capabilities", json!(["x".repeat(limits::CAPABILITY_BYTES_MAX + 1)])),
            ("scope", json!(["read"])),
            ("scope", json!("a  b")),
            ("scope", json!("a\u{e4}")),
            ("scope", json!("a\"b")),
            ("blast_radius", json!(1)),
            ("delegation_depth", json!(-1)),
            ("delegation_depth", json!(11)),
            ("delegation_depth", json!(1.5)),
            ("delegation_depth", json!("1")),
            ("act", json!("x")),
            ("may_act", json!([])),
            ("txn", json!("x".repeat(limits::OPAQUE_BYTES_MAX + 1))),
            ("client_id", json!({})),
        ] {
            let error = refusal(&json!({ name: value }));
            assert!(
                matches!(&error, Error::ClaimMalformed(claim) if *claim == name),
                "{name} {value}: {error}"
            );
        }
        let looped = json!({"sub": "a", "act": {"sub": "b", "act": {"sub": "a"}}});
        assert_eq!(refusal(&json!({ "act": looped })), Error::ActLoop);
    }

    #[test]
    fn own_token_is_accepted_with_its_lineage() {
        let credential = own(&own_header(), &own_claims()).expect("good");
        assert_eq!(credential.kind, Kind::AgentA2a);
        assert_eq!(credential.root_exp, Timestamp::from_secs(NOW_SECS + 5000));
        assert_eq!(credential.idx.map(|idx| idx.index), Some(42));
        assert_eq!(credential.delegation_depth, Some(2));
        for digest in [
            lineage::subject(ISS, "origin"),
            lineage::workload(&credential.sub),
            lineage::token(FABRIC, "t-1"),
            lineage::signing_key(FABRIC, "k"),
            lineage::client(FABRIC, ID),
        ] {
            assert!(credential.lineage.contains(&digest));
        }
        assert_eq!(credential.lineage.len(), 5);
    }

    #[test]
    fn own_token_is_the_subjects_own_only_if_first_hand() {
        let actor = json!({"sub": "wimse://trust.example/agent/mcp/1"});
        for (changes, expected) in [
            (json!({}), true),
            (json!({"client_id": "wimse://trust.example/ns/edge/sa/gateway"}), false),
            (json!({"client_id": null}), false),
            (json!({"act": actor}), false),
            (json!({"via": ["https://peer.example"]}), false),
            // For an agent's identity token `client_id` is not considered.
            (json!({"client_id": "wimse://trust.example/ns/edge/sa/gateway", "platform": "mcp"}), true),
            (json!({"act": actor, "platform": "mcp"}), false),
        ] {
            let credential = own(&own_header(), &with(&own_claims(), &changes)).expect("good");
            assert_eq!(credential.is_first_hand(), expected, "{changes}");
        }
    }

    #[test]
    fn own_token_of_other_issuer_audience_or_scope_is_refused() {
        assert_eq!(own_refusal(&json!({"iss": ISS})), Error::IssuerMismatch);
        assert_eq!(own_refusal(&json!({"iss": null})), Error::ClaimMissing("iss"));
        assert_eq!(own_refusal(&json!({"aud": "https://tool"})), Error::AudienceMismatch);
        assert_eq!(own_refusal(&json!({"aud": [FABRIC, "https://tool"]})), Error::AudienceMismatch);
        assert_eq!(own_refusal(&json!({"sub": "wimse://other.example/a"})), Error::TrustDomainNotAllowed);
        assert_eq!(own_refusal(&json!({"htm": "POST"})), Error::ExecutionScoped);
        assert_eq!(own_refusal(&json!({"htm": 1})), Error::ExecutionScoped);
        for name in ["jti", "root_iat", "root_exp", "lineage", "idx"] {
            assert_eq!(own_refusal(&json!({ name: null })), Error::ClaimMissing(name));
        }
        let nameless = with(&own_header(), &json!({"kid": null}));
        assert_eq!(own(&nameless, &own_claims()).err(), Some(Error::UnknownKey));
    }

    #[test]
    fn own_token_past_root_exp_is_refused() {
        assert_eq!(own_refusal(&json!({"root_exp": NOW_SECS})), Error::ChainExpired);
        assert!(own(&own_header(), &with(&own_claims(), &json!({"root_exp": NOW_SECS + 1}))).is_ok());
    }

    #[test]
    fn malformed_lineage_or_idx_is_refused() {
        let digest = lineage::subject(ISS, "x").to_string();
        for value in [json!("x"), json!([1]), json!(["short"]), json!(vec![digest; limits::LINEAGE_MAX + 1])]
        {
            assert_eq!(own_refusal(&json!({ "lineage": value })), Error::ClaimMalformed("lineage"));
        }
        for value in ["42", "xyz-42", "000102030405060708090a0b0c0d0e0f-"] {
            assert_eq!(own_refusal(&json!({ "idx": value })), Error::ClaimMalformed("idx"));
        }
    }

    #[test]
    fn malformed_via_is_refused() {
        let peers = ["https://a.example", "https://b.example", "https://c.example"];
        assert_eq!(
            own(&own_header(), &with(&own_claims(), &json!({"via": peers[..2]}))).expect("good").via,
            &peers[..2]
        );
        let long = "x".repeat(limits::URI_BYTES_MAX + 1);
        for value in [
            json!([]),
            json!({}),
            json!(peers[0]),
            json!([1]),
            json!([""]),
            json!([long]),
            json!([peers[0], peers[0]]),
            json!(peers),
        ] {
            assert_eq!(own_refusal(&json!({ "via": value })), Error::ClaimMalformed("via"), "{value}");
        }
        let null = with(&own_claims(), &json!({"via": ["x"]}));
        let null = serde_json::from_str(&null.to_string().replace("[\"x\"]", "null")).expect("JSON");
        assert_eq!(own(&own_header(), &null).err(), Some(Error::ClaimMalformed("via")));
    }

    #[test]
    fn malleated_signature_is_the_same_token_by_jti() {
        // (r, n - s) verifies too; stored state names a token by (iss, jti), which malleation cannot change.
        let (signer, trust_domain) = (Signer::es256(), trust_domain());
        let text = signer.sign(&own_header(), &own_claims());
        let twin = malleate(&text);
        assert_ne!(text, twin);
        let (cache, key) = (SignatureCache::default(), signer.verifying("k"));
        let fabric = Fabric { iss: FABRIC, trust_domains: std::slice::from_ref(&trust_domain) };
        let verify = |text: &str| {
            verify_own(&Compact::parse(text).expect("compact"), fabric, &key, &cache, None, now())
        };
        let first = verify(&text).expect("good");
        if let Ok(second) = verify(&twin) {
            assert_eq!(first.lineage, second.lineage);
        }
    }

    /// Replaces s by n - s (SEC 1 §4.1.4 accepts both).
    fn malleate(text: &str) -> String {
        use base64::Engine as _;
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        const ORDER: [u8; 32] = [
            0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6,
            0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
        ];
        let (input, signature) = text.rsplit_once('.').expect("dots");
        let mut signature = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
        let mut borrow = 0i16;
        for at in (0..32).rev() {
            let difference = i16::from(ORDER[at]) - i16::from(signature[32 + at]) - borrow;
            borrow = i16::from(difference < 0);
            signature[32 + at] = difference.rem_euclid(256).to_le_bytes()[0];
        }
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn issuer_is_chosen_by_iss_or_trust_domain_within_its_kind() {
        let issuers =
            Issuers::new(vec![issuer(SubjectMapping::Identifier), spiffe()]).expect("configuration");
        let signer = Signer::es256();
        let choose = |kind: Kind, changes: &Value| {
            let text = signer.sign(&header(), &with(&claims(), changes));
            let hint = Compact::parse(&text)?.unverified_issuer()?;
            issuers.choose(kind, &hint).map(|issuer| issuer.iss.clone())
        };
        assert_eq!(choose(Kind::Jwt, &json!({})).as_deref(), Ok(ISS));
        let svid = json!({"iss": null, "sub": "spiffe://trust.example/a"});
        assert_eq!(choose(Kind::SpiffeSvid, &svid).as_deref(), Ok("spiffe://trust.example"));
        for (kind, changes, expected) in [
            (Kind::Jwt, json!({"iss": "https://issuer.example/"}), Error::UnknownIssuer),
            (Kind::Jwt, json!({"iss": "spiffe://trust.example"}), Error::UnknownIssuer),
            (Kind::Jwt, json!({"iss": null}), Error::ClaimMissing("iss")),
            (Kind::Jwt, json!({"iss": [ISS]}), Error::ClaimMissing("iss")),
            (Kind::SpiffeSvid, json!({"sub": "spiffe://other.example/a"}), Error::UnknownIssuer),
            (Kind::SpiffeSvid, json!({"sub": "alice"}), Error::SubjectMalformed),
            (Kind::AgentA2a, json!({}), Error::UnknownIssuer),
        ] {
            assert_eq!(choose(kind, &changes), Err(expected), "{changes}");
        }
    }

    #[test]
    fn minted_token_is_accepted() {
        let signer = crate::token::signing_key::SigningKey::generate().expect("key");
        let trust_domain = trust_domain();
        let claims = mint::AccessTokenClaims {
            iss: FABRIC.to_owned(),
            sub: ID.to_owned(),
            aud: FABRIC.to_owned(),
            iat: NOW_SECS,
            nbf: NOW_SECS,
            exp: NOW_SECS + 300,
            jti: "t".to_owned(),
            client_id: ID.to_owned(),
            txn: "x".to_owned(),
            scope: Some("read".to_owned()),
            capabilities: vec!["read".to_owned()],
            blast_radius: Some("namespace:shop".to_owned()),
            delegation_depth: Some(1),
            act: Some(Act {
                iss: FABRIC.to_owned(),
                sub: "wimse://trust.example/agent".to_owned(),
                act: None,
            }),
            may_act: None,
            lineage: vec![lineage::subject(ISS, "origin").to_string()],
            via: vec!["https://peer.example".to_owned()],
            root_iat: NOW_SECS - 1000,
            root_exp: NOW_SECS + 1000,
            execution: None,
            agent: None,
            idx: "000102030405060708090a0b0c0d0e0f-1".to_owned(),
            policy: "p".to_owned(),
            cnf: None,
        };
        let key = VerifyingKey::from_jwk(signer.public_jwk()).expect("public");
        let fabric = Fabric { iss: FABRIC, trust_domains: std::slice::from_ref(&trust_domain) };
        let cache = SignatureCache::default();
        let text = mint::sign_access_token(&claims, &signer).expect("signed");
        let at = now().plus(Duration::from_secs(1));
        let credential = verify_own(&Compact::parse(&text).expect("compact"), fabric, &key, &cache, None, at)
            .expect("good");
        assert_eq!(credential.act, claims.act);
        assert_eq!(credential.blast_radius, claims.blast_radius);
        assert_eq!(credential.via, claims.via);
        let execution = mint::ExecutionClaims {
            htm: "POST".to_owned(),
            htu: "https://tool/x".to_owned(),
            nonce: None,
            inp_hash: None,
            exec_act: "POST".to_owned(),
            target: "https://tool/x".to_owned(),
        };
        let claims = mint::AccessTokenClaims { execution: Some(execution), ..claims };
        let text = mint::sign_access_token(&claims, &signer).expect("signed");
        let refused =
            verify_own(&Compact::parse(&text).expect("compact"), fabric, &key, &cache, None, at).err();
        assert_eq!(refused, Some(Error::ExecutionScoped));
    }
}
