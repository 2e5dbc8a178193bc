#!/usr/bin/env python3
"""Full disks under a cluster of three processes, each on a small file system of its own, under writes and revocations.

    tests/disk_full.py [--file-system tmpfs|ext4] [--rounds N] [--program FILE] [--megabytes N] [SCENARIO...]

Mounts the file systems, and so needs root. Prints one line for each round; ends with 1 if a promise was broken: nothing
acknowledged is lost, revocations are taken while a disk is low, and the cluster recovers without an operator. A supervisor
that starts ended processes again after 2 s, as packaging/trust-fabric.service does, is a thread of this program.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS / "faults"))

from cluster import Cluster, Ledger, Load, compile_preload, subject  # noqa: E402
from nodes import run, say, until  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trust-fabric"
MEBIBYTE = 1024 * 1024
# src/limits.rs: DISK_LOW_BYTES_MIN, and a quarter of it.
LOW_MIB, RESERVE_MIB = 64, 16
RESTART_SECS = 2
PREPARED_ACCOUNTS = 60


class Disk:
    """A small file system with the data directory of one node."""

    def __init__(self, node, kind, megabytes):
        self.node, self.mount = node, node.data
        self.mount.mkdir()
        if kind == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", self.mount)
        else:
            image = self.mount.with_suffix(".img")
            with image.open("wb") as file:
                file.truncate(megabytes * MEBIBYTE)
            run("mkfs.ext4", "-q", "-m", "0", image)
            run("mount", "-o", "loop", image, self.mount)
            # ext4 creates it, and a data directory holds only what the node knows.
            (self.mount / "lost+found").rmdir()
            self.mount.chmod(0o700)
        self.filler = self.mount / "filler"

    def free(self):
        space = os.statvfs(self.mount)
        return space.f_bavail * space.f_frsize

    def fill(self, leave_mib):
        """Takes all space but some, with a file of another program."""
        take = self.free() - leave_mib * MEBIBYTE
        size = self.filler.stat().st_size if self.filler.exists() else 0
        try:
            with self.filler.open("ab") as file:
                os.posix_fallocate(file.fileno(), size, max(1, take))
        except OSError:
            # Not all of it was there: byte by byte.
            subprocess.run(["dd", "if=/dev/zero", f"of={self.filler}", "bs=64k", "oflag=append", "conv=notrunc"],
                           capture_output=True, check=False)

    def exhaust(self):
        """Takes all space, and that which RocksDB has allocated ahead for its logs: it lasts for thousands of writes."""
        self.node.pause()
        for log in self.mount.glob("**/*.log"):
            os.truncate(log, log.stat().st_size)
        self.fill(0)
        self.node.resume()

    def release(self):
        self.filler.unlink(missing_ok=True)

    def unmount(self):
        subprocess.run(["umount", "-l", self.mount], check=False)


class Supervisor(threading.Thread):
    """Starts ended processes again, and counts how often. They end with this thread (PR_SET_PDEATHSIG)."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.restarts, self.codes = cluster, 0, []
        self.is_over, self.is_idle = threading.Event(), False
        self.start()

    def run(self):
        ended = {}
        while not self.is_over.wait(0.1):
            for node in [] if self.is_idle else self.cluster.nodes.values():
                if node.is_running():
                    ended.pop(node.id, None)
                    continue
                if node.id not in ended:
                    ended[node.id] = time.monotonic()
                    self.codes.append(node.process.returncode)
                elif time.monotonic() - ended[node.id] > RESTART_SECS:
                    self.restarts += 1
                    node.start()


class Findings:
    """Broken promises and figures of one round."""

    def __init__(self):
        self.violations, self.figures = [], {}

    def check(self, holds, text):
        if not holds:
            self.violations.append(text)

    def figure(self, name, value):
        self.figures[name] = round(value, 2) if isinstance(value, float) else value


