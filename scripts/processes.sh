# shellcheck shell=bash
# Sourced by scripts that run processes until Ctrl-C: `run <name> <command...>` starts one whose output lines begin with
# its name, `process` is then its id. Its process group is its own (`set -m`), so that Ctrl-C reaches the script alone, which
# signals each process once.

processes=()

run() {
  local name=$1
  shift
  # Only here: Ctrl-C during another command must end the script too.
  set -m
  "$@" > >(trap '' INT TERM; exec sed -u "s/^/$name | /") 2>&1 &
  process=$!
  set +m
  processes+=("$process")
}

stop() {
  trap '' INT TERM
  kill -TERM "${processes[@]}" 2>/dev/null || true
  # One that was paused ends too.
  kill -CONT "${processes[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Repeats a command until it succeeds, or until every process has ended.
until_succeeds() {
  until "$@" >/dev/null 2>&1; do
    jobs -rp | grep -q . || exit 1
    sleep 0.2
  done
}

until_healthy() { # program, port of the public routes...
  local program=$1 port
  shift
  for port in "$@"; do
    until_succeeds "$program" health --server "http://127.0.0.1:$port"
  done
}
