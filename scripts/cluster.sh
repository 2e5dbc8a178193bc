#!/usr/bin/env bash
# Runs the three nodes of cluster/ on this machine until Ctrl-C: `scripts/cluster.sh [directory]`.
# The directory keeps data and certificates for the next run.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program="${CARGO_TARGET_DIR:?the Makefile sets it}/release/trust-fabric"
directory="${1:-${XDG_DATA_HOME:-$HOME/.local/share}/trust-fabric/cluster}"

mkdir -p "$directory"
cd "$directory"
"$program" pki --trust-domain dev.trust-fabric.local --days 365 --peer 1 --peer 2 --peer 3 \
  --caller operator --caller workload --caller gateway --issuer >certificates.txt
ln -sfn "$checkout/policies" policies

# Each node has its own process group (`set -m`), so that Ctrl-C reaches only this script, which signals each node once.
nodes=()
start() { # id
  "$program" serve --config "$checkout/cluster/node-$1.toml" \
    > >(trap '' INT TERM; exec sed -u "s/^/node-$1 | /") 2>&1 &
  nodes+=($!)
}
stop() {
  trap '' INT TERM
  kill -TERM "${nodes[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Only for the nodes: Ctrl-C during another command must end this script too.
set -m
for id in 1 2 3; do start "$id"; done
set +m

is_healthy() { "$program" health --server "http://127.0.0.1:$1" >/dev/null 2>&1; }
for port in 8693 8703 8713; do
  until is_healthy "$port"; do
    jobs -rp | grep -q . || exit 1
    sleep 0.2
  done
done
cat <<END

Three nodes, at https://localhost:8694 (process ${nodes[0]}), :8704 (${nodes[1]}) and :8714 (${nodes[2]}).
Data and certificates are in $directory. From there, for example:

  trust-fabric health --server http://127.0.0.1:8703
  trust-fabric keys list --server https://localhost:8714 --ca pki/ca.pem --cert pki/operator.pem --key pki/operator-key.pem
  kill -KILL ${nodes[0]}    # the other two go on

Ctrl-C ends all three.

END
# Until a signal, or until the last node has exited.
wait
