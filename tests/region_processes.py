"""The regions of tests/two_regions.py as processes, and the link between them."""

import asyncio
import os
import threading
from pathlib import Path

from cluster import Cluster, Fabric, compile_preload, free_port
from nodes import run
from region import CALLERS, STALE_AFTER_SECS, Region, policies


class Link:
    """A TCP proxy for each target port, which delays every byte by half a round trip, and cuts all connections."""

    def __init__(self, targets, delay_secs):
        self.delay_secs, self.is_cut = delay_secs, False
        self.ports = {target: free_port() for target in targets}
        self.writers = set()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(10)

    async def listen(self):
        for target, port in self.ports.items():
            await asyncio.start_server(lambda r, w, target=target: self.relay(r, w, target), "127.0.0.1", port)

    async def relay(self, reader, writer, target):
        if self.is_cut:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        self.writers |= {writer, far_writer}
        await asyncio.gather(self.pass_on(reader, far_writer), self.pass_on(far_reader, writer))
        self.writers -= {writer, far_writer}

    async def pass_on(self, reader, writer):
        """Each chunk leaves `delay_secs` after it arrived, in order."""
        chunks = asyncio.Queue(maxsize=1000)

        async def send():
            while (item := await chunks.get()) is not None:
                due, data = item
                await asyncio.sleep(max(0, due - self.loop.time()))
                writer.write(data)
                await writer.drain()

        sender = asyncio.ensure_future(send())
        try:
            while data := await reader.read(65536):
                await chunks.put((self.loop.time() + self.delay_secs, data))
            await chunks.put(None)
            await sender
        except OSError:
            sender.cancel()
        finally:
            writer.close()

    def cut(self):
        def close():
            self.is_cut = True
            for writer in self.writers:
                writer.transport.abort()

        self.loop.call_soon_threadsafe(close)

    def heal(self):
        self.is_cut = False


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

    def running(self):
        return [node.id for node in self.cluster.nodes.values() if node.is_running()]

    def kill(self, node):
        self.cluster.nodes[node].kill()

    def mend(self):
        self.cluster.mend()


class Processes:
    """eu, whose ledger us reads over a link."""

    def __init__(self, scratch, delay_secs):
        program = Path(os.environ["CARGO_TARGET_DIR"]).resolve() / "release/trust-fabric"
        library = compile_preload(scratch)
        self.eu, self.us = (ProcessRegion(name, scratch, program, library) for name in ("eu", "us"))
        self.link = Link([node.https for node in self.eu.cluster.nodes.values()], delay_secs)
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

    def stop(self):
        """Ends all nodes; the ends of their logs."""
        logs = ""
        for region in (self.eu, self.us):
            region.cluster.close()
            for node in region.cluster.nodes.values():
                text = node.log.read_text()[-4000:] if node.log.exists() else ""
                logs += f"--- {region.name}, {node.name}\n{text}\n"
        return logs
