#!/usr/bin/env python3
"""Runs the commands of the tutorial in docs/guide/federation.md against the regions of scripts/regions.sh, and compares
their output with that of the page. Numbers, identifiers and times may differ; status codes on a line of their own may not.

    tests/regions_tutorial.py

Prints the session if it differs. Needs only Python, bash and curl; stops the regions and removes their data.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nodes import ROOT, say, until

PAGE = ROOT / "docs/guide/federation.md"
SECTION = "## Two regions on this machine\n"
READY = "Ctrl-C ends all of it."
# Before the output of each command, and after the last.
MARK = "\x01"
COMMANDS_MAX_SECS = 90


def is_complete(command):
    return not command.endswith("\\") and subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True).returncode == 0


def session(page):
    """The commands of the blocks `console` of the section, each with the output that the page states."""
    section = page.split(SECTION, 1)[1].split("\n## ", 1)[0]
    found, open_command = [], None
    for line in "".join(re.findall(r"^```console\n(.*?)^```$", section, re.M | re.S)).splitlines():
        if open_command is not None:
            open_command += "\n" + line
        elif line.startswith("$ "):
            open_command = line.removeprefix("$ ")
        else:
            found[-1][1].append(line)
        if open_command is not None and is_complete(open_command):
            found.append((open_command, []))
            open_command = None
    assert open_command is None, open_command
    return found


def masked(lines):
    """The lines without what differs between two runs."""
    lines = [" ".join(line.split()) for line in lines]
    return [line if re.fullmatch(r"[\d ]+", line) else re.sub(r"[\w-]{20,}|\d+", "#", line) for line in lines if line]


def run_commands(commands, home):
    """The lines that each command printed, in one shell."""
    script = "".join(f"printf '{MARK}'\n{command}\n" for command in commands) + f"printf '{MARK}'\n"
    path = f"{Path(os.environ['CARGO_TARGET_DIR']).resolve()}/release:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | {"HOME": str(home), "PATH": path}, timeout=COMMANDS_MAX_SECS)
    outputs = done.stdout.split(MARK)[1:-1]
    assert len(outputs) == len(commands), done.stdout
    return [output.splitlines() for output in outputs]


def check(home):
    stated = session(PAGE.read_text())
    assert stated, f"{PAGE} has no commands under {SECTION!r}"
    printed = run_commands([command for command, _ in stated], home)
    differ = [command for (command, lines), seen in zip(stated, printed) if masked(lines) != masked(seen)]
    if differ:
        say("".join(f"$ {command}\n" + "".join(f"{line}\n" for line in seen) for (command, _), seen in zip(stated, printed)))
        sys.exit("the output differs from the page:\n" + "\n".join(differ))
    say(f"the {len(stated)} commands of the tutorial print what the page states")


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
        check(home)
    finally:
        regions.terminate()
        regions.wait(timeout=60)
        shutil.rmtree(home)


main()
