#!/usr/bin/env python3
"""Faults of machines under a cluster of three processes: wrong clocks, hung disks, directories that were set back, paused
and missing members. docs/proofs/faults.md describes each scenario and its results.

    tests/faults.py [--rounds N] [--program FILE] [--label TEXT] [--results DIR] [SCENARIO...]
    tests/faults.py --report [--results DIR]

Prints one line for each round and a summary for each scenario; ends with 1 if a promise was broken. Each round is also one
line of JSON in the directory of results, so that runs add up; --report prints their sums as a table. Needs Python and cc.
"""

import argparse
import base64
import calendar
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS / "faults"))

from cluster import TRUST_DOMAIN, Cluster, Ledger, Load, compile_preload, subject  # noqa: E402
from fabrics import two_fabrics  # noqa: E402
from nodes import say, until  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trust-fabric"
SUSPECT = f"spiffe://{TRUST_DOMAIN}/suspect"
CAEP = "https://schemas.openid.net/secevent/caep/event-type"
# A longer round is ended and counts as not judged.
ROUND_MAX_SECS = 300
# A member that is gone or does not write is replaced as leader within this time.
NEW_LEADER_MAX_SECS = 3
# A write needs the new leader, a revocation also the end of the leases of the member that is gone. The rest is the
# granularity of the requests.
WRITE_GAP_MAX_SECS = 5
REVOCATION_GAP_MAX_SECS = 8
# SIGTERM ends also a process whose disk hangs.
TERMINATED_MAX_SECS = 30
# Longer than the freshness lease and the wait for it, shorter than a proposal is retried.
CUT_SECS = 3.3
# A node opens its ports before it reads its data directory.
JWKS_READY_SECS = 3
# Reasons that a member states when its directory is refused.
SET_BACK = re.compile(r"set back|rolled back|older copy|older than|cluster replace|was restored|start number|another process", re.I)


class Overdue(BaseException):
    """A round has taken too long. Not an Exception: a wait for a node that does not respond must not swallow it."""


class Stopped(BaseException):
    """A signal ends the run, wherever it is."""


class Round:
    """Findings of one round."""

    def __init__(self, scenario, variant, number):
        self.scenario, self.variant, self.number = scenario, variant, number
        self.violations, self.figures, self.error = [], {}, None

    def violation(self, text):
        self.violations.append(text)

    def check(self, holds, text):
        if not holds:
            self.violation(text)

    def within(self, secs, what, condition):
        """Waits for a condition that must come; the seconds that it took."""
        try:
            return until(what, condition, secs)
        except SystemExit as error:
            self.violation(str(error))
            return float(secs)

    def figure(self, name, value):
        self.figures[name] = round(value, 3) if isinstance(value, float) else value


# --- scenarios: each takes a cluster that is ready, a Round and the variant --------------------------------------------


def blocked_operator(cluster, result, _variant):
    """A blocked operator on a node that has lost its quorum: its requests never succeed, and nothing of them is applied."""
    node = 1 + result.number % 3
    others = [other for other in cluster.nodes if other != node]
    bystander = cluster.account("bystander")
    credential = cluster.credential(bystander)
    cluster.token(node, credential)
    changed = f"{CAEP}/device-compliance-change"
    claims = {"previous_status": "compliant", "current_status": "not-compliant"}
    status, answer = cluster.send_signal(node, cluster.account("block"), SUSPECT, changed, claims)
    assert status == 202, (status, answer)
    status, blocks = cluster.attempt("operator", node, "GET", "/v1/blocks")
    block = next(block["id"] for block in blocks if block["value"].endswith("/suspect"))

    requests = [
        ("DELETE", f"/v1/blocks/{block}", None, None),
        ("POST", "/v1/revocations", {"subject": subject(bystander)}, None),
        ("GET", "/v1/blocks", None, "0"),
        ("GET", "/v1/sys/keys", None, "0"),
    ]
    answers = []

    def send(method, path, body, min_index):
        status, answer = cluster.attempt("suspect", node, method, path, body, min_index=min_index, timeout_secs=15)
        answers.append((method, path, status, answer))

    cut_at = time.monotonic()
    for other in others:
        cluster.nodes[other].pause()
    threads = []
    # While the lease holds, and after it has ended: a request that waits for it for 2 s waits no longer than the cut.
    for moment in (0.1, 0.9, 1.0, 1.1, 2.2):
        time.sleep(max(0, cut_at + moment - time.monotonic()))
        for request in requests:
            threads.append(threading.Thread(target=send, args=request, daemon=True))
            threads[-1].start()
    time.sleep(max(0, cut_at + CUT_SECS - time.monotonic()))
    for other in others:
        cluster.nodes[other].resume()
    for thread in threads:
        thread.join(timeout=20)
    for method, path, status, answer in answers:
        result.check(status in (None, 403, 503), f"{method} {path} of a blocked operator: {status} {answer}")
    result.figure("requests", len(answers))
    result.figure("answered 503", sum(status == 503 for _, _, status, _ in answers))

    cluster.until_ready()
    for other in cluster.nodes:
        status, answer = cluster.attempt("suspect", other, "GET", "/v1/sys/keys")
        result.check(status in (403, 503), f"node {other} lets the blocked operator in: {status}")
        status, answer = cluster.exchange(other, credential)
        result.check(status == 200, f"node {other} refuses a subject that only a blocked operator revoked: {answer}")
    status, blocks = cluster.attempt("operator", node, "GET", "/v1/blocks")
    result.check(any(one["id"] == block for one in blocks), "the block was lifted by the operator that it blocks")
    cluster.attempt("operator", node, "DELETE", f"/v1/blocks/{block}")
    until("a lifted block", lambda: cluster.attempt("suspect", node, "GET", "/v1/sys/keys")[0] == 200, 20)
    # The next block has a later event time than the lift, in whole seconds.
    time.sleep(1.1)


