#!/usr/bin/env python3
"""Evaluates CEL with cel-python: a second reader of the rules in the custom resource definition.

Reads [{"rule", "self", "oldSelf"}] from standard input, and writes the list of results.
"""

import json
import sys

import celpy


def main():
    environment = celpy.Environment()
    programs = {}
    results = []
    for order in json.load(sys.stdin):
        rule = order["rule"]
        if rule not in programs:
            programs[rule] = environment.program(environment.compile(rule))
        values = {name: celpy.json_to_cel(order[name]) for name in ("self", "oldSelf") if name in order}
        results.append(bool(programs[rule].evaluate(values)))
    json.dump(results, sys.stdout)


main()
