"""Calls nodes of a cluster over HTTPS. Shared by three_nodes.py and faults.py; needs only Python."""

import http.client
import json
import ssl
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRUST_DOMAIN = "dev.trust-fabric.local"
TOOL = f"https://tools.{TRUST_DOMAIN}/sql-query"
# Covers the start of images, an election and the catch-up of a node.
PATIENCE_SECS = 90


def run(*command, **options):
    """Runs a command and returns its output; if it fails, the check ends with its error."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, text=True, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def until(what, condition, patience_secs=PATIENCE_SECS):
    """Waits for the condition and returns the seconds that it took."""
    begun = time.monotonic()
    while True:
        try:
            if condition():
                return time.monotonic() - begun
            last = "not yet"
        except (OSError, http.client.HTTPException, AssertionError) as error:
            last = repr(error)
        if time.monotonic() - begun > patience_secs:
            raise SystemExit(f"{what}: not within {patience_secs} s: {last}")
        time.sleep(0.1)


def say(text):
    print(text, flush=True)


class Client:
    """A client with the certificate of one caller."""

    def __init__(self, pki, caller, ports):
        self.ports = ports
        self.nodes = list(ports)
        self.tls = ssl.create_default_context(cafile=pki / "ca.pem")
        if caller:
            self.tls.load_cert_chain(pki / f"{caller}.pem", pki / f"{caller}-key.pem")

    def call(self, node, method, path, body=None, key=None, min_index=None, bearer=None, timeout_secs=15):
        """Status and JSON of the response; `index` is then the log index that the node stated."""
        connection = http.client.HTTPSConnection("localhost", self.ports[node], timeout=timeout_secs, context=self.tls)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            headers |= {"Idempotency-Key": key} if key else {}
            headers |= {"Svc-Min-Index": min_index} if min_index else {}
            headers |= {"Authorization": f"Bearer {bearer}"} if bearer else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            self.index = answer.getheader("Svc-Index")
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()


def exchange_request(credential, kind="urn:ietf:params:oauth:token-type:jwt", audience=TOOL):
    return {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": credential,
        "subject_token_type": kind,
        "audience": audience,
    }


def exchange(client, node, credential):
    status, answer = client.call(node, "POST", "/v1/exchange/token", exchange_request(credential))
    assert status == 200, (node, status, answer)
    return answer["access_token"]


def tool(tool_id):
    return {
        "tool_id": tool_id,
        "name": tool_id,
        "resource_uri": TOOL,
        "required_capabilities": ["db.read"],
        "max_blast_radius": "namespace:demo",
        "protocols": ["mcp"],
    }


def verify(client, node, tool_id, token):
    status, answer = client.call(node, "POST", "/v1/mcp/verify", {"tool_id": tool_id, "token": token})
    assert status == 200 and answer["verified"] is True, (node, status, answer)


def leader(client, nodes):
    """The only node whose health states that it leads."""
    roles = {node: client.call(node, "GET", "/v1/sys/health")[1].get("role") for node in nodes}
    leaders = [node for node, role in roles.items() if role == "leader"]
    assert len(leaders) == 1, roles
    return leaders[0]
