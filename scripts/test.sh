#!/usr/bin/env bash
# Everything that must hold before a change is accepted: lint, all tests, the checks against SciPy.
# Says what was skipped and why, and how long each step took. The last line counts the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
# Debian's own Python has NumPy and SciPy; another one earlier in PATH may not. Tests that need it may not skip here.
export TSUMUJI_PYTHON=/usr/bin/python3 TSUMUJI_REQUIRE=scipy,ngspice,c,mpi,deb,sockets
# A kernel that tells how long threads wait for a core is read.
if [ -r /proc/self/schedstat ]; then TSUMUJI_REQUIRE+=,schedstat; fi

# Instructions: 1396 counted with Rust 1.95; little is left to compilers.
INSTRUCTIONS_LIMIT=${INSTRUCTIONS_LIMIT:-1400}
target=${CARGO_TARGET_DIR:-target}

log=$(mktemp)
before=$(mktemp)
unsteady=$(mktemp)
trap 'rm -f "$log" "$log".* "$before" "$unsteady"' EXIT
bash scripts/leftovers.sh record "$before"

failed_steps=()
times=()
step() {
    local name=$1 start=$SECONDS
    printf '\n== %s\n' "$name"
    "$name" || failed_steps+=("$name")
    times+=("$name $((SECONDS - start)) s")
}

lint() {
    # The lock files first: every later command of cargo would quietly mend them.
    local folder
    for folder in . fuzz; do
        if ! cargo tree --manifest-path "$folder/Cargo.toml" --workspace --locked --quiet >/dev/null; then
            echo "see above; if $folder/Cargo.lock does not fit the manifests: run cargo tree in $folder and commit it" >&2
            return 1
        fi
    done
    bash scripts/lint.sh
}

# Passes on what `cargo test` says; of what passing tests print only who skipped something and why, as `SKIPPED test: reason`.
only_skips() {
    # Debian's awk waits for four KiB of input otherwise.
    local at_once=()
    if awk -W version 2>&1 </dev/null | grep -q '^mawk'; then at_once=(-W interactive); fi
    awk "${at_once[@]}" '
        /^successes:$/ { inside = 1; name = ""; next }
        /^failures:$/ || /^test result:/ { inside = 0 }
        !inside { print; fflush(); next }
        /^---- .* stdout ----$/ { name = $0; sub(/^---- /, "", name); sub(/ stdout ----$/, "", name); next }
        /^SKIPPED |^[Ss]kipped[,:]|: skipped: / {
            reason = $0
            sub(/^SKIPPED /, "", reason); sub(/^[Ss]kipped[,:] */, "", reason); sub(/^[^ ]*: skipped: /, "", reason)
            last = name; sub(/^.*::/, "", last)
            if (index(reason, name ": ") == 1) reason = substr(reason, length(name) + 3)
            if (index(reason, last ": ") == 1) reason = substr(reason, length(last) + 3)
            print "SKIPPED " name ": " reason; fflush()
        }'
}

tests() {
    local dpdk=()
    if pkg-config --exists libdpdk; then dpdk=(--features tsumuji-link/dpdk); fi
    # No test links it, so none would build it.
    cargo build --quiet --package tsumuji-sockets || return 1
    cargo test --workspace "${dpdk[@]}" --no-run --quiet || return 1
    # Timing-sensitive code is tested on two cores with real processes: few threads keep the tests from starving each other. Three series at once, about as
    # long as each other, for many tests wait as often as they compute: those of the program (`e2e`), those of crates from outside (`it`), all others.
    local threads=${TEST_THREADS:-2} failed=0 one beside=() strays
    strays=$(compgen -G '*/*/tests/[ei].rs'; compgen -G '*/*/tests/it?*'; compgen -G '*/*/tests/e2e?*'; compgen -G '*/*/tests/e2[!e]*'; compgen -G '*/*/tests/e2.rs') || true
    if [ -n "$strays" ]; then
        echo "no series has tests of such a name: $strays" >&2
        return 1
    fi
    series "$log.crates" $(((threads + 1) / 2)) --test it &
    beside+=($!)
    series "$log.others" $(((threads + 1) / 2)) --lib --bins --test '[!ei]*' --test 'i[!t]*' --test 'e[!2]*' &
    beside+=($!)
    series "$log.program" "$threads" --test e2e || failed=1
    for one in "${beside[@]}"; do
        wait "$one" || failed=1
    done
    series "$log.doc" "$threads" --doc || failed=1
    cat "$log.program" "$log.crates" "$log.others" "$log.doc" >"$log"
    [ "$failed" -eq 0 ] || alone
}

