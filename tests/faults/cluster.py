"""A cluster of processes on free loopback ports, with faults of single clocks, disks and directories.

Every process is killed at the end of the run: by close(), at exit, or by the kernel if the run was killed.
"""

import atexit
import concurrent.futures
import ctypes
import dataclasses
import http.client
import json
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from nodes import ROOT, TRUST_DOMAIN, Client, exchange_request, run, tool, until

FABRIC = "https://localhost:8694"
CREDENTIAL_ISSUER = "http://127.0.0.1:8698"
SIGNAL_ISSUER = "https://events.example"
CALLERS = {
    "operator": ["cluster.admin", "metrics.read", "events.read", "tools.read", "audit.read"],
    "suspect": ["cluster.admin", "tools.read"],
    "workload": ["exchange", "tools.manage", "tools.read", "tools.verify", "audit.read"],
    "gateway": ["exchange", "identity.issue"],
    "transmitter": ["signals.send"],
}
# Below the ports that the kernel gives to outgoing connections, so that the ports of a stopped node stay free.
PORTS = range(20_000, 30_000)
TAKEN_PORTS = set()
UNREACHABLE = (OSError, http.client.HTTPException)


def compile_preload(scratch):
    library = scratch / "preload.so"
    source = ROOT / "tests/faults/preload.c"
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl")
    return library


def free_port():
    while True:
        port = random.choice(PORTS)
        if port in TAKEN_PORTS:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        TAKEN_PORTS.add(port)
        return port


def die_with_parent():
    """Runs in the child: SIGKILL when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def subject(account):
    return f"wimse://{TRUST_DOMAIN}/ns/demo/sa/{account}"


class Faults:
    """The control file of one process (tests/faults/preload.c)."""

    def __init__(self, path, library, below):
        path.write_bytes(bytes(24))
        with path.open("r+b") as file:
            self.words = mmap.mmap(file.fileno(), 24)
        self.environment = os.environ | {
            "LD_PRELOAD": str(library), "FAULTS_CONTROL": str(path), "FAULTS_BELOW": str(below)}

    def set(self, word, value):
        struct.pack_into("q", self.words, word * 8, value)

    def shift_clock(self, secs):
        self.set(0, int(secs * 1e9))

    def slow_syncs(self, secs):
        self.set(1, int(secs * 1e9))

    def hang_syncs(self, is_hung):
        self.set(2, int(is_hung))

    def clear(self):
        self.words[:] = bytes(24)


class Node:
    """One process with its directory, ports, log and faults."""

    def __init__(self, cluster, name, node_id, data=None):
        self.cluster, self.name, self.id = cluster, name, node_id
        self.http, self.https, self.peer = free_port(), free_port(), free_port()
        self.data = data or cluster.directory / name
        self.config = cluster.directory / f"{name}.toml"
        self.log = cluster.directory / f"{name}.log"
        self.faults = Faults(cluster.directory / f"{name}.faults", cluster.library, self.data)
        self.process = None
        # By which rules of a firewall know its packets; root alone may set it.
        self.group = 4710 + node_id if os.geteuid() == 0 else None

    def start(self):
        assert not self.is_running(), self.name
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [self.cluster.program, "serve", "--config", self.config], cwd=self.cluster.directory, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, env=self.faults.environment | self.cluster.fabric.environment,
                group=self.group, preexec_fn=die_with_parent)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.is_running():
            self.process.send_signal(number)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait(timeout=30)

    def terminate(self, patience_secs=60):
        """SIGTERM; the seconds until the process had ended, or None if it did not within the patience."""
        begun = time.monotonic()
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=patience_secs)
            return time.monotonic() - begun
        except subprocess.TimeoutExpired:
            return None

    def copy_data(self, name):
        """A copy of the data directory as it is at one moment: the process must be stopped or paused."""
        copy = self.cluster.directory / name
        shutil.rmtree(copy, ignore_errors=True)
        run("cp", "-a", self.data, copy)
        return copy

    def swap_data(self, other):
        """Puts `other` in the place of the data directory, and the data directory in the place of `other`."""
        assert not self.is_running(), self.name
        aside = self.data.with_name(self.data.name + ".aside")
        self.data.rename(aside)
        other.rename(self.data)
        aside.rename(other)

    def log_size(self):
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, offset):
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def get(self, path, timeout_secs=3):
        """Status and body of a public route on the plain listener; None if there is no response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=timeout_secs)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except UNREACHABLE:
            return None
        finally:
            connection.close()

    def admin_health(self):
        """Health with details from admin.sock, which needs no lease; None if there is none."""
        connection = http.client.HTTPConnection("localhost", timeout=3)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(3)
        try:
            connection.sock.connect(str(self.data / "admin.sock"))
            connection.request("GET", "/v1/sys/health")
            return json.loads(connection.getresponse().read())
        except (*UNREACHABLE, ValueError):
            return None
        finally:
            connection.close()

    def is_ready(self):
        answer = self.get("/readyz")
        return answer is not None and answer[0] == 200


