#!/usr/bin/env bash
# Builds the images of docker-compose.yml and docker-compose.regions.yml without a registry:
# `scripts/image.sh [bench] [prometheus]`.
#
# trust-fabric:dev is the program of `make build` with its shared libraries, on `scratch`. `bench`: the same of the bench,
# trust-fabric-bench:dev. `prometheus`: trust-fabric-prometheus:dev is the program of Debian's package, which is
# downloaded and not installed.
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

# A program with its libraries, and the configuration of name lookup.
import_program() { # program, image, change...
  local program=$1 image=$2 root change changes=()
  shift 2
  # The root of the image, which its user must be able to enter.
  root=$(mktemp -d -p "$context")/root
  mkdir -p "$root/bin" "$root/etc"
  cp "$program" "$root/bin"
  printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
  ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp --dereference "$library" "$root$library"
  done
  for change in "ENTRYPOINT [\"/bin/$(basename "$program")\"]" "$@"; do changes+=(--change "$change"); done
  tar --create --owner=0 --group=0 --directory "$root" . | docker import "${changes[@]}" - "$image" >/dev/null
  say "$image"
}

for wanted in "$@"; do
  case "$wanted" in
    bench)
      strip --strip-debug -o "$context/trust-fabric-bench" "$built/trust-fabric-bench"
      import_program "$context/trust-fabric-bench" trust-fabric-bench:dev 'USER 65532:65532'
      ;;
    prometheus)
      mkdir "$context/package"
      (cd "$context/package" && apt-get -q -o APT::Sandbox::User=root download prometheus >/dev/null && dpkg-deb --extract prometheus_*.deb .)
      import_program "$context/package/usr/bin/prometheus" trust-fabric-prometheus:dev
      ;;
    *) echo "error: unknown: $wanted (bench or prometheus)" >&2; exit 1 ;;
  esac
done
