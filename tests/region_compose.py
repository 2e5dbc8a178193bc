"""The regions of tests/two_regions.py as the containers of docker-compose.regions.yml, and the link between them."""

from containers import Project, prometheus
from nodes import Client, run, say, until
from region import CALLERS, Region

BUNDLES = {"eu.json", "us.json"}


class ComposeRegion(Region):
    """Three containers."""

    def __init__(self, name, project, first_port):
        super().__init__(name)
        self.project, self.nodes, self.killed = project, [1, 2, 3], set()
        self.ports = {node: first_port + 10 * (node - 1) for node in self.nodes}

    def service(self, node):
        return f"{self.name}-{node}"

    def until_ready(self):
        def are_ready():
            for node in self.nodes:
                status, answer = self.clients["operator"].call(node, "GET", "/readyz", timeout_secs=2)
                assert status == 200, (self.name, node, status, answer)
            return True

        until(f"ready nodes of {self.name}", are_ready)

    def connect(self, pki):
        self.clients = {caller: Client(pki, caller, self.ports) for caller in CALLERS}
        self.until_ready()

    def running(self):
        return [node for node in self.nodes if node not in self.killed]

    def kill(self, node):
        run("docker", "kill", "--signal", "KILL", self.project.id(self.service(node)))
        self.killed.add(node)

    def mend(self):
        for node in self.killed:
            run("docker", "start", self.project.id(self.service(node)))
        self.killed.clear()
        self.until_ready()


class ComposeLink:
    """The service `link`, by the commands that docker-compose.regions.yml documents."""

    def __init__(self, project):
        self.project, self.mend = project, lambda: None

    def cut(self):
        self.project.run("stop", "link")
        self.mend = lambda: self.project.run("start", "link")

    def silence(self):
        self.project.run("pause", "link")
        self.mend = lambda: self.project.run("unpause", "link")

    def lose(self, direction):
        self.restart(LINK_LOSE=direction)
        self.mend = self.restart

    def restart(self, **variables):
        self.project.run("up", "--detach", "--no-deps", "link", **{"LINK_RTT_MS": self.rtt_ms} | variables)

    def heal(self):
        self.mend()
        self.mend = lambda: None


class Compose:
    """eu, whose ledger us reads over a link."""

    def __init__(self, scratch, rtt_ms):
        self.scratch = scratch
        self.project = Project("trust-fabric-regions-check", "docker-compose.regions.yml")
        self.eu, self.us = ComposeRegion("eu", self.project, 8694), ComposeRegion("us", self.project, 9694)
        self.link = ComposeLink(self.project)
        self.link.rtt_ms = str(rtt_ms)

    def start(self):
        self.project.run("up", "--detach", LINK_RTT_MS=self.link.rtt_ms)
        for region in (self.eu, self.us):
            pki = self.scratch / f"{region.name}-pki"
            run("docker", "cp", f"{self.project.id(region.service(1))}:/pki", pki)
            region.connect(pki)

    def check_the_rest(self):
        """Confinement, the separation of the regions, and that Prometheus sees all nodes."""
        for region in (self.eu, self.us):
            for service in map(region.service, region.nodes):
                self.project.check_confined(service)
                networks = self.project.inspect(service, ".NetworkSettings.Networks")
                assert [name.rsplit("_", 1)[1] for name in networks] == [region.name], (service, networks)
                volumes = {mount["Name"].rsplit("_", 1)[1] for mount in self.project.inspect(service, ".Mounts") if "Name" in mount}
                assert volumes == {"bundles", f"{region.name}-pki", service}, (service, volumes)
        self.project.check_confined("link")
        self.check_bundles()
        nodes = {f"{region.service(node)}:8694" for region in (self.eu, self.us) for node in region.nodes}
        until("Prometheus", lambda: self.scraped("up == 1") == nodes)
        until("the state of eu in Prometheus", lambda: len(self.scraped('svc_federation_state{peer="eu",state="live"} == 1')) == 3)
        rules = prometheus("rules")["groups"]
        assert "trust-fabric-federation" in [group["name"] for group in rules], rules
        say("Prometheus scrapes the six nodes; they and the link are unprivileged, and no network or key has both regions")

    def check_bundles(self):
        """The bundles of both regions, of which each gets the other's, have no private key."""
        copy = self.scratch / "bundles"
        run("docker", "cp", f"{self.project.id('us-1')}:/bundles", copy)
        files = {file.name: file.read_text() for file in copy.iterdir()}
        assert set(files) == BUNDLES, set(files)
        for name, text in files.items():
            assert '"x5c"' in text and '"d"' not in text and "PRIVATE" not in text, name

    @staticmethod
    def scraped(query):
        return {one["metric"]["instance"] for one in prometheus("query", query=query)["result"]}

    def stop(self):
        """Stops and removes the containers and their data; the ends of their logs."""
        self.link.heal()
        return self.project.remove()
