#!/usr/bin/env python3
"""Renders a chart with Helm's own engine and checks the objects with the schemas of Kubernetes.

Reads {"chart", "versions", "releases": [{"values", "release", "namespace"}]} from standard input; values are YAML. Writes
one report for each release: {"refused"}, the message of the schema of the values or of a template; or {"manifests",
"objects"}, and with versions {"violations", "lint"}. With {"manifests", "versions"} instead, texts in YAML, it writes the
violations of their objects.
"""

import json
import sys

import helm_python
import kubernetes_validate
import yaml

# Kinds that are not of Kubernetes itself, so it has no schema of them.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "ClusterSPIFFEID", "Issuer", "Certificate", "Kustomization"}


def violations(item, versions):
    for version in versions:
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            if item["kind"] not in FOREIGN:
                yield f"{version}: {item['apiVersion']} has no {item['kind']}"
        except kubernetes_validate.ValidationError as error:
            yield f"{version}: {item['kind']}: {'.'.join(map(str, error.path))}: {error.message}"


def report(chart, order, release):
    values = yaml.safe_load(release["values"])
    names = {"name": release["release"], "namespace": release["namespace"]}
    try:
        chart.validate_schema(values)
        manifests = chart.render(values, **names)
    except helm_python.HelmError as error:
        return {"refused": str(error)}
    documents = [yaml.safe_load_all(text) for path, text in sorted(manifests.items()) if path.endswith(".yaml")]
    objects = [item for found in documents for item in found if item]
    found = {"manifests": manifests, "objects": objects}
    if order["versions"]:
        found["violations"] = [violation for item in objects for violation in violations(item, order["versions"])]
        lint = helm_python.lint(order["chart"], values, strict=True, namespace=names["namespace"])
        # Severity 1 is advice.
        found["lint"] = [message for message in lint["messages"] if message["severity"] > 1]
    return found


def main():
    order = json.load(sys.stdin)
    if "manifests" in order:
        objects = [item for text in order["manifests"] for item in yaml.safe_load_all(text)]
        json.dump([violation for item in objects for violation in violations(item, order["versions"])], sys.stdout)
        return
    with helm_python.Chart.load(order["chart"]) as chart:
        json.dump([report(chart, order, release) for release in order["releases"]], sys.stdout)


main()