class Stage:
    """A cluster on small disks under writes and revocations."""

    def __init__(self, directory, options, library):
        self.cluster = Cluster(directory, options.program, library)
        self.disks = {id: Disk(node, options.file_system, options.megabytes) for id, node in self.cluster.nodes.items()}
        self.cluster.start()
        self.supervisor = Supervisor(self.cluster)
        self.ledger = Ledger(self.cluster, "full")
        self.prepared = self.ledger.prepare(1, PREPARED_ACCOUNTS)
        self.writers = list(self.cluster.nodes)
        name = self.cluster.account("load")

        def write(number):
            tool_id = f"{name}-{number}"
            done = self.cluster.register(self.writers[number % len(self.writers)], tool_id, timeout_secs=8)
            if done:
                self.ledger.tools.append(tool_id)
            return done

        self.load = Load(write, 0.05)

    def revoke(self, node, findings, what):
        """A revocation, which must be acknowledged at the first attempt."""
        begun = time.monotonic()
        status, answer = self.revocation(node, self.prepared.pop())
        findings.check(status == 202, f"{what}: revocation through node {node}: {status} {answer}")
        return time.monotonic() - begun

    def revocation(self, node, one):
        status, answer = self.cluster.attempt("operator", node, "POST", "/v1/revocations", {"subject": subject(one[0])})
        if status == 202:
            self.ledger.revoked.append(one)
        return status, answer

    def register(self, node):
        tool_id = self.cluster.account("one")
        status, answer = self.cluster.attempt("workload", node, "POST", "/v1/tools", {
            "tool_id": tool_id, "name": tool_id, "protocols": ["mcp"]})
        if status in (200, 201):
            self.ledger.tools.append(tool_id)
        return status, answer

    def refused_for_space(self, node, names):
        """Whether a registration through a node is refused because of the disk of `names`."""
        status, answer = self.register(node)
        text = answer.get("error_description", "") if isinstance(answer, dict) else str(answer)
        return status == 503 and re.search(rf"the disk of node {names} has \d+ bytes free", text) is not None

    def health(self, node):
        return self.cluster.nodes[node].admin_health() or {}

    def until_recovered(self, findings, nodes=None):
        nodes = nodes or list(self.cluster.nodes)
        took = until("ready nodes", lambda: all(self.cluster.nodes[node].is_ready() for node in nodes), 90)
        findings.figure("ready after s", took)
        for node in nodes:
            until(f"a registration on node {node}", lambda node=node: self.register(node)[0] in (200, 201), 30)
            findings.check(self.health(node).get("status") == "pass", f"node {node}: {self.health(node)}")

    def end(self, findings):
        self.load.stop()
        self.supervisor.is_idle = True
        findings.violations += self.ledger.lost(self.cluster.nodes)
        findings.figure("tools", len(self.ledger.tools))
        findings.figure("revoked", len(self.ledger.revoked))
        findings.figure("refused or failed", self.load.failed)
        findings.figure("restarts", self.supervisor.restarts)
        findings.check(all(code == 70 for code in self.supervisor.codes), f"exit codes {self.supervisor.codes}")

    def close(self):
        self.load.is_over.set()
        self.supervisor.is_over.set()
        self.supervisor.join()
        self.cluster.close()
        for disk in self.disks.values():
            disk.unmount()


# --- scenarios ----------------------------------------------------------------------------------------------------------


def leader_of(stage):
    return stage.cluster.until_leader()[0]


def one_low(stage, findings):
    """The disk of the leader is low: it refuses registrations from everywhere, and takes revocations."""
    leader = leader_of(stage)
    others = [node for node in stage.cluster.nodes if node != leader]
    stage.disks[leader].fill(LOW_MIB - 20)
    findings.figure("refused after s", until(
        "a refusal", lambda: all(stage.refused_for_space(node, leader) for node in stage.cluster.nodes), 10))
    findings.check(stage.health(leader).get("status") == "warn", f"health: {stage.health(leader)}")
    findings.check(stage.cluster.nodes[leader].is_ready(), "a node whose disk is low is ready")
    took = [stage.revoke(node, findings, "low") for node in [leader, *others] for _ in range(3)]
    findings.figure("slowest revocation s", max(took))
    status, _ = stage.cluster.attempt("workload", others[0], "DELETE", f"/v1/tools/{stage.ledger.tools[-1]}")
    findings.check(status in (200, 204), f"removal: {status}")
    stage.ledger.tools.pop()
    findings.check(leader_of(stage) == leader, "a leader whose disk is low leads")
    stage.disks[leader].release()
    stage.until_recovered(findings)


