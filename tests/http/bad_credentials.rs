//! Invalid credentials are all refused with the same text, which reveals nothing about the fault.

use std::net::TcpListener;

use aws_lc_rs::hmac;
use serde_json::{Value, json};

use crate::support::{
    BAD_SUBJECT, FABRIC, Issuers, JWT, NOW_SECS, Node, OWN, REPORTER, SVID, Setup, Signer, credential,
    encode, malleate, with,
};

/// Asserts that each case is refused, with answers that differ only in the request id.
async fn assert_refused_alike(node: &Node, kind: &str, cases: impl IntoIterator<Item = (String, String)>) {
    for (name, token) in cases {
        let answer = node.exchange(&credential(&token, kind)).await;
        let body = with(&answer.json(), &json!({"request_id": null}));
        let expected = json!({"error": "invalid_request", "error_description": BAD_SUBJECT});
        assert_eq!((answer.status, body), (400, expected), "{name}");
        let others: Vec<_> = answer
            .headers
            .keys()
            .map(reqwest::header::HeaderName::as_str)
            .filter(|name| !name.starts_with("x-"))
            .collect();
        assert_eq!(
            others,
            [
                "content-type",
                "cache-control",
                "svc-index",
                "ratelimit-policy",
                "ratelimit",
                "content-length",
                "date"
            ],
            "{name}"
        );
    }
}

