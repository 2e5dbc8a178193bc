"""Asks a second Rego engine (rego-cpp, through regopy) the questions of the policy vectors.

Usage: check_policy.py POLICIES VECTORS
       POLICIES  directory with exchange.rego and data.json
       VECTORS   exchange.json: a list of {"name", "input", "expected"}

Exits with 0 if every answer is the expected one; prints each that is not.
"""

import json
import pathlib
import sys

from regopy import Interpreter


def answer(policies, question):
    rego = Interpreter()
    rego.add_module("exchange.rego", (policies / "exchange.rego").read_text())
    rego.add_data(json.loads((policies / "data.json").read_text()))
    rego.set_input(question)
    output = json.loads(str(rego.query("data.svc.exchange.decision")))
    return output["result"][0]["expressions"][0] if "result" in output else output["expressions"][0]


def main(policies, vectors):
    vectors = json.loads(pathlib.Path(vectors).read_text())
    wrong = 0
    for vector in vectors:
        got = answer(pathlib.Path(policies), vector["input"])
        if got != vector["expected"]:
            wrong += 1
            print(f"{vector['name']}:\n  expected {vector['expected']}\n  got      {got}")
    print(f"{len(vectors) - wrong} of {len(vectors)} answers agree")
    return 1 if wrong or not vectors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
