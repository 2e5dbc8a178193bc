"""Creates source credentials with PyJWT, as input that our own code did not write.

Reads one JSON object from stdin:
  issuer        of the Kubernetes tokens, also the base of the discovery document's `jwks_uri`
  audience      string or list of strings
  trust_domain  of the JWT-SVIDs
  now           seconds since the epoch; every time claim is derived from it
  namespace, service_account, lifetime_secs   optional: demo, reporter, 3600

Prints one JSON object:
  discovery, jwks   as an API server publishes them
  credentials       [{name, alg, kid, token}]: service-account tokens, one RS256 and one ES256
  refused           [{name, token}]: the same with one fault each, to be refused
  spiffe_bundle     trust bundle with jwt-svid keys and one x509-svid authority
  svids             [{name, alg, kid, spiffe_id, token}]: JWT-SVIDs, one RS256 and one ES256
"""

import base64
import hashlib
import hmac
import json
import sys
import uuid
from datetime import datetime, timedelta, timezone

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Key:
    """A key pair with the `kid` that an API server gives it: the SHA-256 of its public half in DER."""

    def __init__(self, alg: str):
        self.alg = alg
        if alg == "RS256":
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        else:
            self.private = ec.generate_private_key(ec.SECP256R1())
        self.der = self.private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.kid = base64url(hashlib.sha256(self.der).digest())

    def jwk(self, **members) -> dict:
        algorithm = jwt.get_algorithm_by_name(self.alg)
        public = algorithm.to_jwk(self.private.public_key(), as_dict=True)
        public.pop("key_ops", None)
        return {**public, "kid": self.kid, **members}

    def sign(self, claims: dict, typ: str | None, kid: str | None = None) -> str:
        # An empty `typ` keeps PyJWT from writing its own.
        headers = {"kid": kid or self.kid, "typ": typ or ""}
        return jwt.encode(claims, self.private, algorithm=self.alg, headers=headers)


def service_account_claims(order: dict) -> dict:
    """The claims of a bound service-account token, as the TokenRequest API of Kubernetes 1.30 writes them."""
    now, lifetime = order["now"], order.get("lifetime_secs", 3600)
    namespace, account = order.get("namespace", "demo"), order.get("service_account", "reporter")
    audience = order["audience"]
    return {
        "aud": audience if isinstance(audience, list) else [audience],
        "exp": now + lifetime,
        "iat": now,
        "iss": order["issuer"],
        "jti": str(uuid.uuid4()),
        "kubernetes.io": {
            "namespace": namespace,
            "node": {"name": "node-1", "uid": str(uuid.uuid4())},
            "pod": {"name": f"{account}-7c5ddbdf54-x2vqk", "uid": str(uuid.uuid4())},
            "serviceaccount": {"name": account, "uid": str(uuid.uuid4())},
            "warnafter": now + lifetime - 60,
        },
        "nbf": now,
        "sub": f"system:serviceaccount:{namespace}:{account}",
    }


def without(claims: dict, name: str) -> dict:
    return {key: value for key, value in claims.items() if key != name}


def by_hand(header: dict, claims: dict, secret: bytes | None) -> str:
    """A token that PyJWT refuses to create: unsigned, or signed with HMAC over a public key."""
    text = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
    return text + "." + (base64url(hmac.digest(secret, text.encode(), "sha256")) if secret else "")


def refused(key: Key, order: dict) -> list[dict]:
    claims, now = service_account_claims(order), order["now"]
    pem = key.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    tokens = {
        "expired": key.sign({**claims, "iat": now - 7200, "nbf": now - 7200, "exp": now - 6}, None),
        "not yet valid": key.sign({**claims, "nbf": now + 600}, None),
        "another audience": key.sign({**claims, "aud": ["https://elsewhere.example"]}, None),
        "another issuer": key.sign({**claims, "iss": "https://elsewhere.example"}, None),
        "without exp": key.sign(without(claims, "exp"), None),
        "without iat": key.sign(without(claims, "iat"), None),
        "without aud": key.sign(without(claims, "aud"), None),
        "another key under a known kid": Key(key.alg).sign(claims, None, kid=key.kid),
        "unsigned": by_hand({"alg": "none", "kid": key.kid}, claims, None),
        "HS256 with the public key": by_hand({"alg": "HS256", "kid": key.kid}, claims, pem),
    }
    return [{"name": name, "token": token} for name, token in tokens.items()]


def x509_authority(trust_domain: str, now: int) -> dict:
    """The entry for X.509-SVIDs that every real bundle has and a JWT verifier must skip."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, trust_domain)])
    begin = datetime.fromtimestamp(now, timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    der = certificate.public_bytes(serialization.Encoding.DER)
    public = jwt.get_algorithm_by_name("ES256").to_jwk(private.public_key(), as_dict=True)
    public.pop("key_ops", None)
    return {**public, "use": "x509-svid", "x5c": [base64.b64encode(der).decode()]}


def main() -> None:
    order = json.load(sys.stdin)
    now, issuer, trust_domain = order["now"], order["issuer"], order["trust_domain"]
    cluster_keys = [Key("RS256"), Key("ES256")]
    spiffe_keys = [Key("RS256"), Key("ES256")]
    spiffe_id = f"spiffe://{trust_domain}/ns/demo/sa/reporter"
    json.dump(
        {
            "discovery": {
                "issuer": issuer,
                "jwks_uri": f"{issuer}/openid/v1/jwks",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256", "ES256"],
            },
            "jwks": {"keys": [key.jwk(use="sig", alg=key.alg) for key in cluster_keys]},
            "credentials": [
                {
                    "name": f"service account, {key.alg}",
                    "alg": key.alg,
                    "kid": key.kid,
                    "token": key.sign(service_account_claims(order), None),
                }
                for key in cluster_keys
            ],
            "refused": refused(cluster_keys[0], order),
            "spiffe_bundle": {
                "keys": [key.jwk(use="jwt-svid") for key in spiffe_keys] + [x509_authority(trust_domain, now)],
                "spiffe_sequence": 1,
                "spiffe_refresh_hint": 300,
            },
            "svids": [
                {
                    "name": f"JWT-SVID, {key.alg}",
                    "alg": key.alg,
                    "kid": key.kid,
                    "spiffe_id": spiffe_id,
                    "token": key.sign(
                        {"aud": order["audience"], "exp": now + 300, "iat": now, "sub": spiffe_id}, "JWT"
                    ),
                }
                for key in spiffe_keys
            ],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
