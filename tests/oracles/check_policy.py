"""Evaluates the policy vectors with a second Rego engine (rego-cpp, through regopy).

Usage: check_policy.py POLICIES VECTORS...
       POLICIES  directory with the policies and data.json
       VECTORS   <point>.json: a list of {"name", "input", "expected"} for data.svc.<point>.decision,
                 defined in <point>.rego

Exits with 0 if every output is the expected one; prints each that is not.
"""

import json
import pathlib
import sys

from regopy import Interpreter


def answer(policies, point, question):
    rego = Interpreter()
    rego.add_module(f"{point}.rego", (policies / f"{point}.rego").read_text())
    rego.add_data(json.loads((policies / "data.json").read_text()))
    rego.set_input(question)
    output = json.loads(str(rego.query(f"data.svc.{point}.decision")))
    return output["result"][0]["expressions"][0] if "result" in output else output["expressions"][0]


def disagreements(policies, path):
    vectors = json.loads(path.read_text())
    wrong = 0
    for vector in vectors:
        got = answer(policies, path.stem, vector["input"])
        if got != vector["expected"]:
            wrong += 1
            print(f"{vector['name']}:\n  expected {vector['expected']}\n  got      {got}")
    print(f"{path.stem}: {len(vectors) - wrong} of {len(vectors)} answers agree")
    return wrong if vectors else 1


def main(policies, *vectors):
    wrong = [disagreements(pathlib.Path(policies), pathlib.Path(path)) for path in vectors]
    return 1 if sum(wrong) or not wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