def elect(cluster, node, patience_secs=15):
    """Pauses each leader until `node` leads; whether it does within the patience."""
    begun = time.monotonic()
    while time.monotonic() - begun < patience_secs:
        leader = cluster.leader()
        if leader == node:
            return True
        if leader is None:
            time.sleep(0.1)
            continue
        cluster.nodes[leader].pause()
        try:
            until("another leader", lambda: cluster.leader_named_by(node) not in (None, leader), 5)
            elected = cluster.leader_named_by(node)
        except SystemExit:
            elected = None
        finally:
            cluster.nodes[leader].resume()
        if elected == node:
            return True
    return False


def slow_clock(cluster, result, offset_secs):
    """A leader's clock falls behind, or a member whose clock is behind is elected: what a 202 covers is not exchanged."""
    leader, _ = cluster.until_leader()
    ledger = Ledger(cluster, "slow")
    (before,) = ledger.prepare(1 + result.number % 3, 1)
    if result.number % 2 == 0:
        cluster.nodes[leader].faults.shift_clock(offset_secs)
    else:
        leader = 1 + leader % 3
        cluster.nodes[leader].faults.shift_clock(offset_secs)
        result.figure("led", elect(cluster, leader))
    # Long enough for a log time that stands still to be behind by more than the leeway of 7 s; at once; noticed.
    time.sleep((9.4, 9.3, 0, 2, 9.4, 0.2)[result.number % 6])
    account, _, token = before
    # As issued after the clock went wrong, by an issuer whose own clock is right.
    late = (account, cluster.credential(account), token)
    order = [leader] + [node for node in cluster.nodes if node != leader]
    nodes = order[result.number % 3:] + order[:result.number % 3]
    result.figure("202 after s", cluster.until_revoked(nodes, account))
    ledger.revoked += [before, late]
    for _ in range(3):
        for node in cluster.nodes:
            for text in ledger.accepted(node):
                result.violation(text)
    # Other subjects are served by the members whose clocks agree.
    other = cluster.credential(cluster.account("other"))
    for node in cluster.nodes:
        if node != leader:
            served = result.within(
                20, f"an exchange of another subject on node {node}",
                lambda node=node: cluster.exchange(node, other)[0] == 200)
            result.figure("others served after s", max(served, result.figures.get("others served after s", 0.0)))
    result.figure("handed over", cluster.leader() not in (None, leader))
    cluster.nodes[leader].faults.shift_clock(0)
    for node in cluster.nodes:
        for text in ledger.accepted(node):
            result.violation(f"with the clock right again: {text}")
    cluster.until_ready()
    for node in cluster.nodes:
        for text in ledger.accepted(node):
            result.violation(f"ready again: {text}")


def secs_ahead(text):
    """Seconds from now to a time in RFC 3339, UTC."""
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - time.time()


