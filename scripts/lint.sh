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
step "clippy"
cargo clippy --workspace --all-targets --quiet -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
