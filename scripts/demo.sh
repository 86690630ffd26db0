#!/usr/bin/env bash
# Solves a real circuit, a real power grid and a dense system with four workers, over shared memory and over UDP, and prints
# the residuals as verified from the data. Called by `make demo` with the program as its argument.
set -euo pipefail
program=$(realpath "${1:-target/release/tsumuji}")
cd "$(dirname "$0")/.."

DATA=examples/data
WORKERS=4
failed=0

# What a row of the table shows, out of the JSON that `tsumuji solve --json` prints.
row() {
    /usr/bin/python3 -c '
import json, sys
name, link, steps_width = sys.argv[1], sys.argv[2], 9
try:
    run = json.load(sys.stdin)
except ValueError:
    run = {"error": "no answer"}
if "error" in run:
    print(f"  {name:<34} {link:<4}  failed: " + run["error"])
    sys.exit(1)
steps = max(run["laps"])
method = {"c": "cg", "G": "gmres"}.get(run["method"][:1], "relax")
residual, iterate = run["residual"], run["seconds"]["iterate"]
verdict = "verified" if run["converged"] else "NOT CONVERGED: " + run["reason"]
print(f"  {name:<34} {link:<4}  {method:<5} {steps:>{steps_width}}  {iterate:9.3f} s  {residual:.2e}  {verdict}")
sys.exit(0 if run["converged"] else 1)
' "$1" "$2"
}

solve() {
    local name=$1
    shift
    local link
    for link in shm udp; do
        "$program" solve "$@" --workers $WORKERS --link $link --json 2>/dev/null | row "$name" "$link" || failed=1
    done
}

echo
echo "Real systems solved by $WORKERS processes on $(nproc) cores, to a relative residual of 1e-10"
echo
printf '  %-34s %-4s  %-5s %9s  %11s  %-8s\n' "system" "link" "by" "steps" "iteration" "residual |b-Ax|/|b|, from the data"
for file in "$DATA"/*.mtx "$DATA"/*.mtx.gz; do
    [ -e "$file" ] || continue
    name=$(basename "$file")
    case $name in *_rhs.mtx*) continue ;; esac
    rhs=()
    for candidate in "${file%%.mtx*}"_rhs.mtx "${file%%.mtx*}"_rhs.mtx.gz; do
        [ -e "$candidate" ] && rhs=(--rhs "$candidate")
    done
    solve "${name%%.mtx*} ($DATA)" "$file" ${rhs[@]+"${rhs[@]}"}
done
solve "dense, 3000 rows (generated)" --generate dense:3000
echo
if [ $failed -ne 0 ]; then
    echo "Something did not converge; see above."
    exit 1
fi
hint() { printf '  %-66s # %s\n' "$1" "$2"; }
echo "Next:"
hint "$1 solve $DATA/add32.mtx.gz --output x.npy" "keep the solution, watch it converge"
hint "$1 solve --generate poisson2d:200 --loss 0.2" "lose every fifth frame, still arrive"
hint "$1 bench pingpong --link shm --vs" "how far from the bare machine"
hint "$1 doctor" "what works here, what would be faster"
hint "make bench" "every figure beside its limit or peer"