def fast_clock(cluster, result, offset_secs):
    """A member whose clock is ahead leads for a while: afterwards tokens, agents, keys and the audit are as before."""
    ledger = Ledger(cluster, "fast")
    (_, _, token), during, after = ledger.prepare(1, 3)
    status, agent = cluster.attempt("gateway", 1, "POST", "/v1/identity/agent", {
        "agent_name": "renewed", "platform": "mcp", "capabilities": ["db.read"]})
    assert status == 200, (status, agent)
    status, answer = cluster.verify(1, ledger.first_tool, token)
    assert status == 200, (status, answer)
    until("the audit", lambda: audited(cluster, ledger.first_tool) >= 2, 20)

    leader, _ = cluster.until_leader()
    fast = leader if result.number % 2 else 1 + leader % 3
    cluster.nodes[fast].faults.shift_clock(offset_secs)
    # In the term that it leads, or in a term that begins with the wrong clock.
    result.figure("led", elect(cluster, fast) if fast != leader else True)
    healthy = [node for node in cluster.nodes if node != fast]
    result.figure("written after s", cluster.until_registered(healthy, cluster.account("during")))
    result.figure("202 after s", cluster.until_revoked(healthy, during[0]))
    status, keys = cluster.attempt("operator", healthy[0], "GET", "/v1/sys/keys")
    pending = [key["kid"] for key in keys or [] if key["state"] == "pending" and key["algorithm"] == "ES256"]
    if status == 200 and pending:
        # Its node publishes another key, which becomes usable later.
        cluster.attempt("operator", healthy[0], "POST", f"/v1/sys/keys/{pending[0]}/taint", {})
    time.sleep(1)
    cluster.nodes[fast].faults.shift_clock(0)
    result.figure("ready after s", result.within(
        30, "ready nodes", lambda: all(node.is_ready() for node in cluster.nodes.values())))

    for node in cluster.nodes:
        status, answer = cluster.verify(node, ledger.first_tool, token)
        result.check(status == 200, f"node {node} refuses a token that is valid: {answer}")
        status, answer = cluster.attempt("workload", node, "POST", "/v1/identity/agent/renew", {}, bearer=agent["token"])
        result.check(status == 200, f"node {node} does not renew an agent: {status} {answer}")
    status, keys = cluster.attempt("operator", 1, "GET", "/v1/sys/keys")
    for key in keys:
        if key["state"] in ("pending", "active"):
            result.check(secs_ahead(key["usable_from"]) < 900, f"key {key['kid']} is usable from {key['usable_from']} only")
    status, record = cluster.attempt("workload", 1, "POST", "/v1/tools", {
        "tool_id": cluster.account("after"), "name": "after", "protocols": ["mcp"]})
    result.check(secs_ahead(record["registered_at"]) < 10, f"log time is {record['registered_at']}")
    result.check(audited(cluster, ledger.first_tool) >= 2, "the audit of some seconds ago is gone")
    # A subject that is revoked now has tokens again with what is issued afterwards.
    cluster.until_revoked(cluster.nodes, after[0])
    revoked_at = time.monotonic()
    ledger.revoked.append(after)
    for node in cluster.nodes:
        for text in ledger.accepted(node):
            result.violation(text)
    time.sleep(max(0, revoked_at + 9 - time.monotonic()))
    try:
        cluster.token(1, cluster.credential(after[0]), 10)
    except SystemExit as error:
        result.violation(f"a subject that was revoked afterwards has no tokens any more: {error}")
    status, _ = cluster.exchange(1, cluster.credential(during[0]))
    result.figure("revoked meanwhile, has tokens", status == 200)


def audited(cluster, tool_id):
    status, entries = cluster.attempt("workload", 1, "GET", f"/v1/tools/{tool_id}/audit")
    return len(entries) if status == 200 else 0


