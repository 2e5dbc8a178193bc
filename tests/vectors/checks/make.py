"""Writes manifest.json: tokens, tools and expected verdicts for the nine checks of a tool call.

Usage: make.py          writes manifest.json beside this file
       make.py --check  exits with 1 if manifest.json is not what would be written

Private keys are fixed and signatures deterministic (RFC 6979), so that the output is always the same.
"""

import base64
import hashlib
import hmac
import itertools
import json
import pathlib
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

NOW = 1_800_000_000
ISS = "https://fabric.example"
TOOL = "https://tools.example/sql"
SUB = "wimse://trust.example/ns/prod/sa/reporter"
AGENT = "wimse://trust.example/agent/mcp/3f1c2a9e-7d44-4a53-9a2e-0c5b6f0d1e22"
GATEWAY = "wimse://trust.example/ns/edge/sa/gateway"
HERE, ELSEWHERE = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
CHECKS = [
    "token", "revocation", "protocol", "audience", "capabilities", "blast_radius", "exec_act", "inp_hash", "target",
]


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sha256(data):
    return hashlib.sha256(data).digest()


BODY, OTHER_BODY = b64(sha256(b'{"query":"select 1"}')), b64(sha256(b'{"query":"drop table"}'))
CERTIFICATE, OTHER_CERTIFICATE = b64(sha256(b"a certificate")), b64(sha256(b"another"))


# --- keys and signatures ---------------------------------------------------------------------------


def private_key(seed):
    return ec.derive_private_key(int.from_bytes(sha256(seed), "big") % ORDER, ec.SECP256R1())


def coordinates(key):
    numbers = key.public_key().public_numbers()
    return numbers.x.to_bytes(32, "big"), numbers.y.to_bytes(32, "big")


