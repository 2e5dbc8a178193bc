"""Sessions of a guide: its `console` blocks, whose commands are run in one shell and whose output is compared."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

from nodes import say

# Before the output of each command, and after the last.
MARK = "\x01"
COMMANDS_MAX_SECS = 90


def is_complete(command):
    return not command.endswith("\\") and subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True).returncode == 0


def session(section):
    """The commands of the blocks `console` of a section, each with the output that the page states."""
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
    """The lines without what differs between two runs: numbers, identifiers and times, but not a line of numbers alone."""
    lines = [" ".join(line.split()) for line in lines]
    return [line if re.fullmatch(r"[\d ]+", line) else re.sub(r"[\w-]{20,}|\d+", "#", line) for line in lines if line]


def run_commands(commands, home):
    """The lines that each command printed, in one shell."""
    script = "".join(f"printf '{MARK}'\n{command}\n" for command in commands) + f"printf '{MARK}'\n"
    path = f"{Path(os.environ['CARGO_TARGET_DIR']).resolve()}/release:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | {"HOME": str(home), "PATH": path}, cwd=home, timeout=COMMANDS_MAX_SECS)
    outputs = done.stdout.split(MARK)[1:-1]
    assert len(outputs) == len(commands), done.stdout
    return [output.splitlines() for output in outputs]


def difference(command, stated, seen):
    """A command with its differing lines, `-` before those of the page and `+` before those that it printed."""
    lines = difflib.ndiff(masked(stated), masked(seen))
    return "\n".join([f"$ {command}", *(line for line in lines if line[0] in "-+")])


def check(section, home):
    """Runs the commands of a section; exits if the output of one differs from the page."""
    stated = session(section)
    assert stated, "the section has no commands"
    printed = run_commands([command for command, _ in stated], home)
    differ = [(command, lines, seen) for (command, lines), seen in zip(stated, printed) if masked(lines) != masked(seen)]
    if differ:
        say("".join(f"$ {command}\n" + "".join(f"{line}\n" for line in seen) for (command, _), seen in zip(stated, printed)))
        sys.exit("the output differs from the page:\n" + "\n".join(difference(*each) for each in differ))
    say(f"the {len(stated)} commands of the page print what it states")
