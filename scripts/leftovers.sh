#!/usr/bin/env bash
# What test runs may leave on a machine: namespaces, interfaces, shared memory, files, huge pages, XDP programs, processes.
#
#   scripts/leftovers.sh record FILE    before the run: writes what is there
#   scripts/leftovers.sh compare FILE   after it: lists what is there now and was not, and fails if there is any
#
# Only what bears our name, or can be of nobody else in a run's time, is looked at. What a process that is just ending still
# holds is waited for. Looks, and changes nothing.
set -euo pipefail
export LC_ALL=C # one order for sort and comm

# The kernel takes down namespaces, and their interfaces and programs, in the background.
CHECKS=50
PAUSE_SECONDS=0.2

# One line for each thing, "kind name".
present() {
    # Namespaces with a name, whoever made them: no test leaves one.
    [ -d /run/netns ] && find /run/netns -mindepth 1 -maxdepth 1 -printf 'namespace %f\n'
    find /sys/class/net -mindepth 1 -maxdepth 1 -printf 'interface %f\n'
    find /dev/shm -mindepth 1 -iname '*tsumuji*' -printf 'shared-memory %p\n'
    find /tmp "${TMPDIR:-/tmp}" -maxdepth 1 -name 'tsumuji*' -printf 'file %p\n'
    [ -d /run/tsumuji ] && find /run/tsumuji -mindepth 1 -printf 'file %p\n'
    # Pinned programs and links; XDP programs, attached or only loaded.
    [ -d /sys/fs/bpf ] && find /sys/fs/bpf -mindepth 1 -iname '*tsumuji*' -printf 'pinned %p\n'
    if command -v bpftool >/dev/null; then
        bpftool prog show 2>/dev/null | sed -n 's/^\([0-9]*\): xdp .*/xdp-program \1/p'
        bpftool link show 2>/dev/null | sed -n 's/^\([0-9]*\): xdp .*/xdp-link \1/p'
    fi
    command -v ip >/dev/null && ip -details link show 2>/dev/null | sed -n 's/.*prog\/xdp id \([0-9]*\).*/xdp-attached \1/p'
    # Files of hugetlbfs, where DPDK leaves its own when it is killed.
    for mount in $(awk '$3 == "hugetlbfs" { print $2 }' /proc/mounts); do
        find "$mount" -mindepth 1 -printf 'huge-page-file %p\n'
    done
    for sizes in /sys/kernel/mm/hugepages/hugepages-*; do
        [ -d "$sizes" ] || continue
        used=$(($(cat "$sizes/nr_hugepages") - $(cat "$sizes/free_hugepages")))
        for ((page = 1; page <= used; page++)); do
            echo "huge-page $(basename "$sizes") number $page"
        done
    done
    # Abstract sockets are listed with an @; a socket with a name is held by a process.
    awk '$8 ~ /^@tsumuji/ { print "socket", $8 }' /proc/net/unix
    for process in /proc/[0-9]*; do
        # Gone meanwhile, or ended and not yet waited for: its command is empty.
        if command=$(tr '\0' ' ' 2>/dev/null <"$process/cmdline") && [[ ${command%% *} == */tsumuji || $command == tsumuji\ * ]]; then
            echo "process ${process#/proc/} $command"
        fi
    done
    return 0
}

case "${1-}" in
record)
    present 2>/dev/null | sort -u >"$2"
    ;;
compare)
    for ((check = 0; check < CHECKS; check++)); do
        left=$(comm -13 "$2" <(present 2>/dev/null | sort -u))
        [ -z "$left" ] && exit 0
        sleep "$PAUSE_SECONDS"
    done
    printf 'left behind:\n%s\n' "$left" >&2
    exit 1
    ;;
*)
    echo "usage: $0 record FILE | compare FILE" >&2
    exit 2
    ;;
esac
