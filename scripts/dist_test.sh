#!/usr/bin/env bash
# Installs, starts, upgrades, removes and purges the Debian package on a clean root, which debootstrap creates:
# `scripts/dist_test.sh <package>`. Checks the systemd unit too, but starts the node without systemd. Needs root.
#
# Everything after the creation of the root is in its own mount, process and network namespace: no network is used, no
# port of the machine is opened, and no process survives.
set -euo pipefail

score_max=2.5
installed=trust-fabric
fail() { echo "error: $*" >&2; exit 1; }
say() { printf '%s\n' "$*"; }

if [ "${2:-}" != inside ]; then
  package=$(realpath "$1")
  [ "$(id -u)" -eq 0 ] || fail "needs root, for a root file system of its own"
  scratch=$(mktemp -d)
  trap 'rm -rf --one-file-system "$scratch"' EXIT
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  debootstrap --variant=minbase --include=systemd,libstdc++6,ca-certificates "$codename" "$scratch/root" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log" >&2; fail "debootstrap"; }
  say "clean root: $codename"
  unshare --mount --net --pid --fork --kill-child "$(realpath "${BASH_SOURCE[0]}")" "$package" inside "$scratch/root"
  exit
fi

package=$1 root=$3
data=var/lib/trust-fabric
etc=etc/trust-fabric
log="$root/var/log/node.log"
node=
ip link set lo up
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
echo "127.0.0.1 localhost" >"$root/etc/hosts"

on_root() { chroot "$root" "$@"; }
as_node() { chroot --userspec=trust-fabric:trust-fabric "$root" env -C "/$data" "$@"; }
version() { on_root dpkg-query --show --showformat '${Version}' "$installed"; }
operator() {
  local pki="/$data/pki"
  as_node trust-fabric "$@" --server https://localhost:8694 --ca "$pki/ca.pem" --cert "$pki/operator.pem" --key "$pki/operator-key.pem"
}

# As the unit does: check, then serve, as the user of the node.
start() {
  as_node trust-fabric config check --config "/$etc/trust-fabric.toml" >/dev/null
  # Not through a function, so that the process id is that of the node.
  chroot --userspec=trust-fabric:trust-fabric "$root" env -C "/$data" \
    trust-fabric serve --config "/$etc/trust-fabric.toml" >>"$log" 2>&1 &
  node=$!
  for _ in {1..300}; do
    if as_node trust-fabric health --data-dir "/$data/node" >/dev/null 2>&1; then return; fi
    kill -0 "$node" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$log" >&2
  fail "the node does not become ready"
}

stop() {
  kill -TERM "$node"
  wait "$node" || fail "the node stopped with $?"
}

install_package() { # file
  cp "$1" "$root/tmp/package.deb"
  on_root env DEBIAN_FRONTEND=noninteractive dpkg --install /tmp/package.deb >/dev/null
}

# The same package with a later version.
later_package() {
  local tree="$root/tmp/later"
  dpkg-deb --raw-extract "$package" "$tree"
  sed -i 's/^Version: .*/&+later/' "$tree/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$tree" "$root/tmp/later.deb" >/dev/null
}

configure() {
  install -d -m 0700 -o "$(on_root id -u trust-fabric)" -g "$(on_root id -g trust-fabric)" "$root/$data"
  as_node trust-fabric pki --dir "/$data/pki" --trust-domain trust.example.com --caller operator --issuer >/dev/null
  cat >"$root/$etc/trust-fabric.toml" <<END
[node]
data_dir = "/$data/node"
[listen]
http = "127.0.0.1:8693"
https = "127.0.0.1:8694"
[tls]
certificate = "/$data/pki/node.pem"
private_key = "/$data/pki/node-key.pem"
client_ca = "/$data/pki/ca.pem"
[fabric]
issuer = "https://localhost:8694"
trust_domain = "trust.example.com"
[policy]
directory = "/$etc/policies"
[[callers]]
id = "spiffe://trust.example.com/operator"
capabilities = ["cluster.admin"]
[[issuers]]
issuer = "https://issuer.example.com"
subject = "kubernetes"
keys_file = "/$data/pki/issuer-keys.json"
trust_domains = ["trust.example.com"]
END
}

install_package "$package"
first=$(version)
[ -z "$(find "$root/$etc" "$root/usr/bin/trust-fabric" -perm /022 ! -type l)" ] || fail "files that others may write"
[ "$(on_root getent passwd trust-fabric | cut -d: -f7)" = /usr/sbin/nologin ] || fail "the user of the node may log in"
for file in usr/share/bash-completion/completions/trust-fabric usr/share/zsh/vendor-completions/_trust-fabric \
  usr/share/fish/vendor_completions.d/trust-fabric.fish; do
  grep -q trust-fabric "$root/$file" || fail "$file"
done
say "installed $first"

if systemd-analyze --version >/dev/null 2>&1; then
  complaints=$(systemd-analyze --root="$root" verify trust-fabric.service 2>&1 | grep trust-fabric || true)
  [ -z "$complaints" ] || fail "systemd-analyze verify: $complaints"
  systemd-analyze security --root="$root" --offline=true --no-pager --threshold="${score_max/./}" trust-fabric.service |
    tail -n 1
else
  say "systemd-analyze is missing: the unit is not checked"
fi

configure
start
operator revoke spiffe://trust.example.com/lost --block --yes >/dev/null
say "started"

later_package
echo "# of this machine" >>"$root/$etc/trust-fabric.example.toml"
install_package "$root/tmp/later.deb"
[ "$(version)" = "$first+later" ] || fail "version $(version) after the upgrade"
kill -0 "$node" || fail "the upgrade stopped the node"
tail -n 1 "$root/$etc/trust-fabric.example.toml" | grep -q "of this machine" || fail "the upgrade changed a configuration file"
stop
start
operator blocks | grep -q spiffe://trust.example.com/lost || fail "the block is lost after the upgrade"
say "upgraded to $(version), and started again with its data"

stop
on_root dpkg --remove "$installed" >/dev/null
[ ! -e "$root/usr/bin/trust-fabric" ] && [ -e "$root/$etc/trust-fabric.toml" ] && [ -d "$root/$data/node/raft" ] ||
  fail "removal"
on_root dpkg --purge "$installed" >/dev/null 2>&1
[ ! -e "$root/$etc/policies" ] && [ -d "$root/$data/node/raft" ] || fail "purge"
say "removed and purged; the data stays"
