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
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Runs one target. What libFuzzer says is shown only if it finds something; then a file with the target's name stays in $results.
fuzz_one() {
    local folder=$1 target=$2 log=$results/$2.log
    # What is found is kept in `corpus` (not in git); it starts from there and from `seeds` (in git, never written to).
    local corpora=("$folder/corpus/$target")
    mkdir -p "${corpora[0]}"
    [ -d "$folder/seeds/$target" ] && corpora+=("$folder/seeds/$target")
    # A run ends at its first crash and leaves its input in $folder/artifacts.
    if cargo +nightly fuzz run --fuzz-dir "$folder" "$target" "${corpora[@]}" -- \
        -max_total_time="$seconds" -timeout=$INPUT_SECONDS -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
        </dev/null >"$log" 2>&1; then
        sed -n "s|^stat::number_of_executed_units: *\(.*\)|fuzz: $folder $target, $seconds s: \1 inputs, no crash|p" "$log"
    else
        cat "$log"
        touch "$results/$target"
    fi
}
export -f fuzz_one
export seconds INPUT_SECONDS results

targets=()
while IFS= read -r manifest; do
    folder=$(dirname "$manifest")
    echo "fuzz: building the targets of $folder"
    cargo +nightly fuzz build --fuzz-dir "$folder"
    while IFS= read -r target; do
        targets+=("$folder" "$target")
    done < <(cargo +nightly fuzz list --fuzz-dir "$folder")
done < <(find . -name target -prune -o -path '*/fuzz/Cargo.toml' -print)
if [ ${#targets[@]} -eq 0 ]; then
    echo "SKIPPED fuzz: no targets in this tree"
    exit 0
fi
# Each target is one thread: as many side by side as there are cores.
printf '%s\0' "${targets[@]}" | xargs -0 -n 2 -P "$(nproc)" bash -c 'fuzz_one "$@"' fuzz_one
crashed=$(find "$results" -type f ! -name '*.log' -printf '%f ')
if [ -n "$crashed" ]; then
    echo "fuzz: crashed: $crashed"
    exit 1
fi
