#!/usr/bin/python3
"""Instructions per small reliable message in the engine, by valgrind's callgrind.

Counts the same program at two lengths and divides the difference, so that start-up costs nothing. One message is
submit, plan, batch, handle_frame and delivery, both sides together. Fails if it exceeds the recorded limit.

  scripts/instructions.py target/release/examples/small_messages --limit 700
"""

import argparse
import re
import shutil
import subprocess
import sys

SHORT, LONG = 1000, 3000


def count(program, round_trips):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, str(round_trips)]
    run = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or not found:
        sys.exit(f"{' '.join(command)} failed: {run.stderr.strip().splitlines()[-1:]}")
    return int(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--limit", type=int, required=True, help="instructions per message that must not be exceeded")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("skipped: instructions per message (valgrind is not installed)")
        return
    messages = 2 * (LONG - SHORT)
    per_message = (count(options.program, LONG) - count(options.program, SHORT)) / messages
    print(f"engine: {per_message:.0f} instructions per small reliable message, both sides (limit {options.limit})")
    if per_message > options.limit:
        sys.exit("the engine's fast path has grown beyond its recorded limit")


if __name__ == "__main__":
    main()
