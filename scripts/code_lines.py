#!/usr/bin/env python3
"""Counts lines of Rust by module: code, documentation (doc comments), tests. Blank lines and other comments are not
counted.

    scripts/code_lines.py [CHECKOUT] [--compare CHECKOUT]

With --compare the counts of the second checkout follow. A module is a folder of src/, or another crate; a `tests`
module, a file of that name and the crates `tests` and `models` are tests.
"""

import argparse
import collections
import pathlib
import re

KINDS = ("code", "documentation", "tests")
TEST_FILES = {"tests.rs", "testing.rs", "recorded_log.rs"}
SKIPPED = {"target", ".git"}
TEST_MODULE = re.compile(r"^mod \w+ \{$")


def module_of(path):
    """`src/<folder>`, `src/*.rs` for the files between them, or the crate's folder."""
    first, *rest = path.parts
    if first != "src":
        return first
    return f"src/{rest[0]}" if len(rest) > 1 else "src/*.rs"


def is_test_file(path):
    return path.name in TEST_FILES or "tests" in path.parts[:-1] or path.parts[0] == "models"


def lines_of(path, text):
    """The kind of each line that counts."""
    is_test = is_test_file(path)
    follows_attribute = False
    for line in map(str.strip, text.splitlines()):
        # The tests of a file are its last module.
        is_test = is_test or (follows_attribute and bool(TEST_MODULE.match(line)))
        follows_attribute = line == "#[cfg(test)]"
        if not line or (line.startswith("//") and not is_test and not line.startswith(("///", "//!"))):
            continue
        if is_test:
            yield "tests"
        else:
            yield "documentation" if line.startswith("//") else "code"


def measure(checkout):
    modules = collections.defaultdict(collections.Counter)
    for file in checkout.rglob("*.rs"):
        path = file.relative_to(checkout)
        if not SKIPPED.intersection(path.parts):
            modules[module_of(path)].update(lines_of(path, file.read_text()))
    return modules


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--compare", type=pathlib.Path)
    arguments = parser.parse_args()
    measured = [measure(checkout) for checkout in (arguments.checkout, arguments.compare) if checkout]
    print("| module |" + f" {' | '.join(KINDS)} |" * len(measured))
    print("|---|" + "---|" * len(KINDS) * len(measured))
    names = sorted(set().union(*measured))
    for name in names:
        counts = [modules[name][kind] for modules in measured for kind in KINDS]
        print(f"| `{name}` | " + " | ".join(f"{count:,}".replace(",", " ") for count in counts) + " |")
    totals = [sum(modules[name][kind] for name in names) for modules in measured for kind in KINDS]
    print("| all | " + " | ".join(f"{total:,}".replace(",", " ") for total in totals) + " |")


if __name__ == "__main__":
    main()