# Runs the tests of these targets; what they say is passed on, and kept in a file.
series() {
    local file=$1 threads=$2
    shift 2
    : >"$file.raw"
    watched "$file.raw" --no-fail-fast "$@" -- --test-threads="$threads" --show-output &
    tail --pid=$! --sleep-interval=0.5 -n +1 -f "$file.raw" | only_skips | tee "$file"
    wait $!
}

# Runs `cargo test` with its output in a file, and ends what stalls. A shell lets what it runs beside itself ignore Ctrl-C, on which tests depend.
# A file instead of a pipe: a process that a test left behind would keep a pipe open.
watched() {
    local file=$1 cargo watcher status=0
    shift
    : >"$file"
    env --default-signal=INT,QUIT cargo test --workspace "${dpdk[@]}" "$@" >>"$file" 2>&1 &
    cargo=$!
    end_stalled "$cargo" "$file" &
    watcher=$!
    wait "$cargo" || status=$?
    kill "$watcher" 2>/dev/null || true
    return $status
}

# Ends the test program that cargo runs once it has said nothing for STALL_SECONDS, with all processes it started: a test that waits for ever fails, by name.
end_stalled() {
    local cargo=$1 file=$2 said=-1 now since=$SECONDS
    trap 'kill "$pause" 2>/dev/null; exit 0' TERM
    while kill -0 "$cargo" 2>/dev/null; do
        sleep 5 &
        local pause=$!
        wait "$pause"
        now=$(stat -c %s "$file" 2>/dev/null || echo 0)
        if [ "$now" != "$said" ]; then
            said=$now since=$SECONDS
        elif [ $((SECONDS - since)) -ge "${STALL_SECONDS:-480}" ]; then
            since=$SECONDS
            stalled "$cargo" "$file" >>"$file" || true
        fi
    done
}

