"""The pods of the chart as containers: the image with exactly the security context, mounts, modes and environment of the
rendered StatefulSet. Used by three_nodes.py; needs root, for the owners that kubelet gives to files, and the Python of the tests
for the chart."""

import json
import os
import ssl
import subprocess
import urllib.request
from pathlib import Path

from nodes import ROOT, TRUST_DOMAIN, run, say

NETWORK = "trust-fabric-pods"
RELEASE, NAMESPACE = "fabric", "fabric"
VALUES = ROOT / "charts/trust-fabric/ci/development-values.yaml"


def kubelet_files(directory, files, mode, group):
    """A ConfigMap or Secret as kubelet writes it: links to files in a directory that is replaced as a whole."""
    version = directory / "..2026_11_25"
    version.mkdir(parents=True)
    for name, content in files.items():
        file = version / name
        file.write_bytes(content)
        # fsGroup: the group may read.
        file.chmod(mode | 0o040)
        os.chown(file, 0, group)
        (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data").symlink_to(version.name)
    for folder in (directory, version):
        os.chown(folder, 0, group)
        folder.chmod(0o2755)


class Pods:
    """Three pods of the release of `development-values.yaml`."""

    def __init__(self, scratch, ports):
        self.scratch = scratch
        self.ports = ports
        self.pki = scratch / "pki"
        self.program = Path(os.environ["CARGO_TARGET_DIR"]) / "release/trust-fabric"

    def render(self):
        order = {
            "chart": str(ROOT / "charts/trust-fabric"),
            "versions": [],
            "releases": [{"values": VALUES.read_text(), "release": RELEASE, "namespace": NAMESPACE}],
        }
        report = run(os.environ["TRUST_FABRIC_PYTHON"], ROOT / "tests/oracles/render_chart.py", input=json.dumps(order))
        self.objects = json.loads(report)[0]["objects"]
        self.pod = next(one for one in self.objects if one["kind"] == "StatefulSet")["spec"]["template"]["spec"]
        [self.container] = self.pod["containers"]

    def start(self):
        self.render()
        peers = [word for node in self.ports for word in ("--peer", str(node))]
        callers = [word for caller in ("operator", "workload", "gateway") for word in ("--caller", caller)]
        run(self.program, "pki", "--dir", self.pki, "--trust-domain", TRUST_DOMAIN, "--host", f"{RELEASE}.{NAMESPACE}.svc",
            "--host", "localhost", *peers, *callers, "--issuer")
        run("docker", "network", "create", NETWORK)
        for node in self.ports:
            self.mount(node)
            self.create(node)

    def directory(self, node, volume):
        return self.scratch / f"{RELEASE}-{node}" / volume

    def mount(self, node):
        """The volumes of the pod, with the owners and modes that kubelet gives them."""
        group = self.pod["securityContext"]["fsGroup"]
        data = self.directory(node, "data")
        data.mkdir(parents=True)
        os.chown(data, 0, group)
        data.chmod(0o2775)
        for volume in self.pod["volumes"]:
            if "secret" in volume:
                files = {file.name: file.read_bytes() for file in self.pki.iterdir() if file.is_file()}
                kubelet_files(self.directory(node, volume["name"]), files, volume["secret"]["defaultMode"], group)
            else:
                name = volume["configMap"]["name"]
                found = next(one for one in self.objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name)
                files = {key: text.encode() for key, text in found["data"].items()}
                kubelet_files(self.directory(node, volume["name"]), files, 0o644, group)

    def environment(self, node):
        variables = {}
        for row in self.container["env"]:
            value = row.get("value", str(node))
            for name, known in variables.items():
                value = value.replace(f"$({name})", known)
            variables[row["name"]] = value
        return variables

    def create(self, node):
        """A pod of its own address and the lasting name, as after each replacement."""
        of_pod, own = self.pod["securityContext"], self.container["securityContext"]
        assert of_pod["runAsNonRoot"] and not own["allowPrivilegeEscalation"] and own["readOnlyRootFilesystem"]
        words = ["--user", f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}", "--group-add", str(of_pod["fsGroup"])]
        words += ["--read-only", "--security-opt", "no-new-privileges:true", "--hostname", f"{RELEASE}-{node}"]
        words += [word for drop in own["capabilities"]["drop"] for word in ("--cap-drop", drop)]
        words += [word for pair in self.environment(node).items() for word in ("--env", "=".join(pair))]
        for mount in self.container["volumeMounts"]:
            mode = ":ro" if mount.get("readOnly") else ""
            words += ["--volume", f"{self.directory(node, mount['name'])}:{mount['mountPath']}{mode}"]
        words += ["--network", NETWORK, "--network-alias", f"{RELEASE}-{node}.{RELEASE}-peers"]
        words += ["--publish", f"127.0.0.1:{self.ports[node]}:8694", "--name", f"{RELEASE}-{node}"]
        run("docker", "run", "--detach", *words, self.container["image"], *self.container["args"])

    def is_healthy(self, node):
        """The readiness probe, as kubelet sends it: to the address of the pod, without a certificate, verifying none."""
        probe = self.container["readinessProbe"]["httpGet"]
        address = run("docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
                      f"{RELEASE}-{node}")
        [port] = [port["containerPort"] for port in self.container["ports"] if port["name"] == probe["port"]]
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        url = f"{probe['scheme'].lower()}://{address}:{port}{probe['path']}"
        with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 5), context=anyone) as answer:
            return answer.status == 200

    def credential(self, _node, account="demo/reporter"):
        audience = f"https://{RELEASE}.{NAMESPACE}.svc:8694"
        return run(self.program, "credential", "--dir", self.pki, "--service-account", account, "--audience", audience)

    def kill(self, node):
        run("docker", "kill", "--signal", "KILL", f"{RELEASE}-{node}")

    def start_again(self, node):
        run("docker", "rm", f"{RELEASE}-{node}")
        self.create(node)

    def check_the_rest(self, nodes):
        """The root of a volume stays kubelet's, and the data below it is the node's own."""
        for node in nodes:
            volume = self.directory(node, "data")
            found = [(path.stat().st_uid, oct(path.stat().st_mode & 0o7777)) for path in (volume, volume / "data")]
            assert found == [(0, "0o2775"), (65532, "0o700")] or found == [(0, "0o2775"), (65532, "0o2700")], found
        say("the data is of 65532 alone, below a volume of root:65532")

    def stop(self):
        logs = ""
        for node in self.ports:
            shown = subprocess.run(["docker", "logs", "--tail", "300", f"{RELEASE}-{node}"], text=True, capture_output=True)
            logs += shown.stdout + shown.stderr
            subprocess.run(["docker", "rm", "--force", f"{RELEASE}-{node}"], capture_output=True)
        subprocess.run(["docker", "network", "rm", NETWORK], capture_output=True)
        return logs
