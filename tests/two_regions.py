#!/usr/bin/env python3
"""Two regions of three nodes each: us reads the ledger of eu through a proxy that delays, cuts and loses.

    tests/two_regions.py [processes] [--delay-ms 75] [--revocations 50]
    tests/two_regions.py compose     the containers of docker-compose.regions.yml, from existing images

An agent of eu is exchanged into us and calls a tool there; it is revoked in eu and refused by every node of us, also
while the leader of either region is killed. While the link is cut, us answers 503 to every token that came from eu, and
its own tokens are not affected; once the link heals, the agents that were revoked meanwhile are refused and the others
are accepted again. No entry is missing: both regions state the same hash. At the end in strict mode: a request after the
202 of eu is refused at once on every node of us, also when a leader of either was killed just before. Prints the time between a 202 of eu and the
last node of us that has the entry, or refuses the agent. Needs only Python; removes the nodes and their data.

us answers 503 also while the link is silent or loses one direction, and while eu has no majority. With processes, also while
packets are lost, which needs root and iptables (tests/region_faults.py): the regions then have a network of their own. A node
of eu that is cut off from the others gives no lease, and wrong clocks of eu revive nothing. In containers, the nodes and the link are unprivileged, the regions have no common network or key, and Prometheus sees all nodes.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "faults"))

import packets  # noqa: E402
from nodes import leader, say, until  # noqa: E402
from region import STALE_AFTER_SECS, UNREACHABLE  # noqa: E402
from region_compose import Compose  # noqa: E402
from region_faults import rounds, wrong_clock  # noqa: E402
from region_processes import Processes  # noqa: E402

PATIENCE_SECS = 60
KINDS = {"processes": Processes, "compose": Compose}


class Scenario:
    """What the clients of both regions do, and the number of entries that the ledger of eu has."""

    def __init__(self, regions):
        self.eu, self.us, self.link = regions.eu, regions.us, regions.link
        self.revoked = 0

    def until_states(self, state):
        """Waits until each node of us that runs has this view of eu; the seconds."""
        def is_so():
            states = [self.us.peer(node)["state"] for node in self.us.running()]
            assert set(states) == {state}, states
            return True

        return until(f"eu is {state} in us", is_so)

    def revoke(self, subject=None):
        """Revokes a subject of eu; the time of the response."""
        self.revoked += 1
        return self.eu.revoke(subject or f"wimse://{self.eu.trust_domain}/ns/demo/sa/w{self.revoked}")

    def until_on_each_node(self, answered, what, is_there):
        """The seconds from the response of eu until every running node of us fulfils the condition."""
        missing = set(self.us.running())
        while missing:
            assert time.monotonic() < answered + PATIENCE_SECS, f"{what}: not on {missing} within {PATIENCE_SECS} s"
            for node in list(missing):
                try:
                    if is_there(node):
                        missing.discard(node)
                except (*UNREACHABLE, AssertionError):
                    # No leader at present.
                    pass
            time.sleep(0.005)
        return time.monotonic() - answered

    def revocation_arrives(self):
        answered, count = self.revoke(), self.revoked
        return self.until_on_each_node(answered, f"entry {count}", lambda node: self.us.peer(node)["entries"] >= count)

    def traveller(self):
        """An agent of eu: its identifier, its token of eu for us, and the token that us minted from that one."""
        agent, identity = self.eu.agent()
        crossing = self.eu.exchange(identity, self.us.issuer)
        return agent, crossing, self.us.exchange(crossing, self.us.tool)

    def accepted_on_each_node(self, token):
        for node in self.us.running():
            def is_accepted(node=node):
                status, answer = self.us.verify_on(node, token)
                assert status == 200 and answer["verified"] is True, (node, status, answer)
                return True

            until(f"the token is accepted on node {node}", is_accepted)

    def refused_on_each_node(self, answered, crossing, token):
        """Waits until every running node of us refuses both tokens as revoked, also once more later; the seconds."""
        def is_refused(node):
            status, answer = self.us.verify_on(node, token)
            return status == 403 and answer.get("check") == "revocation"

        took = self.until_on_each_node(answered, "a refusal", is_refused)
        for node in self.us.running():
            assert self.us.verify_on(node, token)[0] in (403, 503), f"node {node} accepts it again"
            self.until_on_each_node(answered, "no exchange", lambda node: self.us.exchange_on(node, crossing)[0] == 400)
        return took

    def agent_ends(self):
        """An agent of eu calls a tool of us, is revoked in eu, and is refused on every node of us; the seconds."""
        agent, crossing, token = self.traveller()
        self.accepted_on_each_node(token)
        return self.refused_on_each_node(self.revoke(agent), crossing, token)

    def until_equal(self):
        """Waits until every node of both regions has the same ledger of eu."""
        def is_equal():
            hashes = [self.eu.hash(node) for node in self.eu.nodes]
            hashes += [self.us.hash(node, self.eu.issuer) for node in self.us.nodes]
            found = {(one["hash"], one["count"]) for one in hashes}
            assert len(found) == 1 and hashes[0]["count"] == self.revoked, (self.revoked, found)
            return True

        until("equal hashes", is_equal)
        say(f"both regions state the same hash over {self.revoked} entries")

    def unavailable_on_each_node(self, crossing, token):
        """Waits until us answers 503 to both tokens of eu on each node; the seconds."""
        def is_unavailable():
            for node in self.us.nodes:
                for status, answer in (self.us.verify_on(node, token), self.us.exchange_on(node, crossing)):
                    assert status == 503 and "peer fabric eu" in str(answer), (node, status, answer)
            return True

        return until("503 to the tokens of eu", is_unavailable)


class Steady:
    """Calls the tool with a token that us issued to its own agent, on each node in turn; every answer must be 200."""

    def __init__(self, us):
        self.us, self.answers, self.wrong, self.is_over = us, 0, [], threading.Event()
        self.token = us.exchange(us.agent()[1], us.tool)

    def __enter__(self):
        self.thread = threading.Thread(target=self.call, daemon=True)
        self.thread.start()
        return self

    def call(self):
        while not self.is_over.wait(0.02):
            node = self.us.nodes[self.answers % len(self.us.nodes)]
            self.answers += 1
            try:
                status, answer = self.us.verify_on(node, self.token)
            except UNREACHABLE as error:
                status, answer = None, repr(error)
            if status != 200:
                self.wrong.append((node, status, answer))

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def figures(name, secs):
    millis = sorted(1000 * one for one in secs)
    p99 = millis[min(len(millis) - 1, int(len(millis) * 0.99))]
    say(f"{name}: {len(millis)} revocations, p50 {statistics.median(millis):.0f} ms, p99 {p99:.0f} ms, max {millis[-1]:.0f} ms")


def broken_links(scenario):
    """Connections that stay open, over which nothing arrives, or nothing in one direction: stale as after a cut."""
    link = scenario.link
    for fault, begin in (("is silent", link.silence), ("loses requests", lambda: link.lose("requests")),
                         ("loses responses", lambda: link.lose("responses"))):
        agent, crossing, token = scenario.traveller()
        scenario.accepted_on_each_node(token)
        begin()
        took = scenario.unavailable_on_each_node(crossing, token)
        assert took < STALE_AFTER_SECS + 2, (fault, took)
        answered = scenario.revoke(agent)
        link.heal()
        live = scenario.until_states("live")
        scenario.refused_on_each_node(answered, crossing, token)
        say(f"the link {fault}: 503 after {took:.1f} s; it heals, and is live again after {live:.1f} s; the agent is refused")


def without_a_majority(scenario):
    """The last node of either region proves nothing: no lease for us, no answer to a token."""
    eu, us = scenario.eu, scenario.us
    agent, crossing, token = scenario.traveller()
    scenario.accepted_on_each_node(token)
    with Steady(us) as steady:
        for node in eu.nodes[:2]:
            eu.kill(node)
        took = scenario.unavailable_on_each_node(crossing, token)
        assert took < STALE_AFTER_SECS + 2, took
        eu.mend()
        scenario.until_states("live")
        scenario.accepted_on_each_node(token)
    assert not steady.wrong, steady.wrong[:3]
    say(f"eu has one node of three: each node of us answers 503 to its tokens after {took:.1f} s, and 200 to us's own")
    for node in us.nodes[:2]:
        us.kill(node)
    [last] = us.running()
    until("503 of the last node", lambda: us.verify_on(last, token)[0] == 503)
    answered = scenario.revoke(agent)
    # Each answer takes 2 s: the wait for a leader.
    assert us.verify_on(last, token)[0] == 503 and us.exchange_on(last, crossing)[0] == 503, "without a majority"
    us.mend()
    scenario.refused_on_each_node(answered, crossing, token)
    say("us has one node of three: it answers 503; the agent that was revoked meanwhile is refused once there are three")


def cut(scenario, revocations):
    """The link is cut while an agent that us has accepted is revoked in eu, and another one is not."""
    agent, crossing, token = scenario.traveller()
    _, _, other = scenario.traveller()
    scenario.accepted_on_each_node(token)
    scenario.accepted_on_each_node(other)
    with Steady(scenario.us) as steady:
        scenario.link.cut()
        took = scenario.unavailable_on_each_node(crossing, token)
        assert took < STALE_AFTER_SECS + 2, took
        say(f"the link is cut: each node of us answers 503 to the tokens of eu after {took:.1f} s")
        scenario.until_states("stale")
        answered = scenario.revoke(agent)
        for _ in range(revocations):
            scenario.revoke()
        scenario.unavailable_on_each_node(crossing, other)
        scenario.link.heal()
        say(f"the link heals after {revocations + 1} more revocations: live again after {scenario.until_states('live'):.1f} s")
        scenario.refused_on_each_node(answered, crossing, token)
        scenario.accepted_on_each_node(other)
    assert not steady.wrong, steady.wrong[:3]
    say(f"the agent that was revoked meanwhile is refused and the other accepted; {steady.answers} calls of us's own were all 200")


def strict(scenario, rounds):
    """Strict mode on both sides: when eu has acknowledged, a single request to each node of us is refused."""
    scenario.us.restart_with("honour_lease = true")
    scenario.eu.restart_with("await = true")
    scenario.until_states("live")

    def acknowledged():
        agent, crossing, token = scenario.traveller()
        scenario.accepted_on_each_node(token)
        begun = time.monotonic()
        took = scenario.revoke(agent) - begun
        for node in scenario.us.running():
            for status, answer in (scenario.us.verify_on(node, token), scenario.us.exchange_on(node, crossing)):
                assert status in (400, 403, 503), (node, status, answer)
        return took

    figures("strict mode, until the 202", [acknowledged() for _ in range(rounds)])
    for region in (scenario.us, scenario.eu):
        led = leader(region.clients["operator"], region.nodes)
        region.kill(led)
        took = acknowledged()
        say(f"strict mode, the leader of {region.name}, node {led}, was killed: 202 after {took:.1f} s, and every node of us refuses")
        region.mend()


def check(regions, revocations, has_packets):
    regions.start()
    scenario = Scenario(regions)
    say(f"eu is live on each node of us {scenario.until_states('live'):.1f} s after both were ready")
    scenario.us.register_tool()
    regions.check_the_rest()
    figures("from the 202 of eu to the last node of us", [scenario.revocation_arrives() for _ in range(revocations)])
    figures("until the last node of us refuses an agent of eu", [scenario.agent_ends() for _ in range(10)])
    for region in (scenario.us, scenario.eu):
        agent, crossing, token = scenario.traveller()
        scenario.accepted_on_each_node(token)
        led = leader(region.clients["operator"], region.nodes)
        region.kill(led)
        took = scenario.refused_on_each_node(scenario.revoke(agent), crossing, token)
        say(f"the leader of {region.name}, node {led}, was killed: the agent is refused on the rest of us after {took * 1000:.0f} ms")
        figures("and then", [scenario.revocation_arrives() for _ in range(5)])
        region.mend()
        scenario.refused_on_each_node(time.monotonic(), crossing, token)
    scenario.until_states("live")
    scenario.until_equal()
    broken_links(scenario)
    without_a_majority(scenario)
    cut(scenario, revocations)
    scenario.until_equal()
    if isinstance(regions, Processes):
        rounds(scenario, has_packets)
        # The configuration of containers is mounted read-only.
        strict(scenario, 10)
        scenario.until_equal()
        wrong_clock(scenario)
        scenario.until_equal()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="processes")
    parser.add_argument("--delay-ms", type=int, default=75, help="round trip between the regions (default: 75)")
    parser.add_argument("--revocations", type=int, default=50, help="revocations in each part (default: 50)")
    arguments = parser.parse_args()
    has_packets = arguments.kind == "processes" and packets.own_network()
    scratch = Path(tempfile.mkdtemp())
    regions = KINDS[arguments.kind](scratch, arguments.delay_ms)
    passed = False
    try:
        check(regions, arguments.revocations, has_packets)
        passed = True
    finally:
        logs = regions.stop()
        if not passed:
            sys.stderr.write(logs)
        shutil.rmtree(scratch)
    say("all of it held")


main()
