#!/usr/bin/env python3
"""Two regions of three nodes each: us reads the ledger of eu through a proxy that delays and cuts.

    tests/two_regions.py [--delay-ms 75] [--revocations 50]

Every revocation of eu arrives at every node of us, in its order, also while the leader of either region is killed. The
peer is stale while the link is cut, and live again once it heals, without a missing entry: both regions state the same
hash. Prints the time between a 202 of eu and the last node of us that has the entry. Needs only Python; removes the nodes
and their data.
"""

import argparse
import asyncio
import http.client
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "faults"))

from cluster import Cluster, Fabric, compile_preload, free_port  # noqa: E402
from fabrics import policies  # noqa: E402
from nodes import leader, run, say, until  # noqa: E402

UNREACHABLE = (OSError, http.client.HTTPException)

# How long us accepts credentials of eu after the last answer.
STALE_AFTER_SECS = 3


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


class Region:
    """Three nodes with a trust domain, an issuer and a CA of their own."""

    def __init__(self, name, directory, program, library):
        self.name, self.trust_domain, self.program = name, f"{name}.example", program
        fabric = Fabric(trust_domain=self.trust_domain, issuer=f"https://{name}.example")
        fabric.policies = policies(directory / f"{name}-policies", self.trust_domain, fabric.issuer)
        self.cluster = Cluster(directory / name, program, library, fabric=fabric)
        self.operator = self.cluster.clients["operator"]
        run(program, "pki", "--dir", self.cluster.pki, "--trust-domain", self.trust_domain, "--caller", "federation")
        self.bundle = directory / f"{name}-bundle.json"
        self.bundle.write_text(run(program, "federation", "bundle", self.cluster.pki / "ca.pem"))

    @property
    def nodes(self):
        return list(self.cluster.nodes)

    def ports(self):
        return [node.https for node in self.cluster.nodes.values()]

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
issuer = "{other.cluster.fabric.issuer}"
trust_domains = ["{other.trust_domain}"]
endpoints = {endpoints!r}
ids = ["spiffe://{other.trust_domain}/node", "spiffe://{other.trust_domain}/federation"]
bundle_file = "{other.bundle}"
stale_after = "{STALE_AFTER_SECS}s"
{settings}
"""
        for node in self.cluster.nodes.values():
            self.cluster.write_config(node)

    def get(self, node, path):
        status, answer = self.operator.call(node, "GET", path)
        assert status == 200, (self.name, node, path, status, answer)
        return answer

    def peer(self, node):
        [peer] = self.get(node, "/v1/federation/peers")
        return peer

    def hash(self, node, origin=None):
        return self.get(node, "/v1/federation/revocation-hash" + (f"?origin={origin}" if origin else ""))

    def revoke(self, name):
        """Revokes a workload of this region on any node; the time of the response, and the log index."""
        body = {"subject": f"wimse://{self.trust_domain}/ns/demo/sa/{name}", "reason": "two regions"}
        begun = time.monotonic()
        while time.monotonic() < begun + 60:
            for node in self.nodes:
                try:
                    status, answer = self.operator.call(node, "POST", "/v1/revocations", body, timeout_secs=5)
                except UNREACHABLE:
                    continue
                if status == 202:
                    return time.monotonic()
                assert status == 503, (status, answer)
            time.sleep(0.05)
        raise SystemExit(f"{self.name} did not revoke {name}")


class Regions:
    """eu, whose ledger us reads over a link."""

    def __init__(self, directory, program, library, delay_secs):
        self.eu, self.us = Region("eu", directory, program, library), Region("us", directory, program, library)
        self.link = Link(self.eu.ports(), delay_secs)
        self.us.knows(self.eu, self.link.ports.values(), "accept = true")
        self.eu.knows(self.us, [], "serve = true")
        self.revoked = 0

    def start(self):
        for region in (self.eu, self.us):
            region.cluster.start()
        return self.until_states("live")

    def until_states(self, state):
        """Waits until each node of us that runs has this view of eu; the seconds."""
        def is_so():
            states = [self.us.peer(node)["state"] for node in self.running(self.us)]
            assert set(states) == {state}, states
            return True

        return until(f"eu is {state} in us", is_so)

    @staticmethod
    def running(region):
        return [node.id for node in region.cluster.nodes.values() if node.is_running()]

    def revoke(self):
        """Revokes a workload of eu; the seconds from the response until every running node of us has the entry."""
        self.revoked += 1
        answered = self.eu.revoke(f"w{self.revoked}")
        missing = set(self.running(self.us))
        while missing:
            assert time.monotonic() < answered + 60, f"entry {self.revoked} did not arrive at {missing} within a minute"
            for node in list(missing):
                try:
                    if self.us.peer(node)["entries"] >= self.revoked:
                        missing.discard(node)
                except (*UNREACHABLE, AssertionError):
                    # No leader at present.
                    pass
            time.sleep(0.005)
        return time.monotonic() - answered

    def until_equal(self):
        """Waits until every node of both regions has the same ledger of eu; the seconds, and the number of entries."""
        def is_equal():
            hashes = [self.eu.hash(node) for node in self.eu.nodes]
            hashes += [self.us.hash(node, self.eu.cluster.fabric.issuer) for node in self.us.nodes]
            found = {(one["hash"], one["count"]) for one in hashes}
            assert len(found) == 1 and hashes[0]["count"] == self.revoked, (self.revoked, found)
            return True

        return until("equal hashes", is_equal)


def figures(name, secs):
    millis = sorted(1000 * one for one in secs)
    p99 = millis[min(len(millis) - 1, int(len(millis) * 0.99))]
    say(f"{name}: {len(millis)} revocations, p50 {statistics.median(millis):.0f} ms, p99 {p99:.0f} ms, max {millis[-1]:.0f} ms")


def check(regions, revocations):
    say(f"eu is live on each node of us {regions.start():.1f} s after both were ready")
    figures("from the 202 of eu to the last node of us", [regions.revoke() for _ in range(revocations)])
    for region in (regions.us, regions.eu):
        led = leader(region.operator, region.nodes)
        region.cluster.nodes[led].kill()
        figures(f"the leader of {region.name}, node {led}, was killed", [regions.revoke() for _ in range(5)])
        region.cluster.mend()
    regions.until_states("live")
    regions.until_equal()
    say(f"both regions state the same hash over {regions.revoked} entries")

    regions.link.cut()
    say(f"the link is cut: eu is stale on each node of us after {regions.until_states('stale'):.1f} s")
    for _ in range(revocations):
        regions.revoked += 1
        regions.eu.revoke(f"w{regions.revoked}")
    regions.link.heal()
    secs = regions.until_states("live")
    say(f"the link heals after {revocations} more revocations: live again after {secs:.1f} s")
    regions.until_equal()
    say(f"both regions state the same hash over {regions.revoked} entries")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=75, help="round trip between the regions (default: 75)")
    parser.add_argument("--revocations", type=int, default=50, help="revocations in each part (default: 50)")
    arguments = parser.parse_args()
    program = Path(os.environ["CARGO_TARGET_DIR"]).resolve() / "release/trust-fabric"
    scratch = Path(tempfile.mkdtemp())
    regions = Regions(scratch, program, compile_preload(scratch), arguments.delay_ms / 2000)
    passed = False
    try:
        check(regions, arguments.revocations)
        passed = True
    finally:
        for region in (regions.eu, regions.us):
            region.cluster.close()
            for node in region.cluster.nodes.values():
                if not passed and node.log.exists():
                    sys.stderr.write(f"--- {region.name}, {node.name}\n{node.log.read_text()[-4000:]}\n")
        shutil.rmtree(scratch)
    say("all of it held")


main()
