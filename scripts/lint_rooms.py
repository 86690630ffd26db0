#!/usr/bin/env python3
"""House rules that no compiler checks.

- dependencies between crates point down only, and the two pure crates use nothing that could reach the host;
- `unsafe` appears only in the files whose business it is;
- `wire` and `proto` are `#![no_std]`;
- the program prints to standard error by `tell!`, which goes on where that takes no more;
- no source file is longer than 700 lines, but what a program writes;
- no decision is longer than 300 words;
- the files and folders that ARCHITECTURE.md names, and the lists here, exist.

Prints one line per breach (file:line: what, and what to do) and exits 1 if there is any.
"""

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What each crate may use of ours, beside itself. Development dependencies may add `sim` and `testbed`.
BELOW_NODE = {"wire", "proto", "link", "seal"}
MAY_USE = {
    "wire": set(),
    "proto": {"wire"},
    "sim": {"link", "node", "proto", "wire"},
    "bpf": set(),
    "link": {"bpf"},
    "seal": {"link"},
    "node": BELOW_NODE,
    "collective": BELOW_NODE | {"node"},
    "board": BELOW_NODE | {"node"},
    "numbers": set(),
    "factor": set(),
    "solve": BELOW_NODE | {"node", "board", "collective", "numbers", "factor"},
    "circuit": BELOW_NODE | {"node", "solve", "numbers", "factor"},
    "learn": BELOW_NODE | {"node", "collective", "numbers", "factor"},
    "bench": BELOW_NODE | {"node", "board", "collective", "solve", "testbed"},
    "lab": set(),
    "testbed": {"bpf"},
    "streams": set(),
    "gateway": BELOW_NODE | {"node", "streams"},
    "fuzz-targets": BELOW_NODE | {"node", "collective", "solve", "circuit", "learn", "gateway"},
}
# What only an optional feature brings: the simulator, for what this machine is too small to measure.
FEATURES_MAY_USE = {"solve": {"sim"}}
# Tests that need a whole endpoint on top of the room.
TESTS_MAY_USE = {"seal": {"node"}}
# The pure crates: no clock, no socket, no thread, no randomness.
PURE_MAY_USE = {"wire": {"zerocopy"}, "proto": {"bytes", "thiserror", "zerocopy"}}

MAY_BE_UNSAFE = [
    # `*` stands for folders, too.
    "crates/link/src/*/sys.rs",
    "crates/link/src/shm/sys/*.rs",
    "crates/link/src/*ring*.rs",
    "crates/link/src/xdp/umem.rs",
    "crates/node/src/sys.rs",
    "crates/node/src/lock.rs",
    "crates/node/src/bootstrap/foreign/pmix_sys.rs",
    # The laboratory: memory shared with its interface, vmsplice, memory of another process.
    "crates/lab/src/measure/sys.rs",
    "crates/link/tests/*ring*.rs",
    "crates/*/tests/*alloc*.rs",
    # The C library: what C calls, and what turns its pointers and handles into Rust's.
    "bindings/c/src/api/board.rs",
    "bindings/c/src/api/channels.rs",
    "bindings/c/src/api/codes.rs",
    "bindings/c/src/api/collectives.rs",
    "bindings/c/src/api/flow.rs",
    "bindings/c/src/api/messages.rs",
    "bindings/c/src/api/open.rs",
    "bindings/c/src/api/polling.rs",
    "bindings/c/src/api/posts.rs",
    "bindings/c/src/api/reductions.rs",
    "bindings/c/src/api/datagrams.rs",
    "bindings/c/src/api/state.rs",
    "bindings/c/src/ffi.rs",
    "bindings/c/src/fold.rs",
    "bindings/c/src/handle.rs",
    "bindings/c/src/suci.rs",
    "bindings/c/src/within.rs",
    # The sockets layer: what programs call instead of the C library's functions, system calls, and memory shared with other processes.
    "bindings/sockets/src/exports/*.rs",
    "bindings/sockets/src/sys.rs",
    "bindings/sockets/src/sys/*.rs",
    "bindings/sockets/src/real.rs",
    "crates/streams/src/ring.rs",
    "crates/gateway/src/segment.rs",
    "bindings/sockets/src/segment.rs",
    "bindings/sockets/src/table.rs",
    "bindings/sockets/src/arena.rs",
    "bindings/sockets/src/lock.rs",
    "bindings/sockets/src/exec.rs",
    "bindings/sockets/src/start.rs",
]
LONGEST_FILE_LINES = 700
# Of a page of docs/decisions, without its title.
LONGEST_DECISION_WORDS = 300
# Written by a program.
MAY_BE_LONGER = {"bindings/c/include/tsumuji.h"}
SOURCES = ("*.rs", "*.py", "*.sh", "*.c", "*.h")

# Comments, strings, raw strings and character literals: what must not be searched for keywords.
RUST_NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(\#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.S
)