def one_reserve(stage, findings):
    """The reserve of the leader's disk is touched: another leads, and takes everything."""
    leader = leader_of(stage)
    others = [node for node in stage.cluster.nodes if node != leader]
    begun = time.monotonic()
    stage.disks[leader].fill(RESERVE_MIB - 6)
    stage.cluster.until_leader(others, other_than=leader)
    findings.figure("new leader after s", time.monotonic() - begun)
    health = stage.health(leader)
    findings.check(health.get("status") == "fail" and "disk space" in health.get("missing", []), f"health: {health}")
    findings.check(not stage.cluster.nodes[leader].is_ready(), "a node with a full disk is not ready")
    for node in stage.cluster.nodes:
        stage.revoke(node, findings, "reserve")
    for node in others:
        findings.check(stage.register(node)[0] in (200, 201), f"node {node} has space and does not register")
    findings.check(stage.refused_for_space(leader, leader), "the full node registers")
    stage.disks[leader].release()
    stage.until_recovered(findings)
    findings.check(stage.supervisor.restarts == 0, "a process ended")


def one_full(stage, findings):
    """No byte is left on one disk, in turn the leader's and a follower's: it ends, and comes back with space."""
    leader = leader_of(stage)
    full = leader if findings.number % 2 == 0 else next(node for node in stage.cluster.nodes if node != leader)
    others = [node for node in stage.cluster.nodes if node != full]
    stage.writers = others
    offset = stage.cluster.nodes[full].log_size()
    stage.disks[full].exhaust()
    begun = time.monotonic()
    until("the end of the process", lambda: not stage.cluster.nodes[full].is_running(), 60)
    findings.figure("ended after s", time.monotonic() - begun)
    stage.cluster.until_leader(others)
    for node in others:
        stage.revoke(node, findings, "full")
    # The supervisor has started it again: it waits for space, and does not end again and again.
    until("the wait for space", lambda: "waits for more before it starts" in stage.cluster.nodes[full].log_since(offset), 20)
    restarts = stage.supervisor.restarts
    time.sleep(6)
    findings.check(stage.supervisor.restarts == restarts, "a waiting node was started again")
    findings.check(stage.cluster.nodes[full].get("/livez") is not None, "a waiting node answers")
    stage.disks[full].release()
    stage.until_recovered(findings)


def all_low(stage, findings):
    """All disks are low: nothing is registered, revocations are taken."""
    for disk in stage.disks.values():
        disk.fill(LOW_MIB - 20)
    until("refusals", lambda: all(stage.refused_for_space(node, r"\d") for node in stage.cluster.nodes), 15)
    took = [stage.revoke(node, findings, "all low") for node in stage.cluster.nodes for _ in range(4)]
    findings.figure("slowest revocation s", max(took))
    for disk in stage.disks.values():
        disk.release()
    stage.until_recovered(findings)
    findings.check(stage.supervisor.restarts == 0, "a process ended")