@dataclasses.dataclass
class Fabric:
    """Names and settings of one fabric."""

    trust_domain: str = TRUST_DOMAIN
    issuer: str = FABRIC
    policies: Path = ROOT / "policies"
    callers: dict = dataclasses.field(default_factory=lambda: CALLERS)
    # More sections of the configuration of each node, and more environment.
    settings: str = ""
    environment: dict = dataclasses.field(default_factory=dict)


class Cluster:
    """Three members by default, with the callers and issuers that the scenarios need."""

    def __init__(self, directory, program, library, size=3, heartbeat_ms=50, fabric=None):
        directory.mkdir(parents=True)
        self.directory, self.program, self.library, self.heartbeat_ms = directory, program, library, heartbeat_ms
        self.fabric = fabric or Fabric()
        self.pki = directory / "pki"
        callers = [word for caller in self.fabric.callers for word in ("--caller", caller)]
        peers = [word for node_id in range(1, size + 1) for word in ("--peer", node_id)]
        self.issuer_clock = Faults(directory / "issuer.faults", library, directory / "nothing")
        # Valid for every clock of the scenarios: from two days ago to a year ahead.
        self.issuer_clock.shift_clock(-2 * 86400)
        run(program, "pki", "--dir", self.pki, "--trust-domain", self.fabric.trust_domain, "--days", 365, "--issuer",
            *peers, *callers, env=self.issuer_clock.environment)
        self.nodes = {node_id: Node(self, f"node-{node_id}", node_id) for node_id in range(1, size + 1)}
        self.members = dict(self.nodes)
        # Blocking an operator by a signal needs this setting where it exists.
        self.may_block = "may_block_operators = true\n"
        for node in self.nodes.values():
            self.write_config(node)
        checked = subprocess.run(
            [program, "config", "check", "--config", self.nodes[1].config], cwd=directory, capture_output=True, text=True)
        if "may_block_operators" in checked.stdout + checked.stderr:
            self.may_block = ""
            for node in self.nodes.values():
                self.write_config(node)
        ports = {node.id: node.https for node in self.nodes.values()}
        self.clients = {caller: Client(self.pki, caller, ports) for caller in self.fabric.callers}
        self.counter = 0
        atexit.register(self.close)

    def write_config(self, node):
        pki, fabric = self.pki, self.fabric
        text = f"""[node]
id = {node.id}
data_dir = "{node.data}"
[listen]
http = "127.0.0.1:{node.http}"
https = "127.0.0.1:{node.https}"
[tls]
certificate = "{pki}/node.pem"
private_key = "{pki}/node-key.pem"
client_ca = "{pki}/ca.pem"
[fabric]
issuer = "{fabric.issuer}"
trust_domain = "{fabric.trust_domain}"
[policy]
directory = "{fabric.policies}"
[limits]
requests_per_second_per_caller = 100000
connections_per_address = 4096
connections_per_identity = 4096
[log]
format = "text"
[[issuers]]
issuer = "{CREDENTIAL_ISSUER}"
subject = "kubernetes"
keys_file = "{pki}/issuer-keys.json"
trust_domains = ["{fabric.trust_domain}"]
[[signals]]
issuer = "{SIGNAL_ISSUER}"
callers = ["spiffe://{fabric.trust_domain}/transmitter"]
trust_domains = ["{fabric.trust_domain}"]
{self.may_block}{fabric.settings}"""
        for caller, capabilities in fabric.callers.items():
            text += f'[[callers]]\nid = "spiffe://{fabric.trust_domain}/{caller}"\ncapabilities = {json.dumps(capabilities)}\n'
        text += f'[cluster]\nheartbeat = "{self.heartbeat_ms}ms"\n'
        if len(self.members) > 1:
            text += self.membership(node)
        node.config.write_text(text)

    def membership(self, node):
        text = f"""listen = "127.0.0.1:{node.peer}"
certificate = "{self.pki}/peer-{node.id}.pem"
private_key = "{self.pki}/peer-{node.id}-key.pem"
ca = "{self.pki}/ca.pem"
"""
        for member in self.members.values():
            text += f'[[cluster.members]]\nid = {member.id}\naddress = "127.0.0.1:{member.peer}"\n'
        return text

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self):
        for node in self.nodes.values():
            node.start()
        self.until_ready()
        return self

    def close(self):
        for node in self.members.values():
            node.faults.clear()
            node.resume()
            node.kill()

    def until_ready(self, nodes=None, patience_secs=90):
        nodes = [self.nodes[node] for node in nodes or self.nodes]

        def are_ready():
            for node in nodes:
                if not node.is_running():
                    raise SystemExit(f"{node.name} has ended: {node.log_since(0)[-300:].strip()}")
            return all(node.is_ready() for node in nodes)

        return until("ready nodes", are_ready, patience_secs)

    def mend(self, patience_secs=90):
        """Ends every fault, starts what is not running, and returns the seconds until all are ready."""
        for node in self.nodes.values():
            node.faults.clear()
            node.resume()
            if not node.is_running():
                node.start()
        return self.until_ready(patience_secs=patience_secs)

    def clone(self, node_id, data):
        """A second process with the id and the certificate of a member, on ports of its own."""
        clone = Node(self, f"clone-of-{node_id}", node_id, data)
        self.write_config(clone)
        return clone

    # --- requests ---------------------------------------------------------------------------------------------------

    def attempt(self, caller, node, method, path, body=None, timeout_secs=8, **options):
        """Status and body of the response; status None if there is none."""
        try:
            return self.clients[caller].call(node, method, path, body, timeout_secs=timeout_secs, **options)
        except (*UNREACHABLE, ValueError) as error:
            return None, repr(error)

    def leader(self, nodes=None):
        """The member that most of `nodes` name as leader, or None."""
        named = [self.leader_named_by(node) for node in nodes or self.nodes]
        best = max(set(named), key=named.count)
        return best if named.count(best) * 2 > len(named) else None

    def leader_named_by(self, node):
        status, health = self.attempt("operator", node, "GET", "/v1/sys/health", timeout_secs=1)
        return health.get("leader") if status and isinstance(health, dict) else None

    def until_leader(self, nodes=None, other_than=None, patience_secs=60):
        found = []

        def is_there():
            found[:] = [self.leader(nodes)]
            return found[0] is not None and found[0] != other_than

        took = until("a leader", is_there, patience_secs)
        return found[0], took

    def account(self, prefix):
        self.counter += 1
        return f"{prefix}-{self.counter}-{random.getrandbits(32):08x}"

    def credential(self, account, issuer_ahead_secs=0):
        self.issuer_clock.shift_clock(issuer_ahead_secs)
        return run(
            self.program, "credential", "--dir", self.pki, "--audience", self.fabric.issuer, "--service-account", f"demo/{account}",
            env=self.issuer_clock.environment)

    def exchange(self, node, credential, timeout_secs=8):
        return self.attempt(
            "workload", node, "POST", "/v1/exchange/token", exchange_request(credential), timeout_secs=timeout_secs)

    def token(self, node, credential, patience_secs=30):
        """A token, with retries."""
        minted = []

        def is_minted():
            status, answer = self.exchange(node, credential)
            minted[:] = [answer["access_token"]] if status == 200 else []
            assert minted, (status, answer)
            return True

        until(f"an exchange on node {node}", is_minted, patience_secs)
        return minted[0]

    def verify(self, node, tool_id, token, timeout_secs=8):
        return self.attempt(
            "workload", node, "POST", "/v1/mcp/verify", {"tool_id": tool_id, "token": token}, timeout_secs=timeout_secs)

    def register(self, node, tool_id, timeout_secs=8):
        status, _ = self.attempt(
            "workload", node, "POST", "/v1/tools", tool(tool_id), key=f"register-{tool_id}", timeout_secs=timeout_secs)
        return status in (200, 201)

    def until_registered(self, nodes, tool_id, patience_secs=30):
        nodes = list(nodes)
        return until("a registered tool", lambda: any(self.register(node, tool_id) for node in nodes), patience_secs)

    def revoke(self, node, account, timeout_secs=8):
        status, _ = self.attempt(
            "operator", node, "POST", "/v1/revocations", {"subject": subject(account)}, key=f"revoke-{account}",
            timeout_secs=timeout_secs)
        return status == 202

    def until_revoked(self, nodes, account, patience_secs=30):
        nodes = list(nodes)
        return until("a revocation", lambda: any(self.revoke(node, account) for node in nodes), patience_secs)

    def send_signal(self, node, jti, subject_id, event, claims=None, **changes):
        """Sends an unsigned SET of the trusted transmitter. `changes` replace fields; None removes one."""
        body = {
            "iss": SIGNAL_ISSUER,
            "jti": jti,
            "iat": int(time.time()),
            "aud": self.fabric.issuer,
            "sub_id": {"format": "uri", "uri": subject_id},
            "events": {event: claims or {}},
        } | changes
        body = {name: value for name, value in body.items() if value is not None}
        return self.attempt("transmitter", node, "POST", "/v1/signals/events", body)


