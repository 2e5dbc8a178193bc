#!/usr/bin/env bash
# Packs the program of the profile `shipped`, without line tables: a Debian package, and a tarball of the same files, both with
# shell completions. Prints their paths.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
built="${CARGO_TARGET_DIR:?the Makefile sets it}/shipped"
dist="$CARGO_TARGET_DIR/dist"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name="trust-fabric-$version-linux-$(uname -m)"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

scripts/no_breaks.sh "$built/trust-fabric"
# Those of an earlier version. The directory has mirrors of the Terraform provider too.
rm -f "$dist"/trust-fabric_*.deb "$dist"/trust-fabric-*-linux-*.tar.gz
mkdir -p "$dist" "$built/completions"
for shell in bash zsh fish; do
  "$built/trust-fabric" completions "$shell" >"$built/completions/trust-fabric.$shell"
done
package=$(cargo deb --quiet --locked --profile shipped --no-build --strip --output "$dist/")
dpkg-deb --extract "$package" "$scratch/$name"
tar --create --gzip --owner=0 --group=0 --sort=name --directory "$scratch" --file "$dist/$name.tar.gz" "$name"
for file in "$package" "$dist/$name.tar.gz"; do
  printf '%s %s\n' "$file" "$(stat --format %s "$file" | awk '{ printf "%.1f MB", $1 / 1e6 }')"
done