def all_reserve(stage, findings):
    """The reserve of every disk is touched: a load balancer still finds nodes that are ready, and revocations are taken."""
    def are_full(nodes):
        _, answer = stage.cluster.attempt("operator", 1, "GET", "/v1/sys/cluster")
        reports = {member["node_id"]: member.get("report", {}) for member in answer["members"]}
        return all(reports[node].get("disk_is_full") for node in nodes)

    leader = leader_of(stage)
    # The others first: the leader would hand over to one that has space.
    for nodes in ([node for node in stage.cluster.nodes if node != leader], [leader]):
        for node in nodes:
            stage.disks[node].fill(RESERVE_MIB - 6)
        until("full disks", lambda nodes=nodes: are_full(nodes), 15)
    until("refusals", lambda: all(stage.refused_for_space(node, r"\d") for node in stage.cluster.nodes), 15)
    until("ready nodes", lambda: all(stage.cluster.nodes[node].is_ready() for node in stage.cluster.nodes), 10)
    took = []
    for _ in range(4):
        for node in stage.cluster.nodes:
            took.append(stage.revoke(node, findings, "all reserve"))
            health = stage.health(node)
            findings.check(health.get("status") == "warn" and "disk space" in health.get("missing", []), f"health: {health}")
            findings.check(stage.cluster.nodes[node].is_ready(), f"node {node} is not ready")
    findings.figure("slowest revocation s", max(took))
    findings.check(leader_of(stage) == leader, "leadership was handed over")
    for disk in stage.disks.values():
        disk.release()
    stage.until_recovered(findings)
    findings.check(stage.supervisor.restarts == 0, "a process ended")


def all_full(stage, findings):
    """No byte is left on any disk: what is acknowledged is durable, and the cluster comes back with space."""
    for node in list(stage.cluster.nodes) * 2:
        stage.revoke(node, findings, "before")
    for disk in stage.disks.values():
        disk.exhaust()
    ended, answers = set(), {}

    def have_ended():
        # Each may be refused: its audit entry needs space too. An acknowledged write must stay.
        if stage.prepared:
            one = stage.prepared.pop()
            status, answer = stage.revocation(1 + len(stage.prepared) % 3, one)
            answers[status] = answers.get(status, 0) + 1
            if isinstance(answer, dict) and status != 202:
                findings.figure("refusal", answer.get("error_description"))
        ended.update(node.id for node in stage.cluster.nodes.values() if not node.is_running())
        return len(ended) >= 2 or stage.supervisor.restarts >= 2

    try:
        findings.figure("two ended after s", until("the end of two processes", have_ended, 60))
    except SystemExit:
        findings.figure("two ended after s", "they go on")
    findings.figure("revocations by status", answers)
    time.sleep(3)
    for disk in stage.disks.values():
        disk.release()
    stage.until_recovered(findings)


SCENARIOS = {scenario.__name__.replace("_", "-"): scenario for scenario in (
    one_low, one_reserve, one_full, all_low, all_reserve, all_full)}


def main():
    target = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--file-system", choices=["tmpfs", "ext4"], default="ext4", help="[ext4, on loop devices]")
    parser.add_argument("--megabytes", type=int, default=320, help="size of each file system [320]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--program", type=Path, default=target / "release/trust-fabric")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("mounting file systems needs root")
    for name in options.scenarios:
        if name not in SCENARIOS:
            parser.error(f"no such scenario: {name}")
    options.program = options.program.resolve()
    scratch = Path(tempfile.mkdtemp(prefix="trust-fabric-disks-"))
    library, broken, count = compile_preload(scratch), 0, 0
    try:
        for name in options.scenarios or SCENARIOS:
            for number in range(options.rounds):
                count += 1
                findings = Findings()
                findings.number = number
                begun = time.monotonic()
                stage = Stage(scratch / f"cluster-{count}", options, library)
                try:
                    SCENARIOS[name](stage, findings)
                    stage.end(findings)
                except (Exception, SystemExit) as error:  # The next round is tried on other disks.
                    findings.violations.append(f"{type(error).__name__}: {str(error)[-400:]}")
                finally:
                    stage.close()
                if findings.violations:
                    broken += 1
                    kept = CACHE / "disk-full" / f"{name}-{os.getpid()}-{number}"
                    kept.mkdir(parents=True, exist_ok=True)
                    for log in stage.cluster.directory.glob("*.log"):
                        shutil.copy(log, kept)
                    say(f"    logs: {kept}")
                verdict = f"VIOLATION: {'; '.join(findings.violations)}" if findings.violations else "holds"
                say(f"{options.file_system} {name} {number + 1}: {verdict}; {time.monotonic() - begun:.0f} s; {findings.figures}")
                shutil.rmtree(stage.cluster.directory, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"{broken} of {count} rounds broke a promise" if broken else "all of it held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