fn named(cases: impl IntoIterator<Item = (&'static str, String)>) -> Vec<(String, String)> {
    cases.into_iter().map(|(name, token)| (name.to_owned(), token)).collect()
}

#[tokio::test]
async fn algorithm_must_be_allowed_for_the_issuer() {
    let node = Node::start().await;
    let (es256, rs256) = (&node.issuers.es256, &node.issuers.rs256);
    let claims = node.issuers.service_account("demo", "reporter");
    let header = |alg: &Value| with(&es256.header(), &json!({"alg": alg}));
    let mut cases = Vec::new();
    for alg in
        ["none", "None", "NONE", "nOnE", "ES384", "ES256K", "RS256", "EdDSA", "HS256", "dir", "", "es256"]
    {
        cases.push((alg.to_owned(), es256.sign_as(&header(&json!(alg)), &claims)));
        let unsigned = format!("{}.{}.", encode(header(&json!(alg)).to_string()), encode(claims.to_string()));
        cases.push((format!("{alg}, unsigned"), unsigned));
    }
    for alg in [Value::Null, json!(5), json!(["ES256"]), json!({"ES256": 1})] {
        cases.push((format!("alg {alg}"), es256.sign_as(&header(&alg), &claims)));
    }
    // PS256 fits the key, but the issuer's list does not have it.
    let pss = with(&rs256.header(), &json!({"alg": "PS256"}));
    cases.push(("unlisted".to_owned(), rs256.sign_as(&pss, &claims)));
    assert_refused_alike(&node, JWT, cases).await;
}

#[tokio::test]
async fn a_public_key_is_never_a_secret() {
    let node = Node::start().await;
    let claims = node.issuers.service_account("demo", "reporter");
    let mut cases = Vec::new();
    for signer in [&node.issuers.rs256, &node.issuers.es256] {
        let jwk = signer.jwk();
        let modulus = jwk["n"].as_str().or(jwk["x"].as_str()).expect("text").to_owned();
        for secret in [jwk.to_string(), modulus, String::new()] {
            for alg in ["HS256", "HS384", "HS512"] {
                let header = json!({"alg": alg, "kid": signer.kid()});
                let input = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                let token = format!("{input}.{}", encode(hmac::sign(&key, input.as_bytes())));
                cases.push((format!("{alg} with {}", signer.kid()), token));
            }
        }
    }
    assert_refused_alike(&node, JWT, cases).await;
}

#[tokio::test]
async fn a_kid_is_a_name_and_nothing_else() {
    let node = Node::start().await;
    let claims = node.issuers.service_account("demo", "reporter");
    let sign = |kid: &Value| node.issuers.es256.sign_as(&json!({"alg": "ES256", "kid": kid}), &claims);
    let long = "k".repeat(10_000);
    let kids = [
        json!("unknown"),
        json!("SHARED"),
        json!("shared "),
        json!("../../../../dev/null"),
        json!("/dev/null"),
        json!("file:///dev/null"),
        json!("http://127.0.0.1/keys"),
        json!("x' UNION SELECT 'key"),
        json!("|true"),
        json!("shared\u{0}"),
        json!("\u{e4}"),
        json!(""),
        json!(long),
        json!(1),
        json!(["shared"]),
        json!({}),
    ];
    assert_refused_alike(&node, JWT, kids.iter().map(|kid| (kid.to_string(), sign(kid)))).await;
}

#[tokio::test]
async fn without_a_kid_two_fitting_keys_are_one_too_many() {
    let node = Node::start().await;
    let keys = json!({"keys": [node.issuers.es256.jwk(), Signer::es256("second").jwk()]});
    let answer = wiremock::ResponseTemplate::new(200).set_body_json(keys);
    node.issuers.replace_mock("/cluster/openid/v1/jwks", answer).await;
    let claims = node.issuers.service_account("demo", "reporter");
    let nameless = node.issuers.es256.sign_as(&json!({"alg": "ES256"}), &claims);
    assert_refused_alike(&node, JWT, named([("nameless", nameless)])).await;
    node.granted(&credential(&node.issuers.es256.sign(&claims), JWT)).await;
}

#[tokio::test]
async fn keys_in_a_header_are_neither_used_nor_fetched() {
    let node = Node::start().await;
    let canary = TcpListener::bind("127.0.0.1:0").expect("canary");
    canary.set_nonblocking(true).expect("nonblocking");
    let address = format!("http://{}/keys", canary.local_addr().expect("address"));
    let stranger = Signer::es256("shared");
    let claims = node.issuers.service_account("demo", "reporter");
    let members = [
        json!({"jwk": stranger.jwk()}),
        json!({"jwk": node.issuers.es256.jwk()}),
        json!({"jku": address}),
        json!({"jku": format!("{}/cluster/openid/v1/jwks", node.issuers.server.uri())}),
        json!({"x5u": address}),
        json!({"x5c": ["MIIB"]}),
        json!({"jwk": null}),
    ];
    let mut cases = Vec::new();
    for (at, member) in members.iter().enumerate() {
        for signer in [&stranger, &node.issuers.es256] {
            // `with` takes null for "remove"; here it is a value.
            let mut header = signer.header();
            for (name, value) in member.as_object().expect("object") {
                header[name] = value.clone();
            }
            cases.push((format!("{at}: {member}"), signer.sign_as(&header, &claims)));
        }
    }
    assert_refused_alike(&node, JWT, cases).await;
    let no_client = canary.accept().expect_err("no connection");
    assert_eq!(no_client.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn extensions_that_must_be_understood_are_refused() {
    let node = Node::start().await;
    let claims = node.issuers.service_account("demo", "reporter");
    let signer = &node.issuers.es256;
    let members = [
        json!({"crit": ["exp"], "exp": NOW_SECS}),
        json!({"crit": []}),
        json!({"crit": "b64"}),
        json!({"b64": false, "crit": ["b64"]}),
        json!({"b64": true}),
        json!({"zip": "DEF"}),
    ];
    let cases = members.iter().map(|more| {
        let mut header = signer.header();
        header.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        (more.to_string(), signer.sign_as(&header, &claims))
    });
    assert_refused_alike(&node, JWT, cases).await;
}

#[tokio::test]
async fn token_of_another_type_is_refused() {
    let node = Node::start().await;
    let signer = &node.issuers.es256;
    let claims = node.issuers.service_account("demo", "reporter");
    let sign = |typ: &Value| signer.sign_as(&with(&signer.header(), &json!({"typ": typ})), &claims);
    let types = ["secevent+jwt", "dpop+jwt", "logout+jwt", "wimse-id+jwt", "wit+jwt", "JWS", "at+jwt ", ""];
    let mut cases: Vec<_> = types.iter().map(|typ| ((*typ).to_owned(), sign(&json!(typ)))).collect();
    cases.push(("a number".to_owned(), sign(&json!(1))));
    assert_refused_alike(&node, JWT, cases).await;
    for typ in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
        node.granted(&credential(&sign(&json!(typ)), JWT)).await;
    }
    let svid = Issuers::svid("files.example");
    let signer = &node.issuers.file_svids;
    // JWT-SVID §2: "alg", "typ", "kid" and nothing else.
    let headers = [json!({"typ": "at+jwt"}), json!({"x5t": "abc"}), json!({"cty": "JWT"})];
    let cases = headers
        .iter()
        .map(|more| (format!("svid {more}"), signer.sign_as(&with(&signer.header(), more), &svid)));
    assert_refused_alike(&node, SVID, cases).await;
}

#[tokio::test]
async fn token_types_are_not_interchangeable() {
    let node = Node::start().await;
    let own = node.own_token("demo", "reporter").await.token;
    let jwt = node.issuers.reporter();
    let svid = node.issuers.file_svids.sign(&Issuers::svid("files.example"));
    let tool = node.granted(&credential(&jwt, JWT)).await.token;
    assert_refused_alike(&node, JWT, named([("SVID as JWT", svid.clone())])).await;
    assert_refused_alike(&node, SVID, named([("own as SVID", own), ("JWT as SVID", jwt.clone())])).await;
    let cases = [("JWT as own", jwt), ("SVID as own", svid), ("own, for a tool", tool)];
    assert_refused_alike(&node, OWN, named(cases)).await;
}

#[tokio::test]
async fn a_key_speaks_for_its_own_issuer_only_even_under_the_same_kid() {
    let node = Node::start().await;
    let (a, b) = (&node.issuers.es256, &node.issuers.agents);
    assert_eq!(a.kid(), b.kid());
    let of_a = node.issuers.service_account("demo", "reporter");
    let of_b = node.issuers.identifier(REPORTER);
    node.granted(&credential(&a.sign(&of_a), JWT)).await;
    node.granted(&credential(&b.sign(&of_b), JWT)).await;
    let of = |iss: &str| with(&of_a, &json!({"iss": iss}));
    let kubernetes = node.issuers.kubernetes();
    let cases = [
        ("A's claims, B's key", b.sign(&of_a)),
        ("B's claims, A's key", a.sign(&of_b)),
        ("a stranger's key", Signer::es256("shared").sign(&of_a)),
        ("an unknown issuer", a.sign(&of("https://elsewhere.example"))),
        ("a slash more", a.sign(&of(&format!("{kubernetes}/")))),
        ("a prefix", a.sign(&of(&node.issuers.server.uri()))),
        ("capitals", a.sign(&of(&kubernetes.to_ascii_uppercase()))),
        ("our own issuer", a.sign(&of(FABRIC))),
        (
            "another trust domain",
            b.sign(&node.issuers.identifier("wimse://other.example/ns/demo/sa/reporter")),
        ),
        (
            "a longer trust domain",
            b.sign(&node.issuers.identifier("wimse://trust.example.evil/ns/demo/sa/x")),
        ),
        ("no identifier", b.sign(&node.issuers.identifier("reporter"))),
    ];
    assert_refused_alike(&node, JWT, named(cases)).await;
    let svid = Issuers::svid("files.example");
    let cases = [
        ("the other bundle's key", node.issuers.endpoint_svids.sign(&svid)),
        ("another trust domain", node.issuers.file_svids.sign(&Issuers::svid("endpoint.example"))),
        ("an unknown trust domain", node.issuers.file_svids.sign(&Issuers::svid("other.example"))),
    ];
    assert_refused_alike(&node, SVID, named(cases)).await;
}

#[tokio::test]
async fn registered_claims_are_there_and_of_their_types() {
    let node = Node::start().await;
    let claims = node.issuers.service_account("demo", "reporter");
    let mut cases = Vec::new();
    for name in ["aud", "iss", "exp", "iat", "sub"] {
        cases.push((format!("no {name}"), node.issuers.es256.sign(&with(&claims, &json!({name: null})))));
        let wrong = [
            json!({}),
            json!(true),
            json!(""),
            json!([]),
            json!([1]),
            json!("5"),
            json!(1.5),
            json!([[FABRIC]]),
        ];
        for value in wrong {
            cases.push((
                format!("{name} {value}"),
                node.issuers.es256.sign(&with(&claims, &json!({name: value}))),
            ));
        }
        let mut null = claims.clone();
        null[name] = Value::Null;
        cases.push((format!("{name} null"), node.issuers.es256.sign(&null)));
    }
    for aud in [
        json!("https://elsewhere.example"),
        json!([TOOL_LIKE]),
        json!(format!("{FABRIC}/")),
        json!("fabric.example"),
    ] {
        cases.push((format!("aud {aud}"), node.issuers.es256.sign(&with(&claims, &json!({"aud": aud})))));
    }
    for (name, value) in [
        ("nbf", json!("1")),
        ("exp", json!(-1)),
        ("exp", json!(1e300)),
        ("exp", json!(253_402_300_800_u64)),
        ("jti", json!(7)),
    ] {
        cases.push((
            format!("{name} {value}"),
            node.issuers.es256.sign(&with(&claims, &json!({name: value}))),
        ));
    }
    assert_refused_alike(&node, JWT, cases).await;
    let several = with(&claims, &json!({"aud": ["https://elsewhere.example", FABRIC]}));
    node.granted(&credential(&node.issuers.es256.sign(&several), JWT)).await;
}

const TOOL_LIKE: &str = "https://fabric.example.evil";

#[tokio::test]
async fn times_hold_to_the_second_with_five_seconds_of_leeway() {
    let node = Node::start().await;
    let at = |iat: i64, nbf: i64, exp: i64| {
        let times = json!({"iat": NOW_SECS + iat, "nbf": NOW_SECS + nbf, "exp": NOW_SECS + exp});
        node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &times))
    };
    for (iat, nbf, exp) in [(-3600, -3600, -4), (5, 0, 3600), (0, 5, 3600), (-86_399, -86_399, 3600)] {
        node.granted(&credential(&at(iat, nbf, exp), JWT)).await;
    }
    let cases = [
        (-3600, -3600, -5),
        (-3600, -3600, -6),
        (6, 0, 3600),
        (0, 6, 3600),
        (-86_400, -86_400, 3600),
        (0, 0, 0),
        (0, 0, -1),
    ];
    assert_refused_alike(
        &node,
        JWT,
        cases.map(|(iat, nbf, exp)| (format!("{iat} {nbf} {exp}"), at(iat, nbf, exp))),
    )
    .await;
}

