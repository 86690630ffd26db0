#!/usr/bin/env bash
# Format, clippy with warnings denied, documentation with warnings denied, and the house rules.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

step() { printf '\n== lint: %s\n' "$*" >&2; }

step "house rules"
/usr/bin/python3 scripts/lint_rooms.py
step "format"
cargo fmt --all --check
# With the DPDK link where libdpdk is; the Rust code is the same without it.
dpdk=()
if pkg-config --exists libdpdk 2>/dev/null; then dpdk=(--features tsumuji-link/dpdk); fi
step "clippy"
cargo clippy --workspace "${dpdk[@]}" --all-targets --quiet -- -D warnings
step "clippy without features"
cargo clippy --package tsumuji --package tsumuji-node --package tsumuji-c --no-default-features --quiet -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace "${dpdk[@]}" --no-deps --quiet
