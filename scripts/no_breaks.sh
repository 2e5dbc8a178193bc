#!/usr/bin/env bash
# Fails if a program has the deliberate breaks of src/breaks.rs, which no package or image may have:
# `scripts/no_breaks.sh <program>`.
set -euo pipefail

if grep --quiet --fixed-strings TRUST_FABRIC_BREAK "$1"; then
  echo "error: $1 was built with the feature \`breaks\`, for tests only: run \`make build\`" >&2
  exit 1
fi
