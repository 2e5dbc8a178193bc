//! The demo issuer: service-account tokens with the claims of a Kubernetes API server, signed with a key that survives a
//! restart.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{digest, rand};
use serde_json::{Value, json};

use super::Error;
use crate::api::demo_issuer::DemoIssuer;
use crate::clock::Clock;
use crate::id;
use crate::token::signing_key::SigningKey;

/// Lifetime of a credential.
const LIFETIME: Duration = Duration::from_mins(10);

/// The demo issuer `iss`, served at `address` (`http://127.0.0.1:8698`).
pub(super) fn issuer(iss: &str, address: &str, audience: &str, key: SigningKey, clock: Clock) -> DemoIssuer {
    let jwks_uri = format!("{address}/openid/v1/jwks");
    let discovery = json!({
        "issuer": iss,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    let jwks = json!({ "keys": [key.public_jwk()] });
    let (iss, audience) = (iss.to_owned(), audience.to_owned());
    let issue = move |namespace: &str, service_account: &str| {
        credential(&key, &iss, &audience, namespace, service_account, &clock)
    };
    DemoIssuer { discovery, jwks, issue: Arc::new(issue) }
}

/// A service-account token of `iss` for `aud`, signed with `key`.
pub(crate) fn credential(
    key: &SigningKey,
    iss: &str,
    aud: &str,
    namespace: &str,
    service_account: &str,
    clock: &Clock,
) -> Result<String, String> {
    let claims = claims(iss, aud, namespace, service_account, clock)?;
    key.sign(&claims, "JWT").map_err(|error| error.to_string())
}

fn claims(
    iss: &str,
    aud: &str,
    namespace: &str,
    service_account: &str,
    clock: &Clock,
) -> Result<Value, String> {
    if ![namespace, service_account].into_iter().all(|name| id::is_path_segment(name) && name.len() <= 63) {
        return Err("namespace and service_account are 1 to 63 of A-Z, a-z, 0-9, '.', '-', '_'".to_owned());
    }
    let now = clock.now();
    let mut jti = [0; 16];
    rand::fill(&mut jti).map_err(|_| "the operating system provides no random bytes".to_owned())?;
    let pod = format!("{service_account}-7c9f6d5b8-x2k4q");
    Ok(json!({
        "aud": [aud],
        "exp": now.plus(LIFETIME).secs(),
        "iat": now.secs(),
        "iss": iss,
        "jti": uuid_of(jti),
        "kubernetes.io": {
            "namespace": namespace,
            "node": {"name": "demo-worker", "uid": lasting_uid(&["node", "demo-worker"])},
            "pod": {"name": pod, "uid": lasting_uid(&["pod", namespace, &pod])},
            "serviceaccount": {
                "name": service_account,
                "uid": lasting_uid(&["serviceaccount", namespace, service_account]),
            },
        },
        "nbf": now.secs(),
        "sub": format!("system:serviceaccount:{namespace}:{service_account}"),
    }))
}

/// A stable uid: the same object has the same one in every token.
fn lasting_uid(parts: &[&str]) -> String {
    let digest = digest::digest(&digest::SHA256, parts.join("/").as_bytes());
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    uuid_of(bytes)
}

fn uuid_of(bytes: [u8; 16]) -> String {
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// The key of an earlier run, or a new one, with mode 0600.
pub(super) fn signing_key(path: &Path) -> Result<SigningKey, Error> {
    match fs::read(path) {
        Ok(der) => Ok(SigningKey::from_pkcs8(&der)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = SigningKey::generate()?;
            write(path, &key.to_pkcs8()?).map_err(|source| Error::Data { path: path.to_owned(), source })?;
            Ok(key)
        }
        Err(source) => Err(Error::Data { path: path.to_owned(), source }),
    }
}

/// Atomic: a crash leaves the whole file or none.
fn write(path: &Path, der: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(der)?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn key_survives_a_restart_with_mode_0600() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("demo-issuer.p8");
        let first = signing_key(&path).expect("made");
        assert_eq!(signing_key(&path).expect("found").kid(), first.kid());
        assert_eq!(fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
        fs::write(&path, "no key").expect("written");
        assert!(matches!(signing_key(&path), Err(Error::Key(_))));
    }

    #[test]
    fn credential_has_the_claims_of_an_api_server() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let claims = claims("iss", "aud", "demo", "reporter", &clock).expect("claims");
        assert_eq!(claims["sub"], "system:serviceaccount:demo:reporter");
        assert_eq!(claims["kubernetes.io"]["namespace"], "demo");
        assert_eq!(claims["kubernetes.io"]["serviceaccount"]["name"], "reporter");
        assert_eq!(
            (&claims["iat"], &claims["nbf"], &claims["exp"]),
            (&json!(1000), &json!(1000), &json!(1600))
        );
        let again = super::claims("iss", "aud", "demo", "reporter", &clock).expect("claims");
        assert_ne!(claims["jti"], again["jti"]);
        assert_eq!(claims["kubernetes.io"], again["kubernetes.io"]);
    }

    #[test]
    fn name_with_separator_is_refused() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        for name in ["", "a:b", "a/b", "..", "a b", &"a".repeat(64)] {
            assert!(claims("iss", "aud", name, "reporter", &clock).is_err(), "{name}");
            assert!(claims("iss", "aud", "demo", name, &clock).is_err(), "{name}");
        }
    }
}
