# For scripts/btf.sh and scripts/kernels.sh, which read it: apt with package lists of its own below
# $lists. This machine's sources are neither read nor changed, and root is not needed. The caller
# sets $lists, $architectures, $suites, and $subject, which is what an error says cannot be fetched.
# shellcheck shell=sh disable=SC2154 # set by the caller

updated=

apt() {
    program=$1
    shift
    "$program" -qq -o Dir::State="$lists" -o Dir::State::status="$lists/status" -o Dir::Cache="$lists/cache" \
        -o Dir::Etc="$lists/etc" -o Dir::Etc::sourcelist="$lists/etc/sources.list" -o Dir::Etc::sourceparts=- \
        -o APT::Architecture=amd64 -o APT::Architectures="$architectures" -o Acquire::Languages=none \
        -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o APT::Update::Error-Mode=any -o APT::Sandbox::User= \
        "$@" </dev/null
}

# Fetches the lists, once.
update() {
    [ -z "$updated" ] || return 0
    mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$lists/etc/preferences.d" "$lists/etc/apt.conf.d"
    : >"$lists/status"
    for suite in $suites; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
    done >"$lists/etc/sources.list"
    apt apt-get update || {
        echo "kcollect: $subject cannot be fetched: apt-get update from deb.debian.org failed" >&2
        exit 69
    }
    updated=yes
}

# Returns the newest package whose name is PREFIX, a version that begins as given, and SUFFIX.
newest() {
    apt apt-cache search --names-only "^$1-$2[0-9.+deb-]*-$3\$" | cut -d ' ' -f 1 | sort -V | tail -n 1
}