def hung_disk(cluster, result, variant):
    """The leader's syncs hang or are slow: another member leads within 3 s, and writes and revocations go on."""
    leader, _ = cluster.until_leader()
    node = cluster.nodes[leader]
    healthy = [other for other in cluster.nodes if other != leader]
    ledger = Ledger(cluster, "hung")
    prepared = ledger.prepare(healthy[0], 24)
    name = cluster.account("load")

    def write(number):
        tool_id = f"{name}-{number}"
        done = cluster.register(healthy[number % 2], tool_id, timeout_secs=4)
        if done:
            ledger.tools.append(tool_id)
        return done

    def revoke(_number):
        if not prepared:
            return None
        done = cluster.revoke(healthy[len(prepared) % 2], prepared[-1][0], timeout_secs=6)
        if done:
            ledger.revoked.append(prepared.pop())
        return done

    writes, revocations = Load(write, 0.1), Load(revoke, 0.5)
    time.sleep(1.5)
    offset = node.log_size()
    begun = time.monotonic()
    if variant == "hung":
        node.faults.hang_syncs(True)
    else:
        node.faults.slow_syncs(3)
    try:
        _, took = cluster.until_leader(healthy, other_than=leader, patience_secs=20)
        result.figure("new leader after s", took)
        result.check(took <= NEW_LEADER_MAX_SECS, f"a new leader after {took:.1f} s")
    except SystemExit:
        result.violation("no new leader within 20 s")
    lasts_secs = 60 if variant == "hung" else 12
    is_terminated = variant == "hung" and result.number % 2 == 0
    while time.monotonic() - begun < lasts_secs:
        time.sleep(0.2)
        # Enough was seen once the process has ended and the others have gone on for a while.
        if not node.is_running() and time.monotonic() - begun > 15:
            break
        if is_terminated and time.monotonic() - begun > 6:
            ended = node.terminate(TERMINATED_MAX_SECS)
            result.check(ended is not None, f"SIGTERM does not end the process within {TERMINATED_MAX_SECS} s")
            result.figure("ended after SIGTERM s", ended)
            is_terminated = False
        if not node.is_running() and "ended after s" not in result.figures:
            result.figure("ended after s", time.monotonic() - begun)
    writes.stop()
    revocations.stop()
    for kind, load, most in (
            ("write", writes, WRITE_GAP_MAX_SECS), ("revocation", revocations, REVOCATION_GAP_MAX_SECS)):
        gap = load.gap_after(begun)
        result.figure(f"{kind} gap s", gap)
        result.figure(f"{kind}s failed", load.failed)
        result.check(gap <= most, f"no {kind} was acknowledged for {gap:.1f} s")
    for other in cluster.nodes:
        for text in ledger.accepted(other):
            result.violation(f"while the disk hangs: {text}")
    node.faults.clear()
    if node.is_running() and variant == "hung" and node.terminate(TERMINATED_MAX_SECS) is None:
        result.violation("SIGTERM does not end the process after the hang")
        node.kill()
    if not node.is_running():
        result.figure("said", last_error(node.log_since(offset)))
    result.figure("ready after s", cluster.mend())
    for text in ledger.lost(cluster.nodes):
        result.violation(text)


def last_error(log):
    lines = [line for line in log.splitlines() if "ERROR" in line or "error" in line.lower()[:40]]
    return lines[-1][-200:] if lines else ""


