#!/bin/sh
# Unpacks the kernels that kcollect is tested on, besides the running one, into DIRECTORY/6.1 and
# DIRECTORY/6.12. They are Debian's for clouds, which are small and have the drivers of a virtual
# machine.
#
# apt fetches them with its own package lists below that directory: this machine's sources are
# neither read nor changed, and root is not needed. A kernel that is there is not fetched again;
# remove its directory to fetch the newest.
set -eu

[ $# -eq 1 ] || {
    echo "usage: $0 DIRECTORY" >&2
    exit 64
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
lists=$directory/apt
updated=

apt() {
    program=$1
    shift
    "$program" -qq -o Dir::State="$lists" -o Dir::State::status="$lists/status" -o Dir::Cache="$lists/cache" \
        -o Dir::Etc="$lists/etc" -o Dir::Etc::sourcelist="$lists/etc/sources.list" -o Dir::Etc::sourceparts=- \
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o Acquire::Languages=none -o Acquire::Retries=2 \
        -o Acquire::http::Timeout=30 -o APT::Update::Error-Mode=any -o APT::Sandbox::User= "$@" </dev/null
}

update() {
    [ -z "$updated" ] || return 0
    mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$lists/etc/preferences.d" "$lists/etc/apt.conf.d"
    : >"$lists/status"
    for suite in bookworm trixie; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
    done >"$lists/etc/sources.list"
    apt apt-get update || {
        echo "kcollect: the kernels to test on cannot be fetched: apt-get update from deb.debian.org failed" >&2
        exit 69
    }
    updated=yes
}

for series in 6.1 6.12; do
    [ ! -e "$directory/$series" ] || continue
    update
    package=$(apt apt-cache search --names-only "^linux-image-$series[.][0-9.+deb-]*-cloud-amd64\$" |
        cut -d ' ' -f 1 | sort -V | tail -n 1)
    [ -n "$package" ] || {
        echo "kcollect: Debian has no package linux-image-$series*-cloud-amd64 any more" >&2
        exit 69
    }
    echo "kcollect: fetching $package"
    rm -rf "$directory/new"
    mkdir "$directory/new"
    (cd "$directory/new" && apt apt-get download "$package")
    dpkg-deb -x "$directory/new/$package"_*.deb "$directory/new/unpacked"
    # The rename makes it appear complete or not at all.
    mv "$directory/new/unpacked" "$directory/$series"
done
rm -rf "$directory/new" "$lists"
