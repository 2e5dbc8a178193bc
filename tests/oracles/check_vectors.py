"""An independent implementation of the nine checks, written from the README of their vectors alone.

Usage: check_vectors.py MANIFEST

Exits with 0 if every case ends as expected; prints each that does not.
"""

import base64
import hashlib
import json
import re
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

KINDS = {"subject": 1, "email": 2, "client": 3, "token": 4, "signing_key": 5}
EXECUTION = ("htm", "htu", "nonce", "inp_hash", "exec_act", "target")
WORKLOAD_ID = re.compile(r"(wimse|spiffe)://([a-z0-9._-]{1,255})((/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+)$")
WORD = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}$")


class Fails(Exception):
    """The current check fails."""


def need(condition):
    if not condition:
        raise Fails


def decode(text):
    need(re.fullmatch(r"[A-Za-z0-9_-]*", text) and len(text) % 4 != 1)
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    need(base64.urlsafe_b64encode(data).rstrip(b"=").decode() == text)
    return data


def body_hash(text):
    need(isinstance(text, str))
    data = decode(text.rstrip("=") if text.count("=") <= 1 else text)
    need(len(data) == 32)
    return data


def strict_json(data):
    def members(pairs):
        need(len(dict(pairs)) == len(pairs))
        return dict(pairs)

    try:
        value = json.loads(data.decode(), object_pairs_hook=members)
    except ValueError as error:
        raise Fails from error
    need(isinstance(value, dict) and depth(value) <= 32)
    return value


def depth(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + max(map(depth, inner), default=0) if isinstance(value, (dict, list)) else 0


def text(value, limit=256):
    need(isinstance(value, str) and 1 <= len(value.encode()) <= limit)
    return value


def date(value):
    need(isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value) and value >= 0)
    return int(value)


def words(value):
    need(isinstance(value, list) and len(value) <= 128 and all(isinstance(word, str) and WORD.match(word) for word in value))
    return value


def digest(kind, issuer, value):
    data = bytes([KINDS[kind]])
    for part in (issuer.encode(), value.encode()):
        data += len(part).to_bytes(8, "big") + part
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()[:16]).rstrip(b"=").decode()


def signature_is_good(jwk, signed, signature):
    need(len(signature) == 64)
    x, y = (int.from_bytes(decode(jwk[name]), "big") for name in "xy")
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    r, s = (int.from_bytes(part, "big") for part in (signature[:32], signature[32:]))
    try:
        key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise Fails from error


def actors(claims, issuer):
    chain, act = [], claims.get("act")
    while act is not None:
        need(isinstance(act, dict) and len(chain) < 10)
        actor = (text(act.get("iss", issuer), 2048), text(act.get("sub"), 2048))
        need(actor not in chain)
        chain.append(actor)
        act = act.get("act")
    return chain


class Token:
    """Check 1."""

    def __init__(self, manifest, case):
        token = case["token"]
        need(len(token) <= 16384 and token.count(".") == 2)
        head, payload, signature = token.split(".")
        header = strict_json(decode(head))
        need(not {"crit", "b64", "zip", "jwk", "jku", "x5u", "x5c"} & header.keys())
        need(header.get("alg") == "ES256" and header.get("typ") == "at+jwt")
        keys = [key for key in manifest["jwks"]["keys"] if key["kid"] == header.get("kid")]
        need(len(keys) == 1)
        signature_is_good(keys[0], f"{head}.{payload}".encode(), decode(signature))
        self.kid = header["kid"]
        self.claims = claims = strict_json(decode(payload))
        need(claims.get("iss") == manifest["issuer"])
        aud = claims.get("aud")
        self.aud = text(aud[0] if isinstance(aud, list) and len(aud) == 1 else aud, 2048)
        self.is_for_one_call = any(name in claims for name in EXECUTION)
        self.times(manifest["now"], 0 if self.is_for_one_call else 5)
        if "cnf" in claims:
            need(claims["cnf"] == case.get("cnf") and set(claims["cnf"]) == {"x5t#S256"})
        subject = WORKLOAD_ID.match(text(claims.get("sub"), 2048))
        need(subject and subject[2] in manifest["trust_domains"])
        self.others()
        self.actors = actors(claims, manifest["issuer"])

    def times(self, now, exp_leeway):
        issued, ends = date(self.claims.get("iat")), date(self.claims.get("exp"))
        need(ends > issued and issued <= now + 5 and now < ends + exp_leeway and now < issued + 86400)
        need("nbf" not in self.claims or date(self.claims["nbf"]) <= now + 5)
        date(self.claims.get("root_iat"))
        date(self.claims.get("root_exp"))

    def others(self):
        claims = self.claims
        text(claims.get("jti"))
        for name, limit in {"txn": 256, "client_id": 2048, "blast_radius": 256, "htm": 256, "htu": 2048, "nonce": 256,
                            "exec_act": 256, "target": 2048}.items():
            if name in claims:
                text(claims[name], limit)
        words(claims.get("capabilities", []))
        scope = claims.get("scope", "")
        need(isinstance(scope, str))
        words(scope.split(" ") if scope else [])
        hops = claims.get("delegation_depth", 0)
        need(isinstance(hops, int) and 0 <= hops <= 10)
        lineage = claims.get("lineage")
        need(isinstance(lineage, list) and len(lineage) <= 32 and all(len(decode(one)) == 16 for one in lineage))
        need(re.fullmatch(r"[0-9a-f]{32}-[0-9]+", text(claims.get("idx"))))
        if "inp_hash" in claims:
            body_hash(claims["inp_hash"])