def thumbprint(key):
    x, y = map(b64, coordinates(key))
    return b64(sha256(f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'.encode()))


def jwk(key):
    x, y = map(b64, coordinates(key))
    return {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": thumbprint(key), "x": x, "y": y}


KEY, SECOND, TAINTED, FOREIGN = map(private_key, (b"first", b"second", b"tainted", b"foreign"))


def signature(key, data):
    der = key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    return b"".join(part.to_bytes(32, "big") for part in decode_dss_signature(der))


def compact(header, payload, key=KEY):
    """A JWS of exactly these bytes, or of these objects as JSON."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    signed = ".".join(map(b64, parts))
    return f"{signed}.{b64(signature(key, signed.encode()))}"


HEADER = {"alg": "ES256", "typ": "at+jwt", "kid": thumbprint(KEY)}


def changed(value, **changes):
    """`value` with these members; None removes one."""
    merged = {**value, **changes}
    return {name: member for name, member in merged.items() if member is not None}


# --- what the fabric knows --------------------------------------------------------------------------

FULL = {
    "tool_id": "full", "name": "asks for everything", "resource_uri": TOOL,
    "required_capabilities": ["db.read", "db.write"], "max_blast_radius": "namespace:prod",
    "requires_execution": True, "allowed_operations": ["POST", "tools/call"], "allowed_targets": [TOOL],
    "protocols": ["mcp"],
}
PLAIN = {
    "tool_id": "plain", "name": "takes tokens for any call", "resource_uri": TOOL,
    "required_capabilities": ["db.read"], "max_blast_radius": "namespace:prod", "requires_execution": False,
    "allowed_operations": [], "allowed_targets": [], "protocols": ["mcp", "http"],
}
BARE = {
    "tool_id": "bare", "name": "asks for nothing", "required_capabilities": [], "requires_execution": False,
    "allowed_operations": [], "allowed_targets": [], "protocols": ["mcp"],
}
TOOLS = [FULL, PLAIN, BARE]


def tool(base, tool_id, **changes):
    TOOLS.append(changed(base, tool_id=tool_id, name=tool_id.replace("-", " "), **changes))
    return tool_id


def digest(kind, issuer, value):
    """The first 128 bits of SHA-256 over kind, issuer and value, each with its length (README.md)."""
    kinds = {"subject": 1, "email": 2, "client": 3, "token": 4, "signing_key": 5}
    data = bytes([kinds[kind]])
    for part in (issuer.encode(), value.encode()):
        data += len(part).to_bytes(8, "big") + part
    return b64(sha256(data)[:16])


REVOCATIONS = []


def revoke(kind, issuer, value, index=100, at=NOW - 100):
    entry = {"kind": kind, "issuer": issuer, "value": value, "digest": digest(kind, issuer, value)}
    REVOCATIONS.append({**entry, "index": index, "at": at})


SPENT = [{"iss": ISS, "jti": "spent"}, {"iss": "https://other.example", "jti": "spent-elsewhere"}]

# --- tokens -----------------------------------------------------------------------------------------

CLAIMS = {
    "iss": ISS, "sub": SUB, "aud": TOOL, "iat": NOW - 10, "nbf": NOW - 10, "exp": NOW + 290, "jti": "a-token",
    "client_id": GATEWAY, "txn": "8675309", "scope": "db.read db.write", "capabilities": ["db.read", "db.write"],
    "blast_radius": "namespace:prod", "delegation_depth": 1, "act": {"iss": ISS, "sub": AGENT},
    "lineage": [digest("subject", "https://idp.example", "alice")], "root_iat": NOW - 60, "root_exp": NOW + 3600,
    "idx": f"{HERE}-50", "policy": "p",
}
EXECUTION = {
    "exp": NOW + 20, "htm": "POST", "htu": TOOL, "nonce": "n", "inp_hash": BODY, "exec_act": "POST", "target": TOOL,
}


def plain(header=HEADER, key=KEY, **changes):
    return compact(header, changed(CLAIMS, **changes), key)


def bound(header=HEADER, key=KEY, **changes):
    return compact(header, changed({**CLAIMS, **EXECUTION}, **changes), key)


# --- cases ------------------------------------------------------------------------------------------

CASES = []


def case(name, token, tool_id="full", expected="pass", reason=None, skipped=(), **request):
    if expected == "pass":
        passed = CHECKS
    else:
        passed = CHECKS[: CHECKS.index(expected)]
    trace = [{"check": check, "result": "skip" if check in skipped else "pass"} for check in passed]
    entry = {"name": name, "tool_id": tool_id, "token": token, **request, "expected": expected}
    CASES.append({**entry, **({"reason": reason} if reason else {}), "trace": trace})


EXEC = ("exec_act", "inp_hash", "target")


def full(name, token, expected="pass", reason=None, **request):
    """Against the tool with every requirement, with the body that the token is bound to."""
    request.setdefault("request_body_hash", BODY)
    case(name, token, "full", expected, reason, **request)


def ordinary(name, token, expected="pass", reason=None, **request):
    """A token without an execution scope, against a tool that accepts it."""
    case(name, token, "plain", expected, reason, skipped=EXEC, **request)


revoke("token", ISS, "revoked")

# Makes each check fail alone: changes to the token and to the request, and the signing key.
WRONG = {
    "token": ({}, {}, FOREIGN, "signature invalid"),
    "revocation": ({"jti": "revoked"}, {}, KEY, "token revoked"),
    "protocol": ({}, {"protocol": "http"}, KEY, "protocol http not accepted by tool"),
    "audience": ({"aud": "https://tools.example/mail"}, {}, KEY, "token aud does not match tool resource_uri"),
    "capabilities": ({"capabilities": ["db.read"]}, {}, KEY, "missing capability db.write"),
    "blast_radius": ({"blast_radius": "cluster:east"}, {}, KEY, "cluster:east exceeds namespace:prod"),
    "exec_act": ({"exec_act": "DELETE"}, {}, KEY, "operation DELETE not allowed"),
    "inp_hash": ({}, {"request_body_hash": OTHER_BODY}, KEY, "request body hash mismatch"),
    "target": ({"target": "https://tools.example/mail"}, {}, KEY, "target not allowed"),
}


def together(name, checks):
    claims, request, key = {}, {}, KEY
    for check in checks:
        claims |= WRONG[check][0]
        request |= WRONG[check][1]
        key = WRONG[check][2] if check == "token" else key
    full(name, bound(key=key, **claims), checks[0], WRONG[checks[0]][3], **request)


full("everything passes", bound())
for check in CHECKS:
    together(f"{check} fails alone", [check])
for first, second in itertools.combinations(CHECKS, 2):
    together(f"{first} and {second} fail together", [first, second])
for at in range(len(CHECKS) - 2):
    together(f"{CHECKS[at]} and everything after it fails", CHECKS[at:])


def skips():
    for name, field, skipped in [
        ("without-resource-uri", {"resource_uri": None}, ["audience"]),
        ("without-capabilities", {"required_capabilities": []}, ["capabilities"]),
        ("without-blast-radius", {"max_blast_radius": None}, ["blast_radius"]),
        ("any-operation", {"allowed_operations": []}, ["exec_act"]),
        ("any-target", {"allowed_targets": []}, ["target"]),
        ("lists-not-required", {"requires_execution": False}, ["exec_act", "target"]),
    ]:
        tool_id = tool(FULL, name, **field)
        case(f"skipped: {name}", bound(), tool_id, skipped=skipped, request_body_hash=BODY)
    everything = ["audience", "capabilities", "blast_radius", *EXEC]
    case("skipped: everything a tool can leave out", plain(), "bare", skipped=everything)
    case("skipped: the token has no execution scope and the tool asks for none", plain(), "plain", skipped=EXEC)
    nothing = {"aud": "https://anything.example", "capabilities": None, "scope": None, "blast_radius": None}
    case("a token that states nothing passes a tool that asks for nothing", plain(**nothing), "bare", skipped=everything)
    wrong = bound(exec_act="DELETE", target="https://elsewhere.example")
    case("what an execution scope says is not looked at by a tool that requires none, but for the body",
         wrong, "lists-not-required", skipped=["exec_act", "target"], request_body_hash=BODY)
    # A skipped check is skipped also when a later check fails.
    case("a failure after skipped checks", bound(target="https://x.example"), "without-resource-uri", "target",
         "target not allowed", skipped=["audience"], request_body_hash=BODY)


skips()


# --- 1 token
def check_1():
    def refused(name, token, reason, **request):
        full(name, token, "token", reason, **request)

    signed = bound()
    head, payload, sig = signed.split(".")
    refused("alg none, signature kept", f"{b64(json.dumps({**HEADER, 'alg': 'none'}).encode())}.{payload}.{sig}",
            "token algorithm is refused")
    refused("alg none, no signature", f"{b64(json.dumps({**HEADER, 'alg': 'none'}).encode())}.{payload}.",
            "token algorithm is refused")
    refused("alg nOnE", f"{b64(json.dumps({**HEADER, 'alg': 'nOnE'}).encode())}.{payload}.", "token algorithm is refused")
    x, y = coordinates(KEY)
    for name, secret in [
        ("the public JWK", json.dumps(jwk(KEY)).encode()), ("the public point", b"\x04" + x + y), ("nothing", b""),
    ]:
        text = f"{b64(json.dumps({**HEADER, 'alg': 'HS256'}).encode())}.{payload}"
        tag = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        refused(f"HS256 keyed with {name}", f"{text}.{b64(tag)}", "token algorithm is refused")
    refused("alg ES384", bound({**HEADER, "alg": "ES384"}), "token algorithm is not allowed for its issuer")
    refused("alg RS256", bound({**HEADER, "alg": "RS256"}), "token algorithm is not allowed for its issuer")
    refused("alg absent", bound(changed(HEADER, alg=None)), "token algorithm is refused")
    refused("alg in small letters", bound({**HEADER, "alg": "es256"}), "token algorithm is refused")
    for typ in ["JWT", "AT+JWT", "application/at+jwt", "at+jwt ", "wit+jwt", "secevent+jwt", "dpop+jwt"]:
        refused(f"typ {typ!r}", bound({**HEADER, "typ": typ}), "unsupported token type")
    refused("typ absent", bound(changed(HEADER, typ=None)), "unsupported token type")
    refused("typ not a string", bound({**HEADER, "typ": ["at+jwt"]}), "token header is malformed")
    refused("kid unknown", bound({**HEADER, "kid": thumbprint(FOREIGN)}, FOREIGN), "signing key unknown")
    refused("kid absent", bound(changed(HEADER, kid=None)), "signing key unknown")
    refused("kid of another of the fabric's keys", bound({**HEADER, "kid": thumbprint(SECOND)}), "signature invalid")
    full("signed by the second key", bound({**HEADER, "kid": thumbprint(SECOND)}, SECOND))
    refused("kid is a path", bound({**HEADER, "kid": "../../keys/1"}), "signing key unknown")
    for name, value in [
        ("jwk", jwk(FOREIGN)), ("jku", "https://evil.example/keys"), ("x5u", "https://evil.example/x"), ("x5c", ["MIIB"]),
    ]:
        refused(f"{name} in the header", bound({**HEADER, name: value}, FOREIGN), "token header carries its own key")
    refused("jwk of the right key in the header", bound({**HEADER, "jwk": jwk(KEY)}), "token header carries its own key")
    for name, value in [("crit", ["exp"]), ("b64", False), ("zip", "DEF")]:
        refused(f"{name} in the header", bound({**HEADER, name: value}), "token header has an extension that is not understood")
    doubled = json.dumps(HEADER)[:-1] + ', "alg": "ES256"}'
    refused("a header member twice", compact(doubled.encode(), {**CLAIMS, **EXECUTION}), "token header is malformed")

    claims = {**CLAIMS, **EXECUTION}
    text = json.dumps(claims)
    refused("a claim twice", compact(HEADER, (text[:-1] + f', "aud": "{TOOL}"}}').encode()), "token payload is not a JSON object")
    refused("a claim twice, spelled with an escape",
            compact(HEADER, (text[:-1] + f', "\\u0061ud": "{TOOL}"}}').encode()), "token payload is not a JSON object")
    refused("text after the payload's JSON", compact(HEADER, (text + "{}").encode()), "token payload is not a JSON object")
    refused("the payload is a list", compact(HEADER, f"[{text}]".encode()), "token payload is not a JSON object")
    refused("the payload is not UTF-8", compact(HEADER, text.encode()[:-1] + b',"x":"\xff"}'), "token payload is not a JSON object")
    refused("the payload is nested too deeply", compact(HEADER, (text[:-1] + ',"x":' + "[" * 40 + "]" * 40 + "}").encode()),
            "token payload is not a JSON object")
    refused("another payload under the signature", f"{head}.{b64(text.replace('prod', 'prop').encode())}.{sig}", "signature invalid")
    refused("a signature of zeros", f"{head}.{payload}.{b64(bytes(64))}", "signature invalid")
    refused("no signature", f"{head}.{payload}.", "signature invalid")
    der = KEY.sign(f"{head}.{payload}".encode(), ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    refused("a signature in DER", f"{head}.{payload}.{b64(der)}", "signature invalid")
    not_compact = "token is not a compact JWS"
    refused("two parts", f"{head}.{payload}", not_compact)
    refused("four parts", f"{signed}.{sig}", not_compact)
    refused("padding", f"{signed}=", not_compact)
    refused("a space before it", f" {signed}", not_compact)
    refused("a scheme before it", f"Bearer {signed}", not_compact)
    refused("no token at all", "x", not_compact)
    refused("larger than 16 KiB", bound(x="x" * 16384), "token is too large")

    malformed = "token claim {} is malformed".format
    missing = "token lacks the claim {}".format
    for name in ["iss", "sub", "aud", "exp", "iat", "jti", "lineage", "idx", "root_iat", "root_exp"]:
        refused(f"{name} absent", bound(**{name: None}), missing(name))
    for name, value in [
        ("iss", 1), ("sub", ["x"]), ("aud", ""), ("aud", []), ("aud", [TOOL, 1]), ("exp", str(NOW + 20)), ("exp", NOW + 0.5),
        ("iat", "now"), ("nbf", True), ("jti", 7), ("jti", ""), ("jti", "j" * 257), ("capabilities", "db.read db.write"),
        ("capabilities", [1]), ("capabilities", ["db read"]), ("scope", ["db.read"]), ("blast_radius", 1),
        ("delegation_depth", -1), ("delegation_depth", "1"), ("act", "agent"), ("act", {"iss": ISS}), ("txn", 1), ("client_id", {}),
        ("lineage", "x"), ("lineage", ["short"]), ("lineage", [CLAIMS["lineage"][0]] * 33), ("idx", "50"), ("idx", f"{HERE}-x"),
        ("htm", 1), ("htu", []), ("nonce", {}), ("exec_act", ["POST"]), ("target", 1), ("inp_hash", 1), ("inp_hash", "short"),
        ("inp_hash", sha256(b"body").hex()), ("inp_hash", "+" * 42 + "A"), ("exec_act", ""), ("target", "t" * 2049),
    ]:
        refused(f"{name} is {json.dumps(value)[:40]}", bound(**{name: value}), malformed(name))
    refused("two audiences, one of them the tool's", bound(aud=[TOOL, "https://tools.example/mail"]), malformed("aud"))
    refused("the tool's audience twice", bound(aud=[TOOL, TOOL]), malformed("aud"))
    full("one audience in a list", bound(aud=[TOOL]))
    for name, iss in [("another", "https://other.example"), ("a slash more", f"{ISS}/"), ("other letters", ISS.upper())]:
        refused(f"iss: {name}", bound(iss=iss), "issuer not trusted")
    for name, sub in [("another", "wimse://other.example/ns/prod/sa/reporter"), ("a longer", "wimse://trust.example.evil/x"),
                      ("a nested", "wimse://a.trust.example/x")]:
        refused(f"sub: {name} trust domain", bound(sub=sub), "issuer not trusted")
    for name, sub in [("no identifier", "reporter"), ("dot segments", "wimse://trust.example/a/../b"),
                      ("percent-encoded", "wimse://trust.example/a%2fb")]:
        refused(f"sub: {name}", bound(sub=sub), "token subject does not follow its issuer's rule")
    actors = {"iss": ISS, "sub": "wimse://trust.example/agent/0"}
    for at in range(1, 11):
        actors = {"iss": ISS, "sub": f"wimse://trust.example/agent/{at}", "act": actors}
    refused("eleven actors", bound(act=actors), "token actor chain is too long")
    full("ten actors", bound(act=actors["act"]))
    refused("an actor twice", bound(act={"iss": ISS, "sub": AGENT, "act": {"iss": ISS, "sub": AGENT}}), "token actor chain has a loop")


check_1()


def times():
    def refused(name, token, reason, check=ordinary):
        check(name, token, "token", reason)

    # Five seconds for clocks that disagree; none for an execution-scoped token.
    ordinary("exp was 4 s ago", plain(exp=NOW - 4))
    refused("exp was 5 s ago", plain(exp=NOW - 5), "token expired")
    full("one call: exp in 1 s", bound(exp=NOW + 1))
    refused("one call: exp is now", bound(exp=NOW), "token expired", full)
    refused("one call: exp was 1 s ago", bound(exp=NOW - 1), "token expired", full)
    ordinary("nbf and iat in 5 s", plain(nbf=NOW + 5, iat=NOW + 5))
    refused("nbf in 6 s", plain(nbf=NOW + 6), "token not yet valid")
    refused("iat in 6 s", plain(nbf=None, iat=NOW + 6), "token not yet valid")
    full("one call: nbf and iat in 5 s", bound(nbf=NOW + 5, iat=NOW + 5))
    refused("one call: nbf in 6 s", bound(nbf=NOW + 6), "token not yet valid", full)
    refused("one call: iat in 6 s", bound(nbf=None, iat=NOW + 6), "token not yet valid", full)
    ordinary("without nbf", plain(nbf=None))
    ordinary("exp as a number with a point", plain(exp=float(NOW + 290)))
    ordinary("iat almost 24 h ago", plain(iat=NOW - 86_399, nbf=NOW - 86_399))
    refused("iat 24 h ago", plain(iat=NOW - 86_400, nbf=NOW - 86_400), "token expired")
    refused("exp before iat", plain(iat=NOW + 3, exp=NOW + 2), "token claim exp is malformed")
    ordinary("its chain has ended, which ends exchanges and not calls", plain(root_exp=NOW - 1))
    # Any one claim of an execution scope makes the token execution-scoped.
    for name, value in [("htm", "POST"), ("htu", TOOL), ("nonce", "n"), ("exec_act", "POST"), ("target", TOOL)]:
        case(f"only {name}, exp is now", plain(exp=NOW, **{name: value}), "plain", "token", "token expired")


times()


def binding():
    cnf = {"x5t#S256": CERTIFICATE}
    elsewhere = "token is bound to another certificate than cnf names"
    ordinary("bound, and the certificate was seen", plain(cnf=cnf), cnf=cnf)
    ordinary("bound, and no certificate was seen", plain(cnf=cnf), "token", elsewhere)
    ordinary("bound, and another certificate was seen", plain(cnf=cnf), "token", elsewhere, cnf={"x5t#S256": OTHER_CERTIFICATE})
    ordinary("not bound, and a certificate was seen", plain(), cnf=cnf)
    ordinary("bound to a key (jkt)", plain(cnf={"jkt": CERTIFICATE}), "token", elsewhere, cnf=cnf)
    ordinary("bound to a certificate and a key", plain(cnf={**cnf, "jkt": CERTIFICATE}), "token", elsewhere, cnf=cnf)
    ordinary("cnf is empty", plain(cnf={}), "token", "token claim cnf is malformed", cnf=cnf)
    ordinary("cnf is a string", plain(cnf=CERTIFICATE), "token", "token claim cnf is malformed", cnf=cnf)
    ordinary("cnf is no digest", plain(cnf={"x5t#S256": "x"}), "token", "token claim cnf is malformed", cnf=cnf)


binding()


# --- 2 revocation
def check_2():
    def refused(name, token, check=ordinary):
        check(name, token, "revocation", "token revoked")

    revoked_sub = "wimse://trust.example/ns/prod/sa/revoked"
    revoked_agent = "wimse://trust.example/agent/mcp/revoked"
    revoke("subject", "", revoked_sub)
    revoke("subject", "", revoked_agent)
    revoke("subject", ISS, "wimse://other.example/agent/of-ours")
    revoke("client", ISS, "revoked-client")
    revoke("signing_key", ISS, thumbprint(TAINTED))
    revoke("email", "https://idp.example", "alice@example.com")
    revoke("token", "https://other.example", "revoked-elsewhere")
    refused("jti is revoked", plain(jti="revoked"))
    refused("sub is revoked", plain(sub=revoked_sub))
    refused("act is revoked", plain(act={"iss": ISS, "sub": revoked_agent}))
    refused("a prior actor is revoked", plain(act={"iss": ISS, "sub": AGENT, "act": {"iss": ISS, "sub": revoked_agent}}))
    refused("an actor is revoked by its issuer's name for it", plain(act={"sub": "wimse://other.example/agent/of-ours"}))
    refused("client_id is revoked", plain(client_id="revoked-client"))
    refused("client_id is a revoked workload", plain(client_id=revoked_sub))
    refused("its signing key is revoked", plain({**HEADER, "kid": thumbprint(TAINTED)}, TAINTED))
    refused("something in its lineage is revoked",
            plain(lineage=[*CLAIMS["lineage"], digest("email", "https://idp.example", "alice@example.com")]))
    ordinary("sub begins with a revoked one", plain(sub=f"{revoked_sub}-not"))
    ordinary("jti of another issuer is revoked", plain(jti="revoked-elsewhere"))
    # Within one incarnation of the cluster, log indexes decide and clocks do not.
    client = {"client_id": "revoked-client"}
    refused("issued one entry before the revocation", plain(**client, idx=f"{HERE}-99", iat=NOW - 10))
    ordinary("issued at the revocation's entry", plain(**client, idx=f"{HERE}-100", iat=NOW - 200, nbf=NOW - 200))
    # Of another incarnation, every token is refused: the log does not say what was revoked in that one.
    refused("of another log, with a large index", plain(idx=f"{ELSEWHERE}-1000000", iat=NOW, nbf=NOW))
    refused("of another log, with index 0", plain(idx=f"{ELSEWHERE}-0", iat=NOW - 92, nbf=NOW - 92))
    # A retried exchange mints the same jti at a later index: one token, revoked at every index.
    refused("jti is revoked, minted again later", plain(jti="revoked", idx=f"{HERE}-500", iat=NOW))
    refused("jti is revoked, of another log and later", plain(jti="revoked", idx=f"{ELSEWHERE}-500", iat=NOW))
    used = "token already used"
    full("it was spent", bound(jti="spent"), "revocation", used)
    r, s = signature_numbers(bound(jti="spent"))
    full("it was spent, with the other valid signature", malleated(bound(jti="spent"), r, s), "revocation", used)
    case("it was spent, and the tool requires no execution", bound(jti="spent"), "lists-not-required", "revocation", used,
         request_body_hash=BODY)
    case("only a nonce, and it was spent", plain(jti="spent", nonce="n"), "plain", "revocation", used)
    full("it was spent and is revoked", bound(jti="spent", sub=revoked_sub), "revocation", "token revoked")
    full("the jti of another issuer was spent", bound(jti="spent-elsewhere"))
    ordinary("a token for any call is never spent", plain(jti="spent"))
    full("the other valid signature", malleated(bound(), *signature_numbers(bound())))


def signature_numbers(token):
    raw = base64.urlsafe_b64decode(token.rsplit(".", 1)[1] + "==")
    return int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")


def malleated(token, r, s):
    return f"{token.rsplit('.', 1)[0]}.{b64(r.to_bytes(32, 'big') + (ORDER - s).to_bytes(32, 'big'))}"


check_2()


# --- 3 protocol
def check_3():
    tool(PLAIN, "http-only", protocols=["http"])
    tool(PLAIN, "a2a-only", protocols=["a2a/2025-draft-01"])
    case("the second of two protocols", plain(), "plain", skipped=EXEC, protocol="http")
    case("mcp said", plain(), "plain", skipped=EXEC, protocol="mcp")
    case("a2a", plain(), "a2a-only", skipped=EXEC, protocol="a2a/2025-draft-01")
    case("no protocol said is mcp", plain(), "http-only", "protocol", "protocol mcp not accepted by tool")
    case("a2a for an mcp tool", plain(), "plain", "protocol", "protocol a2a/2025-draft-01 not accepted by tool",
         protocol="a2a/2025-draft-01")


check_3()


# --- 4 audience
def check_4():
    text = "token aud does not match tool resource_uri"
    for name, aud in [
        ("case of the host", "https://Tools.example/sql"), ("case of the scheme", "HTTPS://tools.example/sql"),
        ("case of the path", "https://tools.example/SQL"), ("the default port", "https://tools.example:443/sql"),
        ("another port", "https://tools.example:8443/sql"), ("a trailing slash", "https://tools.example/sql/"),
        ("another scheme", "http://tools.example/sql"), ("percent-encoding", "https://tools.example/s%71l"),
        ("a query", "https://tools.example/sql?"), ("a fragment", "https://tools.example/sql#"),
        ("a user", "https://u@tools.example/sql"), ("a dot at the end of the host", "https://tools.example./sql"),
        ("dot segments", "https://tools.example/x/../sql"), ("a beginning", "https://tools.example"),
        ("a continuation", "https://tools.example/sql-admin"), ("a space", "https://tools.example/sql "),
        ("a list of the wrong one", ["https://tools.example/mail"]),
    ]:
        full(f"aud differs by {name}", bound(aud=aud), "audience", text)
    ours = "token is meant for the fabric itself"
    full("aud is the fabric", bound(aud=ISS), "audience", ours)
    case("aud is the fabric, and the tool has no resource_uri", plain(aud=ISS), "bare", "audience", ours)
    tool_id = tool(PLAIN, "named-like-the-fabric", resource_uri=ISS)
    case("aud is the fabric, and the tool says to be it", plain(aud=ISS), tool_id, "audience", ours)
    agent = {"aud": ISS, "platform": "mcp", "agent_name": "an agent", "act": None, "sub": AGENT, "client_id": AGENT}
    case("an agent's identity token, and the tool has no resource_uri", plain(**agent), "bare", "audience", ours)


check_4()


# --- 5 capabilities
def check_5():
    text = "missing capability db.read"
    for name, capabilities in [
        ("is longer", ["db.read.all", "db.readonly"]), ("is a beginning", ["db", "db.", "db.rea"]), ("is in capitals", ["DB.READ"]),
        ("is a wildcard", ["*", "db.*"]), ("is another", ["db.write"]), ("is none", []), ("is not stated", None),
    ]:
        case(f"the capability {name}", plain(capabilities=capabilities), "plain", "capabilities", text)
    ordinary("more capabilities than are required", plain(capabilities=["a", "db.read", "z"]))
    case("the capability is in scope only", plain(capabilities=["x"], scope="db.read"), "plain", "capabilities", text)
    full("the last of two is missing", bound(capabilities=["db.read", "db.writer"]), "capabilities", "missing capability db.write")
    full("in another order and twice", bound(capabilities=["db.write", "db.read", "db.write"]))


check_5()


# --- 6 blast radius
def check_6():
    limits = ["namespace:pay", "namespace:payroll", "namespace", "cluster:east", "cluster:east/1", "cluster", "workspace:pay/ledger",
              "global", "galaxy:milky-way"]
    for limit in limits:
        tool(PLAIN, f"within-{limit.replace(':', '-').replace('/', '-')}", max_blast_radius=limit)

    def fits(value, limit):
        case(f"{value} within {limit}", plain(blast_radius=value), f"within-{limit.replace(':', '-').replace('/', '-')}", skipped=EXEC)

    def exceeds(value, limit, reason=None):
        tool_id = f"within-{limit.replace(':', '-').replace('/', '-')}"
        case(f"{value} beyond {limit}", plain(blast_radius=value), tool_id, "blast_radius", reason or f"{value} exceeds {limit}")

    fits("namespace:pay", "namespace:pay")
    fits("namespace:pay", "namespace")
    fits("workspace:pay/ledger", "namespace:pay")
    fits("workspace:pay/ledger/1", "namespace:pay")
    fits("workspace", "namespace")
    fits("namespace:shop", "cluster:east")
    fits("workspace:shop/cart", "cluster:east")
    fits("namespace:east/1", "cluster:east")
    fits("namespace:pay", "global")
    fits("cluster:east", "cluster")
    exceeds("namespace:pay", "namespace:payroll")
    exceeds("namespace:payroll", "namespace:pay")
    exceeds("namespace:pay/roll", "namespace:pay")
    exceeds("namespace:PAY", "namespace:pay")
    exceeds("namespace", "namespace:pay")
    exceeds("workspace", "namespace:pay")
    exceeds("workspace:pay", "namespace:pay")
    exceeds("workspace:payroll/1", "namespace:pay")
    exceeds("workspace:ledger", "namespace:pay")
    exceeds("namespace:other", "cluster:east")
    exceeds("namespace:shop", "cluster:east/1")
    exceeds("namespace:pay", "workspace:pay/ledger")
    exceeds("global", "cluster")
    exceeds("global:x", "namespace:pay")
    exceeds("galaxy:milky-way", "galaxy:milky-way")
    exceeds("galaxy:milky-way", "global")
    exceeds("namespace:pay", "galaxy:milky-way")
    malformed = "blast radius of the token is malformed"
    for value in ["namespace:", "namespace:pay/", "namespace:pay/../pay", ":pay", "Namespace:pay", "namespace:*", "namespace:pay x", " "]:
        exceeds(value, "namespace:pay", malformed)
    case("the token has no blast radius", plain(blast_radius=None), "plain", "blast_radius", "token has no blast radius")


check_6()


# --- 7 exec_act
def check_7():
    full("a token for any call", plain(), "exec_act", "exec_act missing")
    full("exec_act is absent", bound(exec_act=None), "exec_act", "exec_act missing")
    full("the second operation", bound(exec_act="tools/call"))
    for name, value in [("in small letters", "post"), ("a beginning", "POS"), ("a continuation", "POST "), ("a continuation of a path", "tools/call/x")]:
        full(f"exec_act is {name}", bound(exec_act=value), "exec_act", f"operation {value} not allowed")
    case("htm does not stand in for exec_act", bound(htm="POST", exec_act="PUT"), "full", "exec_act", "operation PUT not allowed",
         request_body_hash=BODY)


check_7()


# --- 8 inp_hash
def check_8():
    full("inp_hash is absent", bound(inp_hash=None), "inp_hash", "inp_hash missing")
    case("a token for any call, where any operation is allowed", plain(), "any-operation", "inp_hash", "inp_hash missing",
         skipped=["exec_act"], request_body_hash=BODY)
    case("request_body_hash is missing", bound(), "full", "inp_hash", "request_body_hash missing")
    case("request_body_hash is missing, and the tool requires no execution", bound(), "lists-not-required", "inp_hash",
         "request_body_hash missing", skipped=["exec_act"])
    case("another body, and the tool requires no execution", bound(), "lists-not-required", "inp_hash",
         "request body hash mismatch", skipped=["exec_act"], request_body_hash=OTHER_BODY)
    full("request_body_hash with padding", bound(), request_body_hash=f"{BODY}=")
    full("inp_hash with padding", bound(inp_hash=f"{BODY}="))
    empty = b64(sha256(b""))
    full("an empty body", bound(inp_hash=empty), request_body_hash=empty)
    full("an empty body instead of the body", bound(), "inp_hash", "request body hash mismatch", request_body_hash=empty)
    first = "A" if BODY[0] != "A" else "B"
    full("the first character differs", bound(), "inp_hash", "request body hash mismatch", request_body_hash=first + BODY[1:])
    last_bit = bytearray(sha256(b'{"query":"select 1"}'))
    last_bit[31] ^= 1
    full("the last bit differs", bound(), "inp_hash", "request body hash mismatch", request_body_hash=b64(bytes(last_bit)))
    case("a body is said, and the token is for any", plain(), "plain", skipped=EXEC, request_body_hash=OTHER_BODY)


check_8()


# --- 9 target
def check_9():
    full("target is absent", bound(target=None), "target", "target missing")
    for name, value in [
        ("an extra segment", f"{TOOL}/drop"), ("a trailing slash", f"{TOOL}/"), ("dot segments", "https://tools.example/x/../sql"),
        ("a dot segment", "https://tools.example/./sql"), ("encoded dot segments", "https://tools.example/x/%2e%2e/sql"),
        ("percent-encoding", "https://tools.example/s%71l"), ("an encoded slash", "https://tools.example%2fsql"),
        ("a query", f"{TOOL}?"), ("a fragment", f"{TOOL}#"), ("case of the host", "https://TOOLS.example/sql"),
        ("case of the path", "https://tools.example/Sql"), ("the default port", "https://tools.example:443/sql"),
        ("another scheme", "http://tools.example/sql"), ("a user", "https://tools.example@evil.example/sql"),
        ("a doubled slash", "https://tools.example//sql"), ("a beginning", "https://tools.example/sq"),
        ("a continuation", f"{TOOL}2"), ("a backslash", "https://tools.example\\sql"),
    ]:
        full(f"target differs by {name}", bound(target=value), "target", "target not allowed")
    case("htu does not stand in for target", bound(htu=TOOL, target="https://x.example"), "full", "target", "target not allowed",
         request_body_hash=BODY)


check_9()


# --- the file ---------------------------------------------------------------------------------------


def manifest():
    known = {
        "format": 1,
        "now": NOW,
        "issuer": ISS,
        "trust_domains": ["trust.example"],
        "incarnation": HERE,
        "jwks": {"keys": [jwk(key) for key in (KEY, SECOND, TAINTED)]},
        "blast_radius": {
            "order": ["workspace", "namespace", "cluster", "global"], "parents": {"namespace:shop": "cluster:east"},
        },
        "spent": SPENT,
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in known.items()]
    for name, values in [("revocations", REVOCATIONS), ("tools", TOOLS), ("cases", CASES)]:
        rows = ",\n".join(f"    {json.dumps(value)}" for value in values)
        lines.append(f"  {json.dumps(name)}: [\n{rows}\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    file = pathlib.Path(__file__).with_name("manifest.json")
    text = manifest()
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if file.read_text() == text else "manifest.json is not what make.py makes")
    file.write_text(text)
    print(f"{len(CASES)} cases")
