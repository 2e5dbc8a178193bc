#!/usr/bin/env python3
"""Upgrades a cluster of three nodes from one feature level to the next, under load, and back before it is finalized.

    tests/upgrade.py --old PROGRAM --new PROGRAM    (make upgrade builds both)

Nodes are restarted one by one, the leader last, while clients register tools, exchange and verify. A client repeats a
request once, on another node. No request may fail: while old and new run beside each other, on the way back, and on the
way forward again. Finalization is refused while a member is old or stopped. Afterwards an old program is refused at start
and as a new member, with the reason. Prints its observations. Needs only Python; removes the nodes and their data.
"""

import argparse
import http.client
import itertools
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "faults"))

from cluster import die_with_parent, free_port  # noqa: E402
from nodes import ROOT, Client, exchange_request, leader, run, say, tool, until  # noqa: E402

FIRST_MEMBERS = [1, 2, 3]
# Pause of a client between two rounds.
PAUSE_SECS = 0.05


class Node:
    """One process, on ports of its own."""

    def __init__(self, directory, node_id):
        self.id, self.directory = node_id, directory
        self.http, self.https, self.peer = free_port(), free_port(), free_port()
        self.config = directory / f"node-{node_id}.toml"
        self.log = directory / f"node-{node_id}.log"
        self.process = None

    def configure(self, nodes):
        """The configuration of cluster/, with these ports; a later node has that of node 1, and no initial members."""
        template = self.id if self.id in FIRST_MEMBERS else 1
        text = (ROOT / f"cluster/node-{template}.toml").read_text()
        if template != self.id:
            text = re.sub(r"\[\[cluster\.members\]\]\nid = .*\naddress = .*\n", "", text)
            text = text.replace("id = 1\n", f"id = {self.id}\n").replace('"node-1"', f'"node-{self.id}"')
            text = text.replace("pki/peer-1", f"pki/peer-{self.id}")
        for known, node in [(node.id, node) for node in nodes if node.id in FIRST_MEMBERS and node.id != template] + [(template, self)]:
            first = 8693 + 10 * (known - 1)
            for offset, port in enumerate([node.http, node.https, node.peer]):
                text = text.replace(f'"127.0.0.1:{first + offset}"', f'"127.0.0.1:{port}"')
        self.config.write_text(text)

    def start(self, program):
        assert self.process is None or self.process.poll() is not None, self.id
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--config", self.config], cwd=self.directory, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def is_ready(self):
        assert self.process.poll() is None, f"node {self.id} has ended:\n{self.log.read_text()[-2000:]}"
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=3)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


