#!/bin/sh
# Makes bpf/kernels/btf/NAME.btf for each NAME, or all that are there anew: the types that kcollect
# looks up in one of Debian's kernels. A NAME is a series and a processor: 7.3-amd64, 7.3-arm64, or
# 7.3-rt-amd64 with PREEMPT_RT. Prints what the BPF object would not find in each.
#
# The kernels are Debian's for clouds, the newest of each series. apt fetches them with its own
# package lists: this machine's sources are neither read nor changed, and root is not needed.
set -eu

cd "$(dirname "$0")/.."
scripts/packages.sh btf
types=bpf/kernels/btf
if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046 # names without spaces
    set -- $(cd "$types" && ls -- *.btf | sed 's/[.]btf$//')
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lists=$work/apt

architectures=amd64,arm64
suites='bookworm trixie trixie-backports sid'
subject='the kernels'
# shellcheck source=scripts/apt.sh
. scripts/apt.sh

# The newest package of a series with the kernel's image. Since 6.19 that is not linux-image, which
# then only depends on others.
package_of() {
    for kind in binary image; do
        found=$(newest "linux-$kind" "$1[.]" "$2")
        [ -z "$found" ] || break
    done
    echo "$found"
}

number() {
    od -A n -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

# Unpacks the kernel in an image. The x86-64 image is a program that unpacks itself: the payload's
# offset and length are in its header (Documentation/arch/x86/boot.rst), and the last four bytes are
# the size afterwards. Debian's for arm64 is not compressed.
unpack() {
    case $3 in
    arm64) mv "$1" "$2" && return ;;
    esac
    start=$((($(number "$1" 497 1) + 1) * 512 + $(number "$1" 584 4)))
    tail -c "+$((start + 1))" "$1" | head -c "$(($(number "$1" 588 4) - 4))" >"$1.packed"
    case $(od -A n -t x1 -N 4 "$1.packed" | tr -d ' ') in
    28b52ffd) zstd -q -d -c "$1.packed" >"$2" ;;
    02214c18) lz4 -q -d -c "$1.packed" >"$2" ;;
    fd377a58) xz -d -c "$1.packed" >"$2" ;;
    *)
        echo "kcollect: $1 is compressed in a way that $0 does not know" >&2
        exit 69
        ;;
    esac
}

update
for name in "$@"; do
    series=${name%%-*}
    architecture=${name##*-}
    case ${name#*-} in
    amd64 | arm64) flavour=cloud-$architecture ;;
    *) flavour=${name#*-} ;;
    esac
    package=$(package_of "$series" "$flavour")
    [ -n "$package" ] || {
        echo "kcollect: Debian has no kernel $series for $flavour (any more): bpf/kernels/btf/$name.btf stays as it is" >&2
        continue
    }
    echo "kcollect: $name.btf from $package"
    rm -rf "$work/new"
    mkdir "$work/new"
    (cd "$work/new" && apt apt-get download "$package:$architecture")
    dpkg-deb --fsys-tarfile "$work/new/$package"_*.deb | tar -x -C "$work/new" --wildcards '*/vmlinuz*'
    unpack "$(find "$work/new" -name 'vmlinuz*' -type f)" "$work/new/vmlinux" "$architecture"
    cargo run -q --locked -p kcollect-bpf --example kernel-types -- reduce "$work/new/vmlinux" "$types/$name.btf"
done
