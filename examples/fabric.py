"""Client of the Trust Fabric for tool servers and their clients: two calls and one hash.

Copy this file. The environment says how to reach the broker:
FABRIC_URL (default http://127.0.0.1:8693), and over TLS FABRIC_CA, FABRIC_CERT and FABRIC_KEY.
"""

import base64
import hashlib
import os
import ssl
import uuid

import httpx2

BROKER = os.environ.get("FABRIC_URL", "http://127.0.0.1:8693")


class Refused(Exception):
    """The call fails `check`, or no token is granted for it."""

    def __init__(self, check: str, description: str):
        super().__init__(description)
        self.check = check


class Unavailable(Exception):
    """There is no verdict, so the call is not served."""


def body_hash(body: bytes) -> str:
    """SHA-256 in base64url without padding. Of the bytes on the wire: JSON that is parsed and
    written again is the same to a program, and another body to the hash."""
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


def _http() -> dict:
    tls = ssl.create_default_context(cafile=os.environ.get("FABRIC_CA"))
    if "FABRIC_CERT" in os.environ:
        tls.load_cert_chain(os.environ["FABRIC_CERT"], os.environ["FABRIC_KEY"])
    # The broker itself waits up to 2 s for its freshness lease. Tokens go only to the broker, whatever
    # proxy the environment names.
    return {"base_url": BROKER, "timeout": 5, "verify": tls, "trust_env": False}


def issuer() -> str:
    """The issuer identifier of the broker: the `iss` of its tokens (RFC 8414)."""
    with httpx2.Client(**_http()) as http:
        return http.get("/.well-known/oauth-authorization-server").raise_for_status().json()["issuer"]


class Fabric:
    """One for each process: it keeps its connections."""

    def __init__(self):
        self.http = httpx2.AsyncClient(**_http())

    async def exchange(self, credential: str, resource: str, request, scope: str | None = None) -> str:
        """A token for exactly this request at `resource` (RFC 8693, RFC 8707), good once, for 30 s."""
        answer = await self.http.post("/v1/exchange/token", json={
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": credential,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "resource": resource,
            "execution_scope": {
                "htm": request.method,
                "htu": str(request.url),
                "payload_hash": body_hash(await request.aread()),
                "nonce": str(uuid.uuid4()),
            },
        } | ({"scope": scope} if scope else {}))
        if answer.status_code != 200:
            raise Refused("exchange", f"no token: {answer.text}")
        return answer.json()["access_token"]

    async def verify(self, tool_id: str, protocol: str, token: str, body: bytes) -> dict:
        """The caller and its grants, if all nine checks passed; else raises `Refused`."""
        question = {"tool_id": tool_id, "protocol": protocol, "token": token,
                    "request_body_hash": body_hash(body)}
        # A passing verification uses the token. The same key marks a retry, so that a lost response costs
        # nothing.
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        for is_last in (False, True):
            try:
                answer = await self.http.post("/v1/mcp/verify", json=question, headers=headers)
                verdict = answer.json()
                break
            except (httpx2.TransportError, ValueError) as error:
                if is_last:
                    raise Unavailable("the broker did not answer") from error
        if answer.status_code == 200 and verdict["verified"] is True:
            return verdict
        # 403 without `check` refers to this server: its certificate may not verify. 400 can only refer to the
        # token, because the rest of the request is ours.
        if answer.status_code == 400 or (answer.status_code == 403 and "check" in verdict):
            raise Refused(verdict.get("check", "token"), verdict["error_description"])
        raise Unavailable(f"the broker answered {answer.status_code}")


class Bound:
    """Adds a separate token to each request of an HTTP client: `AsyncClient(event_hooks=bound.hooks)`."""

    def __init__(self, credential_file: str, resource: str, scope: str | None = None):
        self.fabric, self.credential_file, self.resource, self.scope = Fabric(), credential_file, resource, scope
        self.hooks = {"request": [self.bind], "response": [self.note]}
        # Protocol libraries hide the status and the challenge of a refusal.
        self.refusal = "no answer"

    async def bind(self, request) -> None:
        # Never for another address: the target of a redirect gets no token.
        if str(request.url) == self.resource:
            # Read each time: the platform replaces the file before the credential in it expires.
            with open(self.credential_file, encoding="ascii") as file:
                credential = file.read().strip()
            token = await self.fabric.exchange(credential, self.resource, request, self.scope)
            request.headers["Authorization"] = f"Bearer {token}"

    async def note(self, response) -> None:
        # 401: another token may help. 403: the scope that is named is missing. 503: later.
        if response.is_error:
            self.refusal = f"{response.status_code} {response.headers.get('www-authenticate', '')}"
