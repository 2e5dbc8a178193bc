"""The regions of tests/two_regions.py as processes, and the link between them."""

import os
from pathlib import Path

from cluster import Cluster, Fabric, compile_preload
from link import Link
from nodes import run
from region import CALLERS, STALE_AFTER_SECS, Region, policies


class ProcessRegion(Region):
    """Three processes of tests/faults/cluster.py."""

    def __init__(self, name, directory, program, library):
        super().__init__(name)
        self.program = program
        fabric = Fabric(trust_domain=self.trust_domain, issuer=self.issuer, callers=CALLERS)
        fabric.policies = policies(directory / f"{name}-policies")
        self.cluster = Cluster(directory / name, program, library, fabric=fabric)
        self.clients, self.nodes = self.cluster.clients, list(self.cluster.nodes)
        pki = self.cluster.pki
        run(program, "pki", "--dir", pki, "--trust-domain", self.trust_domain, "--caller", "federation")
        self.bundle = directory / f"{name}-bundle.json"
        self.bundle.write_text(run(program, "federation", "bundle", pki / "ca.pem"))

    def knows(self, other, ports, settings):
        """`other` is a peer, whose nodes are reached at these ports."""
        endpoints = [f"https://127.0.0.1:{port}" for port in ports]
        self.cluster.fabric.settings = f"""[outbound]
allowed_networks = ["127.0.0.0/8"]
[federation]
certificate = "{self.cluster.pki}/federation.pem"
private_key = "{self.cluster.pki}/federation-key.pem"
[[federation.peers]]
name = "{other.name}"
issuer = "{other.issuer}"
trust_domains = ["{other.trust_domain}"]
endpoints = {endpoints!r}
ids = ["spiffe://{other.trust_domain}/node", "spiffe://{other.trust_domain}/federation"]
bundle_file = "{other.bundle}"
stale_after = "{STALE_AFTER_SECS}s"
{settings}
"""
        for node in self.cluster.nodes.values():
            self.cluster.write_config(node)

    def restart_with(self, setting):
        """Restarts all nodes with one more setting of the peer."""
        fabric = self.cluster.fabric
        fabric.settings = fabric.settings.replace("stale_after", f"{setting}\nstale_after", 1)
        self.cluster.close()
        for node in self.cluster.nodes.values():
            self.cluster.write_config(node)
        self.cluster.start()

    def running(self):
        return [node.id for node in self.cluster.nodes.values() if node.is_running()]

    def kill(self, node):
        self.cluster.nodes[node].kill()

    def mend(self):
        self.cluster.mend()


class Processes:
    """eu, whose ledger us reads over a link."""

    def __init__(self, scratch, rtt_ms):
        program = Path(os.environ["CARGO_TARGET_DIR"]).resolve() / "release/trust-fabric"
        library = compile_preload(scratch)
        self.eu, self.us = (ProcessRegion(name, scratch, program, library) for name in ("eu", "us"))
        self.link = Link([node.https for node in self.eu.cluster.nodes.values()], rtt_ms, scratch / "link.log")
        self.us.knows(self.eu, self.link.ports.values(), """accept = true
as = ["subject"]
capabilities = ["db.read"]
max_blast_radius = "namespace:demo"
[federation.peers.blast_radius]
"namespace:demo" = "namespace:demo\"""")
        self.eu.knows(self.us, [], "serve = true")

    def start(self):
        for region in (self.eu, self.us):
            region.cluster.start()

    def check_the_rest(self):
        pass

    def stop(self):
        """Ends all nodes; the ends of their logs."""
        self.link.cut()
        logs = ""
        for region in (self.eu, self.us):
            region.cluster.close()
            for node in region.cluster.nodes.values():
                text = node.log.read_text()[-4000:] if node.log.exists() else ""
                logs += f"--- {region.name}, {node.name}\n{text}\n"
        return logs