#[tokio::test]
async fn a_token_that_was_accepted_is_refused_when_it_has_expired() {
    let node = Node::start().await;
    let claims = with(&node.issuers.service_account("demo", "reporter"), &json!({"exp": NOW_SECS + 10}));
    let token = node.issuers.es256.sign(&claims);
    let own = node.own_token("demo", "reporter").await.token;
    node.granted(&credential(&token, JWT)).await;
    node.advance_secs(14);
    node.granted(&credential(&token, JWT)).await;
    node.advance_secs(1);
    assert_refused_alike(&node, JWT, named([("expired by its last second of leeway", token)])).await;
    node.granted(&credential(&own, OWN)).await;
    node.advance_secs(300 + 5 - 15);
    assert_refused_alike(&node, OWN, named([("own, expired", own)])).await;
}

#[tokio::test]
async fn an_issuer_can_have_its_own_age_limit() {
    let more_config = r#"
[[issuers]]
issuer = "https://short.example"
subject = "identifier"
keys_file = "KEYS"
trust_domains = ["trust.example"]
max_credential_age = "60s"
"#;
    let signer = Signer::es256("short");
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("keys.json");
    std::fs::write(&file, json!({"keys": [signer.jwk()]}).to_string()).expect("write");
    let more_config = more_config.replace("KEYS", &file.display().to_string());
    let node = Node::start_with(Setup { more_config, ..Setup::default() }).await;
    let token =
        signer.sign(&with(&node.issuers.identifier(REPORTER), &json!({"iss": "https://short.example"})));
    // The policy has no row for it, so the refusal shows a valid credential.
    node.exchange(&credential(&token, JWT)).await.is_refused(403, "access_denied", "issuer may not speak");
    node.advance_secs(60);
    assert_refused_alike(&node, JWT, named([("too old", token)])).await;
}

