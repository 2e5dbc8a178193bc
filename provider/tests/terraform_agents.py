"""Agents, their tokens and keys with the real Terraform (`terraform.py` runs it): the configuration of examples/terraform,
an agent revoked outside, a rotation, an equal and a private key, ephemeral resources of runs that succeed and fail, and
tokens that no node accepts after the destruction.
"""

import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = "https://tools.dev.trust-fabric.local/sql-query"
KEY = {"kty": "OKP", "crv": "X25519", "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"}
OTHER_KEY = KEY | {"x": "4p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"}
PRIVATE = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"

RUN = """
ephemeral "svc_agent_identity" "run" {
  agent_name   = "terraform-run"
  platform     = "custom"
  capabilities = ["tools.manage", "tools.read"]
}
provider "svc" {
  alias     = "run"
  jwt_token = ephemeral.svc_agent_identity.run.token
}
"""

RUN_TOOL = """
resource "svc_mcp_tool" "run" {
  provider = svc.run
  tool_id  = "run"
  name     = "Run"
}
"""

CONFLICT = """
resource "svc_mcp_tool" "conflict" {
  provider = svc.run
  tool_id  = "reports"
  name     = "Another"
}
"""

EXCHANGE = """
ephemeral "svc_token" "call" {
  subject_token      = ephemeral.svc_agent_token.planner.token
  subject_token_type = "urn:svc:token-type:agent-a2a"
  audience           = "TOOL"
  execution_scope    = { htm = "POST", htu = "TOOL" }
}
resource "svc_encryption_key" "refused" {
  workload_id = svc_agent_identity.planner.agent_id
  agent_token = ephemeral.svc_token.call.access_token
  public_key  = jsonencode(KEY)
}
""".replace("TOOL", TOOL).replace("KEY", json.dumps(OTHER_KEY).replace('":', '" ='))

PRIVATE_KEYS = {
    "text": f"""public_key = "{{\\"kty\\":\\"OKP\\",\\"crv\\":\\"X25519\\",\\"d\\":\\"{PRIVATE}\\",\\"x\\":\\"AA\\"}}" """,
    "object": f'public_key = jsonencode({{ kty = "OKP", crv = "X25519", d = "{PRIVATE}", x = "AA" }})',
    "variable": "public_key = var.private",
    "PEM": f"public_key = <<-EOT\n-----BEGIN OTHER KEY-----\n{PRIVATE}\nEOT",
}


class Agents:
    """The agents of the cluster, as their issuer and as an agent itself."""

    def __init__(self, client, anonymous):
        self.client = client
        self.anonymous = anonymous

    def status(self, agent_id):
        status, record = self.client.call(1, "GET", f"/v1/identity/agents/{quote(agent_id, safe='')}")
        assert status == 200, (status, record)
        return record["status"]

    def revoke(self, agent_id):
        status, answer = self.client.call(2, "DELETE", f"/v1/identity/agents/{quote(agent_id, safe='')}")
        assert status == 204, (status, answer)

    def token(self, agent_id):
        status, answer = self.client.call(1, "POST", f"/v1/identity/agents/{quote(agent_id, safe='')}/token")
        assert status == 200, (status, answer)
        return answer["token"]

    def of_runs(self):
        agents = self.client.call(1, "GET", "/v1/identity/agents?limit=1000")[1]
        return [agent["status"] for agent in agents if agent["agent_name"] == "terraform-run"]

    def answers(self, agent_id, token):
        """The status of each node for a request with the token."""
        path = f"/v1/identity/agent/encryption-key?workload_id={quote(agent_id, safe='')}"
        return [self.anonymous.call(node, "GET", path, bearer=token)[0] for node in self.anonymous.nodes]


def flat(output):
    """The text without the line breaks and the frame of a message."""
    return " ".join(output.replace("│", " ").split())


def outputs(terraform):
    return {name: output["value"] for name, output in json.loads(terraform.run("output", "-json")).items()}