class Load:
    """Clients that register, exchange and verify until they are stopped."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.numbers = itertools.count(1)
        self.done, self.repeated, self.failed = 0, 0, []
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(at,), daemon=True) for at in range(3)]
        for thread in self.threads:
            thread.start()

    def call(self, client, first, method, path, body, expected, key=None):
        """A request to a node, repeated once on the next one."""
        at = client.nodes.index(first)
        outcomes = []
        for node in (first, client.nodes[(at + 1) % len(client.nodes)]):
            try:
                status, answer = client.call(node, method, path, body, key)
                outcomes.append((node, status, answer))
                if status == expected:
                    self.done += 1
                    self.repeated += len(outcomes) - 1
                    return answer
            except (OSError, http.client.HTTPException) as error:
                outcomes.append((node, repr(error)))
        self.failed.append((time.strftime("%H:%M:%S"), method, path, outcomes))
        return None

    def run(self, at):
        client = Client(self.cluster.pki, "workload", self.cluster.ports)
        client.nodes = FIRST_MEMBERS
        while not self.is_over.is_set():
            number = next(self.numbers)
            nodes = [FIRST_MEMBERS[(number + more) % 3] for more in range(3)]
            tool_id = f"tool-{number}"
            self.call(client, nodes[0], "POST", "/v1/tools", tool(tool_id), 201, key=f"key-{number}")
            token = self.call(client, nodes[1], "POST", "/v1/exchange/token", exchange_request(self.cluster.credential), 200)
            if token:
                body = {"tool_id": tool_id, "token": token["access_token"]}
                self.call(client, nodes[2], "POST", "/v1/mcp/verify", body, 200)
            time.sleep(PAUSE_SECS)

    def check(self, what):
        assert not self.failed, f"{what}: {len(self.failed)} failed requests, the first: {self.failed[0]}"
        say(f"{what}: {self.done} requests, {self.repeated} of them repeated once, none failed")
        self.done = self.repeated = 0

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join(timeout=60)


class Cluster:
    def __init__(self, directory, old, new):
        self.directory, self.old, self.new = directory, old, new
        self.pki = directory / "pki"
        peers = [word for node_id in [*FIRST_MEMBERS, 4] for word in ("--peer", node_id)]
        subprocess.run(
            [str(word) for word in (new, "pki", "--trust-domain", "dev.trust-fabric.local", "--days", 365, *peers, "--caller",
             "operator", "--caller", "workload", "--caller", "gateway", "--issuer")],
            cwd=directory, check=True, capture_output=True)
        (directory / "policies").symlink_to(ROOT / "policies")
        self.nodes = {node_id: Node(directory, node_id) for node_id in [*FIRST_MEMBERS, 4]}
        for node in self.nodes.values():
            node.configure(self.nodes.values())
        self.ports = {node_id: node.https for node_id, node in self.nodes.items()}
        self.operator = Client(self.pki, "operator", self.ports)
        self.operator.nodes = FIRST_MEMBERS
        self.credential = run(new, "credential", "--dir", self.pki, "--service-account", "demo/reporter")

    def start(self, node_id, program):
        self.nodes[node_id].start(program)
        until(f"node {node_id}", self.nodes[node_id].is_ready)

    def command(self, *words, program=None, node=1, is_caller=True):
        """Exit code and output of a command of the operator."""
        caller = ["--cert", self.pki / "operator.pem", "--key", self.pki / "operator-key.pem"] if is_caller else []
        server = ["--server", f"https://localhost:{self.ports[node]}", "--ca", self.pki / "ca.pem", *caller]
        command = [program or self.new, *words, *server]
        done = subprocess.run([str(word) for word in command], cwd=self.directory, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def status(self, node=1):
        status, cluster = self.operator.call(node, "GET", "/v1/sys/cluster")
        assert status == 200, (status, cluster)
        return cluster

    def levels(self, node=1):
        """The level of the cluster, and the newest level of each member."""
        cluster = self.status(node)
        members = {member["node_id"]: member.get("report", {}).get("feature_level", 0) for member in cluster["members"]}
        return cluster["feature_level"], members

    def restart_all(self, program, between=None):
        """Followers first, the leader last; `between` is called after the first."""
        led = leader(self.operator, FIRST_MEMBERS)
        order = [node_id for node_id in FIRST_MEMBERS if node_id != led] + [led]
        for node_id in order:
            self.nodes[node_id].stop()
            self.start(node_id, program)
            if between and node_id == order[0]:
                between(node_id)

    def refused(self, text, *words, node=1):
        code, printed = self.command(*words, node=node)
        assert code == 1 and text in printed, (words, code, printed)
        say(f"{' '.join(words)}: {printed.strip()}")


def upgrade(cluster):
    for node in FIRST_MEMBERS:
        cluster.nodes[node].start(cluster.old)
    for node in FIRST_MEMBERS:
        until(f"node {node}", cluster.nodes[node].is_ready)
    until("the reports", lambda: cluster.levels() == (0, {1: 0, 2: 0, 3: 0}))
    say("three nodes of the old program, feature level 0")
    load = Load(cluster)
    time.sleep(3)
    load.check("old nodes only")

    def mixed(new_node):
        level, members = cluster.levels(new_node)
        assert (level, members[new_node]) == (0, 1), (level, members)
        say(cluster.command("cluster", "status", node=new_node)[1].rstrip())
        cluster.refused("which supports at most feature level 0", "cluster", "finalize", "--yes", node=new_node)
        time.sleep(3)
        load.check("one new node beside two old ones")

    cluster.restart_all(cluster.new, mixed)
    assert cluster.levels() == (0, {1: 1, 2: 1, 3: 1}), cluster.levels()
    load.check("upgraded one by one")
    cluster.restart_all(cluster.old)
    assert cluster.levels() == (0, {1: 0, 2: 0, 3: 0}), cluster.levels()
    load.check("back to the old program one by one")
    cluster.restart_all(cluster.new)
    load.check("upgraded again")

    stopped = next(node for node in FIRST_MEMBERS if node != leader(cluster.operator, FIRST_MEMBERS) and node != 1)
    cluster.nodes[stopped].stop()
    cluster.refused(f"node {stopped} does not answer", "cluster", "finalize", "--yes")
    cluster.start(stopped, cluster.new)
    code, printed = cluster.command("cluster", "finalize", "--yes")
    assert code == 0 and "the cluster has feature level 1" in printed, (code, printed)
    say(f"cluster finalize --yes: {printed.strip()}")
    until("level 1 on every node", lambda: all(cluster.levels(node)[0] == 1 for node in FIRST_MEMBERS))
    until("recorded versions", lambda: all("recorded" in member for member in cluster.status()["members"]))
    time.sleep(3)
    load.check("finalized")

    cluster.nodes[stopped].stop()
    code, printed = cluster.command("cluster", "status")
    assert code == 0 and "feature level 1" in printed and "(recorded)" in printed, (code, printed)
    say(printed.rstrip())
    node = cluster.nodes[stopped]
    node.start(cluster.old)
    assert node.process.wait(timeout=60) != 0
    reason = next(line for line in reversed(node.log.read_text().splitlines()) if "feature level" in line)
    assert "the cluster has feature level 1, and this program" in reason and "supports 0 to 0" in reason, reason
    say(f"the old program is refused at start: {reason}")
    cluster.start(stopped, cluster.new)
    load.check("a downgrade refused")

    code, printed = cluster.command("cluster", "invite")
    assert code == 0, printed
    token = cluster.directory / "token"
    token.write_text(next(line for line in printed.splitlines() if line.startswith("tfj1.")))
    words = ["cluster", "join", token, "--config", cluster.nodes[4].config, "--address", f"127.0.0.1:{cluster.nodes[4].peer}"]
    code, printed = cluster.command(*words, program=cluster.old, is_caller=False)
    assert code == 1 and "install a newer version on the node" in printed, (code, printed)
    say(f"the old program is refused as a new member: {printed.strip()}")
    code, printed = cluster.command(*words, is_caller=False)
    assert code == 0, printed
    cluster.start(4, cluster.new)
    until("a fourth voter", lambda: {member["node_id"]: member["role"] for member in cluster.status()["members"]}.get(4) == "follower")
    say("the new program joins with the same token")
    load.stop()
    load.check("the rest")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    cluster = Cluster(scratch, arguments.old.resolve(), arguments.new.resolve())
    passed = False
    try:
        upgrade(cluster)
        passed = True
    finally:
        for node in cluster.nodes.values():
            if node.process and node.process.poll() is None:
                node.process.kill()
                node.process.wait()
            if not passed and node.log.exists():
                sys.stderr.write(f"--- node {node.id}\n{node.log.read_text()[-6000:]}\n")
        shutil.rmtree(scratch)
    say("all of it held")


main()
