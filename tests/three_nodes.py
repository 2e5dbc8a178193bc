#!/usr/bin/env python3
"""Checks a cluster of three nodes: all are healthy; each performs an exchange; a tool registered on one is at once
verified on another and listed on the third; a token revoked on one is refused on all; all know an Idempotency-Key. Then
the leader is killed, and all of it holds on the other two, also for earlier writes. Then it restarts, and all of it holds
on all three.

    tests/three_nodes.py compose     the containers of docker-compose.yml, from existing images (make image)
    tests/three_nodes.py pods        the same image as the pods of the chart, as kubelet would start them (pods.py)
    tests/three_nodes.py processes   the processes of scripts/cluster.sh

Prints its observations. Needs only Python. Stops and removes the nodes and their data at the end.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from containers import Project, prometheus
from nodes import ROOT, Client, exchange, leader, run, say, tool, until, verify
from pods import Pods

# Ports of the nodes 1, 2 and 3 on this machine.
PORTS = {1: 8694, 2: 8704, 3: 8714}


class Compose:
    """The containers of docker-compose.yml, in a separate project."""

    def __init__(self, scratch):
        self.project = Project("trust-fabric-check", "docker-compose.yml")
        self.pki = scratch / "pki"

    def start(self):
        self.project.run("up", "--detach")
        run("docker", "cp", f"{self.id(1)}:/pki", self.pki)
        # The second start finds the certificates of the first.
        self.project.run("up", "--detach")

    def id(self, node):
        return self.project.id(f"node-{node}")

    def is_healthy(self, node):
        return self.project.inspect(f"node-{node}", ".State.Health.Status") == "healthy"

    def credential(self, node, account="demo/reporter"):
        program = ["/usr/local/bin/trust-fabric", "credential", "--dir", "/pki", "--service-account", account]
        return self.project.run("exec", "-T", f"node-{node}", *program)

    def kill(self, node):
        run("docker", "kill", "--signal", "KILL", self.id(node))

    def start_again(self, node):
        run("docker", "start", self.id(node))

    def check_the_rest(self, nodes):
        """Confinement, and that Prometheus sees exactly these nodes."""
        for node in nodes:
            self.project.check_confined(f"node-{node}")
        until("Prometheus", lambda: self.nodes_scraped() == set(nodes))
        say(f"Prometheus scrapes {', '.join(f'node-{node}' for node in nodes)} and no other; the containers are unprivileged")

    def nodes_scraped(self):
        series = prometheus("query", query="svc_raft_is_leader and on (instance) up == 1")["result"]
        return {int(one["metric"]["instance"].removeprefix("node-").removesuffix(":8694")) for one in series}

    def stop(self):
        return self.project.remove()


class Processes:
    """The processes of scripts/cluster.sh, in a separate directory."""

    def __init__(self, scratch):
        self.directory = scratch / "cluster"
        self.pki = self.directory / "pki"
        self.program = Path(os.environ["CARGO_TARGET_DIR"]) / "release/trust-fabric"
        self.log = scratch / "log"

    def start(self):
        with self.log.open("w") as log:
            self.script = subprocess.Popen([ROOT / "scripts/cluster.sh", self.directory], stdout=log, stderr=log)
        until("what to call", lambda: "Ctrl-C ends all three." in self.log.read_text() or self.script.poll() is not None)
        assert self.script.poll() is None, self.log.read_text()
        # https://localhost:8694 (process 1), :8704 (2) and :8714 (3).
        line = next(line for line in self.log.read_text().splitlines() if line.startswith("Three nodes, at "))
        words = [part.split(")")[0].removeprefix("process ") for part in line.split("(")[1:]]
        self.processes = dict(zip(PORTS, map(int, words)))

    def is_healthy(self, node):
        server = f"http://127.0.0.1:{PORTS[node] - 1}"
        return subprocess.run([self.program, "health", "--server", server], capture_output=True).returncode == 0

    def credential(self, node, account="demo/reporter"):
        return run(self.program, "credential", "--dir", self.pki, "--service-account", account)

    def kill(self, node):
        os.kill(self.processes[node], signal.SIGKILL)

    def start_again(self, node):
        with self.log.open("a") as log:
            command = [self.program, "serve", "--config", ROOT / f"cluster/node-{node}.toml"]
            self.again = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)

    def check_the_rest(self, nodes):
        pass

    def stop(self):
        running = [self.script] + ([self.again] if hasattr(self, "again") else [])
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=60)
        return self.log.read_text()


def register(client, node, tool_id):
    """Writes with an Idempotency-Key that every other node knows, also under a later leader; the time of the write."""
    answers = [(node, *client.call(node, "POST", "/v1/tools", tool(tool_id), f"register-{tool_id}"))]
    index = client.index
    # Visible at once: by a linearizable read, and by a read at the index of the write.
    for other in client.nodes:
        for min_index in (None, index):
            status, answer = client.call(other, "GET", f"/v1/tools/{tool_id}", min_index=min_index)
            assert status == 200 and answer["tool_id"] == tool_id, (other, min_index, status, answer)
    for other in client.nodes:
        answers.append((other, *client.call(other, "POST", "/v1/tools", tool(tool_id), f"register-{tool_id}")))
        status, answer = client.call(other, "POST", "/v1/tools", tool("another"), f"register-{tool_id}")
        assert status == 422, (other, status, answer)
    assert all(status == 201 for _, status, _ in answers), answers
    assert len({answer["registered_at"] for _, _, answer in answers}) == 1, answers
    return answers[0][2]["registered_at"]


def revoked_on_all(cluster, client, operator, nodes, account):
    """Every node refuses what an operator revoked on the last node."""
    credential = cluster.credential(nodes[0], f"demo/{account}")
    tokens = [exchange(client, node, credential) for node in nodes]
    for node in nodes:
        verify(client, node, "first", tokens[0])
    subject = f"wimse://dev.trust-fabric.local/ns/demo/sa/{account}"
    begun = time.monotonic()
    status, answer = operator.call(nodes[-1], "POST", "/v1/revocations", {"subject": subject})
    took = time.monotonic() - begun
    assert status == 202, (status, answer)
    for node in nodes:
        for token in tokens:
            status, answer = client.call(node, "POST", "/v1/mcp/verify", {"tool_id": "first", "token": token})
            assert status == 403, (node, status, answer)
    say(f"{account} is revoked on {nodes[-1]} in {took * 1000:.0f} ms and refused by each of {', '.join(map(str, nodes))}")


def holds_on(cluster, client, nodes, tool_id, tools_before=()):
    """An exchange on each node; a tool registered on the first and verified on each with the token of the next."""
    credential = cluster.credential(nodes[0])
    tokens = {node: exchange(client, node, credential) for node in nodes}
    registered_at = register(client, nodes[0], tool_id)
    for place, node in enumerate(nodes):
        token = tokens[nodes[(place + 1) % len(nodes)]]
        for tool in (*tools_before, tool_id):
            verify(client, node, tool, token)
    listed = ", ".join(map(str, nodes))
    say(f"exchange on each of {listed}; {tool_id} registered on {nodes[0]} and verified on each with another's token")
    return registered_at


def check(cluster):
    nodes = list(PORTS)
    cluster.start()
    took = until("healthy nodes", lambda: all(cluster.is_healthy(node) for node in nodes))
    say(f"three healthy nodes after {took:.1f} s")
    client, operator = (Client(cluster.pki, caller, PORTS) for caller in ("workload", "operator"))
    first = holds_on(cluster, client, nodes, "first")
    revoked_on_all(cluster, client, operator, nodes, "uno")
    cluster.check_the_rest(nodes)

    killed = leader(client, nodes)
    rest = [node for node in nodes if node != killed]
    credential = cluster.credential(rest[0])
    cluster.kill(killed)
    client.nodes = rest
    took = until("a new leader", lambda: leader(client, rest))
    say(f"node {killed} was leader and is killed; node {leader(client, rest)} leads after {took:.1f} s")
    for node in rest:
        until(f"an exchange on {node}", lambda node=node: exchange(client, node, credential))
    until("healthy nodes", lambda: all(cluster.is_healthy(node) for node in rest))
    holds_on(cluster, client, rest, "second", ["first"])
    assert register(client, rest[-1], "first") == first, "the key of a write under the leader before"
    revoked_on_all(cluster, client, operator, rest, "due")
    cluster.check_the_rest(rest)

    cluster.start_again(killed)
    took = until("the killed node", lambda: cluster.is_healthy(killed) and exchange(client, killed, credential))
    say(f"node {killed} is started again and healthy after {took:.1f} s")
    client.nodes = nodes
    holds_on(cluster, client, nodes, "third", ["first", "second"])
    assert register(client, killed, "first") == first, "the same on the node that was away"
    revoked_on_all(cluster, client, operator, nodes, "tre")
    cluster.check_the_rest(nodes)


def main():
    kinds = {"compose": Compose, "pods": lambda scratch: Pods(scratch, PORTS), "processes": Processes}
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    scratch = Path(tempfile.mkdtemp())
    cluster = kinds[sys.argv[1]](scratch)
    passed = False
    try:
        check(cluster)
        passed = True
    finally:
        logs = cluster.stop()
        shutil.rmtree(scratch)
        if not passed:
            # This check itself requests health.
            say("\n".join([line for line in logs.splitlines() if "/v1/sys/health" not in line][-100:]))
    say("all of it held")


main()
