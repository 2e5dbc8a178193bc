#!/usr/bin/env bash
# Runs commands of the bench against the product of this build: `scripts/bench.sh attacks overload`, or one
# with arguments: `scripts/bench.sh "tools --tools 50000"`.
# Prints Markdown and leaves no files. bench/README.md describes the commands.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
built="${CARGO_TARGET_DIR:?the Makefile sets it}/release"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for command in "$@"; do
  read -ra words <<<"$command"
  "$built/trust-fabric-bench" "${words[@]}" --program "$built/trust-fabric" --dir "$scratch"
done
