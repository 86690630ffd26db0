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

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/debian/tsumuji
LIBS=$LIBS PROGRAM=$PROGRAM PREFIX=/usr DESTDIR=$root bindings/c/install.sh
# Debian's folders for completions.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
install -D -m 644 LICENSE-MIT "$root/usr/share/doc/tsumuji/copyright"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
# As Debian's packages are: without what only debuggers read.
strip --strip-unneeded "$root/usr/bin/tsumuji" "$root"/usr/lib/libtsumuji.so.*.*.* "$root/usr/lib/tsumuji/libtsumuji_sockets.so"
strip --strip-debug "$root/usr/lib/libtsumuji.a"

version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
# Packages with the libraries that these files are linked with; the tool wants the folders of a source.
printf 'Source: tsumuji\n\nPackage: tsumuji\nArchitecture: any\n' >"$stage/debian/control"
mkdir "$root/DEBIAN"
depends=$(cd "$stage" && dpkg-shlibdeps -O --ignore-missing-info -ldebian/tsumuji/usr/lib debian/tsumuji/usr/bin/tsumuji \
    debian/tsumuji/usr/lib/libtsumuji.so.*.*.* debian/tsumuji/usr/lib/tsumuji/libtsumuji_sockets.so | sed -n 's/^shlibs:Depends=//p')
cat >"$root/DEBIAN/control" <<END
Package: tsumuji
Version: $version-1
Architecture: $architecture
Maintainer: The tsumuji developers <developers@tsumuji.invalid>
Section: net
Priority: optional
Installed-Size: $(du --summarize --block-size=1K "$root/usr" | cut -f 1)
Depends: $depends
Homepage: $(sed -n 's/^repository *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
Description: User-level message passing for iterative computing
 Reliable and best-effort messages over shared memory, DPDK, AF_XDP, raw
 Ethernet and UDP with one API, asynchronous linear solvers and gossip learning
 on top, and the benchmarks that show where time goes. With the C library and its
 headers.
END
package=$into/tsumuji_$version-1_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
# Whether Debian has all that it depends on; nothing is installed.
apt-get install --simulate --quiet "$package" >/dev/null
echo "$package"
