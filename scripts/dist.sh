#!/bin/sh
# Makes the distributed files in DIRECTORY: the program as one file that needs no library, a package
# for Debian and Ubuntu, and a tarball for other distributions.
#
# The same commit, compiler and libraries give the same bytes: times are the commit's, owners root,
# names sorted, and the files contain no path of the build machine. The program is built apart from
# the ordinary build.
set -eu

[ $# -eq 1 ] || {
    echo "usage: $0 DIRECTORY" >&2
    exit 64
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
sources=$(pwd)
umask 022

fail() {
    echo "kcollect: $1" >&2
    exit 1
}

target=$(rustc -vV | sed -n 's/^host: //p')
case $target in
x86_64-unknown-linux-gnu) debian=amd64 ;;
*) fail "make dist supports only x86_64-unknown-linux-gnu, and this is $target" ;;
esac
machine=${target%%-*}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# The time of all files: SOURCE_DATE_EPOCH, else the commit's, else (sources without git)
# Cargo.lock's.
moment=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.lock)}
export LC_ALL=C TZ=UTC

# The libraries that libelf itself needs; older versions do not need zstd.
libraries=
for library in $(pkg-config --static --libs-only-l libelf); do
    case $library in
    -lelf | -lz) ;;
    *) libraries="$libraries $library" ;;
    esac
done

# The separator occurs in no path. Of the remapped prefixes, the last one that matches applies.
separator=$(printf '\037')
flags=
add() {
    flags="$flags${flags:+$separator}$1"
}
add -Ctarget-feature=+crt-static
# Archives and debug files are found by the build id.
add -Clink-arg=-Wl,--build-id=sha1
for library in $libraries; do
    add "-Clink-arg=$library"
