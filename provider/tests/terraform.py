#!/usr/bin/env python3
"""Runs the real Terraform with the provider against three nodes of this build: init from a mirror without network,
validate without a node, apply, empty second plan, drift, import, a killed leader under 50 tools, an interrupted apply,
destroy; then agents and their tokens (`terraform_agents.py`); and looks for tokens in everything that Terraform wrote.

    provider/tests/terraform.py --mirror DIRECTORY     the layout that `make provider` makes

Without a `terraform` program on PATH (1.11 or later) nothing is run, and the last line says so. Prints its observations.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import terraform_agents  # noqa: E402
from nodes import TRUST_DOMAIN, Client, exchange_request, leader, run, say, until  # noqa: E402

PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/trust-fabric"
FABRIC = "https://localhost:8694"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SCHEMA = ROOT / "provider/tests/golden/schema.json"
CAPABILITIES = '"exchange", "tools.manage", "tools.read", "streams.manage", "streams.read", "identity.issue"'
EXAMPLES = sorted((ROOT / "provider/examples").glob("*svc_*.tf"))

PROVIDERS = """
terraform {
  required_providers {
    svc = { source = "registry.example/fabric/svc" }
  }
}
variable "token" {
  type      = string
  ephemeral = true
  sensitive = true
  default   = null
}
provider "svc" {
  endpoints        = ENDPOINTS
  ca_cert_file     = "PKI/ca.pem"
  client_cert_file = "PKI/terraform.pem"
  client_key_file  = "PKI/terraform-key.pem"
}
provider "svc" {
  alias        = "bearer"
  endpoints    = ENDPOINTS
  ca_cert_file = "PKI/ca.pem"
  jwt_token    = var.token
}
"""

RESOURCES = """
resource "svc_mcp_tool" "full" {
  tool_id               = "full"
  name                  = "Full"
  resource_uri          = "https://tools.example/full"
  required_capabilities = ["db.write", "db.read"]
  max_blast_radius      = "namespace:demo"
  requires_execution    = true
  allowed_operations    = ["POST"]
  protocols             = ["mcp", "http"]
  version               = "1.2.0"
  timeouts              = { create = "30s" }
}
resource "svc_mcp_tool" "small" {
  provider = svc.bearer
  tool_id  = "small"
  name     = "Small"
}
resource "svc_ssf_stream" "poll" {
  audience         = "https://receiver.example"
  events_requested = ["https://schemas.openid.net/secevent/caep/event-type/session-revoked"]
  delivery_method  = "poll"
}
output "poll_url" {
  value = svc_ssf_stream.poll.poll_url
}
"""

MANY = """
resource "svc_mcp_tool" "many" {
  count   = 50
  tool_id = "many-${count.index}"
  name    = "Tool ${count.index}"
}
"""


def free_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


class Nodes:
    """Three nodes with mutual TLS, a transmitter and an issuer of credentials."""

    def __init__(self, directory):
        self.directory = directory
        self.pki = directory / "pki"
        run(PROGRAM, "pki", "--dir", self.pki, "--trust-domain", TRUST_DOMAIN, "--issuer", "--caller", "terraform",
            "--caller", "operator", "--peer", "1", "--peer", "2", "--peer", "3")
        self.policy()
        self.ports = {node: free_port() for node in (1, 2, 3)}
        self.peers = {node: free_port() for node in (1, 2, 3)}
        self.processes = {}

    def policy(self):
        """The shipped policy; `demo/terraform` may also have a token for the fabric, which manages tools, and `terraform`
        may have agents issued."""
        shutil.copytree(ROOT / "policies", self.directory / "policies")
        path = self.directory / "policies/data.json"
        data = json.loads(path.read_text())
        capabilities = ["tools.manage", "tools.read"]
        data["exchange"]["audiences"][FABRIC]["capabilities"] += capabilities
        data["exchange"]["workloads"][f"wimse://{TRUST_DOMAIN}/ns/demo/sa/terraform"] = {
            "audiences": [FABRIC], "default_audience": FABRIC, "capabilities": capabilities}
        data["identity"]["callers"][f"spiffe://{TRUST_DOMAIN}/terraform"] = {
            "platforms": ["mcp", "custom"], "capabilities": ["db.read", *capabilities], "blast_radius": "namespace:demo",
            "delegation_depth": 1}
        path.write_text(json.dumps(data))

    def config(self, node):
        members = "".join(f'[[cluster.members]]\nid = {n}\naddress = "127.0.0.1:{port}"\n' for n, port in self.peers.items())
        callers = "".join(
            f'[[callers]]\nid = "spiffe://{TRUST_DOMAIN}/{name}"\ncapabilities = [{capabilities}]\n'
            for name, capabilities in (("terraform", CAPABILITIES), ("operator", '"cluster.admin", "tools.manage", "tools.read"')))
        return f"""
