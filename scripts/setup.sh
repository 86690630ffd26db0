#!/usr/bin/env bash
# Installs what tsumuji needs on Debian 12, and says what it installs. Quick and silent when all is there.
#
#   scripts/setup.sh [build] [test] [bench]      (default: build)
#
# Packages come by apt-get (with sudo if not root). Rust: the toolchain that is there is used if it is new enough
# (rust-version in Cargo.toml); where none is, rustup is fetched by its official way.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=(gcc libc6-dev make pkg-config ca-certificates curl python3)
TEST=(python3-numpy python3-scipy tshark valgrind iproute2 ethtool util-linux)
BENCH=(python3-numpy python3-scipy util-linux mpich libmpich-dev openmpi-bin libopenmpi-dev python3-petsc4py)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

install_packages() {
    local missing=() package
    for package in "$@"; do
        if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get: ${missing[*]}"
    local as_root=(env DEBIAN_FRONTEND=noninteractive)
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "not root and no sudo; ask an administrator for: apt-get install ${missing[*]}"
        as_root=(sudo "${as_root[@]}")
    fi
    say "installing with apt-get: ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# The first argument is at least the second, both like 1.88 or 1.95.0.
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

rust_version() { rustc --version 2>/dev/null | awk '{ print $2 }' | cut -d- -f1; }

install_rust() {
    local needed have
    needed=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
    export PATH="$PATH:$HOME/.cargo/bin"
    have=$(rust_version || true)
    if [ -n "$have" ] && version_at_least "$have" "$needed" && command -v cargo >/dev/null; then
        return 0
    fi
    say "Rust ${have:-is absent}; at least $needed is needed: fetching rustup from https://sh.rustup.rs into ~/.cargo and ~/.rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --no-modify-path --profile default >&2
    export PATH="$HOME/.cargo/bin:$PATH"
    have=$(rust_version || true)
    if [ -z "$have" ] || ! version_at_least "$have" "$needed"; then
        die "Rust ${have:-is absent} even after rustup; install $needed or newer by hand"
    fi
}

[ $# -eq 0 ] && set -- build
for group in "$@"; do
    case $group in
    build) install_packages "${BUILD[@]}"; install_rust ;;
    test) install_packages "${TEST[@]}" ;;
    bench) install_packages "${BENCH[@]}" ;;
    *) die "unknown group '$group'; known: build test bench" ;;
    esac
done
