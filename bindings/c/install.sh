#!/bin/sh
# Installs the C library: shared and static, headers, pkg-config file, manual pages, and the program if it is given.
#
#   LIBS=target/release [PROGRAM=target/release/tsumuji] [PREFIX=/usr/local] [LIBDIR=$PREFIX/lib] [DESTDIR=] bindings/c/install.sh
#
# Called by `make install` and by the tests. Nothing is written outside DESTDIR.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
root=${DESTDIR:-}
: "${LIBS:?state where libtsumuji.so and libtsumuji.a are}"
case $prefix in /*) ;; *) echo "install: PREFIX=$prefix is not an absolute path" >&2; exit 2 ;; esac

version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
soname=$(sed -n 's/.*-soname,\(libtsumuji\.so\.[0-9]*\).*/\1/p' "$here/build.rs")

install -d "$root$libdir/pkgconfig" "$root$prefix/include" "$root$prefix/share/man/man3"
# Beside it first: a running program keeps the library that it has mapped.
install -m 755 "$LIBS/libtsumuji.so" "$root$libdir/.libtsumuji.so.new"
mv -f "$root$libdir/.libtsumuji.so.new" "$root$libdir/libtsumuji.so.$version"
ln -sfn "libtsumuji.so.$version" "$root$libdir/$soname"
ln -sfn "$soname" "$root$libdir/libtsumuji.so"
install -m 644 "$LIBS/libtsumuji.a" "$root$libdir/libtsumuji.a"
install -m 644 "$here/include/tsumuji.h" "$here/include/suci.h" "$root$prefix/include/"
install -m 644 "$here/man/tsumuji.3" "$here/man/suci.3" "$root$prefix/share/man/man3/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" "$here/tsumuji.pc.in" >"$root$libdir/pkgconfig/tsumuji.pc"
chmod 644 "$root$libdir/pkgconfig/tsumuji.pc"
if [ -n "${PROGRAM:-}" ]; then
    install -d "$root$prefix/bin"
    install -m 755 "$PROGRAM" "$root$prefix/bin/tsumuji"
fi