def reused_jti(cluster, result, _variant):
    """A SET with a known jti and other content is refused, whatever else is wrong with it, on every node."""
    event = f"{CAEP}/session-revoked"
    account, other = cluster.account("jti"), cluster.account("jti")
    credential, others = cluster.credential(account), cluster.credential(other)
    node = 1 + result.number % 3
    cluster.token(node, credential)
    cluster.token(node, others)
    jti = cluster.account("set")
    iat = int(time.time())
    status, answer = cluster.send_signal(node, jti, subject(account), event, iat=iat)
    assert status == 202, (status, answer)
    changes = {
        "another subject": {"sub_id": {"format": "uri", "uri": subject(other)}},
        "no sub_id": {"sub_id": None},
        "iat 0": {"iat": 0},
        "another aud": {"aud": "https://elsewhere.example"},
        "another event": {"events": {f"{CAEP}/device-compliance-change": {"current_status": "not-compliant"}}},
        "no events": {"events": None},
        "another txn": {"txn": "another"},
    }
    for receiver in cluster.nodes:
        for name, change in changes.items():
            status, answer = cluster.send_signal(receiver, jti, subject(account), event, **({"iat": iat} | change))
            result.check(status in (400, 409), f"known jti with {name} on node {receiver}: {status} {answer}")
        status, answer = cluster.send_signal(receiver, jti, subject(account), event, iat=iat)
        result.check(status == 202, f"the same SET again on node {receiver}: {status} {answer}")
        result.check(cluster.exchange(receiver, credential)[0] != 200, f"node {receiver} accepts the revoked subject")
        status, answer = cluster.exchange(receiver, others)
        result.check(status == 200, f"node {receiver} refuses the subject of a SET that was refused: {answer}")
    # Two contents at once on two nodes: one is accepted.
    jti = cluster.account("set")
    pair = [cluster.account("jti"), cluster.account("jti")]
    answers = [None, None]

    def send(place):
        answers[place] = cluster.send_signal(1 + (node + place) % 3, jti, subject(pair[place]), event, iat=iat)[0]

    threads = [threading.Thread(target=send, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.check(answers.count(202) <= 1, f"two contents of one jti at once: {answers}")


def set_back(cluster, result, variant):
    """A member gets an older copy of its directory back after writes were acknowledged: it is refused, nothing is lost."""
    leader, _ = cluster.until_leader()
    followers = [node for node in cluster.nodes if node != leader]
    back, third = followers[result.number % 2], followers[1 - result.number % 2]
    member = cluster.nodes[back]
    ledger = Ledger(cluster, "back")
    prepared = ledger.prepare(leader, 1)
    if variant == "third not heard":
        cluster.nodes[third].kill()
    # Of a stopped member, which is then started again; or of a running one, as a snapshot of a disk takes it.
    is_running = variant in ("leader alive", "leader dead") and result.number % 2 == 1
    result.figure("copied while", "running" if is_running else "stopped")
    if is_running:
        member.pause()
        older = member.copy_data("older")
        member.resume()
    else:
        member.terminate()
        member.kill()
        older = member.copy_data("older")
        member.start()
    alive = [node for node in cluster.nodes if cluster.nodes[node].is_running()]
    cluster.until_ready(alive)
    time.sleep(1.5)
    if variant == "third down":
        cluster.nodes[third].kill()
    leader, _ = cluster.until_leader([node for node in alive if cluster.nodes[node].is_running()])
    acknowledging = [node for node in cluster.nodes if cluster.nodes[node].is_running()]
    ledger.write(acknowledging, 20, prepared)
    time.sleep(1.5)

    if variant != "leader alive":
        for node in cluster.nodes:
            if node not in (back, third):
                cluster.nodes[node].kill()
    member.kill()
    member.swap_data(older)
    current = older
    offset = member.log_size()
    cluster.nodes[third].is_running() or cluster.nodes[third].start()
    # A supervisor starts it again whenever it ends.
    ended = observe(cluster, member, ledger, result, variant, starts=3)
    log = member.log_since(offset)
    if variant == "third not heard":
        # No surviving member can know: reported, not a violation. The member that was right must not lose its past silently.
        result.figure("lost", bool(ended["accepted"]) or ended["ready"])
        right = next(node for node in cluster.nodes.values() if node.id not in (back, third))
        offset = right.log_size()
        right.start()
        time.sleep(8)
        result.figure("the member that was right stopped", not right.is_running())
        result.figure("said", last_error(right.log_since(offset)))
        return
    for text in ended["accepted"]:
        result.violation(text)
    result.check(ended["exits"] == 3, f"the set-back member ended {ended['exits']} of 3 times, ready: {ended['ready']}")
    reasons = [line for line in log.splitlines() if SET_BACK.search(line)]
    result.check(len(reasons) >= ended["exits"], f"the set-back member does not state why each time: {last_error(log)}")
    result.figure("said", reasons[-1][:300] if reasons else None)
    result.figure("first exit after s", ended["first"])
    member.kill()
    for node in cluster.nodes:
        if node != back and not cluster.nodes[node].is_running():
            cluster.nodes[node].start()
    cluster.until_ready([node for node in cluster.nodes if node != back])
    for text in ledger.lost([node for node in cluster.nodes if node != back]):
        result.violation(text)
    member.swap_data(current)
    shutil.rmtree(current)
    member.start()
    try:
        cluster.until_ready(patience_secs=60)
    except SystemExit as error:
        result.violation(f"the member does not come back with its own directory: {error}; {last_error(member.log_since(offset))}")
        return
    for text in ledger.lost(cluster.nodes):
        result.violation(text)


def observe(cluster, member, ledger, result, variant, starts):
    """Starts a set-back member several times; counts acceptances of revoked tokens, exits and readiness."""
    seen = {"accepted": [], "exits": 0, "ready": False, "first": None}
    others = [node for node in cluster.nodes if node != member.id and cluster.nodes[node].is_running()]
    for _ in range(starts):
        begun = time.monotonic()
        member.start()
        while time.monotonic() - begun < 20 and member.is_running():
            seen["ready"] |= member.is_ready()
            for node in [member.id, *others]:
                seen["accepted"] += ledger.accepted(node)
            if seen["accepted"] or seen["ready"]:
                break
            time.sleep(0.1)
        if member.is_running():
            break
        seen["exits"] += 1
        seen["first"] = seen["first"] or time.monotonic() - begun
    return seen


def cloned_directory(cluster, result, _variant):
    """A copy of a member's directory runs beside the member: one of the two is refused with a reason, nothing is lost."""
    leader, _ = cluster.until_leader()
    original = [node for node in cluster.nodes if node != leader][result.number % 2]
    member = cluster.nodes[original]
    ledger = Ledger(cluster, "clone")
    prepared = ledger.prepare(leader, 2)
    member.pause()
    data = member.copy_data(f"cloned-{result.number}")
    member.resume()
    offset = member.log_size()
    clone = cluster.clone(original, data)
    cluster.members[clone.name] = clone
    clone.start()
    healthy = [node for node in cluster.nodes if node != original]
    ledger.write(healthy, 20, prepared)
    ports = cluster.clients["workload"].ports
    for client in cluster.clients.values():
        client.ports = ports | {"clone": clone.https}
    begun = time.monotonic()
    while time.monotonic() - begun < 8:
        for node in [*cluster.nodes, "clone"]:
            for text in ledger.accepted(node):
                result.violation(text)
        if not clone.is_running() or not member.is_running():
            break
    log = member.log_since(offset) + clone.log_since(0)
    result.figure("ended", "clone" if not clone.is_running() else "original" if not member.is_running() else "neither")
    result.check(not (clone.is_running() and member.is_running()), "a clone and its original run side by side")
    result.check(SET_BACK.search(log) is not None, f"neither states why: {last_error(log)}")
    clone.kill()
    del cluster.members[clone.name]
    for client in cluster.clients.values():
        client.ports = ports
    for text in ledger.lost(healthy):
        result.violation(text)
    # The original may have been refused in favour of its clone: then it is started until it is known again.
    for _ in range(3):
        if not member.is_running():
            member.start()
        try:
            cluster.until_ready(patience_secs=20)
            break
        except SystemExit:
            pass
    result.figure("original came back", member.is_ready())
    shutil.rmtree(data)


def lone_start(cluster, result, _variant):
    """A member started while the others are down: it says so at once, on its ports and in its log."""
    leader, _ = cluster.until_leader()
    lone = 1 + result.number % 3
    result.figure("was leader", lone == leader)
    credential = cluster.credential(cluster.account("lone"))
    token = cluster.token(lone, credential)
    tool_id = cluster.account("lone")
    cluster.until_registered([lone], tool_id)
    for node in cluster.nodes.values():
        node.kill()
    node = cluster.nodes[lone]
    offset = node.log_size()
    begun = time.monotonic()
    node.start()
    try:
        took = until("an open port", lambda: node.get("/livez") is not None, 15)
    except SystemExit:
        result.violation("no port is open after 15 s")
        node.kill()
        cluster.mend()
        return
    result.figure("port open after s", took)
    reasons = []
    while time.monotonic() - begun < 13:
        for path, expected in (
                ("/livez", 200), ("/readyz", 503), ("/v1/sys/health", 503), ("/v1/identity/jwks", 200)):
            answer = node.get(path)
            status, body = answer or (None, "")
            # The keys are known once the data directory is open.
            is_early = path.endswith("jwks") and status == 503 and time.monotonic() - begun < JWKS_READY_SECS
            result.check(status == expected or is_early, f"{path}: {status} {body[:200]}")
        calls = {
            "exchange": cluster.exchange(lone, credential),
            "verify": cluster.verify(lone, tool_id, token),
            "tools": cluster.attempt("workload", lone, "GET", "/v1/tools"),
            "tools at an index": cluster.attempt("workload", lone, "GET", "/v1/tools", min_index="0"),
            "register": cluster.attempt("workload", lone, "POST", "/v1/tools", {"tool_id": "x", "name": "x"}),
            "revoke": cluster.attempt("operator", lone, "POST", "/v1/revocations", {"subject": subject("x")}),
            "keys": cluster.attempt("operator", lone, "GET", "/v1/sys/keys", min_index="0"),
        }
        for name, (status, answer) in calls.items():
            result.check(status == 503, f"{name} of a lone member: {status} {answer}")
        reasons.append(reason_of(node))
        if len(result.violations) > 8:
            break
        time.sleep(0.5)
    result.check(any(reasons), "neither /readyz nor health on admin.sock states what is missing")
    result.figure("reason", next((reason for reason in reasons if reason), None))
    log = [line for line in node.log_since(offset).splitlines() if re.search(
        r"majority|leader|quorum|not ready|other members|waits for", line, re.I)]
    stamps = sorted({line[:19] for line in log})
    result.check(len(log) >= 1, "the log does not say what the member waits for")
    result.check(len(stamps) >= 2, f"the log does not say again what the member waits for: {stamps}")
    result.figure("log lines", len(log))
    result.figure("healed after s", cluster.mend())


def reason_of(node):
    """Missing conditions by /readyz or by the detailed health on admin.sock."""
    answer = node.get("/readyz")
    try:
        missing = json.loads(answer[1]).get("missing") if answer else None
    except ValueError:
        missing = None
    if missing:
        return missing
    health = node.admin_health()
    return health.get("missing") if health else None


def pause(cluster, result, variant):
    """A member sleeps through a revocation and wakes up with requests in its sockets: none is accepted after the 202."""
    leader, _ = cluster.until_leader()
    node = leader if variant == "leader" else 1 + leader % 3
    others = [other for other in cluster.nodes if other != node]
    ledger = Ledger(cluster, "pause")
    prepared = ledger.prepare(node, 1)
    account, credential, token = prepared[0]
    cluster.nodes[node].pause()
    answers = []

    def send(is_late):
        verified = cluster.verify(node, ledger.first_tool, token, timeout_secs=20)[0]
        exchanged = cluster.exchange(node, credential, timeout_secs=20)[0] if is_late else None
        answers.append((is_late, verified, exchanged))

    def send_several(is_late):
        started = [threading.Thread(target=send, args=(is_late,), daemon=True) for _ in range(6)]
        for thread in started:
            thread.start()
        return started

    threads = send_several(False)
    _, took = cluster.until_leader(others, other_than=node if variant == "leader" else None, patience_secs=30)
    result.figure("leader after s", took)
    result.figure("202 after s", cluster.until_revoked(others, account))
    ledger.revoked += prepared
    threads += send_several(True)
    time.sleep(0.3)
    cluster.nodes[node].resume()
    for _ in range(2):
        for other in cluster.nodes:
            for text in ledger.accepted(other):
                result.violation(text)
    for thread in threads:
        thread.join(timeout=30)
    for is_late, verified, exchanged in answers:
        if is_late and 200 in (verified, exchanged):
            result.violation(f"a request that was sent to the sleeping member after the 202: {verified}, {exchanged}")
    result.figure("requests", len(answers))
    cluster.until_ready()
    for text in ledger.lost(cluster.nodes):
        result.violation(text)


DAY = 86_400
# Name, scenario and variants; whether the cluster is replaced after each round.
SCENARIOS = {
    "blocked-operator": (blocked_operator, {"": None}, False),
    "slow-clock": (slow_clock, {"-10 s": -10, "-60 s": -60, "-3600 s": -3600}, False),
    "fast-clock": (fast_clock, {"+1 h": 3600, "+100 d": 100 * DAY}, False),
    "hung-disk": (hung_disk, {"hung 60 s": "hung", "slow by 3 s": "slow"}, False),
    "reused-jti": (reused_jti, {"": None}, False),
    "set-back": (set_back, {name: name for name in ("leader alive", "leader dead", "third down")}, False),
    "set-back-unheard": (set_back, {"": "third not heard"}, True),
    "cloned-directory": (cloned_directory, {"": None}, False),
    "lone-start": (lone_start, {"": None}, False),
    "pause": (pause, {"leader": "leader", "follower": "follower"}, False),
    "two-fabrics": (None, {"": None}, False),
}


# --- running them ------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.library = compile_preload(scratch)
        self.cluster, self.clusters = None, 0

    def ready_cluster(self):
        if self.cluster is None:
            self.clusters += 1
            directory = self.scratch / f"cluster-{self.clusters}"
            self.cluster = Cluster(directory, self.options.program, self.library, heartbeat_ms=self.options.heartbeat)
            self.cluster.start()
            check_faults(self.cluster)
        return self.cluster

    def drop_cluster(self, result=None):
        if self.cluster is None:
            return
        self.cluster.close()
        if result:
            kept = self.options.results / f"{result.scenario}-{os.getpid()}-{result.number}"
            kept.mkdir(parents=True, exist_ok=True)
            for log in self.cluster.directory.glob("*.log"):
                shutil.copy(log, kept)
            say(f"    logs: {kept}")
        shutil.rmtree(self.cluster.directory, ignore_errors=True)
        self.cluster = None

    def scenario(self, name):
        scenario, variants, is_replaced = SCENARIOS[name]
        results = []
        if is_replaced:
            self.drop_cluster()
        for number in range(self.options.rounds):
            for variant, argument in variants.items():
                result = self.one(name, scenario, variant, argument, number)
                results.append(result)
                if result.violations or result.error:
                    self.drop_cluster(result)
                elif is_replaced:
                    self.drop_cluster()
        rounds, broken = len(results), sum(bool(result.violations) for result in results)
        unjudged = sum(result.error is not None for result in results)
        say(f"{name}: {rounds} rounds, {broken} with violations, {unjudged} not judged; {summary(results)}")
        return broken + unjudged

    def one(self, name, scenario, variant, argument, number):
        result = Round(name, variant, number)
        begun = time.monotonic()
        signal.alarm(ROUND_MAX_SECS)
        try:
            if scenario is None:
                two_fabrics(self.scratch, self.options.program, self.library, result)
            else:
                scenario(self.ready_cluster(), result, argument)
        except (Exception, SystemExit, Overdue) as error:  # Whatever it was, the next round is tried with another cluster.
            result.error = f"{type(error).__name__}: {str(error)[-300:]}"
            if self.options.verbose:
                traceback.print_exc()
        finally:
            signal.alarm(0)
        result.violations = list(dict.fromkeys(result.violations))
        verdict = f"VIOLATION: {result.violations[0]}" if result.violations else "holds"
        if len(result.violations) > 1:
            verdict += f" (and {len(result.violations) - 1} more)"
        if result.error:
            verdict = f"{verdict if result.violations else ''} not judged: {result.error}"
        took = time.monotonic() - begun
        say(f"{name} {variant or '-'} {number + 1}: {verdict}; {took:.0f} s; {result.figures}")
        self.options.results.mkdir(parents=True, exist_ok=True)
        with (self.options.results / f"{name}.jsonl").open("a") as file:
            record = {
                "label": self.options.label, "scenario": name, "variant": variant, "round": number,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "secs": round(took, 1),
                "violations": result.violations, "error": result.error, "figures": result.figures,
            }
            file.write(json.dumps(record) + "\n")
        return result


def check_faults(cluster):
    """The faults reach the program: else every round would hold."""
    payload = cluster.credential("probe", -DAY).split(".")[1]
    iat = json.loads(base64.urlsafe_b64decode(payload + "=="))["iat"]
    assert abs(iat + DAY - time.time()) < 5, "the preloaded clock does not reach the program"
    for node in cluster.nodes.values():
        maps = Path(f"/proc/{node.process.pid}/maps").read_text()
        assert str(cluster.library) in maps, f"{node.name} runs without the preloaded library"


def summary(results):
    """Medians and maxima of the figures that are numbers, counts of the others."""
    figures = {}
    for result in results:
        for name, value in (result.figures if isinstance(result, Round) else result["figures"]).items():
            figures.setdefault(name, []).append(value)
    texts = []
    for name, values in figures.items():
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if numbers:
            texts.append(f"{name}: p50 {statistics.median(numbers):.2f}, max {max(numbers):.2f}")
        elif any(isinstance(value, bool) for value in values):
            texts.append(f"{name}: {sum(value is True for value in values)} of {len(values)}")
    return "; ".join(texts)


def report(directory):
    """A table of all results in the directory."""
    rows = {}
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            rows.setdefault((record["scenario"], record["variant"], record["label"]), []).append(record)
    say("| scenario | build | rounds | with violations | not judged | figures |\n|---|---|---|---|---|---|")
    for (scenario, variant, label), records in rows.items():
        broken = sum(bool(record["violations"]) for record in records)
        unjudged = sum(record["error"] is not None for record in records)
        say(f"| {scenario} {variant} | {label} | {len(records)} | {broken} | {unjudged} | {summary(records)} |")
    return 0


def stop_on_signal(number, _frame):
    if number == signal.SIGALRM:
        raise Overdue(f"a round took longer than {ROUND_MAX_SECS} s")
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def main():
    target = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each variant [2]")
    parser.add_argument("--program", type=Path, default=target / "release/trust-fabric")
    parser.add_argument("--heartbeat", type=int, default=50, help="milliseconds between two heartbeats [50]")
    parser.add_argument("--label", default="", help="name of the build in the results")
    parser.add_argument("--results", type=Path, default=CACHE / "faults", help="directory of results")
    parser.add_argument("--report", action="store_true", help="print the results as a table")
    parser.add_argument("--verbose", action="store_true", help="print where a round could not be judged")
    options = parser.parse_args()
    if options.report:
        return report(options.results)
    for name in options.scenarios:
        if name not in SCENARIOS:
            parser.error(f"no such scenario: {name}")
    options.program = options.program.resolve()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, stop_on_signal)
    scratch = Path(tempfile.mkdtemp(prefix="trust-fabric-faults-"))
    run = Run(options, scratch)
    try:
        broken = [name for name in options.scenarios or SCENARIOS if run.scenario(name)]
    except Stopped as stopped:
        return 128 + stopped.args[0]
    finally:
        run.drop_cluster()
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"broken: {', '.join(broken)}" if broken else "all of it held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
