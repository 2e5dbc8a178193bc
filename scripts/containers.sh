#!/usr/bin/env bash
# Runs a command with a Docker engine: `scripts/containers.sh docker info`.
# Without a running engine, starts one with separate data for this command and stops it afterwards.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if docker version >/dev/null 2>&1; then exec "$@"; fi

[ "$(id -u)" -eq 0 ] || {
  echo "error: no Docker engine answers, and only root can start one: start it, or add yourself to its group" >&2
  exit 1
}
scratch=$(mktemp -d)
engine=
# shellcheck disable=SC2317 # called through `trap`
stop() {
  [ -z "$engine" ] || { kill -TERM "$engine" && wait "$engine"; } || true
  rm -rf "$scratch"
}
trap stop EXIT

export DOCKER_HOST="unix://$scratch/docker.sock"
# Does not change the network of the machine: no default bridge (docker-compose.yml defines a network), no firewall rules
# and no forwarding. The socket belongs to root.
dockerd --host "$DOCKER_HOST" --group root --bridge none --iptables=false --ip-forward=false --data-root "$scratch/data" --exec-root "$scratch/exec" \
  --pidfile "$scratch/pid" >"$scratch/log" 2>&1 &
engine=$!
for _ in {1..300}; do
  if docker version >/dev/null 2>&1; then
    "$@"
    exit
  fi
  kill -0 "$engine" 2>/dev/null || break
  sleep 0.1
done
cat "$scratch/log" >&2
echo "error: the Docker engine does not start" >&2
exit 1
