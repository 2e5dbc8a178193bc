"""Verifies a minted token with PyJWT and with joserfc.

Reads one JSON object from stdin:
  token               the compact token
  jwks or jwks_url    the key set itself, or its URL, from which PyJWT fetches it
  issuer, audience    required claims
  typ, algorithms     optional: at+jwt, ["ES256"]

Prints {"header": {...}, "claims": {...}} when both libraries accept it and read the same claims.
Otherwise prints {"refused": {"pyjwt": reason or null, "joserfc": reason or null}} and exits with 1.
"""

import json
import os
import sys

# The JWK Set is on loopback: ignore proxies of the environment.
os.environ["no_proxy"] = "*"

import jwt
from joserfc import jwt as joserfc_jwt
from joserfc.jwk import KeySet

REQUIRED = ["iss", "sub", "aud", "exp", "iat", "jti"]


def with_pyjwt(order: dict, algorithms: list[str]) -> dict:
    if "jwks_url" in order:
        key = jwt.PyJWKClient(order["jwks_url"]).get_signing_key_from_jwt(order["token"])
    else:
        key = jwt.PyJWKSet.from_dict(order["jwks"])[jwt.get_unverified_header(order["token"])["kid"]]
    return jwt.decode(
        order["token"],
        key,
        algorithms=algorithms,
        issuer=order["issuer"],
        audience=order["audience"],
        options={"require": REQUIRED},
    )


def with_joserfc(order: dict, algorithms: list[str]) -> dict:
    jwks = order.get("jwks") or jwt.PyJWKClient(order["jwks_url"]).fetch_data()
    token = joserfc_jwt.decode(order["token"], KeySet.import_key_set(jwks), algorithms=algorithms)
    rules = {name: {"essential": True} for name in REQUIRED}
    rules["iss"]["value"], rules["aud"]["value"] = order["issuer"], order["audience"]
    joserfc_jwt.JWTClaimsRegistry(**rules).validate(token.claims)
    return token.claims


def main() -> int:
    order = json.load(sys.stdin)
    algorithms = order.get("algorithms", ["ES256"])
    claims, refused = {}, {"pyjwt": None, "joserfc": None}
    for name, verify in (("pyjwt", with_pyjwt), ("joserfc", with_joserfc)):
        try:
            claims[name] = verify(order, algorithms)
        # Any exception is a refusal, and the test reads it.
        except Exception as reason:
            refused[name] = f"{type(reason).__name__}: {reason}"
    try:
        header = jwt.get_unverified_header(order["token"])
    except jwt.PyJWTError:
        header = {}
    # RFC 9068 §4: the resource server checks `typ`; neither library does.
    if header.get("typ") != order.get("typ", "at+jwt"):
        refused["pyjwt"] = refused["pyjwt"] or f"typ is {header.get('typ')}"
    if any(refused.values()) or claims["pyjwt"] != claims["joserfc"]:
        json.dump({"refused": refused}, sys.stdout)
        return 1
    json.dump({"header": header, "claims": claims["pyjwt"]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