def revocation(manifest, token):
    claims, issuer = token.claims, manifest["issuer"]
    facts = {*claims["lineage"], digest("token", issuer, claims["jti"]), digest("signing_key", issuer, token.kid)}
    names = [claims["sub"], claims.get("client_id", "")]
    if "client_id" in claims:
        facts.add(digest("client", issuer, claims["client_id"]))
    for iss, sub in token.actors:
        facts.add(digest("subject", iss, sub))
        names.append(sub)
    facts |= {digest("subject", "", name) for name in names if WORKLOAD_ID.match(name)}
    incarnation, index = claims["idx"].split("-")
    need(incarnation == manifest["incarnation"])
    for entry in manifest["revocations"]:
        is_before = int(index) < entry["index"]
        need(entry["digest"] not in facts or not (is_before or entry["kind"] == "token"))
    need(not token.is_for_one_call or {"iss": issuer, "jti": claims["jti"]} not in manifest["spent"])


def radius(value):
    parts = re.fullmatch(r"([a-z][a-z0-9-]*)(?::((?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)*))?", value)
    need(parts)
    return parts[1], parts[2]


def lies_within(known, value, limit):
    """Whether a radius contains another: by its path, or by the parent map for it or for a prefix of its path."""
    order, (kind, name) = known["order"], value
    if order.index(kind) >= order.index(limit[0]):
        return value == limit
    if name is None or limit[1] is None:
        return limit[1] is None
    if name.startswith(f"{limit[1]}/"):
        return True
    segments = name.split("/")
    above = [(kind, name)]
    above += [(larger, "/".join(segments[:at])) for larger in order[order.index(kind) + 1 :] for at in range(1, len(segments))]
    parents = [known["parents"][f"{one}:{called}"] for one, called in above if f"{one}:{called}" in known["parents"]]
    return any(lies_within(known, radius(parent), limit) for parent in parents)


def blast_radius(known, value, limit):
    need(value is not None)
    value, limit = radius(value), radius(limit)
    order = known["order"]
    need(value[0] in order and limit[0] in order)
    if value[0] == limit[0]:
        return need(limit[1] is None or value == limit)
    return need(order.index(value[0]) < order.index(limit[0]) and lies_within(known, value, limit))


def remaining(manifest, case, tool, token):
    """Checks 2 to 9: a name, and None to skip the check or its condition."""
    claims = token.claims
    executes = tool["requires_execution"]
    uri, limit = tool.get("resource_uri"), tool.get("max_blast_radius")

    def audience():
        need(token.aud != manifest["issuer"] and (uri is None or token.aud == uri))

    def inp_hash():
        need("inp_hash" in claims and "request_body_hash" in case)
        need(body_hash(claims["inp_hash"]) == body_hash(case["request_body_hash"]))

    yield "revocation", True, lambda: revocation(manifest, token)
    yield "protocol", True, lambda: need(case.get("protocol", "mcp") in tool["protocols"])
    yield "audience", uri is not None, audience
    required = tool["required_capabilities"]
    yield "capabilities", required, lambda: need(set(required) <= set(claims.get("capabilities", [])))
    yield "blast_radius", limit, lambda: limit and blast_radius(manifest["blast_radius"], claims.get("blast_radius"), limit)
    for name, field in [("exec_act", "allowed_operations"), ("inp_hash", None), ("target", "allowed_targets")]:
        if field is None:
            made = executes or "inp_hash" in claims
            yield name, made, lambda made=made: made and inp_hash()
        else:
            made = executes and tool[field]
            yield name, made, lambda made=made, name=name, field=field: need(not made or claims.get(name) in tool[field])


def run(manifest, case):
    trace = []
    check = "token"
    try:
        token = Token(manifest, case)
        trace.append({"check": check, "result": "pass"})
        tool = next(tool for tool in manifest["tools"] if tool["tool_id"] == case["tool_id"])
        for check, is_made, holds in remaining(manifest, case, tool, token):
            holds()
            trace.append({"check": check, "result": "pass" if is_made else "skip"})
    except Fails:
        return check, trace
    return "pass", trace


def main(path):
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    wrong = 0
    for case in manifest["cases"]:
        ended, trace = run(manifest, case)
        if (ended, trace) != (case["expected"], case["trace"]):
            wrong += 1
            print(f"{case['name']}: {ended}, expected {case['expected']}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