def tracked_files():
    """What git knows or would take; of a tree without git, all but what is built."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout
        paths = map(Path, filter(None, listing.split("\0")))
    except (FileNotFoundError, subprocess.CalledProcessError):
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        paths = (path for path in paths if not {"target", ".git", "corpus", "artifacts"} & set(path.parts))
    return sorted(path for path in paths if (ROOT / path).is_file())


def crate_breaches():
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout)
    for package in metadata["packages"]:
        manifest = Path(package["manifest_path"]).relative_to(ROOT)
        if manifest.parts[0] != "crates":
            continue
        room = manifest.parts[1]
        if room not in MAY_USE:
            yield f"{manifest}: crate '{room}' has no entry in MAY_USE of scripts/lint_rooms.py; say what it may use"
            continue
        for dependency in package["dependencies"]:
            name, is_dev = dependency["name"], dependency["kind"] == "dev"
            if name == "tsumuji" or name.startswith("tsumuji-"):
                used = name.removeprefix("tsumuji-")
                allowed = MAY_USE[room] | {room} | ({"sim", "testbed"} | TESTS_MAY_USE.get(room, set()) if is_dev else set())
                if dependency["optional"]:
                    allowed |= FEATURES_MAY_USE.get(room, set())
                if used not in allowed:
                    yield f"{manifest}: '{room}' may not use '{used}'; it may use: {', '.join(sorted(MAY_USE[room])) or 'none of ours'}"
            elif not is_dev and room in PURE_MAY_USE and name not in PURE_MAY_USE[room]:
                yield f"{manifest}: '{room}' is pure and may not use '{name}'; it may use: {', '.join(sorted(PURE_MAY_USE[room]))}"


def matches(path, patterns):
    return any(fnmatch(path.as_posix(), pattern) for pattern in patterns)


def blanked(source):
    """The source with comments and literals blanked, line numbers kept."""
    return RUST_NOISE.sub(lambda found: "\n" * found.group(0).count("\n") or " ", source)


def source_breaches(path):
    source = (ROOT / path).read_text(encoding="utf-8")
    lines = source.count("\n")
    if lines > LONGEST_FILE_LINES and path.as_posix() not in MAY_BE_LONGER:
        yield f"{path}: {lines} lines; split it below {LONGEST_FILE_LINES}"
    if path.suffix != ".rs":
        return
    code = blanked(source)
    if not matches(path, MAY_BE_UNSAFE):
        for number, line in enumerate(code.splitlines(), 1):
            if re.search(r"\bunsafe\b", line) or re.search(r"\b(allow|expect)\s*\(\s*unsafe_code", line):
                yield f"{path}:{number}: no unsafe here; MAY_BE_UNSAFE in scripts/lint_rooms.py lists where it is allowed"
    if path.as_posix() in ("crates/wire/src/lib.rs", "crates/proto/src/lib.rs") and "#![no_std]" not in code:
        yield f"{path}: must be #![no_std]"
    if path.parts[:3] == ("apps", "cli", "src"):
        for number, line in enumerate(code.splitlines(), 1):
            if re.search(r"\beprint(ln)?!", line):
                yield f"{path}:{number}: eprintln! panics where standard error takes no more; use tell!"
    if path.parts[:2] in (("crates", "wire"), ("crates", "proto")) and "src" in path.parts and "tests" not in path.stem:
        for number, line in enumerate(code.split("#[cfg(test)]")[0].splitlines(), 1):
            if re.search(r"\bstd::|\bextern\s+crate\s+std\b", line):
                yield f"{path}:{number}: no std in the pure crates; use core or alloc"


def stands(path):
    """Whether ARCHITECTURE.md may name it: from the root, from `crates`, or without `src` and `.rs`."""
    room, _, rest = path.partition("/")
    names = [path, f"crates/{path}", f"crates/{room}/src/{rest}", f"crates/{room}/src/{rest}.rs"]
    return any((ROOT / name).exists() for name in names)


def map_breaches(files):
    """What is named and no longer there."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        for path in re.findall(r"`(\w+(?:/[\w.-]+)+)`", line):
            if not stands(path):
                yield f"ARCHITECTURE.md:{number}: there is no {path}"
    for room in sorted(MAY_USE):
        if not (ROOT / "crates" / room).is_dir():
            yield f"scripts/lint_rooms.py: MAY_USE names the crate '{room}', which is not there"
    for pattern in MAY_BE_UNSAFE:
        if not any(matches(path, [pattern]) for path in files):
            yield f"scripts/lint_rooms.py: no file fits '{pattern}' of MAY_BE_UNSAFE"


def decision_breaches():
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        words = len(path.read_text(encoding="utf-8").partition("\n")[2].split())
        if words > LONGEST_DECISION_WORDS:
            yield f"{path.relative_to(ROOT)}: {words} words; say it in {LONGEST_DECISION_WORDS}, figures go to docs/benchmarks.md"


def main():
    breaches = list(crate_breaches())
    files = [path for path in tracked_files() if any(path.match(pattern) for pattern in SOURCES)]
    for path in files:
        breaches.extend(source_breaches(path))
    breaches.extend(map_breaches(files))
    breaches.extend(decision_breaches())
    for breach in breaches:
        print(breach)
    print(f"house rules: {len(files)} files, {len(breaches)} breaches", file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
