//! `bench floor`: a server that does nothing but the unavoidable part of a request, as the ceiling of a node.
//!
//! It is built from the same libraries with the same allocator: TLS with client certificates, HTTP/1.1, a
//! router, JSON in and out. A route may verify one signature with a prepared key, and sign the token of its
//! answer. Nothing is checked, remembered, counted or logged. Requests have the bytes that the node receives,
//! and answers have the fields of its answers.

mod child;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub use child::Floor;

/// The field of an answer that contains the token.
const TOKEN: &str = "access_token";

/// The configuration file.
#[derive(Serialize, Deserialize)]
pub struct Config {
    pub listen: SocketAddr,
    /// Directory with `ca.pem`, `node.pem` and `node-key.pem`.
    pub pki: PathBuf,
    pub routes: Vec<Route>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Route {
    pub path: String,
    /// Without a body.
    pub is_get: bool,
    /// The JWK that verifies the token of the request; `None`: it is not verified.
    pub verifies: Option<Value>,
    /// Whether the token of the answer is signed for each request.
    pub signs: bool,
    pub answer: Map<String, Value>,
}

/// A request. Its other fields are skipped.
#[derive(Deserialize)]
struct Body<'b> {
    #[serde(borrow, alias = "subject_token")]
    token: &'b str,
}

/// The key, the signer and the answer of a route, prepared once.
struct Work {
    key: Option<ParsedPublicKey>,
    /// The key and the signed part of the token.
    signer: Option<(EcdsaKeyPair, String)>,
    answer: Map<String, Value>,
}

/// The fields of an answer, with a token of its own if there is one.
struct Answer<'a> {
    members: &'a Map<String, Value>,
    token: Option<String>,
}

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.members.len()))?;
        for (name, value) in self.members {
            match &self.token {
                Some(token) if name == TOKEN => map.serialize_entry(name, token)?,
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// Serves until the process is killed.
pub async fn serve(config: Config) -> Result<()> {
    let tls = TlsAcceptor::from(Arc::new(tls(&config)?));
    let mut router = Router::new();
    for route in config.routes {
        let (work, path) = (Arc::new(Work::of(&route)?), route.path);
        let handler = if route.is_get {
            get(move || {
                std::future::ready(Json(Answer { members: &work.answer, token: None }).into_response())
            })
        } else {
            post(move |body: Bytes| std::future::ready(work.answer(&body)))
        };
        router = router.route(&path, handler);
    }
    let listener = TcpListener::bind(config.listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            stream.set_nodelay(true)?;
            let stream = TokioIo::new(tls.accept(stream).await?);
            http1::Builder::new().serve_connection(stream, TowerToHyperService::new(router)).await?;
            anyhow::Ok(())
        });
    }
}

/// TLS as the node configures it.
fn tls(config: &Config) -> Result<ServerConfig> {
    let file = |name: &str| config.pki.join(name);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem"))?)?;
    let provider = Arc::new(default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let chain = CertificateDer::pem_file_iter(file("node.pem"))?.collect::<Result<Vec<_>, _>>()?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(file("node-key.pem"))?)?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(server)
}

impl Work {
    fn of(route: &Route) -> Result<Self> {
        let signer = || {
            let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
            let token =
                route.answer.get(TOKEN).and_then(Value::as_str).context("an answer without a token")?;
            let (signed, _) = token.rsplit_once('.').context("a token without a signature")?;
            anyhow::Ok((key.map_err(|_| anyhow!("failed to generate a key"))?, signed.to_owned()))
        };
        Ok(Self {
            key: route.verifies.as_ref().map(public_key).transpose()?,
            signer: route.signs.then(signer).transpose()?,
            answer: route.answer.clone(),
        })
    }

