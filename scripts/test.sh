#!/usr/bin/env bash
# Everything that must hold before a change is accepted: lint, all tests, the checks against SciPy, a short fuzz run.
# The last line counts the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
# Debian's own Python has NumPy and SciPy; another one earlier in PATH may not. Tests that need it may not skip here.
export TSUMUJI_PYTHON=/usr/bin/python3 TSUMUJI_REQUIRE=scipy

# Instructions: 1537 counted with Rust 1.95; a tenth is left to compilers.
INSTRUCTIONS_LIMIT=${INSTRUCTIONS_LIMIT:-1650}
target=${CARGO_TARGET_DIR:-target}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
step() { printf '\n== %s\n' "$*"; }

failed_steps=()
step "lint"
bash scripts/lint.sh || failed_steps+=(lint)

step "tests"
# Timing-sensitive code is tested on two cores with real processes: few threads keep the tests from starving each other.
cargo test --workspace --no-fail-fast -- --test-threads="${TEST_THREADS:-2}" 2>&1 | tee "$log" || failed_steps+=(tests)

step "instructions"
# What the engine spends on a small reliable message, both sides together; whoever makes it cheaper lowers the limit.
cargo build --release --quiet -p tsumuji-proto --example small_messages &&
    /usr/bin/python3 scripts/instructions.py "$target/release/examples/small_messages" --limit "$INSTRUCTIONS_LIMIT" ||
    failed_steps+=(instructions)

step "fuzz"
bash scripts/fuzz.sh "${FUZZ_SECONDS:-5}" || failed_steps+=(fuzz)

read -r passed failed skipped < <(awk '
    /^test result:/ { passed += $4; failed += $6; skipped += $8 }
    END { print passed + 0, failed + 0, skipped + 0 }' "$log")
grep -h '^SKIPPED ' "$log" || true
if [ ${#failed_steps[@]} -gt 0 ]; then
    printf '\nfailed: %s\n' "${failed_steps[*]}"
    [ "$failed" -eq 0 ] && failed=${#failed_steps[@]}
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    exit 1
fi
printf '\n%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
