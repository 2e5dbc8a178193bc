"""A signal issuer that signs SETs with joserfc.

Generates its keys at the start, one RS256 of 2048 bits and one ES256, and prints {"jwks": {"keys": [...]}}.

Then reads one JSON object per line from stdin until its end:
  set      the claims, signed as they are
  alg      RS256 or ES256; optional: RS256, which the CAEP interoperability profile demands
  header   optional: header parameters to set; null removes one

Prints one line for each: {"token": ...}, or {"refused": reason} if joserfc declines to sign it.
"""

import json
import sys

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey


def make_keys() -> dict:
    keys = {"RS256": RSAKey.generate_key(2048), "ES256": ECKey.generate_key("P-256")}
    return {
        alg: type(key).import_key(
            {**key.as_dict(private=True), "kid": key.thumbprint(), "use": "sig", "alg": alg}
        )
        for alg, key in keys.items()
    }


def sign(keys: dict, order: dict) -> str:
    alg = order.get("alg", "RS256")
    header = {"alg": alg, "kid": keys[alg].kid, "typ": "secevent+jwt", **order.get("header", {})}
    header = {name: value for name, value in header.items() if value is not None}
    return jws.serialize_compact(header, json.dumps(order["set"]), keys[alg], algorithms=[alg])


def say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    keys = make_keys()
    say({"jwks": {"keys": [key.as_dict(private=False) for key in keys.values()]}})
    for line in sys.stdin:
        try:
            say({"token": sign(keys, json.loads(line))})
        except JoseError as reason:
            say({"refused": f"{type(reason).__name__}: {reason}"})


if __name__ == "__main__":
    main()
