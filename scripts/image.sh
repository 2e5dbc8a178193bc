#!/usr/bin/env bash
# Builds the images of docker-compose.yml without a registry: `scripts/image.sh [prometheus]`.
#
# trust-fabric:dev is the program of `make build` with its shared libraries, on `scratch`. With `prometheus`,
# trust-fabric-prometheus:dev is the program of Debian's package, which is downloaded and not installed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The Dockerfile needs BuildKit. A docker of version 23 and later has it in a plugin that may be missing; the
# distribution's own has it built in.
docker buildx version >/dev/null 2>&1 || PATH=/usr/bin:$PATH
built="${CARGO_TARGET_DIR:?the Makefile sets it}/release"
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

scripts/image-tree.sh "$built/trust-fabric" "$context/image" libraries
cp .dockerignore "$context"
DOCKER_BUILDKIT=1 docker build --quiet --file Dockerfile --tag trust-fabric:dev \
  --build-arg BINARY_FROM=prebuilt --build-arg BUILDER_IMAGE=scratch --build-arg RUNTIME_IMAGE=scratch "$context" >/dev/null
say() { printf '%-32s %s\n' "$1" "$(docker image inspect --format '{{.Size}}' "$1" | awk '{ printf "%.0f MB", $1 / 1e6 }')"; }
say trust-fabric:dev

[ "${1:-}" = prometheus ] || exit 0
tree="$context/prometheus"
mkdir -p "$tree/unpacked" "$tree/root/bin"
(cd "$tree" && apt-get -q -o APT::Sandbox::User=root download prometheus >/dev/null && dpkg-deb --extract prometheus_*.deb unpacked)
program="$tree/unpacked/usr/bin/prometheus"
cp "$program" "$tree/root/bin/prometheus"
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
  mkdir -p "$tree/root$(dirname "$library")"
  cp --dereference "$library" "$tree/root$library"
done
tar --create --owner=0 --group=0 --directory "$tree/root" . |
  docker import --change 'ENTRYPOINT ["/bin/prometheus"]' - trust-fabric-prometheus:dev >/dev/null
say trust-fabric-prometheus:dev
