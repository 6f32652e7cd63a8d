#!/bin/sh
# Tests the result of `make dist` in DIRECTORY, as root: installed alone, its doctor passes, it
# records and reports; gprofng opens the recording; manual pages and completions are valid.
#
# The clean place is a directory with the files of the package and the kernel's own file systems,
# without a shell, a library or a loader. Its mounts are in a mount namespace of their own, and end
# with it.
set -eu

[ $# -eq 1 ] || {
    echo "usage: $0 DIRECTORY" >&2
    exit 64
}

fail() {
    echo "kcollect: $1" >&2
    exit 1
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml" | head -n 1)
debian=$1/kcollect_${version}_amd64.deb
tarball=$1/kcollect-$version-x86_64-linux.tar.xz
for file in "$debian" "$tarball"; do
    [ -e "$file" ] || fail "$file is missing: run make dist"
done

work=$(mktemp -d)
# Never removes files of mounts below it.
trap 'rm -rf --one-file-system "$work"' EXIT
clean=$work/clean

echo "== the package"
dpkg-deb -x "$debian" "$clean"
depends=$(dpkg-deb -f "$debian" Depends)
[ -z "$depends" ] || fail "it depends on $depends"
(cd "$clean" && dpkg-deb --ctrl-tarfile "$debian" | tar -xOf - ./md5sums | md5sum -c --quiet)
dpkg-deb -c "$debian" | awk '$2 != "root/root" { print; bad = 1 } END { exit bad }' || fail "not everything is root's"
mkdir -p "$work/tarball"
tar -xJf "$tarball" -C "$work/tarball" --strip-components=1
cmp "$work/tarball/bin/kcollect" "$clean/usr/bin/kcollect"
for file in README.md LICENSE-APACHE LICENSE-GPL copyright THIRD-PARTY; do
    [ -s "$clean/usr/share/doc/kcollect/$file" ] || fail "$file is missing"
    cmp "$clean/usr/share/doc/kcollect/$file" "$work/tarball/share/doc/kcollect/$file"
done
# Third-party parts are named, with their licences.
for part in cargo/libbpf-sys cargo/clap_builder cargo/inferno debian/libelf-dev debian/libc6-dev rust/; do
    grep -q "^Files: $part" "$clean/usr/share/doc/kcollect/copyright" || fail "copyright does not list $part"
done
# Profilers can name its functions.
readelf -sW "$clean/usr/bin/kcollect" | grep -q ' FUNC .*kcollect' || fail "its functions have no names"

echo "== installed alone"
mkdir -p "$clean/proc" "$clean/sys" "$clean/dev" "$clean/tmp" "$clean/var/cache"
# inside ARGUMENTS...: runs kcollect in the clean place.
inside() {
    # shellcheck disable=SC2016 # the inner shell's
    unshare --mount --propagation private sh -euc '
        clean=$1
        shift
        for file_system in proc sys dev; do
            mount --rbind "/$file_system" "$clean/$file_system"
        done
        exec env -i PATH=/usr/bin "$(command -v chroot)" "$clean" /usr/bin/kcollect "$@"
    ' sh "$clean" "$@"
}
inside --version
inside doctor
inside -d /tmp -p on -t 2
[ -d "$clean/tmp/ktest.1.er" ] || fail "there is no experiment"
inside report /tmp/ktest.1.er
inside report /tmp/ktest.1.er functions -n 5
inside flame /tmp/ktest.1.er -o /tmp/ktest.1.svg
# Only the package's own files, the recording and the cache may be there.
left=$(cd "$clean" && find . -xdev -type f ! -path './usr/*' ! -path ./etc/kcollect.toml ! -path './tmp/ktest.1.*' ! -path './var/cache/kcollect/*')
[ -z "$left" ] || fail "it left $left"

echo "== the service"
[ "$(dpkg-deb -I "$debian" conffiles)" = /etc/kcollect.toml ] || fail "its settings would be overwritten"
for script in postinst prerm postrm; do
    dpkg-deb -I "$debian" "$script" | sh -n || fail "$script"
done
cmp "$work/tarball/etc/kcollect.toml" "$clean/etc/kcollect.toml"
cmp "$work/tarball/lib/systemd/system/kcollect.service" "$clean/usr/lib/systemd/system/kcollect.service"
inside -n --config /etc/kcollect.toml

echo "== the container image"
image=$work/image
mkdir -p "$image/proc" "$image/sys" "$image/var/lib/kcollect" "$image/var/cache/kcollect"
sed -n 's/^COPY //p' "$work/tarball/Containerfile" | while read -r from to; do
    install -D "$work/tarball/$from" "$image/$to"
done
# As the manifest has it: a root file system that is read-only, and five capabilities.
five=$(sed -n 's/^ *add: \[\(.*\)\]/\1/p' "$work/tarball/daemonset.yaml" | tr 'A-Z' 'a-z' | sed 's/ *, */,+/g; s/^/-all,+/')
# shellcheck disable=SC2016 # the inner shell's
unshare --mount --propagation private sh -euc '
    image=$1 five=$2
    mount --bind "$image" "$image"
    for file_system in proc sys; do
        mount --rbind "/$file_system" "$image/$file_system"
    done
    for place in lib cache; do
        mount -t tmpfs tmpfs "$image/var/$place/kcollect"
    done
    mount -o remount,bind,ro "$image"
    chroot=$(command -v chroot)
    run() {
        env -i setpriv --bounding-set="$five" --inh-caps=-all "$chroot" "$image" "$@"
    }
    # chroot(1) needs a capability that the container does not have.
    five="$five,+sys_chroot"
    run /usr/bin/kcollect --config /etc/kcollect.toml -d /var/lib/kcollect -t 3 --rotate 1
    run /usr/bin/kcollect list /var/lib/kcollect
    run /usr/bin/kcollect report --last 2s /var/lib/kcollect
' sh "$image" "$five" >"$work/container" || fail "the container: $(cat "$work/container")"
cat "$work/container"
[ "$(grep -c ' complete ' "$work/container")" -ge 3 ] || fail "the container made no series"

echo "== gprofng, outside"
gprofng display text -limit 5 -functions "$clean/tmp/ktest.1.er" >"$work/functions"
cat "$work/functions"
grep -q '<Total>' "$work/functions" || fail "gprofng shows nothing"

echo "== manual pages"
pages=0
for page in "$clean"/usr/share/man/man1/*.1.gz; do
    pages=$((pages + 1))
    warnings=$(MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "$page: $warnings"
    text=$(MANWIDTH=80 man -E UTF-8 -l "$page" | col -b)
    for heading in NAME SYNOPSIS DESCRIPTION OPTIONS 'EXIT STATUS' 'SEE ALSO'; do
        echo "$text" | grep -q "^$heading" || fail "$page has no $heading"
    done
done
for heading in FILES ENVIRONMENT EXAMPLES; do
    MANWIDTH=80 man -E UTF-8 -l "$clean/usr/share/man/man1/kcollect.1.gz" | col -b | grep -q "^$heading" ||
        fail "kcollect(1) has no $heading"
done
# Every subcommand of the help has a manual page.
subs=$(inside --help | sed -n 's/^       kcollect \([a-z][a-z]*\) .*/\1/p' | sort -u)
[ -n "$subs" ] || fail "the help names no subcommand"
for sub in $subs; do
    [ -e "$clean/usr/share/man/man1/kcollect-$sub.1.gz" ] || fail "kcollect $sub has no page"
done
echo "$pages pages, no warnings"

echo "== completions"
# shellcheck disable=SC2016 # bash's own
bash -euc '
    source "$1"
    complete -p kcollect
    COMP_WORDS=(kcollect rep) COMP_CWORD=1
    _kcollect kcollect rep kcollect
    [[ " ${COMPREPLY[*]} " = *" report "* ]]
' bash "$clean/usr/share/bash-completion/completions/kcollect" || fail "bash has no completion"
for shell in zsh fish; do
    command -v "$shell" >/dev/null || continue
    find "$clean/usr/share/$shell" -type f -exec "$shell" -n {} \; || fail "$shell cannot parse its completion"
    echo "$shell parses its completion"
done
echo "== all passed"
