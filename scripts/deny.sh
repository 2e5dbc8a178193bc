#!/usr/bin/env bash
# Checks the dependencies against deny.toml. Licences, bans and sources need no network. Advisories
# need the RustSec database: if it cannot be fetched, the last lines report that they were NOT checked.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

deny() { cargo deny --locked --color never "$@" 2>&1; }

# Of each duplicate version only the first line is shown; errors are complete.
deny check --hide-inclusion-graph bans licenses sources |
  sed -n -e '/^error/,$ { p; b }' -e '/^warning/p' -e '/^[a-z, ]* ok$/p' -e '/^bans /p' | uniq

if why=$(deny fetch db); then
  deny check --disable-fetch advisories
else
  printf '%s\n' "$why" | sed '/^$/d' | tail -n 1
  printf 'advisories NOT checked: the RustSec database cannot be reached from here\n'
fi