stalled() {
    local cargo=$1 file=$2 program family=() pid
    program=$(pgrep -P "$cargo" | head -n 1)
    [ -n "$program" ] || return 0
    mapfile -t family < <(descendants "$program")
    printf '\nSTALLED: nothing was said for %s s; still running:\n' "${STALL_SECONDS:-480}"
    awk '
        /has been running for over/ { running[$2] = 1 }
        /^test .* \.\.\. / { delete running[$2] }
        # With one thread a test is named before it runs.
        /^test .* \.\.\. $/ { running[$2] = 1 }
        /^ *Running / { delete running }
        END { for (name in running) print "  " name }' "$file"
    ps -o pid,ppid,stat,etimes,wchan:24,args -p "$(IFS=,; echo "$program${family[*]:+,${family[*]}}")" | cut -c 1-200
    for pid in /proc/"$program"/task/*; do printf 'thread %s: %s\n' "$(cat "$pid/comm")" "$(cat "$pid/wchan")"; done 2>/dev/null
    kill -ABRT "$program"
    for pid in "${family[@]}"; do kill -KILL "$pid"; done 2>/dev/null
}

# The processes that one started, and theirs.
descendants() {
    local child
    for child in $(pgrep -P "$1"); do
        echo "$child"
        descendants "$child"
    done
}

# Failed tests, one a line: the target's option (--test it, --lib …), a tab, the name. `incomplete`: something else failed, too, such as a build, a
# documentation test, or a test program by a signal.
failed_tests() {
    awk '
        /^ *(Running|Doc-tests) / { count = 0 }
        /^test .* \.\.\. FAILED$/ { names[count++] = $2 }
        /^error: test failed, to rerun pass `/ {
            target = $0
            sub(/^[^`]*`(-p [^ ]+ )?/, "", target); sub(/`.*$/, "", target)
            if (count == 0) print "incomplete"
            for (i = 0; i < count; i++) { print target "\t" names[i]; named++ }
            count = 0
        }
        /^test result:/ { failed += $6 }
        /^error(\[|: could not compile)/ { print "incomplete" }
        END { if (named != failed) print "incomplete" }' "$log"
}

# A few failed tests run again by themselves, three times each: what fails for a reason fails again. One that passes is named as unsteady, for somebody to mend.
alone() {
    local failed target name times
    failed=$(failed_tests)
    if [ -z "$failed" ] || grep -qx incomplete <<<"$failed" || [ "$(wc -l <<<"$failed")" -gt "${UNSTEADY_MAX:-3}" ]; then return 1; fi
    while IFS=$'\t' read -r target name; do
        for times in 1 2 3; do
            echo "== again, alone ($times of 3): $name"
            # shellcheck disable=SC2086 # an option and its value
            if ! watched "$unsteady.run" --quiet $target -- --exact "$name" ||
                ! grep -q '^test result: ok. 1 passed' "$unsteady.run"; then
                cat "$unsteady.run"
                rm -f "$unsteady.run"
                return 1
            fi
        done
        echo "$name" >>"$unsteady"
    done <<<"$failed"
    rm -f "$unsteady.run"
}

# What the engine spends on a small reliable message, both sides together; whoever makes it cheaper lowers the limit.
instructions() {
    cargo build --release --quiet -p tsumuji-proto --example small_messages &&
        /usr/bin/python3 scripts/instructions.py "$target/release/examples/small_messages" --limit "$INSTRUCTIONS_LIMIT"
}

# All interleavings of the rings and the doorbell of shared memory. A folder of its own: its flags would build everything else anew.
interleavings() {
    RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_TARGET_DIR=$target/loom \
        cargo test --quiet --release --package tsumuji-link --test loom_ring | tee -a "$log"
    return "${PIPESTATUS[0]}"
}

# Namespaces, interfaces, shared memory, files, huge pages, XDP programs and processes that the run began with are all there is.
leftovers() { bash scripts/leftovers.sh compare "$before"; }

step lint
step tests
step instructions
step interleavings
step leftovers

# Tests that skipped count as skipped, not as passed.
read -r passed failed skipped < <(awk '
    /^SKIPPED / { if (!seen[run, $2]++) by_themselves++ }
    /^test result:/ { run++; passed += $4; failed += $6; skipped += $8 }
    END { print passed - by_themselves, failed + 0, skipped + by_themselves }' "$log")
if [ -s "$unsteady" ]; then
    echo
    echo "UNSTEADY, failed in the whole run and passed three times alone; mend them:"
    sed 's/^/  /' "$unsteady"
    passed=$((passed + $(wc -l <"$unsteady")))
    failed=$((failed - $(wc -l <"$unsteady")))
fi
echo
if [ "$skipped" -gt 0 ]; then
    echo "What was skipped is named above; the reasons:"
    sed -n 's/^SKIPPED [^ ]*: //p' "$log" | sort | uniq -c | sort -rn
fi
printf -v list '%s, ' "${times[@]}"
echo "time: ${list}$SECONDS s in all"
if [ ${#failed_steps[@]} -gt 0 ]; then
    echo "failed: ${failed_steps[*]}"
    [ "$failed" -eq 0 ] && failed=${#failed_steps[@]}
    echo "$passed passed, $failed failed, $skipped skipped"
    exit 1
fi
echo "$passed passed, $failed failed, $skipped skipped"
