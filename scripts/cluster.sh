#!/usr/bin/env bash
# Runs the three nodes of cluster/ on this machine until Ctrl-C: `scripts/cluster.sh [directory]`.
# The directory keeps data and certificates for the next run.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program="${CARGO_TARGET_DIR:?the Makefile sets it}/release/trust-fabric"
directory="${1:-${XDG_DATA_HOME:-$HOME/.local/share}/trust-fabric/cluster}"
# shellcheck source=scripts/processes.sh
. "$checkout/scripts/processes.sh"

mkdir -p "$directory"
cd "$directory"
"$program" pki --trust-domain dev.trust-fabric.local --days 365 --peer 1 --peer 2 --peer 3 \
  --caller operator --caller workload --caller gateway --issuer >certificates.txt
ln -sfn "$checkout/policies" policies

for id in 1 2 3; do run "node-$id" "$program" serve --config "$checkout/cluster/node-$id.toml"; done
until_healthy "$program" 8693 8703 8713
cat <<END

Three nodes, at https://localhost:8694 (process ${processes[0]}), :8704 (${processes[1]}) and :8714 (${processes[2]}).
Data and certificates are in $directory. From there, for example:

  trust-fabric health --server http://127.0.0.1:8703
  trust-fabric keys list --server https://localhost:8714 --ca pki/ca.pem --cert pki/operator.pem --key pki/operator-key.pem
  kill -KILL ${processes[0]}    # the other two go on

Ctrl-C ends all three.

END
# Until a signal, or until the last node has exited.
wait
