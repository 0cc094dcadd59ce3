#!/bin/sh
# bundle.sh FOLDER: puts the libraries that FOLDER/bin/ratoon needs beside it, in lib/ratoon, each with the licence of
# its Debian package. What belongs to glibc is not taken: it must be the system's own.
set -eu
folder=$1
libs=$folder/lib/ratoon
docs=$folder/share/doc/ratoon
command -v dpkg-query >/dev/null || { echo "bundle.sh: dpkg-query is missing: the tarball is made on Debian"; exit 1; }
mkdir -p "$libs" "$docs/licences"
cp LICENSE README.md CHANGELOG.md "$docs/"
cp -r doc "$docs/"

# Debian knows a file by the path that the package had, often without the /usr of today.
package_of() {
    for path in "$1" "${1#/usr}" "/usr$1"; do
        dpkg-query -S "$path" 2>/dev/null | sed -n '1s/:.*//p' | grep . && return
    done
    echo "bundle.sh: $1 belongs to no package, and its licence is not known" >&2
    exit 1
}

# The program was linked to look in lib/ratoon, which is empty: what is found are the system's.
needed=$(ldd "$folder/bin/ratoon")
if echo "$needed" | grep 'not found'; then exit 1; fi
echo "$needed" | sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' | sort -u | while read -r found; do
    file=$(readlink -f "$found")
    package=$(package_of "$file")
    case $package in libc6) continue ;; esac
    install -m 644 "$file" "$libs/$(basename "$found")"
    install -m 644 "/usr/share/doc/$package/copyright" "$docs/licences/$package"
    printf '%s ' "$(basename "$found")"
    dpkg-query -W -f '${Package} ${Version}, source ${source:Package} ${source:Version}\n' "$package"
done > "$docs/licences/LIBRARIES"
[ -s "$docs/licences/LIBRARIES" ] || { echo "bundle.sh: no library was found"; exit 1; }