done
cargo_home=${CARGO_HOME:-$HOME/.cargo}
add "--remap-path-prefix=$cargo_home=cargo"
for index in "$cargo_home"/registry/src/*/; do
    [ ! -d "$index" ] || add "--remap-path-prefix=${index%/}=cargo"
done
add "--remap-path-prefix=$sources=kcollect"
add "--remap-path-prefix=$directory=target"

# The C code of crates, which the crate cc compiles.
maps="-ffile-prefix-map=$cargo_home=cargo -ffile-prefix-map=$sources=kcollect -ffile-prefix-map=$directory=target"
environment="CFLAGS_$(echo "$target" | tr - _)"

# With --target, the flags do not apply to build scripts and procedural macros.
env CARGO_ENCODED_RUSTFLAGS="$flags" "$environment=$maps" \
    cargo build --locked --profile dist -p kcollect --bin kcollect --target "$target" --target-dir "$directory"
program=$directory/$target/dist/kcollect

# A program that needs no library names none, and no loader.
if readelf -dW "$program" | grep -q NEEDED; then
    fail "$program needs libraries: $(readelf -dW "$program" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | tr '\n' ' ')"
fi
if readelf -lW "$program" | grep -q INTERP; then
    fail "$program needs a loader"
fi
readelf -hW "$program" | grep -q 'Type: *DYN' || fail "$program cannot be loaded anywhere"

# The libraries that are linked in addition to crates, each with the package that it comes from.
linked=
built_using=
for library in c gcc_eh elf z ${libraries# }; do
    library=${library#-l}
    file=$(realpath "$(gcc "-print-file-name=lib$library.a")")
    package=$(dpkg -S "$file" 2>/dev/null | cut -d : -f 1)
    [ -n "$package" ] || fail "$file belongs to no package of this machine: make dist needs Debian or Ubuntu"
    linked="$linked $library=$package"
    # shellcheck disable=SC2016 # dpkg-query's own variables
    built_using="$built_using${built_using:+, }$(dpkg-query -W -f '${source:Package} (= ${source:Version})' "$package")"
done

# Not optimised, like the tests: compiling would take longer than running.
extra=$directory/extra
rm -rf "$extra"
mkdir "$extra"
# shellcheck disable=SC2086 # a list of words
cargo run --locked -p kcollect --example dist -- \
    "$extra" "$(date -u -d "@$moment" +%F)" "$target" $linked

# put MODE FILE NEW: copies FILE to NEW, and creates the directories above it.
put() {
    install -D -m "$1" "$2" "$3"
}

# tree ROOT PREFIX ZSH: installs the files that the package and the tarball share, below
# ROOT/PREFIX.
tree() {
    put 755 "$program" "$1/$2/bin/kcollect"
    for page in "$extra"/man/*.1; do
        put 644 "$page" "$1/$2/share/man/man1/$(basename "$page")"
    done
    put 644 "$extra/completions/kcollect.bash" "$1/$2/share/bash-completion/completions/kcollect"
    put 644 "$extra/completions/_kcollect" "$1/$2/share/zsh/$3/_kcollect"
    put 644 "$extra/completions/kcollect.fish" "$1/$2/share/fish/vendor_completions.d/kcollect.fish"
    for file in README.md ACCURACY.md ARCHITECTURE.md BENCHMARKS.md CHANGELOG.md CONTRIBUTING.md LICENSE-APACHE LICENSE-GPL "$extra/copyright" "$extra/THIRD-PARTY"; do
        put 644 "$file" "$1/$2/share/doc/kcollect/$(basename "$file")"
    done
    # The README links to them.
    for file in docs/*.md docs/design/*.md docs/images/*; do
        put 644 "$file" "$1/$2/share/doc/kcollect/$file"
    done
}

# settings ROOT UNITS: installs the service and its settings below ROOT, the unit in ROOT/UNITS.
settings() {
    put 644 service/kcollect.toml "$1/etc/kcollect.toml"
    put 644 service/kcollect.service "$1/$2/kcollect.service"
}

# age DIRECTORY: gives all of its files the same time.
age() {
    find "$1" -exec touch -h -d "@$moment" {} +
}

staged=$directory/staged
rm -rf "$staged"

name=kcollect-$version-$machine-linux
tree "$staged" "$name" site-functions
settings "$staged/$name" lib/systemd/system
for file in Containerfile daemonset.yaml; do
    put 644 "service/$file" "$staged/$name/$file"
done
age "$staged/$name"
# One thread, since the bytes depend on the number of threads.
(cd "$staged" && tar --sort=name --format=gnu --mtime="@$moment" --owner=0 --group=0 --numeric-owner \
    --mode=go-w -cf - "$name") | xz -T1 -6 >"$directory/$name.tar.xz.new"
mv "$directory/$name.tar.xz.new" "$directory/$name.tar.xz"

root=$staged/deb
tree "$root" usr vendor-completions
settings "$root" usr/lib/systemd/system
for file in Containerfile daemonset.yaml; do
    put 644 "service/$file" "$root/usr/share/doc/kcollect/examples/$file"
done
gzip -9n "$root"/usr/share/man/man1/*.1
mkdir "$root/DEBIAN"
size=$(find "$root/usr" -type f -exec stat -c %s {} + | awk '{ all += int(($1 + 1023) / 1024) } END { print all }')
cat >"$root/DEBIAN/control" <<CONTROL
Package: kcollect
Version: $version
Architecture: $debian
Maintainer: kcollect maintainers
Installed-Size: $size
Suggests: binutils
Built-Using: $built_using
Section: devel
Priority: optional
Description: profiler of whole machines, kernel and user
 For every thread it says where its wall time went: in user mode, system calls,
 traps, waiting for a page, for a lock, for a CPU, asleep, stopped; with the
 complete call stack, from main down into the kernel, of programs without frame
 pointers. The record is an experiment, which gprofng of binutils opens, and
 which kcollect reports, draws and exports.
 .
 It needs Linux 6.1 or later, and no library at all.
CONTROL
# An administrator's changes stay when the package is upgraded.
echo /etc/kcollect.toml >"$root/DEBIAN/conffiles"
# The service is not started by itself. One that runs continues in the new program.
cat >"$root/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload
    systemctl try-restart kcollect.service
fi
POSTINST
cat >"$root/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now kcollect.service
fi
PRERM
# Experiments stay: they are the administrator's.
cat >"$root/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/cache/kcollect
fi
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload
fi
POSTRM
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm" "$root/DEBIAN/postrm"
(cd "$root" && find usr etc -type f | sort | xargs md5sum) >"$root/DEBIAN/md5sums"
age "$root"
SOURCE_DATE_EPOCH=$moment DPKG_DEB_THREADS_MAX=1 \
    dpkg-deb -Zxz --root-owner-group --build "$root" "$directory/kcollect_${version}_$debian.deb.new" >/dev/null
mv "$directory/kcollect_${version}_$debian.deb.new" "$directory/kcollect_${version}_$debian.deb"
rm -rf "$staged"
ls -l "$directory/$name.tar.xz" "$directory/kcollect_${version}_$debian.deb"
