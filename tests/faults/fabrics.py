"""Two fabrics of one node each, which are receiver and transmitter of each other and push over mutual TLS.

The second has authority over both trust domains at the first; the first has authority only over its own trust domain at
the second. One transmitter has authority over a third trust domain at both.
"""

import re
import shutil
import time

from cluster import CALLERS, Cluster, Fabric
from nodes import ROOT

SHARED = "shared.example"
REVOKED = "https://schemas.openid.net/secevent/caep/event-type/session-revoked"
BLOCKED = "https://schemas.openid.net/secevent/caep/event-type/device-compliance-change"
SIGNALS = re.compile(r'^svc_signals_total\{result="(\w+)"\} (\d+)', re.M)


def workload(trust_domain, name):
    return f"wimse://{trust_domain}/ns/demo/sa/{name}"


def policies(directory, trust_domain, issuer):
    """The shipped policy with other names."""
    shutil.copytree(ROOT / "policies", directory)
    for path in directory.iterdir():
        # Its tests are of the shipped names.
        if path.name.endswith("_test.rego"):
            path.unlink()
            continue
        text = path.read_text().replace("dev.trust-fabric.local", trust_domain)
        path.write_text(text.replace("https://localhost:8694", issuer))
    return directory


class Side:
    """One of the two fabrics."""

    def __init__(self, name, directory, program, library):
        self.name, self.trust_domain = name, f"{name}.example"
        callers = CALLERS | {"receiver": ["streams.manage", "streams.read"], "pusher": ["signals.send"]}
        fabric = Fabric(trust_domain=self.trust_domain, callers=callers)
        self.cluster = Cluster(directory / name, program, library, size=1, fabric=fabric)
        self.node = self.cluster.nodes[1]
        fabric.issuer = self.issuer = f"https://localhost:{self.node.https}"
        fabric.policies = policies(directory / f"{name}-policies", self.trust_domain, self.issuer)

    def configure(self, other, trust_domains):
        """`other` may push to this fabric, and revoke the subjects of these trust domains."""
        pki = self.cluster.pki
        # The transmitter of the cluster has authority over all three.
        self.cluster.fabric.settings = f"""[[signals]]
issuer = "{other.issuer}"
keys_url = "http://127.0.0.1:{other.node.http}/v1/identity/jwks"
trust_domains = {list(trust_domains)!r}
[transmitter]
base_url = "{self.issuer}"
certificate = "{pki}/pusher.pem"
private_key = "{pki}/pusher-key.pem"
[outbound]
allow_loopback_http = true
allowed_networks = ["127.0.0.0/8"]
[[tls.trust_domains]]
name = "{other.trust_domain}"
ca = "{other.cluster.pki}/ca.pem"
[[callers]]
id = "spiffe://{other.trust_domain}/pusher"
capabilities = ["signals.send"]
"""
        # Roots of the machine, as far as this process is concerned.
        self.cluster.fabric.environment = {"SSL_CERT_FILE": str(other.cluster.pki / "ca.pem")}
        self.cluster.write_config(self.node)
        text = self.node.config.read_text()
        everywhere = f'trust_domains = ["{self.trust_domain}", "{other.trust_domain}", "{SHARED}"]\n'
        head, tail = text.split('issuer = "https://events.example"\n')
        tail = re.sub(r"trust_domains = .*\n", lambda _: everywhere, tail, count=1)
        self.node.config.write_text(f'{head}issuer = "https://events.example"\n{tail}')

    def subscribe(self, other):
        """Creates a stream from this fabric to `other`."""
        status, answer = self.cluster.attempt("receiver", 1, "POST", "/v1/signals/stream", {
            "iss": self.issuer, "aud": other.issuer, "events_requested": [REVOKED, BLOCKED],
            "delivery": {"method": "urn:ietf:rfc:8935", "endpoint_url": f"{other.issuer}/v1/signals/events"}})
        assert status == 201, (status, answer)
        self.stream = answer["stream_id"]

    def status(self):
        status, answer = self.cluster.attempt("receiver", 1, "GET", f"/v1/signals/status?stream_id={self.stream}")
        assert status == 200, (status, answer)
        return answer

    def received(self):
        """Counts of received signals by result."""
        connection = self.node.get("/metrics")
        return {result: int(count) for result, count in SIGNALS.findall(connection[1])} if connection else {}

    def revoked(self):
        """Values and issuers of all revocations."""
        status, rows = self.cluster.attempt("operator", 1, "GET", "/v1/revocations?limit=1000")
        assert status == 200, (status, rows)
        return {row.get("value"): row.get("by") for row in rows}


def two_fabrics(scratch, program, library, result):
    """Nothing pauses, nothing echoes, and each fabric applies the revocations for which the other has authority."""
    directory = scratch / f"fabrics-{result.number}"
    directory.mkdir()
    west, east = (Side(name, directory, program, library) for name in ("west", "east"))
    try:
        west.configure(east, [west.trust_domain, east.trust_domain, SHARED])
        east.configure(west, [west.trust_domain])
        for side in (west, east):
            side.cluster.start()
        west.subscribe(east)
        east.subscribe(west)
        exchange_signals(west, east, result)
    finally:
        for side in (west, east):
            side.cluster.close()
        if not result.violations:
            shutil.rmtree(directory, ignore_errors=True)


def exchange_signals(west, east, result):
    accepted = {west.name: set(), east.name: set()}
    sent = 0
    for number in range(12):
        for side, other in ((west, east), (east, west)):
            for trust_domain in (side.trust_domain, other.trust_domain, SHARED):
                # One that is denied at the other side stands between two that are not.
                subject = workload(trust_domain, f"{side.name}-{number}")
                status, answer = side.cluster.send_signal(1, side.cluster.account("set"), subject, REVOKED)
                assert status == 202, (status, answer)
                sent += 1
                if other is west or trust_domain == west.trust_domain:
                    accepted[other.name].add(subject)
    for side in (west, east):
        result.within(30, f"the revocations at {side.name}", lambda side=side: accepted[side.name] <= set(side.revoked()))
    # An echo would go on for ever.
    counts = [west.received(), east.received()]
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < 4:
        time.sleep(0.5)
        latest = [west.received(), east.received()]
        if latest != counts:
            counts, quiet_since = latest, time.monotonic()
        if sum(sum(count.values()) for count in counts) > 20 * sent:
            result.violation(f"signals echo: {counts}")
            break
    result.figure("sent", sent)
    for side, other, count in ((west, east, counts[0]), (east, west, counts[1])):
        result.figure(f"received by {side.name}", sum(count.values()))
        for name, value in count.items():
            result.figure(f"{name} by {side.name}", value)
        # Those of its own transmitter, and once each accepted one of the other fabric.
        expected = sent // 2 + len(accepted[side.name])
        result.check(count.get("accepted") == expected, f"{side.name} accepted {count}, not {expected}")
        status = side.status()
        result.check(status["status"] == "enabled", f"the stream of {side.name} is {status}")
        missing = accepted[side.name] - set(side.revoked())
        result.check(not missing, f"{side.name} lacks {len(missing)} revocations of {other.name}")
        rows = side.revoked()
        foreign = [value for value, by in rows.items() if by == other.issuer and value not in accepted[side.name]]
        result.check(not foreign, f"{side.name} revoked beyond the authority of {other.name}: {foreign[:3]}")
        dead = side.cluster.attempt("receiver", 1, "GET", f"/v1/signals/dead-letters?stream_id={side.stream}")
        result.figure(f"dead letters of {side.name}", len(dead[1]) if dead[0] == 200 else None)
