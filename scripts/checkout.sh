#!/usr/bin/env bash
# Touches the sources if another checkout was built last. Checkouts share the target directory, and cargo compares only
# the age of files: a checkout older than that build would reuse it. Only our own crates are rebuilt.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
built_from="${CARGO_TARGET_DIR:?the Makefile sets it}/checkout"

if [ "$(cat "$built_from" 2>/dev/null)" != "$PWD" ]; then
  mkdir -p "$CARGO_TARGET_DIR"
  find build.rs src tests bench charts client fabric-spec jepsen models proto provider -type f -exec touch {} +
  printf '%s\n' "$PWD" >"$built_from"
fi
