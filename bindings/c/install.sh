#!/bin/sh
# Installs the C library: shared and static, headers, pkg-config file and manual pages; the library of `tsumuji run` if it is there; and the program
# if it is given, with its manual pages and completions of shells.
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
man3=$root$prefix/share/man/man3
install -m 644 "$here/man/tsumuji.3" "$here/man/suci.3" "$man3/"
# A page for each function, which leads to that of its header.
for header in tsumuji suci; do
    sed -n 's/^[a-z][a-z0-9_ *]*[ *]\([a-z0-9_]*\)(.*/\1/p' "$here/include/$header.h" | sort -u | while read -r name; do
        echo ".so man3/$header.3" >"$man3/$name.3"
    done
done
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" "$here/tsumuji.pc.in" >"$root$libdir/pkgconfig/tsumuji.pc"
chmod 644 "$root$libdir/pkgconfig/tsumuji.pc"
# The library of `tsumuji run`, where the program looks for it.
if [ -f "$LIBS/libtsumuji_sockets.so" ]; then
    install -d "$root$libdir/tsumuji"
    install -m 755 "$LIBS/libtsumuji_sockets.so" "$root$libdir/tsumuji/.libtsumuji_sockets.so.new"
    mv -f "$root$libdir/tsumuji/.libtsumuji_sockets.so.new" "$root$libdir/tsumuji/libtsumuji_sockets.so"
fi
if [ -n "${PROGRAM:-}" ]; then
    install -d "$root$prefix/bin"
    install -m 755 "$PROGRAM" "$root$prefix/bin/tsumuji"
    share=$root$prefix/share
    install -d "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
    "$PROGRAM" man "$share/man/man1"
    "$PROGRAM" completion bash >"$share/bash-completion/completions/tsumuji"
    "$PROGRAM" completion zsh >"$share/zsh/site-functions/_tsumuji"
    "$PROGRAM" completion fish >"$share/fish/vendor_completions.d/tsumuji.fish"
fi
