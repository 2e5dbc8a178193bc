"""A project of docker-compose under test, and what its Prometheus has scraped. Needs a Docker engine and existing images."""

import json
import os
import subprocess
import urllib.parse
import urllib.request

from nodes import ROOT, run

PROMETHEUS = "http://127.0.0.1:9090"


class Project:
    """The containers of a compose file, apart from those of `make compose`."""

    def __init__(self, name, file):
        has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
        self.command = ["docker", "compose"] if has_plugin else ["docker-compose"]
        self.command += ["--project-name", name, "--file", file]

    def run(self, *words, **variables):
        return run(*self.command, *words, env=os.environ | variables)

    def id(self, service):
        return self.run("ps", "--all", "--quiet", service)

    def inspect(self, service, what):
        return json.loads(run("docker", "inspect", "--format", "{{json %s}}" % what, self.id(service)))

    def check_confined(self, service):
        """No root, no capabilities, no way to get them, and a file system that it cannot write."""
        seen = [self.inspect(service, what) for what in (
            ".Config.User", ".HostConfig.ReadonlyRootfs", ".HostConfig.CapDrop", ".HostConfig.Privileged",
            ".HostConfig.SecurityOpt")]
        assert seen == ["65532:65532", True, ["ALL"], False, ["no-new-privileges:true"]], (service, seen)

    def remove(self):
        """Stops and removes the containers and their data; the ends of their logs."""
        logs = subprocess.run(
            [*self.command, "logs", "--no-color", "--tail", "1000"], cwd=ROOT, text=True, capture_output=True)
        self.run("down", "--volumes")
        return logs.stdout


def prometheus(path, **parameters):
    """Data of an answer of Prometheus."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{PROMETHEUS}/api/v1/{path}?{query}", timeout=5) as answer:
        return json.load(answer)["data"]