def check(nodes, terraform, agents, operator, say):
    for path in (ROOT / "examples/terraform").glob("*.tf"):
        shutil.copy(path, terraform.directory)
    terraform.environment |= {
        "TRUST_FABRIC_ENDPOINTS": ",".join(json.loads(nodes.endpoints())),
        "TRUST_FABRIC_CA": str(nodes.pki / "ca.pem"),
        "TRUST_FABRIC_CERT": str(nodes.pki / "terraform.pem"),
        "TRUST_FABRIC_KEY": str(nodes.pki / "terraform-key.pem"),
        "TF_VAR_public_key": json.dumps(KEY),
    }
    terraform.run("init", "-input=false")
    terraform.run("plan", "-input=false", "-out=plan")
    terraform.run("apply", "-input=false", "plan")
    terraform.plan_is_empty()
    planner, rotated = outputs(terraform)["planner"], outputs(terraform)["rotated"]
    say("examples/terraform: a tool, a stream, three agents and a key with a write-only token; the second plan is empty")

    terraform.environment["TF_VAR_public_key"] = json.dumps(dict(reversed(KEY.items())), indent=1)
    terraform.plan_is_empty()
    say("key: other order of its members, another token of the agent: the plan is empty")

    agents.revoke(planner)
    output = flat(terraform.run("plan", "-input=false", "-detailed-exitcode", expected=2))
    assert f"{planner} is revoked" in output and "3 to add, 0 to change, 0 to destroy" in output, output
    terraform.run("apply", "-input=false", "-auto-approve")
    terraform.plan_is_empty()
    assert outputs(terraform)["planner"] != planner
    planner = outputs(terraform)["planner"]
    say("agent revoked outside: a warning; it, its child and its key are planned, and issued again")

    rotate(terraform, agents, rotated)
    say("agent near its end: the successor is issued first, the old one is revoked")

    runs(terraform, agents, operator)
    say("ephemeral agents: the token of an alias registers a tool; all are revoked, also after a failed apply")

    terraform.write("exchange.tf", EXCHANGE)
    output = flat(terraform.run("apply", "-input=false", "-auto-approve", expected=1))
    assert "Status 401" in output and "the bearer token is not valid" in output, output
    (terraform.directory / "exchange.tf").unlink()
    terraform.plan_is_empty()
    say("svc_token: with an execution scope into a write-only attribute; the fabric refuses it as a bearer token")

    private_keys(terraform)
    say("private keys: refused in four forms, their private part in no output")

    token = agents.token(planner)
    assert agents.answers(planner, token) == [200, 200, 200]
    output = flat(terraform.run("destroy", "-input=false", "-auto-approve"))
    assert "revoked for ever" in output, output
    assert agents.answers(planner, token) == [401, 401, 401]
    assert [agents.status(agent) for agent in (planner, rotated)] == ["revoked", "revoked"]
    say("destroy: the token of the agent is refused by all three nodes; the plan stated that the deletion is final")


def rotate(terraform, agents, rotated):
    """A state as if the agent had been issued a month ago: no clock of a node is turned."""
    state = json.loads(terraform.run("state", "pull"))
    [resource] = [resource for resource in state["resources"] if resource["name"] == "rotated"]
    resource["instances"][0]["attributes"] |= {"issued_at": "2020-01-01T00:00:00.000Z", "ends_at": "2020-01-31T00:00:00.000Z"}
    state["serial"] += 1
    terraform.write("old.tfstate", json.dumps(state))
    terraform.run("state", "push", "old.tfstate")
    (terraform.directory / "old.tfstate").unlink()
    output = flat(terraform.run("plan", "-input=false", "-refresh=false", "-detailed-exitcode", expected=2))
    assert "The agent ends soon" in output and "+/- create replacement and then destroy" in output, output
    assert re.search(r"ends_at .* forces replacement", output), output
    terraform.run("apply", "-input=false", "-auto-approve", "-refresh=false")
    successor = outputs(terraform)["rotated"]
    assert successor != rotated and agents.status(successor) == "active" and agents.status(rotated) == "revoked"
    terraform.plan_is_empty()


def runs(terraform, agents, operator):
    terraform.write("run.tf", RUN + RUN_TOOL)
    terraform.run("apply", "-input=false", "-auto-approve")
    terraform.plan_is_empty()
    opened = agents.of_runs()
    assert len(opened) >= 2 and set(opened) == {"revoked"}, opened
    assert operator.call(3, "GET", "/v1/tools/run")[1]["registered_by"].startswith("wimse://")
    terraform.write("run.tf", RUN + RUN_TOOL + CONFLICT)
    output = flat(terraform.run("apply", "-input=false", "-auto-approve", expected=1))
    assert "exists with other content" in output, output
    opened, before = agents.of_runs(), opened
    assert len(opened) > len(before) and set(opened) == {"revoked"}, opened
    # The tool belongs to an agent that is revoked: an operator deletes it.
    assert operator.call(1, "DELETE", "/v1/tools/run")[0] == 204
    terraform.write("run.tf", RUN)
    terraform.run("apply", "-input=false", "-auto-approve")
    (terraform.directory / "run.tf").unlink()
    terraform.plan_is_empty()


def private_keys(terraform):
    for form, attribute in PRIVATE_KEYS.items():
        variable = json.dumps({"kty": "OKP", "crv": "X25519", "d": PRIVATE, "x": "AA"})
        terraform.write("private.tf", f"""
variable "private" {{
  default = {json.dumps(variable)}
}}
resource "svc_encryption_key" "private" {{
  workload_id = svc_agent_identity.planner.agent_id
  {attribute}
}}
""")
        output = terraform.run("plan", "-input=false", expected=1)
        assert "Invalid public key" in output and PRIVATE not in output, (form, output)
    (terraform.directory / "private.tf").unlink()
    assert PRIVATE not in terraform.trace.read_text(), "in the trace log"
