#!/usr/bin/env bash
# Installs what tsumuji needs on Debian 12, and says what it installs. Quick and silent when all is there.
#
#   scripts/setup.sh [build] [lint] [test] [sockets] [fuzz] [bench] [deb] [dpdk]      (default: build)
#
# Packages come by apt-get (with sudo if not root). Rust: the toolchain that is there is used if it is new enough
# (rust-version in Cargo.toml); where none is, rustup is fetched by its official way, and one that is there already gets
# the current stable toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=(gcc libc6-dev make pkg-config ca-certificates curl python3)
LINT=(git)
TEST=(g++ groff-base mandoc mount mpich libmpich-dev munge ngspice openmpi-bin libopenmpi-dev procps python3-numpy python3-scipy python3-sklearn slurm-wlm tshark valgrind iproute2 ethtool util-linux)
FUZZ=(g++)
BENCH=(python3-numpy python3-scipy util-linux mpich libmpich-dev openmpi-bin libopenmpi-dev libzmq3-dev python3-petsc4py)

# Programs that are run through the sockets layer, and their clients.
SOCKETS=(gcc curl default-jdk-headless iperf3 libmemcached-tools memcached netcat-openbsd nginx-light nodejs openssh-client openssh-server postgresql postgresql-contrib python3 python3-requests qperf redis-server redis-tools sockperf wrk)

DEB=(dpkg-dev)

# For the DPDK link, built where it is: headers, libraries and drivers.
DPDK=(libdpdk-dev)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

# Runs a command that talks much: what it says is shown only if it fails.
quietly() {
    local status=0 log
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    if [ $status -ne 0 ]; then cat "$log" >&2; fi
    rm -f "$log"
    return $status
}

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
        # A password is asked for here, where it can be seen.
        sudo -n true 2>/dev/null || sudo -v || die "sudo refuses; ask an administrator for: apt-get install ${missing[*]}"
        as_root=(sudo "${as_root[@]}")
    fi
    say "installing with apt-get: ${missing[*]}"
    # Stale lists of a mirror that cannot be reached may still do.
    quietly "${as_root[@]}" apt-get update -q || say "apt-get update failed; trying with the lists that are there"
    quietly "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install: ${missing[*]}; see above, mend it and try again"
}

# The first argument is at least the second, both like 1.88 or 1.95.0.
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

rust_version() { rustc --version 2>/dev/null | awk '{ print $2 }' | cut -d- -f1; }

cargo_bin=${CARGO_HOME:-$HOME/.cargo}/bin
export PATH="$cargo_bin:$PATH"

install_rust() {
    local needed have
    needed=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
    have=$(rust_version || true)
    if [ -n "$have" ] && version_at_least "$have" "$needed" && command -v cargo >/dev/null; then
        return 0
    fi
    local by_hand="install Rust $needed or newer by hand (https://rustup.rs), then try again"
    if command -v rustup >/dev/null; then
        say "Rust ${have:-is absent}; at least $needed is needed: rustup toolchain install stable"
        rustup toolchain install stable --profile default >&2 || die "rustup failed; $by_hand"
        [ -n "$have" ] || rustup default stable >&2
    else
        say "Rust ${have:-is absent}; at least $needed is needed: fetching rustup from https://sh.rustup.rs into $cargo_bin and ~/.rustup"
        local script
        script=$(mktemp)
        if ! curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$script"; then
            rm -f "$script"
            die "rustup cannot be fetched; $by_hand"
        fi
        local status=0
        sh "$script" -y --no-modify-path --profile default >&2 || status=$?
        rm -f "$script"
        [ $status -eq 0 ] || die "rustup failed; $by_hand"
        say "Rust is in $cargo_bin; to use it in this shell: export PATH=\"$cargo_bin:\$PATH\""
    fi
    hash -r
    have=$(rust_version || true)
    if [ -z "$have" ] || ! version_at_least "$have" "$needed"; then
        die "cargo uses Rust ${have:-of no version}, at least $needed is needed; try: rustup default stable"
    fi
}

# Distributions' and minimal toolchains leave these out.
install_lints() {
    local missing=()
    cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v rustup >/dev/null || die "this Rust lacks ${missing[*]}; install them where Rust came from (or use https://rustup.rs)"
    say "adding to Rust with rustup: ${missing[*]}"
    quietly rustup component add "${missing[@]}" || die "rustup could not add ${missing[*]}; see above"
}

# cargo-fuzz works with a nightly toolchain only: it is built (a minute) where there is one, and fetching one is left to the user.
install_fuzz() {
    cargo +nightly --version >/dev/null 2>&1 || return 0
    install_packages "${FUZZ[@]}"
    cargo fuzz --version >/dev/null 2>&1 && return 0
    say "building cargo-fuzz into $cargo_bin: cargo install cargo-fuzz --locked"
    quietly cargo install cargo-fuzz --locked || say "cargo-fuzz could not be built; the parsers are not fuzzed"
}

[ $# -eq 0 ] && set -- build
for group in "$@"; do
    case $group in
    build) install_packages "${BUILD[@]}"; install_rust ;;
    lint) install_packages "${LINT[@]}"; install_lints ;;
    test) install_packages "${LINT[@]}" "${TEST[@]}"; install_lints ;;
    sockets) install_packages "${SOCKETS[@]}" ;;
    fuzz) install_fuzz ;;
    bench) install_packages "${BENCH[@]}" ;;
    deb) install_packages "${DEB[@]}" ;;
    dpdk) install_packages "${DPDK[@]}" ;;
    *) die "unknown group '$group'; known: build lint test sockets fuzz bench deb dpdk" ;;
    esac
done
