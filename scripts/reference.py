#!/usr/bin/env python3
"""Writes the generated pages of docs/reference/, or checks them.

    scripts/reference.py configuration [--check]          from trust-fabric.example.toml
    scripts/reference.py cli --program FILE [--check]     from the program's own --help
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
EXAMPLE = ROOT / "trust-fabric.example.toml"

CONFIGURATION = """\
# Configuration

`scripts/reference.py` writes this page from `trust-fabric.example.toml`, which a test compares with the settings that the
program reads.

A setting comes from the file (`--config`), from the environment (`node.data_dir` is `TRUST_FABRIC__NODE__DATA_DIR`; lists and
tables are set in the file only), or from a flag; the later wins. An unknown setting is an error. Paths are relative to the
working directory. Secrets do not belong in the file. Below, a setting after a comment sign shows its default; the others must
be set, or are examples.

```sh
trust-fabric config check --config trust-fabric.toml    # names every broken rule and its source
trust-fabric config show --config trust-fabric.toml     # shows every setting with its value
```
"""

CLI = """\
# Command line

`scripts/reference.py` writes this page from the program's `--help`.

Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 70 the replica of a serving node failed; 137 (SIGKILL by itself) a part
of a node did not end in time, as when a disk hangs.
"""


def sections(text):
    """(name, lines) of each table of the file; the comments directly above a header belong to it."""
    tables, pending = [("", [])], []
    for line in text.splitlines():
        if header := re.fullmatch(r"\[+([a-z_.]+)\]+", line):
            if tables[-1][0] != header[1]:
                tables.append((header[1], []))
            tables[-1][1].extend([*pending, line])
            pending = []
        elif line.startswith("#") or not line:
            pending = [*pending, line] if line else pending
            if not line:
                tables[-1][1].extend([*pending, ""])
                pending = []
        else:
            tables[-1][1].extend([*pending, line])
            pending = []
    tables[-1][1].extend(pending)
    return tables[1:]


def configuration():
    text = EXAMPLE.read_text()
    tomllib.loads(text)
    page = [CONFIGURATION]
    for name, lines in sections(text):
        brackets = f"[[{name}]]" if f"[[{name}]]" in lines else f"[{name}]"
        body = "\n".join(lines).strip("\n")
        page.append(f"\n## {brackets}\n\n```toml\n{body}\n```\n")
    return "".join(page)


def help_of(program, path):
    environment = {**os.environ, "COLUMNS": "100", "HOME": "/nonexistent"}
    result = subprocess.run([program, *path, "--help"], capture_output=True, text=True, env=environment, check=True)
    return result.stdout.rstrip().replace(str(pathlib.Path.home()), "~")


def subcommands(text):
    commands, inside = [], False
    for line in text.splitlines():
        if line.startswith("Commands:"):
            inside = True
        elif inside and (match := re.match(r"  ([a-z][a-z-]*)(\s|$)", line)):
            commands.append(match[1])
        elif inside and line and not line.startswith(" "):
            break
    return [command for command in commands if command not in ("help", "bench")]


def cli(program):
    page = [CLI]

    def add(path):
        text = help_of(program, path)
        level = "#" * min(len(path) + 2, 3)
        page.append(f"\n{level} {' '.join(['trust-fabric', *path])}\n\n```text\n{text}\n```\n")
        for command in subcommands(text):
            add([*path, command])

    add([])
    page.append("\n## trust-fabric bench\n\nRuns `trust-fabric-bench`; `bench/README.md` describes its commands.\n")
    return "".join(page)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("page", choices=["configuration", "cli"])
    arguments.add_argument("--program", default="trust-fabric")
    arguments.add_argument("--check", action="store_true", help="only say whether the page is current")
    given = arguments.parse_args()
    path = PAGES / f"{given.page}.md"
    text = configuration() if given.page == "configuration" else cli(given.program)
    if not given.check:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        sys.exit(f"{path.relative_to(ROOT)} is out of date: run `make fix`")


main()