    fn answer(&self, body: &[u8]) -> Response {
        let Ok(body) = serde_json::from_slice::<Body>(body) else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        if !self.key.as_ref().is_none_or(|key| is_signed(body.token, key)) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        match self.signer.as_ref().map(|(key, signed)| token(key, signed)).transpose() {
            Ok(token) => Json(Answer { members: &self.answer, token }).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

fn is_signed(token: &str, key: &ParsedPublicKey) -> bool {
    let Some((signed, signature)) = token.rsplit_once('.') else { return false };
    let signature = URL_SAFE_NO_PAD.decode(signature);
    signature.is_ok_and(|signature| key.verify_sig(signed.as_bytes(), &signature).is_ok())
}

fn token(key: &EcdsaKeyPair, signed: &str) -> Result<String> {
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|_| anyhow!("sign"))?;
    let mut token = String::with_capacity(signed.len() + 88);
    token.push_str(signed);
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    Ok(token)
}

/// A P-256 or an RSA key.
fn public_key(jwk: &Value) -> Result<ParsedPublicKey> {
    let bytes = |name: &str| -> Result<Vec<u8>> {
        Ok(URL_SAFE_NO_PAD.decode(jwk[name].as_str().with_context(|| format!("a key without {name}"))?)?)
    };
    match jwk["kty"].as_str() {
        Some("EC") => {
            let point = [vec![4], bytes("x")?, bytes("y")?].concat();
            ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).map_err(|_| anyhow!("not a P-256 key"))
        }
        Some("RSA") => {
            let key = RsaPublicKeyComponents { n: bytes("n")?, e: bytes("e")? };
            key.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256).map_err(|_| anyhow!("not an RSA key"))
        }
        other => bail!("a key of the kind {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::certificates::{self, Identity};
    use crate::credentials::{Issuer, PreparedRequests};
    use crate::node::free_address;
    use crate::wire::{self, Target};

    /// Certificates of a CA: of the server, and of the caller `workload`.
    fn certificates(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("trust-fabric-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        certificates::write_ca(&dir).expect("a CA");
        for name in ["node", "workload"] {
            certificates::write_server(&dir, name).expect("a certificate");
        }
        dir
    }

    /// A running floor, and its target for the caller.
    async fn floor(pki: &std::path::Path, routes: Vec<Route>) -> Target {
        let address = free_address().expect("a port");
        let config = Config { listen: address, pki: pki.to_owned(), routes };
        tokio::spawn(serve(config));
        let identity = Identity::read(pki, "workload").expect("a certificate");
        let tls = certificates::client(pki, Some(&identity), b"http/1.1").expect("TLS");
        let target = Target { address, host: "localhost".to_owned(), tls: Some(tls) };
        while target.connect().await.is_err() {
            tokio::task::yield_now().await;
        }
        target
    }

    fn route(verifies: Option<Value>, signs: bool) -> Route {
        let answer = json!({"access_token": "head.claims.old", "expires_in": 300});
        let answer = answer.as_object().expect("an object").clone();
        Route { path: "/v1/exchange/token".to_owned(), is_get: false, verifies, signs, answer }
    }

    #[tokio::test]
    async fn floor_verifies_each_signature_and_signs_each_answer() {
        let pki = certificates("floor");
        for issuer in [Issuer::new("a").expect("key"), Issuer::rsa("a").expect("key")] {
            let target = floor(&pki, vec![route(Some(issuer.jwk()), true)]).await;
            let mut request = Vec::new();
            PreparedRequests::new(&issuer, "localhost", 1, 1).expect("requests").write(0, &mut request);
            let mut tokens = Vec::new();
            for _ in 0..2 {
                let answer = target.call(&request).await.expect("an answer");
                assert_eq!(answer.status, 200);
                let body: Value = serde_json::from_slice(answer.body()).expect("JSON");
                assert_eq!(body["expires_in"], 300);
                tokens.push(body["access_token"].as_str().expect("a token").to_owned());
            }
            assert!(tokens.iter().all(|token| token.starts_with("head.claims.")), "{tokens:?}");
            assert_ne!(tokens[0], tokens[1], "ECDSA signatures are random");

            let stranger = Issuer::new("a").expect("key");
            PreparedRequests::new(&stranger, "localhost", 1, 1).expect("requests").write(0, &mut request);
            assert_eq!(target.call(&request).await.expect("an answer").status, 401);
        }
        std::fs::remove_dir_all(pki).expect("removed");
    }

    #[tokio::test]
    async fn floor_requires_a_client_certificate() {
        let pki = certificates("floor-tls");
        let target = floor(&pki, vec![route(None, false)]).await;
        let request = wire::request_with("POST", "/v1/exchange/token", "localhost", "", br#"{"token":"x"}"#);
        let answer = target.call(&request).await.expect("an answer");
        assert_eq!((answer.status, answer.body().len()), (200, 51));
        let none = certificates::client(&pki, None, b"http/1.1").expect("TLS");
        assert!(Target { tls: Some(none), ..target }.call(&request).await.is_err());
        std::fs::remove_dir_all(pki).expect("removed");
    }
}