class Ledger:
    """Acknowledged writes: registered tools, and revoked accounts with their credentials and tokens."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.tools, self.revoked = [], []

    def prepare(self, node, accounts):
        """Accounts with a token each, to be revoked later."""
        cluster = self.cluster
        self.first_tool = f"{self.name}-{cluster.account('tool')}"
        cluster.until_registered([node], self.first_tool)
        self.tools.append(self.first_tool)
        prepared = []
        for _ in range(accounts):
            account = cluster.account(self.name)
            credential = cluster.credential(account)
            prepared.append((account, credential, cluster.token(node, credential)))
        return prepared

    def write(self, nodes, tools, prepared):
        """Registers tools and revokes the prepared accounts on `nodes`; records what is acknowledged."""
        nodes = list(nodes)
        for number in range(tools):
            tool_id = f"{self.name}-{self.cluster.account('tool')}"
            self.cluster.until_registered(nodes[number % len(nodes):] + nodes, tool_id)
            self.tools.append(tool_id)
        for one in prepared:
            self.cluster.until_revoked(nodes, one[0])
            self.revoked.append(one)

    def accepted(self, node):
        """Violations: credentials that a node accepts although their revocation was acknowledged."""
        def exchanged(one):
            if self.cluster.exchange(node, one[1], timeout_secs=4)[0] == 200:
                return f"node {node} exchanged the revoked credential of {one[0]}"

        def verified(one):
            if self.cluster.verify(node, self.first_tool, one[2], timeout_secs=4)[0] == 200:
                return f"node {node} verified the revoked token of {one[0]}"

        # At once: a member without a lease answers each request after 2 s only.
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(request, one) for one in self.revoked for request in (exchanged, verified)]
        return [found for found in (one.result() for one in asked) if found]

    def lost(self, nodes):
        """Violations: acknowledged writes that are missing."""
        found = []
        for node in nodes:
            missing = []
            for tool_id in self.tools:
                status, answer = self.cluster.attempt("workload", node, "GET", f"/v1/tools/{tool_id}")
                if status != 200:
                    missing.append((tool_id, status, answer))
            if missing:
                found.append(f"node {node} lacks {len(missing)} of {len(self.tools)} acknowledged tools: {missing[0]}")
            found += self.accepted(node)
        return found


class Load(threading.Thread):
    """Writes on some nodes until it is stopped or has no work left (None), and when each was acknowledged."""

    def __init__(self, work, pause_secs):
        super().__init__(daemon=True)
        self.work, self.pause_secs = work, pause_secs
        self.acknowledged, self.failed, self.is_idle_at = [], 0, None
        self.is_over = threading.Event()
        self.start()

    def run(self):
        number = 0
        while not self.is_over.is_set():
            number += 1
            done = self.work(number)
            if done is None:
                self.is_idle_at = time.monotonic()
                break
            if done:
                self.acknowledged.append(time.monotonic())
            else:
                self.failed += 1
            self.is_over.wait(self.pause_secs)

    def stop(self):
        self.ended_at = time.monotonic()
        self.is_over.set()
        self.join(timeout=60)

    def gap_after(self, moment):
        """The longest time after `moment` without an acknowledgement, in seconds; until now, if work is left."""
        later = [moment] + [at for at in self.acknowledged if at > moment]
        if self.is_idle_at is None:
            later.append(self.ended_at)
        return max(after - before for before, after in zip(later, later[1:])) if len(later) > 1 else 0.0
