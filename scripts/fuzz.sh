#!/usr/bin/env bash
# Fuzzes every target it finds (a folder `fuzz` in the root or in a crate) for the given seconds each; stops at none of them.
# Without cargo-fuzz or a nightly toolchain it says so and leaves: the parsers' property tests still run everywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
seconds=${1:-60}
# Seconds for one input. libFuzzer looks at its total time between inputs only: this ends one that hangs.
INPUT_SECONDS=30

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "SKIPPED fuzz: no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "SKIPPED fuzz: no cargo-fuzz (cargo install cargo-fuzz --locked)"
    exit 0
fi
# What libFuzzer says is shown only if it finds something.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
found=0
crashed=()
while IFS= read -r manifest; do
    folder=$(dirname "$manifest")
    echo "fuzz: building the targets of $folder"
    cargo +nightly fuzz build --fuzz-dir "$folder"
    while IFS= read -r target; do
        found=$((found + 1))
        echo "fuzz: $folder $target, $seconds s"
        # What is found is kept in `corpus` (not in git); it starts from there and from `seeds` (in git, never written to).
        corpora=("$folder/corpus/$target")
        mkdir -p "${corpora[0]}"
        [ -d "$folder/seeds/$target" ] && corpora+=("$folder/seeds/$target")
        # A run ends at its first crash and leaves its input in $folder/artifacts.
        if ! cargo +nightly fuzz run --fuzz-dir "$folder" "$target" "${corpora[@]}" -- \
            -max_total_time="$seconds" -timeout=$INPUT_SECONDS -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
            </dev/null >"$log" 2>&1; then
            cat "$log"
            crashed+=("$folder $target")
        else
            sed -n 's/^stat::number_of_executed_units: *\(.*\)/fuzz:     \1 inputs, no crash/p' "$log"
        fi
    done < <(cargo +nightly fuzz list --fuzz-dir "$folder")
done < <(find . -name target -prune -o -path '*/fuzz/Cargo.toml' -print)
if [ $found -eq 0 ]; then
    echo "SKIPPED fuzz: no targets in this tree"
fi
if [ ${#crashed[@]} -gt 0 ]; then
    printf 'fuzz: crashed: %s\n' "${crashed[@]}"
    exit 1
fi
