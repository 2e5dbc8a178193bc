#!/usr/bin/env python3
"""Runs the real Terraform with the provider from a network mirror: init over HTTPS, a lock file, a changed archive
refused; then a module with `terraform test`, and 500 tools in one run, with the time and requests of each.

    provider/tests/terraform_network.py --mirror DIRECTORY     the layout that `make provider-mirror` makes

Without a `terraform` program on PATH (1.11 or later) nothing is run, and the last line says so. Prints its observations.
"""

import argparse
import functools
import http.server
import json
import re
import shutil
import ssl
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "provider/tests"))
from nodes import Client, leader, run, say, until  # noqa: E402
from terraform import PROVIDERS, Nodes, Terraform  # noqa: E402

TOOLS = 500
MANY = f"""
resource "svc_mcp_tool" "many" {{
  count   = {TOOLS}
  tool_id = "many-${{count.index}}"
  name    = "Tool ${{count.index}}"
}}
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Mirror:
    """A web server with HTTPS for a directory."""

    def __init__(self, directory, pki):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pki / "node.pem", pki / "node-key.pem")
        handler = functools.partial(Quiet, directory=str(directory))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"https://localhost:{self.server.server_port}/"


def workspace(directory, url, ca):
    """Terraform that knows the network mirror and nothing else."""
    terraform = Terraform(directory, "")
    rc = directory / "terraformrc"
    rc.write_text(f'provider_installation {{\n  network_mirror {{ url = "{url}" }}\n}}\n')
    terraform.environment |= {"SSL_CERT_FILE": str(ca), "TF_LOG": ""}
    return terraform


def check_mirror(scratch, layout, pki, nodes):
    served = scratch / "mirror"
    shutil.copytree(layout, served)
    mirror = Mirror(served, pki)
    providers = PROVIDERS.replace("ENDPOINTS", nodes.endpoints()).replace("PKI", str(nodes.pki))
    terraform = workspace(scratch / "workspace", mirror.url, pki / "ca.pem")
    terraform.write("providers.tf", providers)
    terraform.run("init", "-input=false")
    lock = (terraform.directory / ".terraform.lock.hcl").read_text()
    place = served / "registry.example/fabric/svc"
    [version] = json.loads((place / "index.json").read_text())["versions"]
    described = json.loads((place / f"{version}.json").read_text())["archives"]["linux_amd64"]
    [packed] = [known for known in described["hashes"] if known.startswith("h1:")]
    # Terraform verifies `zh` when it downloads, and locks the other.
    assert f'"{packed}"' in lock, (packed, lock)
    say(f"network mirror: init over HTTPS installs {version}; the lock file has the hash of the mirror")

    archive = place / described["url"]
    good = archive.read_bytes()
    archive.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    other = workspace(scratch / "other", mirror.url, pki / "ca.pem")
    other.write("providers.tf", providers)
    output = other.run("init", "-input=false", expected=1)
    assert "doesn't match" in output or "checksum" in output or "zip" in output, output
    archive.write_bytes(good)
    stranger = workspace(scratch / "stranger", mirror.url, "/dev/null")
    stranger.write("providers.tf", providers)
    output = stranger.run("init", "-input=false", expected=1)
    assert "certificate" in output, output
    say("network mirror: a changed archive and an unknown CA are refused")
    return terraform


def check_module(scratch, terraform, nodes):
    """Case: a module with its own tests."""
    module = scratch / "module"
    shutil.copytree(ROOT / "provider/tests/module", module, dirs_exist_ok=True)
    terraform.directory = module
    terraform.environment |= {
        "TF_VAR_endpoints": nodes.endpoints(), "TF_VAR_pki": str(nodes.pki), "TF_CLI_CONFIG_FILE": str(scratch / "workspace/terraformrc")}
    terraform.run("init", "-input=false")
    output = terraform.run("test")
    assert re.search(r"[1-9] passed, 0 failed", output), output
    say(f"terraform test: {output.strip().splitlines()[-1]}")
    terraform.directory = scratch / "workspace"


def requests(clients, nodes):
    """Requests to routes of tools, by all nodes."""
    total = 0
    for node in nodes.ports:
        page = clients.text(node, "/metrics")
        lines = re.findall(r'^svc_http_requests_total\{(.*)\} (\d+)$', page, re.MULTILINE)
        total += sum(int(count) for labels, count in lines if "/v1/mcp/tools" in labels or "/v1/tools" in labels)
    return total


class Scraper(Client):
    def text(self, node, path):
        import http.client
        connection = http.client.HTTPSConnection("localhost", self.ports[node], timeout=15, context=self.tls)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            return answer.read().decode()
        finally:
            connection.close()


def check_many(terraform, nodes):
    scraper = Scraper(nodes.pki, "operator", nodes.ports)
    terraform.write("many.tf", MANY)
    for name, arguments in (
        ("create", ["apply", "-input=false", "-auto-approve"]),
        ("refresh", ["plan", "-input=false", "-detailed-exitcode"]),
        ("destroy", ["destroy", "-input=false", "-auto-approve"]),
    ):
        before, begun = requests(scraper, nodes), time.monotonic()
        terraform.run(*arguments)
        secs, made = time.monotonic() - begun, requests(scraper, nodes) - before
        assert made <= 2 * TOOLS, (name, made)
        say(f"{TOOLS} tools, {name}: {secs:.1f} s, {1000 * secs / TOOLS:.1f} ms and {made / TOOLS:.2f} requests per tool")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mirror", required=True, type=Path)
    layout = parser.parse_args().mirror.resolve()
    if shutil.which("terraform") is None:
        say("NOT RUN: no terraform on PATH; the mirror and the scale of the provider are not tested")
        return
    say(f"Terraform {json.loads(run('terraform', 'version', '-json'))['terraform_version']}")
    scratch = Path(tempfile.mkdtemp(prefix="trust-fabric-terraform-"))
    nodes = Nodes(scratch)
    try:
        terraform = check_mirror(scratch, layout, nodes.pki, nodes)
        for node in nodes.ports:
            nodes.start(node)
        client = Client(nodes.pki, "terraform", nodes.ports)
        until("three nodes", lambda: leader(client, nodes.ports) and client.call(1, "GET", "/v1/tools")[0] == 200)
        check_module(scratch, terraform, nodes)
        check_many(terraform, nodes)
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
