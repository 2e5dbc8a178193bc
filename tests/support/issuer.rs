//! Real issuers on loopback: a Kubernetes API server, an issuer of agents' credentials, and two SPIFFE trust
//! domains.

use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{FABRIC, NOW_SECS, REPORTER, Signer};

/// Every issuer that the node under test trusts, and one that it does not.
pub struct Issuers {
    /// Serves all documents.
    pub server: MockServer,
    /// First key of the API server.
    pub es256: Signer,
    /// Second key of the API server.
    pub rs256: Signer,
    /// Key of the identifier issuer, with the same `kid` as [`Issuers::es256`].
    pub agents: Signer,
    /// Key of the trust domain whose bundle is a file.
    pub file_svids: Signer,
    /// Key of the trust domain whose bundle is at an endpoint.
    pub endpoint_svids: Signer,
    /// Key of [`super::IDP`].
    pub idp: Signer,
    /// Key of [`super::OTHER_IDP`], with the same `kid`.
    pub other_idp: Signer,
}

impl Issuers {
    /// Generates the keys and serves the documents.
    pub async fn start() -> Self {
        let issuers = Self {
            server: MockServer::start().await,
            es256: Signer::es256("shared"),
            rs256: Signer::rsa("rsa"),
            agents: Signer::es256("shared"),
            file_svids: Signer::es256("file"),
            endpoint_svids: Signer::es256("endpoint"),
            idp: Signer::es256("idp"),
            other_idp: Signer::es256("idp"),
        };
        issuers.serve().await;
        issuers
    }

    /// `iss` of the API server.
    pub fn kubernetes(&self) -> String {
        format!("{}/cluster", self.server.uri())
    }

    /// `iss` of the identifier issuer.
    pub fn identifiers(&self) -> String {
        format!("{}/agents", self.server.uri())
    }

    /// Serves every document in its valid form.
    pub async fn serve(&self) {
        self.server.reset().await;
        let kubernetes = self.kubernetes();
        let discovery = json!({
            "issuer": kubernetes, "jwks_uri": format!("{kubernetes}/openid/v1/jwks"),
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        });
        self.mount("/cluster/.well-known/openid-configuration", answer(&discovery)).await;
        let keys = json!({"keys": [self.rs256.jwk(), self.es256.jwk()]});
        self.mount("/cluster/openid/v1/jwks", answer(&keys)).await;
        self.mount("/agents/jwks", answer(&json!({"keys": [self.agents.jwk()]}))).await;
        self.mount("/idp/jwks", answer(&json!({"keys": [self.idp.jwk()]}))).await;
        self.mount("/other-idp/jwks", answer(&json!({"keys": [self.other_idp.jwk()]}))).await;
        self.mount("/bundle", answer(&bundle(&self.endpoint_svids))).await;
    }

    /// Serves `GET route` before all earlier mocks.
    pub async fn mount(&self, route: &str, answer: ResponseTemplate) {
        Mock::given(method("GET"))
            .and(path(route))
            .respond_with(answer)
            .with_priority(5)
            .mount(&self.server)
            .await;
    }

    /// Serves `GET route` in place of the mocks so far.
    pub async fn replace_mock(&self, route: &str, answer: ResponseTemplate) {
        Mock::given(method("GET"))
            .and(path(route))
            .respond_with(answer)
            .with_priority(1)
            .mount(&self.server)
            .await;
    }

    /// Claims of a bound service account token, as an API server writes them.
    pub fn service_account(&self, namespace: &str, name: &str) -> Value {
        json!({
            "aud": [FABRIC],
            "exp": NOW_SECS + 3607,
            "iat": NOW_SECS,
            "iss": self.kubernetes(),
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": {
                "namespace": namespace,
                "node": {"name": "node-1", "uid": "4c1bb1f4-6d7f-4c55-8b1a-4ac2f4ee4a0e"},
                "pod": {"name": format!("{name}-7c5ddbdf54-x2vqk"), "uid": "d9b1a6c0-2e1c-4f5e-9d59-0b6d1ad0b1f5"},
                "serviceaccount": {"name": name, "uid": "aa3e56a1-3a0b-4b0f-8c6a-6f1d6c0b5e7d"},
                "warnafter": NOW_SECS + 3547,
            },
            "nbf": NOW_SECS,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        })
    }

    /// A token of the service account `demo:reporter`.
    pub fn reporter(&self) -> String {
        self.es256.sign(&self.service_account("demo", "reporter"))
    }

    /// A token of the service account `agents:orchestrator`.
    pub fn orchestrator(&self) -> String {
        self.es256.sign(&self.service_account("agents", "orchestrator"))
    }

    /// Claims of the identifier issuer, which may state every claim of a subject.
    pub fn identifier(&self, sub: &str) -> Value {
        json!({
            "iss": self.identifiers(), "sub": sub, "aud": FABRIC, "jti": uuid::Uuid::new_v4().to_string(),
            "iat": NOW_SECS, "nbf": NOW_SECS, "exp": NOW_SECS + 3600,
        })
    }

    /// A token of [`REPORTER`] from the identifier issuer, with these claims changed.
    pub fn changed(&self, changes: &Value) -> String {
        self.agents.sign(&super::with(&self.identifier(REPORTER), changes))
    }

    pub fn svid(trust_domain: &str) -> Value {
        json!({
            "sub": format!("spiffe://{trust_domain}/ns/demo/sa/reporter"),
            "aud": [FABRIC], "iat": NOW_SECS, "exp": NOW_SECS + 300,
        })
    }
}

fn answer(document: &Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(document)
}

/// A SPIFFE bundle with this key, and an X.509 authority that JWT verification skips.
pub fn bundle(signer: &Signer) -> Value {
    let jwt = super::with(&signer.jwk(), &json!({"use": "jwt-svid", "alg": null}));
    let x509 = super::with(
        &Signer::es256("x").jwk(),
        &json!({"use": "x509-svid", "alg": null, "kid": null, "x5c": ["MA=="]}),
    );
    json!({"keys": [jwt, x509], "spiffe_sequence": 1, "spiffe_refresh_hint": 300})
}

/// The fields of a JSON request that exchanges `token`.
pub fn credential(token: &str, kind: &str) -> Value {
    json!({"grant_type": super::GRANT, "subject_token": token, "subject_token_type": kind})
}
