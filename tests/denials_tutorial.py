#!/usr/bin/env python3
"""Runs the commands of docs/guide/denials.md against a development broker, and compares their output with that of the page.

    tests/denials_tutorial.py

Prints the session if it differs. Needs only Python, bash and curl, and the ports of `make run`; removes the broker's data.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nodes import ROOT, until
from session import check

PAGE = ROOT / "docs/guide/denials.md"
READY = "Ctrl-C stops it and keeps its data."


def main():
    home = Path(tempfile.mkdtemp())
    log = home / "log"
    program = Path(os.environ["CARGO_TARGET_DIR"]).resolve() / "release/trust-fabric"
    with log.open("w") as to:
        broker = subprocess.Popen([program, "dev", "--data-dir", home / "data"], cwd=ROOT, stdout=to, stderr=to, stdin=subprocess.DEVNULL)
    try:
        until("the broker", lambda: READY in log.read_text() or broker.poll() is not None)
        if broker.poll() is not None:
            sys.exit(f"the broker has ended:\n{log.read_text()[-4000:]}")
        check(PAGE.read_text(), home)
    finally:
        broker.terminate()
        broker.wait(timeout=60)
        shutil.rmtree(home)


main()
