#!/bin/sh
# Installs libsymmc for programs in C and C++: the header, the shared and the static library, and a file for pkg-config.
#
#   frontends/capi/install.sh PREFIX [LIBRARIES]
#
# PREFIX is an absolute folder, such as /usr/local. LIBRARIES is a folder that contains libsymmc.a; without it cargo builds it.
# DESTDIR, if it is set, is put before every path, for package builds. CC is the compiler that links, cc by default.
# Prints the installed paths, one on each line; removing them uninstalls libsymmc.
#
# The shared library is linked here from the static one, because its soname contains the version of the interface. The library
# that cargo builds has no such soname: in cargo's folders no file would have that name.
set -eu

fail() {
  echo "install.sh: $*" >&2
  exit 2
}

case ${1-} in
/*) prefix=${1%/} ;;
*) fail "expected PREFIX, an absolute folder, found '${1-}'" ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ $# -ge 2 ]; then
  libraries=$2
else
  (cd "$root" && cargo build --release --locked -p symmc-capi) >&2
  libraries=${CARGO_TARGET_DIR:-$root/target}/release
fi
[ -f "$libraries/libsymmc.a" ] || fail "$libraries has no libsymmc.a"

abi=$(sed -n 's/^#define SYMMC_ABI_VERSION //p' "$here/include/symmc.h")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
[ -n "$abi" ] && [ -n "$version" ] || fail "no version in $here/include/symmc.h or $root/Cargo.toml"

installed() { echo "${DESTDIR-}$prefix/$1"; }
lib=$(installed lib)
mkdir -p "$lib/pkgconfig" "$(installed include)" || fail "cannot make $lib"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

echo '{ global: symmc_*; local: *; };' >"$made/exported"
${CC:-cc} -shared -o "$made/libsymmc.so" -Wl,-soname,"libsymmc.so.$abi" -Wl,--version-script,"$made/exported" \
  -Wl,--gc-sections -Wl,--strip-debug -Wl,--no-undefined -Wl,--whole-archive "$libraries/libsymmc.a" -Wl,--no-whole-archive \
  -lgcc_s -lutil -lrt -pthread -lm -ldl
# In a replacement of sed, \, & and the separator are special. A space is special in the file for pkg-config.
escaped=$(printf '%s' "$prefix" | sed 's/[\\&|]/\\&/g; s/ /\\\\ /g')
sed "s|@PREFIX@|$escaped|; s|@VERSION@|$version|" "$here/symmc.pc.in" >"$made/symmc.pc"

put() {
  cp "$1" "$(installed "$2")"
  chmod "$3" "$(installed "$2")"
  installed "$2"
}
link() {
  ln -sf "$1" "$(installed "$2")"
  installed "$2"
}
put "$here/include/symmc.h" include/symmc.h 644
put "$made/libsymmc.so" "lib/libsymmc.so.$version" 755
link "libsymmc.so.$version" "lib/libsymmc.so.$abi"
link "libsymmc.so.$abi" lib/libsymmc.so
put "$libraries/libsymmc.a" lib/libsymmc.a 644
put "$made/symmc.pc" lib/pkgconfig/symmc.pc 644
