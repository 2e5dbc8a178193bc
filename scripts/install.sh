#!/usr/bin/env bash
# Installs missing tools: `scripts/install.sh [build] [test] [lint] [docs] [containers] [dist] [dist-test]`.
#
#   build   compiler, libclang (RocksDB's bindings), Rust
#   test    build, cargo-nextest, openssl, Python with the independent libraries
#   lint    build, rustfmt and clippy, cargo-deny, promtool, Python for the links of documents
#   docs    build, mdBook, Python
#   containers  Docker and docker-compose
#   dist        build, cargo-deb
#   dist-test   debootstrap, for a clean root
#
# Runs as root or with sudo, without prompts, and names the remedy if an installation is impossible. A second run
# installs nothing.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH"

# Pinned, so that builds are reproducible.
nextest_version=0.9.143
deny_version=0.20.2
mdbook_version=0.5.4
cargo_deb_version=3.8.0
rust_version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# --- distribution packages ---------------------------------------------------------------------

any() { [ -n "$(for pattern in "$@"; do compgen -G "$pattern"; done)" ]; }

# The library, and its headers for the compiler's own types (stddef.h).
has_libclang() {
  [ -z "${LIBCLANG_PATH:-}" ] || return 0
  any '/usr/lib/llvm-*/lib/libclang.so*' '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' \
    '/usr/lib*/libclang.so*' '/usr/lib/*-linux-gnu/libclang.so*' '/usr/lib/*-linux-gnu/libclang-[0-9]*.so*' &&
    any '/usr/lib*/clang/*/include/stddef.h' '/usr/lib/llvm-*/lib/clang/*/include/stddef.h'
}

# Debian splits the module: `import venv` succeeds although creating one fails.
has_venv() { has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }

missing_packages() { # the parts of the command line
  has c++ && has cc || echo build-essential
  has make || echo make
  has pkg-config || echo pkg-config
  has curl || echo curl
  has git || echo git
  [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || echo ca-certificates
  has_libclang || echo libclang-dev
  if [[ " $* " == *" test "* ]] && ! has_venv; then echo python3 python3-venv; fi
  if [[ " $* " == *" lint "* || " $* " == *" docs "* ]] && ! has python3; then echo python3; fi
  # docs/guide/certificates.md is run by a test.
  if [[ " $* " == *" test "* ]] && ! has openssl; then echo openssl; fi
  # tests/storage_failures.rs injects failures into system calls.
  if [[ " $* " == *" test "* ]] && ! has strace; then echo strace; fi
  if [[ " $* " == *" dist-test "* ]]; then
    has debootstrap || echo debootstrap
    has ip || echo iproute2
  fi
  if [[ " $* " == *" containers "* ]]; then
    # The client alone cannot start an engine.
    has dockerd || docker version >/dev/null 2>&1 || echo docker.io
    docker compose version >/dev/null 2>&1 || has docker-compose || echo docker-compose
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then sudo "$@"
  else fail "needs root for: $*"
  fi
}

install_packages() {
  local packages
  read -r -a packages <<<"$(missing_packages "$@" | tr '\n' ' ')"
  [ "${#packages[@]}" -gt 0 ] || return 0
  has apt-get || fail "please install these with your package manager (Debian names): ${packages[*]}"
  say "installing packages: ${packages[*]}"
  as_root apt-get update -q >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >&2
}

# --- Rust --------------------------------------------------------------------------------------

rust_is_new_enough() {
  local have
  have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
  [ -n "$have" ] && [ "$(printf '%s\n' "$rust_version" "$have" | sort -V | head -n 1)" = "$rust_version" ]
}

install_rust() {
  if rust_is_new_enough; then return 0; fi
  if ! has rustup; then
    if has apt-cache && [[ "$(apt-cache policy rustup)" =~ Candidate:\ [0-9] ]]; then
      say "installing rustup from the distribution"
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y rustup >&2
    else
      say "installing rustup from https://sh.rustup.rs"
      curl --proto '=https' --tlsv1.2 --fail --silent --show-error --location https://sh.rustup.rs |
        sh -s -- -y --quiet --profile minimal --default-toolchain none --no-modify-path >&2 ||
        fail "rustup could not be installed; install Rust $rust_version or newer yourself, then try again"
    fi
    hash -r
  fi
  rustup toolchain install stable --profile minimal --component clippy,rustfmt >&2
  rustup default >/dev/null 2>&1 || rustup default stable >&2
  # For this checkout only: the default for other projects stays.
  rust_is_new_enough || rustup override set stable >&2
  hash -r
  rust_is_new_enough || fail "Rust $rust_version or newer is needed, found: $(cargo --version 2>&1 || true)"
}

install_lints() {
  local tool
  for tool in fmt clippy; do
    cargo "$tool" --version >/dev/null 2>&1 && continue
    has rustup || fail "cargo $tool is missing and there is no rustup to add it: install rustup"
    rustup component add "$([ "$tool" = fmt ] && echo rustfmt || echo clippy)" >&2
  done
}

# Only the program of Debian's package: the package itself would start a Prometheus.
install_promtool() {
  local bin="$HOME/.cache/trust-fabric/bin" scratch
  if has promtool || [ -x "$bin/promtool" ]; then return 0; fi
  has apt-get || fail "please install promtool, a part of Prometheus"
  say "extracting promtool from Debian's package of Prometheus"
  as_root apt-get update -q >&2
  scratch=$(mktemp -d)
  (cd "$scratch" && apt-get -q -o APT::Sandbox::User=root download prometheus >&2 && dpkg-deb --extract prometheus_*.deb .)
  install -D "$scratch/usr/bin/promtool" "$bin/promtool"
  rm -rf "$scratch"
}

install_cargo_tool() { # name, version, options of cargo install
  local name=$1 version=$2
  shift 2
  if has "$name"; then return 0; fi
  say "installing $name $version (some minutes, once)"
  # A temporary target directory: the product's must not fill with tools.
  env -u CARGO_TARGET_DIR cargo install --quiet --locked --version "$version" "$@" "$name" >&2
}

# --- requested parts ------------------------------------------------------------------------

[ $# -gt 0 ] || set -- build
for wanted in "$@"; do
  case "$wanted" in
    build | test | lint | docs | containers | dist | dist-test) ;;
    *) fail "unknown: $wanted (build, test, lint, docs, containers, dist or dist-test)" ;;
  esac
done

install_packages "$@"
install_rust
for wanted in "$@"; do
  case "$wanted" in
    test)
      install_cargo_tool cargo-nextest "$nextest_version"
      scripts/python-env.sh
      ;;
    lint)
      install_lints
      install_promtool
      install_cargo_tool cargo-deny "$deny_version"
      ;;
    # The book is read from files: no server, no file watcher.
    dist) install_cargo_tool cargo-deb "$cargo_deb_version" ;;
    docs) install_cargo_tool mdbook "$mdbook_version" --no-default-features --features search ;;
  esac
done
