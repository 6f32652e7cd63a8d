#!/bin/sh
# Unpacks kernels that kcollect is tested on, in addition to the running one, each into
# DIRECTORY/NAME. A NAME is a series of Debian's (6.1), `newest` for the newest of trixie-backports,
# whichever that is today, or `rt` for the newest with PREEMPT_RT. They are Debian's for clouds,
# which are small and have the drivers of a virtual machine; `rt` exists only for all machines.
#
# apt fetches them with its own package lists below that directory: this machine's sources are
# neither read nor changed, and root is not needed. A kernel that is there is not fetched again;
# remove its directory to fetch the newest.
set -eu

[ $# -ge 2 ] || {
    echo "usage: $0 DIRECTORY NAME..." >&2
    exit 64
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
lists=$directory/apt
architectures=amd64
suites='bookworm trixie trixie-backports'
subject='the kernels to test on'
# shellcheck source=scripts/apt.sh
. "$(dirname "$0")/apt.sh"

# A kernel is one package up to Linux 6.18; after that its image has a package of its own, and since
# 7.1 its modules have one too.
packages_of() {
    case $1 in
    newest) version=[1-9] flavour=cloud-amd64 ;;
    rt) version=[1-9] flavour=rt-amd64 ;;
    *) version=$1[.] flavour=cloud-amd64 ;;
    esac
    whole=$(newest linux-image "$version" $flavour)
    echo "$whole"
    for part in binary modules; do
        package=linux-$part-${whole#linux-image-}
        if apt apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; fi
    done
}

for name in "$@"; do
    [ ! -e "$directory/$name" ] || continue
    update
    packages=$(packages_of "$name")
    [ -n "$packages" ] || {
        echo "kcollect: Debian has no kernel $name for amd64 any more" >&2
        exit 69
    }
    rm -rf "$directory/new"
    mkdir "$directory/new"
    for package in $packages; do
        echo "kcollect: fetching $package"
        (cd "$directory/new" && apt apt-get download "$package")
        dpkg-deb -x "$directory/new/$package"_*.deb "$directory/new/unpacked"
    done
    # The rename makes it appear complete or not at all.
    mv "$directory/new/unpacked" "$directory/$name"
done
rm -rf "$directory/new" "$lists"
