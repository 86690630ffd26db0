#!/usr/bin/env bash
# Fuzzes every target it finds (a folder `fuzz` in the root or in a crate) for the given seconds each, from the seed corpus.
# Without cargo-fuzz or a nightly toolchain it says so and leaves: the parsers' property tests still run everywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
seconds=${1:-60}

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "SKIPPED fuzz: no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "SKIPPED fuzz: no cargo-fuzz (cargo install cargo-fuzz)"
    exit 0
fi
found=0
while IFS= read -r manifest; do
    folder=$(dirname "$manifest")
    while IFS= read -r target; do
        found=1
        echo "fuzz: $folder $target, $seconds s"
        # Runs stop at the first crash and leave its input in $folder/artifacts.
        cargo +nightly fuzz run --fuzz-dir "$folder" "$target" -- -max_total_time="$seconds" -rss_limit_mb=2048 -verbosity=0
    done < <(cargo +nightly fuzz list --fuzz-dir "$folder")
done < <(find . -path ./target -prune -o -path '*/fuzz/Cargo.toml' -print)
if [ "$found" -eq 0 ]; then
    echo "SKIPPED fuzz: no targets in this tree"
fi