#[tokio::test]
async fn a_token_larger_than_the_limit_is_refused_unread() {
    let node = Node::start().await;
    let claims = with(&node.issuers.service_account("demo", "reporter"), &json!({"x": "x".repeat(15_000)}));
    let token = node.issuers.es256.sign(&claims);
    assert!(token.len() > 20_000);
    let answer = node.exchange(&credential(&token, JWT)).await;
    answer.is_refused(400, "invalid_request", "subject_token: is larger than 16 KiB");
}

#[tokio::test]
async fn a_payload_or_header_with_two_readings_is_refused() {
    let node = Node::start().await;
    let signer = &node.issuers.es256;
    let claims = node.issuers.service_account("demo", "reporter").to_string();
    let header = signer.header().to_string();
    let twice = |text: &str, member: &str| text.replacen('{', &format!("{{{member},"), 1);
    let deep =
        format!("{},\"deep\":{}1{}}}", &claims[..claims.len() - 1], "[".repeat(1000), "]".repeat(1000));
    let bare = |text: &str| signer.sign_bytes(header.as_bytes(), text.as_bytes());
    let mut broken = claims.clone().into_bytes();
    let at = claims.find("reporter").expect("the name");
    broken[at] = 0xff;
    let cases = [
        ("sub twice", bare(&twice(&claims, "\"sub\":\"system:serviceaccount:demo:admin\""))),
        ("iss twice", bare(&twice(&claims, "\"iss\":\"https://elsewhere.example\""))),
        ("sub twice, escaped", bare(&twice(&claims, "\"\\u0073ub\":\"system:serviceaccount:demo:admin\""))),
        ("trailing data", bare(&format!("{claims}{{}}"))),
        ("trailing comma", bare(&format!("{},}}", &claims[..claims.len() - 1]))),
        ("deep", bare(&deep)),
        ("an array", bare(&format!("[{claims}]"))),
        ("a string", bare("\"x\"")),
        ("empty", bare("")),
        ("a byte order mark", bare(&format!("\u{feff}{claims}"))),
        ("not UTF-8", signer.sign_bytes(header.as_bytes(), &broken)),
        ("kid twice", signer.sign_bytes(twice(&header, "\"kid\":\"other\"").as_bytes(), claims.as_bytes())),
        ("alg twice", signer.sign_bytes(twice(&header, "\"alg\":\"none\"").as_bytes(), claims.as_bytes())),
        ("trailing in the header", signer.sign_bytes(format!("{header}x").as_bytes(), claims.as_bytes())),
        ("header an array", signer.sign_bytes(b"[]", claims.as_bytes())),
    ];
    assert_refused_alike(&node, JWT, named(cases)).await;
}

