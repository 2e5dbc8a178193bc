#!/usr/bin/env bash
# Runs the two regions of cluster/regions/, eu and us, on this machine, and a link between them, until Ctrl-C:
# `scripts/regions.sh [directory]`. The directory keeps data and certificates for the next run. LINK_RTT_MS is the round trip.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs="${CARGO_TARGET_DIR:?the Makefile sets it}/release"
program="$programs/trust-fabric"
directory="${1:-${XDG_DATA_HOME:-$HOME/.local/share}/trust-fabric/regions}"
# shellcheck source=scripts/processes.sh
. "$checkout/scripts/processes.sh"

mkdir -p "$directory/policies"
cd "$directory"
cp "$checkout"/policies/{exchange,identity,signals}.rego "$checkout/cluster/regions/data.json" policies/

# Node n of a region has the ports base + 10 (n - 1): plain, + 1: TLS, + 2: of the other nodes.
prepare() { # region, base
  local region=$1 addresses=() id
  mkdir -p "$region" bundles
  "$program" pki --dir "$region/pki" --trust-domain "$region.example" --days 365 --peer 1 --peer 2 --peer 3 \
    --caller operator --caller gateway --caller federation --caller prometheus --issuer >"$region/certificates.txt"
  "$program" federation bundle "$region/pki/ca.pem" --to "bundles/$region.json"
  for id in 1 2 3; do
    addresses+=(-e "s|\"$region-$id:8695\"|\"127.0.0.1:$(($2 + 10 * id - 8))\"|")
  done
  sed -e "s|\"/pki/|\"$region/pki/|" -e 's|"/bundles/|"bundles/|' -e 's|"/etc/trust-fabric/policies"|"policies"|' \
    -e 's|https://link:8\(..\)4|https://localhost:7\14|g' "${addresses[@]}" "$checkout/cluster/regions/$region.toml" >"$region.toml"
}

start() { # region, base
  local id base
  for id in 1 2 3; do
    base=$(($2 + 10 * id - 10))
    run "$1-$id" env TRUST_FABRIC__NODE__ID="$id" TRUST_FABRIC__NODE__DATA_DIR="$1/node-$id" TRUST_FABRIC__LOG__FORMAT=text \
      TRUST_FABRIC__LISTEN__HTTP="127.0.0.1:$base" TRUST_FABRIC__LISTEN__HTTPS="127.0.0.1:$((base + 1))" \
      TRUST_FABRIC__CLUSTER__LISTEN="127.0.0.1:$((base + 2))" TRUST_FABRIC__CLUSTER__CERTIFICATE="$1/pki/peer-$id.pem" \
      TRUST_FABRIC__CLUSTER__PRIVATE_KEY="$1/pki/peer-$id-key.pem" "$program" serve --config "$1.toml"
  done
}

prepare eu 8693
prepare us 9693
cat >link.sh <<END
#!/usr/bin/env bash
# Opens the link from us to the nodes of eu: \`./link.sh [--rtt-ms 75] [--lose requests|responses]\`. Its process is in link.pid.
cd "$directory"
echo \$\$ >link.pid
exec "$programs/trust-fabric-bench" link --forward 127.0.0.1:7694=127.0.0.1:8694 \\
  --forward 127.0.0.1:7704=127.0.0.1:8704 --forward 127.0.0.1:7714=127.0.0.1:8714 "\$@"
END
chmod +x link.sh

start eu 8693
start us 9693
run link ./link.sh --rtt-ms "${LINK_RTT_MS:-75}"
until_healthy "$program" 8693 8703 8713 9693 9703 9713
as_operator=(--server https://localhost:9694 --ca us/pki/ca.pem --cert us/pki/operator.pem --key us/pki/operator-key.pem)
# A node is healthy before its first response from a peer.
has_read_eu() { "$program" federation status "${as_operator[@]}" | grep -wE 'live|held|paused'; }
until_succeeds has_read_eu
cat <<END

The region eu: https://localhost:8694 (process ${processes[0]}), :8704 (${processes[1]}) and :8714 (${processes[2]}).
The region us: https://localhost:9694 (process ${processes[3]}), :9704 (${processes[4]}) and :9714 (${processes[5]}).
us reads the ledger of eu over a link (process $process) with a round trip of ${LINK_RTT_MS:-75} ms.
Data and certificates are in $directory. docs/guide/federation.md continues there; for example:

  trust-fabric federation status ${as_operator[*]}
  kill $process           # cuts the link; ./link.sh opens it again
  kill -STOP $process     # makes it silent, until kill -CONT
  kill -KILL ${processes[3]}     # the other two nodes of us go on

Ctrl-C ends all of it.

END
# Until a signal, or until the last process has exited.
wait