[node]
id = {node}
data_dir = "node-{node}"
[listen]
http = "127.0.0.1:{free_port()}"
https = "127.0.0.1:{self.ports[node]}"
[tls]
certificate = "pki/node.pem"
private_key = "pki/node-key.pem"
client_ca = "pki/ca.pem"
[fabric]
issuer = "{FABRIC}"
trust_domain = "{TRUST_DOMAIN}"
[policy]
directory = "policies"
[log]
format = "text"
[transmitter]
base_url = "https://localhost:{self.ports[1]}"
[cluster]
listen = "127.0.0.1:{self.peers[node]}"
certificate = "pki/peer-{node}.pem"
private_key = "pki/peer-{node}-key.pem"
ca = "pki/ca.pem"
{members}
[[issuers]]
issuer = "http://127.0.0.1:8698"
subject = "kubernetes"
keys_file = "pki/issuer-keys.json"
trust_domains = ["{TRUST_DOMAIN}"]
{callers}"""

    def start(self, node):
        path = self.directory / f"node-{node}.toml"
        path.write_text(self.config(node))
        log = (self.directory / f"node-{node}.log").open("a")
        command = [PROGRAM, "serve", "--config", path]
        self.processes[node] = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)

    def kill(self, node):
        self.processes[node].kill()
        self.processes.pop(node).wait()

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=60)

    def endpoints(self):
        return json.dumps([f"https://localhost:{port}" for port in self.ports.values()])

    def token(self, client, node):
        credential = run(PROGRAM, "credential", "--dir", self.pki, "--service-account", "demo/terraform")
        status, answer = client.call(node, "POST", "/v1/exchange/token", exchange_request(credential, audience=FABRIC))
        assert status == 200, (status, answer)
        return answer["access_token"]


class Terraform:
    """The program in one working directory."""

    def __init__(self, directory, mirror):
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir(parents=True)
        rc = directory / "terraformrc"
        rc.write_text(f'provider_installation {{\n  filesystem_mirror {{ path = "{mirror}" }}\n}}\n')
        self.trace = directory / "trace.log"
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environment = kept | {
            "TF_CLI_CONFIG_FILE": str(rc), "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_LOG": "TRACE",
            "TF_LOG_PATH": str(self.trace), "TMPDIR": str(self.temporary)}

    def begin(self, *arguments):
        return subprocess.Popen(["terraform", *arguments], cwd=self.directory, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, *arguments, expected=0):
        process = self.begin(*arguments)
        output = COLOUR.sub("", process.communicate(timeout=300)[0])
        assert process.returncode == expected, f"terraform {' '.join(arguments)}: {process.returncode}\n{output}"
        return output

    def plan_is_empty(self):
        self.run("plan", "-input=false", "-detailed-exitcode", expected=0)

    def write(self, name, text):
        (self.directory / name).write_text(text)


def check(nodes, terraform):
    terraform.write("providers.tf", PROVIDERS.replace("ENDPOINTS", nodes.endpoints()).replace("PKI", str(nodes.pki)))
    terraform.write("main.tf", RESOURCES)
    say(terraform.run("init", "-input=false").splitlines()[-1] or "initialized")
    assert "registry.example/fabric/svc" in (terraform.directory / ".terraform.lock.hcl").read_text()
    say("init: from the mirror, without network; the lock file names the provider")
    for example in EXAMPLES:
        terraform.write(example.name, example.read_text())
    terraform.run("validate")
    for example in EXAMPLES:
        (terraform.directory / example.name).unlink()
    schema = json.dumps(json.loads(terraform.run("providers", "schema", "-json")), indent=1, sort_keys=True) + "\n"
    if os.environ.get("TRUST_FABRIC_REWRITE"):
        SCHEMA.write_text(schema)
    assert schema == SCHEMA.read_text(), f"{SCHEMA} differs: TRUST_FABRIC_REWRITE=1 make terraform writes it"
    terraform.write("bad.tf", 'resource "svc_mcp_tool" "bad" {\n  tool_id = "bad"\n  name    = "Bad"\n  version = "1.2"\n}\n')
    output = terraform.run("validate", expected=1)
    assert "on bad.tf line 4" in output and "semantic version" in output, output
    (terraform.directory / "bad.tf").unlink()
    say("validate: without a node, the schema is the golden one; a refused value is reported with its line")

    for node in nodes.ports:
        nodes.start(node)
    client = Client(nodes.pki, "terraform", nodes.ports)
    operator = Client(nodes.pki, "operator", nodes.ports)
    until("three nodes", lambda: leader(client, nodes.ports) and client.call(1, "GET", "/v1/tools")[0] == 200)
    terraform.environment["TF_VAR_token"] = nodes.token(client, 1)

    terraform.run("plan", "-input=false", "-out=plan")
    terraform.run("apply", "-input=false", "plan")
    terraform.plan_is_empty()
    poll_url = json.loads(terraform.run("output", "-json"))["poll_url"]["value"]
    assert "/v1/signals/poll/" in poll_url, poll_url
    say("apply: two tools (certificate and token) and a stream; the second plan is empty")

    changed = {"name": "Changed", "resource_uri": "https://tools.example/full", "required_capabilities": ["db.read"]}
    status, answer = operator.call(2, "PUT", "/v1/tools/full", changed)
    assert status == 200, (status, answer)
    status, answer = operator.call(3, "DELETE", "/v1/tools/small")
    assert status == 204, (status, answer)
    output = terraform.run("plan", "-input=false", "-detailed-exitcode", expected=2)
    assert '"Changed" -> "Full"' in output and "1 to add, 1 to change, 0 to destroy" in output, output
    terraform.run("apply", "-input=false", "-auto-approve")
    terraform.plan_is_empty()
    say("drift: a changed and a deleted tool are planned exactly, and restored")

    terraform.run("state", "rm", "svc_mcp_tool.full")
    terraform.run("import", "-input=false", "svc_mcp_tool.full", "full")
    output = terraform.run("plan", "-input=false", "-detailed-exitcode", expected=2)
    # A timeout is in the configuration only.
    assert "0 to add, 1 to change, 0 to destroy" in output and "+ timeouts" in output, output
    terraform.run("apply", "-input=false", "-auto-approve")
    terraform.plan_is_empty()
    output = terraform.run("import", "-input=false", "svc_mcp_tool.full", "absent", expected=1)
    assert "already managed" in output, output
    terraform.run("state", "rm", "svc_mcp_tool.full")
    output = terraform.run("import", "-input=false", "svc_mcp_tool.full", "absent", expected=1)
    assert "non-existent" in output, output
    terraform.run("import", "-input=false", "svc_mcp_tool.full", "full")
    say("import: by identifier; an unknown one is an error")

    terraform.write("many.tf", MANY)
    leading = leader(client, nodes.ports)
    begun = time.monotonic()
    applying = terraform.begin("apply", "-input=false", "-auto-approve")
    other = next(node for node in nodes.ports if node != leading)
    made = lambda: len(client.call(other, "GET", "/v1/tools?limit=1000")[1])  # noqa: E731
    until("the first of 50 tools", lambda: made() > 5)
    nodes.kill(leading)
    output, _ = applying.communicate(timeout=300)
    assert applying.returncode == 0, output
    until("50 tools", lambda: made() == 52)
    terraform.plan_is_empty()
    say(f"leader killed under 50 tools: all registered, none twice, in {time.monotonic() - begun:.1f} s")
    nodes.start(leading)
    until("three nodes", lambda: client.call(leading, "GET", "/v1/tools")[0] == 200)

    nodes.stop()
    traced = terraform.trace.stat().st_size
    applying = terraform.begin("plan", "-input=false")
    until("a refresh", lambda: b"ReadResource" in terraform.trace.read_bytes()[traced:])
    begun = time.monotonic()
    os.killpg(applying.pid, signal.SIGINT)
    applying.communicate(timeout=60)
    secs = time.monotonic() - begun
    assert secs < 5 and applying.returncode != 0, (secs, applying.returncode)
    until("the end of the providers", lambda: not list(terraform.temporary.glob("svc-*")))
    say(f"interrupted while no node answers: ended after {secs:.1f} s, without a socket left")
    for node in nodes.ports:
        nodes.start(node)
    until("three nodes", lambda: leader(client, nodes.ports) and client.call(1, "GET", "/v1/tools")[0] == 200)

    terraform.environment["TF_VAR_token"] = nodes.token(client, 1)
    terraform.run("destroy", "-input=false", "-auto-approve")
    assert client.call(1, "GET", "/v1/tools")[1] == [] and client.call(2, "GET", "/v1/signals/stream")[1] == []
    say("destroy: no tool and no stream is left")


def canary(terraform):
    written = [path for path in terraform.directory.iterdir() if path.is_file()]
    texts = {path.name: path.read_bytes() for path in written}
    with zipfile.ZipFile(terraform.directory / "plan") as plan:
        texts |= {f"plan/{name}": plan.read(name) for name in plan.namelist()}
    assert texts["trace.log"] and texts["terraform.tfstate.backup"]
    tokens = {name: len(re.findall(b"eyJ|PRIVATE KEY", text)) for name, text in texts.items()}
    assert not any(tokens.values()), tokens
    say(f"no token and no private key in state, plan and trace log ({len(texts['trace.log']) // 1024} KiB)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mirror", required=True, type=Path)
    mirror = parser.parse_args().mirror.resolve()
    if shutil.which("terraform") is None:
        say("NOT RUN: no terraform on PATH; the provider is tested by its driver only (provider/tests/driver)")
        return
    version = json.loads(run("terraform", "version", "-json"))["terraform_version"]
    say(f"Terraform {version}")
    scratch = Path(tempfile.mkdtemp(prefix="trust-fabric-terraform-"))
    nodes = Nodes(scratch)
    try:
        terraform = Terraform(scratch / "workspace", mirror)
        check(nodes, terraform)
        canary(terraform)
        terraform = Terraform(scratch / "agents", mirror)
        client, anonymous, operator = (Client(nodes.pki, name, nodes.ports) for name in ("terraform", None, "operator"))
        agents = terraform_agents.Agents(client, anonymous)
        terraform_agents.check(nodes, terraform, agents, operator, say)
        canary(terraform)
    except BaseException:
        for log in sorted(scratch.glob("node-*.log")):
            say(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-20:]))
        raise
    finally:
        for node in list(nodes.processes):
            nodes.kill(node)
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
