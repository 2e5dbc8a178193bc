#!/usr/bin/env python3
"""Checks the alert rules and the Grafana dashboards of cluster/: `scripts/metrics_used.py`. Needs promtool.

Every metric and every matched label is one of docs/reference/metrics.md. Every expression of a dashboard parses. Every
alert links to a heading of docs/guide/operations.md. The unit tests of the rules pass.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from links import slugs

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLUSTER = ROOT / "cluster"
RULES = CLUSTER / "alerts.yml"
TESTS = CLUSTER / "alerts_test.yml"
DASHBOARDS = CLUSTER / "grafana" / "dashboards"
RUNBOOK = ROOT / "docs" / "guide" / "operations.md"
ROW = re.compile(r"^\| `(svc_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
USE = re.compile(r"\b(svc_\w+)(?:\{([^{}]*)\})?")
MATCHED = re.compile(r"(\w+) *(?:=~|!~|!=|=)")
# Labels that Prometheus adds, and that of buckets.
ADDED = {"job", "instance", "le"}


def series():
    """The labels of every series, by name: a histogram has three."""
    known = {}
    for name, kind, labels in ROW.findall((ROOT / "docs/reference/metrics.md").read_text()):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        known |= {name + suffix: set(re.findall(r"`(\w+)`", labels)) | ADDED for suffix in suffixes}
    return known


def unknown_names(file, known):
    for name, matchers in USE.findall(file.read_text().replace('\\"', '"')):
        if name not in known:
            yield f"{file.relative_to(ROOT)}: {name}: docs/reference/metrics.md does not have it"
            continue
        for label in MATCHED.findall(re.sub(r'"[^"]*"', "", matchers)):
            if label not in known[name]:
                yield f"{file.relative_to(ROOT)}: {name}: no label {label}"


def bad_links():
    anchors = set(slugs(RUNBOOK.read_text()))
    for rule in RULES.read_text().split("- alert: ")[1:]:
        link = re.search(r"Runbook: docs/guide/operations\.md#([\w-]+)", " ".join(rule.split()))
        if link is None or link[1] not in anchors:
            yield f"cluster/alerts.yml: {rule.split()[0]}: {link[1] if link else 'no link'}: not a heading of the runbook"


def expressions():
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            yield from (target["expr"] for target in panel.get("targets", []))


def promtool(*arguments):
    program = shutil.which("promtool", path=f"{pathlib.Path.home()}/.cache/trust-fabric/bin") or shutil.which("promtool")
    if program is None:
        sys.exit("error: promtool is missing: scripts/install.sh lint")
    done = subprocess.run([program, *map(str, arguments)], text=True, capture_output=True)
    return [] if done.returncode == 0 else [f"promtool {arguments[0]}: {done.stdout}{done.stderr}"]


def unparsed_expressions():
    rules = [
        {"record": f"dashboard:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions())
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump({"groups": [{"name": "dashboards", "rules": rules}]}, file)
        file.flush()
        return promtool("check", "rules", file.name)


def main():
    known = series()
    complaints = [
        complaint
        for file in [RULES, TESTS, *sorted(DASHBOARDS.glob("*.json"))]
        for complaint in unknown_names(file, known)
    ]
    complaints += bad_links()
    complaints += unparsed_expressions()
    complaints += promtool("check", "rules", RULES)
    complaints += promtool("test", "rules", TESTS)
    if complaints:
        sys.exit("\n".join(complaints))


if __name__ == "__main__":
    main()
