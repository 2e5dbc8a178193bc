"""The link between the regions of tests/two_regions.py: `trust-fabric-bench link` as a process."""

import os
import signal
import subprocess
from pathlib import Path

from cluster import die_with_parent, free_port
from nodes import until


class Link:
    """A proxy for each target port. A cut ends its connections, silence leaves them open, and a loss has one direction."""

    def __init__(self, targets, rtt_ms, log):
        program = Path(os.environ["CARGO_TARGET_DIR"]).resolve() / "release/trust-fabric-bench"
        self.ports = {target: free_port() for target in targets}
        forwards = [word for target, port in self.ports.items()
                    for word in ("--forward", f"127.0.0.1:{port}=127.0.0.1:{target}")]
        self.command, self.log = [program, "link", "--rtt-ms", str(rtt_ms), *forwards], log
        self.open()

    def open(self, *options):
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*self.command, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        # One line for each port.
        until("the link", lambda: self.log.read_text()[before:].count("leads to") == len(self.ports), 10)

    def cut(self):
        """Also ends a silent link."""
        self.process.kill()
        self.process.wait()

    def silence(self):
        self.process.send_signal(signal.SIGSTOP)

    def lose(self, direction):
        """Loses `requests` or `responses` of every connection."""
        self.cut()
        self.open("--lose", direction)

    def heal(self):
        """Of a silent link, connections go on; any other is opened anew."""
        self.process.send_signal(signal.SIGCONT)
        if self.process.poll() is not None or "--lose" in self.process.args:
            self.cut()
            self.open()
