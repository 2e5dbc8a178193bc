"""One region of tests/two_regions.py, whatever runs its nodes: what a client does with them."""

import http.client
import shutil
import time

from nodes import ROOT, exchange_request, until

UNREACHABLE = (OSError, http.client.HTTPException)

# How long us accepts credentials of eu after the last answer.
STALE_AFTER_SECS = 3
TOKEN_OF_A_FABRIC = "urn:svc:token-type:agent-a2a"
CALLERS = {
    "operator": ["cluster.admin", "metrics.read"],
    "gateway": ["exchange", "identity.issue", "tools.manage", "tools.verify"],
}


def policies(directory):
    """The rules of policies/ with the tables of the regions."""
    shutil.copytree(ROOT / "policies", directory, ignore=shutil.ignore_patterns("*_test.rego", "data.json"))
    shutil.copy(ROOT / "cluster/regions/data.json", directory)
    return directory


class Region:
    """Three nodes with a trust domain, an issuer and a CA of their own. Its subclasses start, kill and name the nodes."""

    def __init__(self, name):
        self.name, self.trust_domain = name, f"{name}.example"
        self.issuer = f"https://{self.trust_domain}"
        self.tool = f"https://tools.{self.trust_domain}/sql-query"

    def get(self, node, path):
        status, answer = self.clients["operator"].call(node, "GET", path)
        assert status == 200, (self.name, node, path, status, answer)
        return answer

    def peer(self, node):
        [peer] = self.get(node, "/v1/federation/peers")
        return peer

    def hash(self, node, origin=None):
        return self.get(node, "/v1/federation/revocation-hash" + (f"?origin={origin}" if origin else ""))

    def until_answered(self, caller, path, body, good):
        """Asks the nodes in turn, until one answers with a status of `good`; its answer."""
        found = []

        def is_answered():
            for node in self.running():
                try:
                    status, answer = self.clients[caller].call(node, "POST", path, body, timeout_secs=5)
                except UNREACHABLE:
                    continue
                assert status in (*good, 503), (self.name, node, path, status, answer)
                if status in good:
                    found[:] = [answer]
                    return True
            return False

        until(f"{path} of {self.name}", is_answered)
        return found[0]

    def revoke(self, subject):
        """Revokes a subject of this region; the time of the response."""
        self.until_answered("operator", "/v1/revocations", {"subject": subject, "reason": "two regions"}, [202])
        return time.monotonic()

    def register_tool(self):
        tool = {"tool_id": "sql", "name": "SQL", "resource_uri": self.tool, "required_capabilities": ["db.read"]}
        self.until_answered("gateway", "/v1/tools", tool, [200, 201])

    def agent(self):
        """A new agent of this region: its identifier and its identity token."""
        body = {"agent_name": "traveller", "platform": "mcp", "capabilities": ["db.read"], "max_blast_radius": "namespace:demo"}
        answer = self.until_answered("gateway", "/v1/identity/agent", body, [200])
        return answer["agent_id"], answer["token"]

    def exchange(self, token, audience):
        """The token that this region mints from a token of a fabric."""
        request = exchange_request(token, TOKEN_OF_A_FABRIC, audience)
        return self.until_answered("gateway", "/v1/exchange/token", request, [200])["access_token"]

    def exchange_on(self, node, token):
        """Status and answer of one node to a token that is exchanged for the tool of this region."""
        request = exchange_request(token, TOKEN_OF_A_FABRIC, self.tool)
        return self.clients["gateway"].call(node, "POST", "/v1/exchange/token", request)

    def verify_on(self, node, token):
        """Status and answer of one node to a call of the tool with this token."""
        return self.clients["gateway"].call(node, "POST", "/v1/mcp/verify", {"tool_id": "sql", "token": token})