#[tokio::test]
async fn malformed_compact_token_is_refused() {
    let node = Node::start().await;
    let good = node.issuers.reporter();
    let parts: Vec<&str> = good.split('.').collect();
    let (header, payload, signature) = (parts[0], parts[1], parts[2]);
    let der = {
        // r and s as a DER sequence, which JOSE does not use (RFC 7518 §3.4).
        let mut bytes = vec![0x30, 0x44, 0x02, 0x20];
        bytes.extend([0x11; 32]);
        bytes.extend([0x02, 0x20]);
        bytes.extend([0x22; 32]);
        encode(bytes)
    };
    let other = node.issuers.es256.sign(&node.issuers.service_account("demo", "admin"));
    let other: Vec<&str> = other.split('.').collect();
    let cases = [
        ("two parts", format!("{header}.{payload}")),
        ("four parts", format!("{good}.{signature}")),
        ("five parts", format!("{header}..{payload}.{signature}.x")),
        ("no signature", format!("{header}.{payload}.")),
        ("a zero signature", format!("{header}.{payload}.{}", encode([0; 64]))),
        ("a short signature", format!("{header}.{payload}.{}", encode([1; 63]))),
        ("a long signature", format!("{good}AAAA")),
        ("a DER signature", format!("{header}.{payload}.{der}")),
        ("another token's payload", format!("{header}.{}.{signature}", other[1])),
        ("padding", format!("{header}.{payload}.{signature}==")),
        ("a space before", format!(" {good}")),
        ("a line end", format!("{good}\n")),
        ("a space within", format!("{header}. {payload}.{signature}")),
        ("Bearer", format!("Bearer {good}")),
        (
            "JSON serialization",
            json!({"protected": header, "payload": payload, "signature": signature}).to_string(),
        ),
        ("dots", "..".to_owned()),
        ("text", "x".to_owned()),
        ("not ASCII", format!("{header}.{payload}.\u{e4}")),
    ];
    assert_refused_alike(&node, JWT, named(cases)).await;
}

