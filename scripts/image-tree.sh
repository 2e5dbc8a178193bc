#!/usr/bin/env bash
# Creates the file tree for the Dockerfile: `scripts/image-tree.sh <program> <directory> [libraries]`.
#
#   root/   owned by root: the program without line tables, the first policy, the directory of the configuration
#   own/    owned by the node: mount points of data, certificates and bundles of peer fabrics
#
# With `libraries`, root/ also gets the parts of a base image: shared libraries, certificates of public CAs, and the
# configuration of name lookup. The program then runs on `scratch`.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1 tree=$2 with=${3:-}

scripts/no_breaks.sh "$program"
umask 022
mkdir -p "$tree/root/usr/local/bin" "$tree/root/etc/trust-fabric" "$tree/own"
# Function names stay, for readable crash reports.
strip --strip-debug -o "$tree/root/usr/local/bin/trust-fabric" "$program"
cp -R policies "$tree/root/etc/trust-fabric/policies"
chmod -R u=rwX,go=rX "$tree/root"
mkdir -m 0700 "$tree/own/data" "$tree/own/pki" "$tree/own/bundles"

[ "$with" = libraries ] || exit 0
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
  mkdir -p "$tree/root$(dirname "$library")"
  cp --dereference "$library" "$tree/root$library"
done
for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
  [ -e "$certificates" ] || continue
  mkdir -p "$tree/root/etc/ssl/certs"
  cp --dereference "$certificates" "$tree/root/etc/ssl/certs/ca-certificates.crt"
  break
done
printf 'hosts: files dns\n' >"$tree/root/etc/nsswitch.conf"
