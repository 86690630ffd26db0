#!/usr/bin/env bash
# Makes a Debian package of program, C library, library of `tsumuji run`, headers, manual pages and completions, and checks that it can be installed here.
#
#   LIBS=target/release PROGRAM=target/release/tsumuji scripts/deb.sh FOLDER
#
# Called by `make deb` and by the tests. Prints the package's path.
set -euo pipefail
: "${LIBS:?state where libtsumuji.so, libtsumuji.a and libtsumuji_sockets.so are}" "${PROGRAM:?state where the program is}"
into=$(realpath "${1:?state the folder for the package}")
LIBS=$(realpath "$LIBS") PROGRAM=$(realpath "$PROGRAM")
cd "$(dirname "$0")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

# The assets in apps/cli/Cargo.toml are there.
stage=target/deb
rm -rf "$stage"
trap 'rm -rf "$stage"' EXIT
LIBS=$LIBS PROGRAM=$PROGRAM PREFIX=/usr DESTDIR=$PWD/$stage bindings/c/install.sh
# As Debian's packages are: without what only debuggers read, which is two thirds.
strip --strip-unneeded "$stage/usr/bin/tsumuji" "$stage"/usr/lib/libtsumuji.so.*.*.* "$stage/usr/lib/tsumuji/libtsumuji_sockets.so"
strip --strip-debug "$stage/usr/lib/libtsumuji.a"
package=$(cargo deb --quiet --package tsumuji --no-build --no-strip --output "$into")
# Whether Debian has all that it depends on; nothing is installed.
apt-get install --simulate --quiet "$package" >/dev/null
echo "$package"
