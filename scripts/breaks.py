#!/usr/bin/env python3
"""Runs the table of docs/proofs/breaks.md: every test passes without a break, and fails under the break of its row.

    scripts/breaks.py [--only <break>] -- <cargo options>

The tests are built with the feature `breaks`, which no other build has.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/proofs/breaks.md"
VARIABLE = "TRUST_FABRIC_BREAK"
NO_BREAK = "none"
ROW = re.compile(r"^\| `([a-z-]+)` \| .* \| (.*) \|$", re.MULTILINE)
SECONDS_MAX = 120

Test = collections.namedtuple("Test", "name binary path directory")


def table():
    """The names of the tests, by break."""
    rows = {row[1]: re.findall(r"`(\w+)`", row[2]) for row in ROW.finditer(PAGE.read_text())}
    if not rows or not all(rows.values()):
        sys.exit(f"error: {PAGE}: no rows, or a row without a test")
    return rows


def build(names, options):
    """Builds the tests of these names, and finds each in exactly one program."""
    targets = ["--lib"]
    for file in sorted((ROOT / "tests").glob("*.rs")):
        if re.search(rf"fn ({'|'.join(names)})\(", file.read_text()):
            targets += ["--test", file.stem]
    command = ["cargo", "nextest", "list", "--workspace", "--features", "trust-fabric/breaks", "--message-format", "json"]
    listed = subprocess.run(command + targets + options, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found = collections.defaultdict(list)
    for binary, suite in json.loads(listed.stdout)["rust-suites"].items():
        for path in suite["testcases"]:
            name = path.rsplit("::", 1)[-1]
            found[name].append(Test(name, suite["binary-path"], path, suite["cwd"]))
    wrong = [name for name in names if len(found[name]) != 1]
    if wrong:
        sys.exit(f"error: not the name of one test: {', '.join(wrong)}")
    return {name: found[name][0] for name in names}


def passes(test, broken):
    """Whether a test passes under a break, and the seconds that it took."""
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [test.binary, "--exact", test.path, "--include-ignored"],
            cwd=test.directory,
            env=os.environ | {VARIABLE: broken},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
        )
        has_run = b"running 1 test" in ended.stdout
        passed = ended.returncode == 0
    except subprocess.TimeoutExpired:
        has_run, passed = True, False
    if not has_run:
        sys.exit(f"error: {test.path} did not run:\n{ended.stdout.decode(errors='replace')}")
    return passed, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="BREAK", help="one row of the table; may be repeated")
    parser.add_argument("options", nargs="*", metavar="CARGO OPTION")
    arguments = parser.parse_args()
    rows = table()
    for broken in arguments.only or []:
        if broken not in rows:
            sys.exit(f"error: {PAGE} has no row `{broken}`")
    rows = {broken: names for broken, names in rows.items() if broken in (arguments.only or rows)}
    tests = build(sorted({name for names in rows.values() for name in names}), arguments.options)
    runs = [(NO_BREAK, name) for name in tests] + [(broken, name) for broken, names in rows.items() for name in names]
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for (broken, name), (passed, seconds) in zip(runs, pool.map(lambda run: passes(tests[run[1]], run[0]), runs)):
            is_right = passed == (broken == NO_BREAK)
            wrong += not is_right
            verdict = ("passes" if passed else "fails") + ("" if is_right else ", WHICH IT MUST NOT")
            print(f"{broken:28} {name:60} {verdict} ({seconds:.1f} s)", flush=True)
    print(f"{len(rows)} breaks, {len(runs)} runs, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
