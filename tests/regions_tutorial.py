#!/usr/bin/env python3
"""Runs the commands of the tutorial in docs/guide/federation.md against the regions of scripts/regions.sh, and compares
their output with that of the page. Numbers, identifiers and times may differ; status codes on a line of their own may not.

    tests/regions_tutorial.py

Prints the session if it differs. Needs only Python, bash and curl; stops the regions and removes their data.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nodes import ROOT, until
from session import check

PAGE = ROOT / "docs/guide/federation.md"
SECTION = "## Two regions on this machine\n"
READY = "Ctrl-C ends all of it."


def main():
    home = Path(tempfile.mkdtemp())
    log = home / "log"
    environment = os.environ | {"HOME": str(home)}
    environment.pop("XDG_DATA_HOME", None)
    with log.open("w") as to:
        regions = subprocess.Popen([ROOT / "scripts/regions.sh"], stdout=to, stderr=to, stdin=subprocess.DEVNULL, env=environment)
    try:
        until("both regions", lambda: READY in log.read_text() or regions.poll() is not None)
        if regions.poll() is not None:
            sys.exit(f"the regions have ended:\n{log.read_text()[-4000:]}")
        check(PAGE.read_text().split(SECTION, 1)[1].split("\n## ", 1)[0], home)
    finally:
        regions.terminate()
        regions.wait(timeout=60)
        shutil.rmtree(home)


main()