#[tokio::test]
async fn a_subject_that_the_kubernetes_claims_contradict_is_refused() {
    let node = Node::start().await;
    let claims = node.issuers.service_account("demo", "reporter");
    let sign = |changes: &Value| node.issuers.es256.sign(&with(&claims, changes));
    let cases = [
        ("another name", sign(&json!({"sub": "system:serviceaccount:demo:admin"}))),
        ("another namespace", sign(&json!({"sub": "system:serviceaccount:prod:reporter"}))),
        ("a user", sign(&json!({"sub": "system:node:reporter"}))),
        ("a path", sign(&json!({"sub": "system:serviceaccount:demo:../admin", "kubernetes.io": null}))),
        ("a slash", sign(&json!({"sub": "system:serviceaccount:demo:a/b", "kubernetes.io": null}))),
        ("a colon", sign(&json!({"sub": "system:serviceaccount:demo:a:b", "kubernetes.io": null}))),
        ("no name", sign(&json!({"sub": "system:serviceaccount:demo:", "kubernetes.io": null}))),
        ("dots", sign(&json!({"sub": "system:serviceaccount:demo:..", "kubernetes.io": null}))),
    ];
    assert_refused_alike(&node, JWT, named(cases)).await;
}

#[tokio::test]
async fn an_own_token_with_any_part_changed_is_refused() {
    let node = Node::start().await;
    let own = node.own_token("demo", "reporter").await;
    let stranger = Signer::es256("stranger");
    let forged = |header: &Value, changes: &Value| stranger.sign_as(header, &with(&own.claims, changes));
    let kid = own.header["kid"].clone();
    let parts: Vec<&str> = own.token.split('.').collect();
    let changed = encode(with(&own.claims, &json!({"delegation_depth": 9})).to_string());
    let cases = [
        ("forged under our kid", forged(&own.header, &json!({}))),
        ("no kid", forged(&json!({"alg": "ES256", "typ": "at+jwt"}), &json!({}))),
        ("no typ", forged(&json!({"alg": "ES256", "kid": kid}), &json!({}))),
        ("unknown kid", forged(&with(&own.header, &json!({"kid": "x"})), &json!({}))),
        ("a changed claim", format!("{}.{changed}.{}", parts[0], parts[2])),
        (
            "alg none",
            format!(
                "{}.{}.",
                encode(json!({"alg": "none", "typ": "at+jwt", "kid": kid}).to_string()),
                parts[1]
            ),
        ),
    ];
    assert_refused_alike(&node, OWN, named(cases)).await;
}

#[tokio::test]
async fn a_malleated_signature_is_the_same_token() {
    // (r, n - s) is as valid as (r, s). Tokens are identified by (iss, jti), which the change preserves: the
    // lineage is the same and the nonce is already used.
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let twin = malleate(&token);
    assert_ne!(token, twin);
    let scope =
        json!({"execution_scope": {"htm": "GET", "htu": "https://tools.example/sql", "nonce": "once"}});
    let first = node.granted(&with(&credential(&token, JWT), &scope)).await;
    let again = node.exchange(&with(&credential(&twin, JWT), &scope)).await;
    again.is_refused(400, "invalid_request", "already used");
    let second = node.granted(&credential(&twin, JWT)).await;
    assert_eq!(first.claims["lineage"], second.claims["lineage"]);
}

#[tokio::test]
async fn claims_that_mean_something_here_are_of_their_types() {
    let node = Node::start().await;
    let looped = json!({"sub": "a", "act": {"sub": "b", "act": {"sub": "a"}}});
    let deep = (0..11)
        .fold(Value::Null, |inner, at| with(&json!({"sub": format!("a{at}"), "act": inner}), &json!({})));
    let changes = [
        json!({"capabilities": "db.read"}),
        json!({"capabilities": [1]}),
        json!({"capabilities": ["a b"]}),
        json!({"scope": ["db.read"]}),
        json!({"scope": "a  b"}),
        json!({"blast_radius": 1}),
        json!({"delegation_depth": -1}),
        json!({"delegation_depth": 1.5}),
        json!({"delegation_depth": 11}),
        json!({"act": "x"}),
        json!({"act": {}}),
        json!({"act": looped}),
        json!({"act": deep}),
        json!({"may_act": []}),
        json!({"may_act": {"sub": 1}}),
        json!({"txn": 1}),
        json!({"txn": "x".repeat(300)}),
        json!({"client_id": {}}),
    ];
    assert_refused_alike(
        &node,
        JWT,
        changes.iter().map(|change| (change.to_string(), node.issuers.changed(change))),
    )
    .await;
}
