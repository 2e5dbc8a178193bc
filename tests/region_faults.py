"""Rounds of tests/two_regions.py with processes: lost packets, a node that is cut off from its cluster, wrong clocks."""

import time

import packets
from nodes import Client, leader, say, until
from region import STALE_AFTER_SECS

HOUR_SECS = 3600
# Of the packets between the regions, in each direction.
LOSS = "0.2"


def lost_packets(scenario):
    """Connections between the regions stay open, and their packets are lost: all of one direction, or some of both."""
    ports = scenario.link.ports.values()
    for direction, end in (("requests", "--dport"), ("responses", "--sport")):
        agent, crossing, token = scenario.traveller()
        scenario.accepted_on_each_node(token)
        for port in ports:
            packets.drop(end, port)
        took = scenario.unavailable_on_each_node(crossing, token)
        assert took < STALE_AFTER_SECS + 2, (direction, took)
        answered = scenario.revoke(agent)
        scenario.until_states("stale")
        packets.heal()
        live = scenario.until_states("live")
        scenario.refused_on_each_node(answered, crossing, token)
        say(f"the packets of all {direction} are lost: 503 after {took:.1f} s; they arrive again, and it is live after {live:.1f} s")
    for port in ports:
        for end in ("--dport", "--sport"):
            packets.drop(end, port, "-m", "statistic", "--mode", "random", "--probability", LOSS)
    arrived = sorted(scenario.revocation_arrives() for _ in range(20))
    packets.heal()
    scenario.until_states("live")
    say(f"a fifth of the packets is lost: each of {len(arrived)} revocations arrives, the last after {arrived[-1]:.1f} s")


def isolated(scenario):
    """A follower of eu reaches no other node of eu, which have a leader; us reaches all: it gives no lease, and no stale data."""
    eu, us = scenario.eu, scenario.us
    nodes = eu.cluster.nodes
    led = leader(eu.clients["operator"], eu.nodes)
    alone = next(node for node in eu.nodes if node != led)
    peer = Client(us.cluster.pki, "federation", {node: nodes[node].https for node in eu.nodes})
    peer.tls.load_verify_locations(eu.cluster.pki / "ca.pem")

    def answers(node):
        return peer.call(node, "POST", "/v1/federation/sync", {"version": 1})

    status, answer = answers(alone)
    assert status == 200, (status, answer)
    agent, crossing, token = scenario.traveller()
    scenario.accepted_on_each_node(token)
    for end in ("--dport", "--sport"):
        packets.drop(end, nodes[alone].peer)
    for node in eu.nodes:
        packets.drop_output_of(nodes[alone].group, "--dport", nodes[node].peer)
    until("the node is not ready", lambda: not nodes[alone].is_ready())
    took = scenario.refused_on_each_node(scenario.revoke(agent), crossing, token)
    for _ in range(3):
        status, answer = answers(alone)
        assert status == 503, (status, answer)
    for node in eu.nodes:
        status, answer = answers(node)
        assert status == (503 if node == alone else 200), (node, status, answer)
    scenario.until_states("live")
    packets.heal()
    eu.cluster.until_ready()
    say(f"node {alone} of eu is cut off from the others: it answers 503 to us, which is live by them; an agent is refused after {took * 1000:.0f} ms")


def wrong_clock(scenario):
    """The clocks of eu are off by an hour: no new token of it is accepted in us, and the ledger and the leases go on."""
    eu, us = scenario.eu, scenario.us
    for offset_secs in (-HOUR_SECS, HOUR_SECS):
        agent, crossing, token = scenario.traveller()
        scenario.accepted_on_each_node(token)
        for node in eu.cluster.nodes.values():
            node.faults.shift_clock(offset_secs)
        # With clocks behind its log time, eu refuses its own tokens.
        wrong = eu.exchange(eu.agent()[1], us.issuer) if offset_secs > 0 else None
        for node in us.nodes:
            if wrong:
                status, answer = us.exchange_on(node, wrong)
                assert status == 400, (offset_secs, node, status, answer)
            state = us.peer(node)
            assert state["state"] == "live", state
        if wrong:
            until("the offset is shown", lambda: any(
                abs(us.peer(node).get("clock_offset_ms", 0) - offset_secs * 1000) < 60_000 for node in us.nodes))
        took = scenario.refused_on_each_node(scenario.revoke(agent), crossing, token)
        for node in eu.cluster.nodes.values():
            node.faults.shift_clock(0)
        scenario.refused_on_each_node(time.monotonic(), crossing, token)
        say(f"the clocks of eu are off by {offset_secs:+} s: us accepts no new token of it and stays live, an agent is refused after {took * 1000:.0f} ms, also later")


def rounds(scenario, has_packets):
    if has_packets:
        lost_packets(scenario)
        isolated(scenario)
    else:
        say("not root, or no iptables: no packets are lost and no node is cut off")
