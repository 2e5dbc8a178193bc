"""Both sides of an encrypted message, with joserfc.

Reads one JSON object from stdin, with one of:
  {"make": true}                         generates an agent's keys, one of each kind:
                                         {"private": [jwk, ...], "public": [jwk, ...]}
  {"encrypt": jwk set, "text": text}     encrypts to every key of the set, as its `alg` says:
                                         {"messages": {kid: compact JWE, ...}}
  {"decrypt": {kid: compact JWE, ...}, "private": [jwk, ...]}
                                         {"texts": {kid: text, ...}}
"""

import json
import sys

from joserfc import jwe
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

# `alg` and generator of each kind of key.
KINDS = [
    ("ECDH-ES", lambda: ECKey.generate_key("P-256")),
    ("ECDH-ES+A128KW", lambda: ECKey.generate_key("P-384")),
    ("ECDH-ES+A192KW", lambda: ECKey.generate_key("P-521")),
    ("ECDH-ES+A256KW", lambda: OKPKey.generate_key("X25519")),
    ("RSA-OAEP-256", lambda: RSAKey.generate_key(2048)),
]
ALGORITHMS = [alg for alg, _ in KINDS] + ["A256GCM"]


def make() -> dict:
    private, public = [], []
    for alg, generate in KINDS:
        key = generate()
        private.append(key.as_dict(private=True) | {"kid": key.thumbprint()})
        public.append(key.as_dict(private=False) | {"alg": alg})
    return {"private": private, "public": public}


def encrypt(jwks: dict, text: str) -> dict:
    messages = {}
    for key in KeySet.import_key_set(jwks).keys:
        members = key.as_dict(private=False)
        header = {"alg": members["alg"], "enc": "A256GCM", "kid": members["kid"]}
        messages[members["kid"]] = jwe.encrypt_compact(header, text, key, algorithms=ALGORITHMS)
    return {"messages": messages}


def decrypt(messages: dict, private: list) -> dict:
    # Keyed by the thumbprint that joserfc computed.
    keys = KeySet.import_key_set({"keys": private})
    texts = {}
    for kid, message in messages.items():
        texts[kid] = jwe.decrypt_compact(message, keys, algorithms=ALGORITHMS).plaintext.decode()
    return {"texts": texts}


def main() -> int:
    order = json.load(sys.stdin)
    if "make" in order:
        answer = make()
    elif "encrypt" in order:
        answer = encrypt(order["encrypt"], order["text"])
    else:
        answer = decrypt(order["decrypt"], order["private"])
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
