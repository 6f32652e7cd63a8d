#!/bin/sh
# Installs the packages that are needed for building (build), testing (test), testing on other
# kernels (kernels), the types of other kernels (btf), the benchmark (bench), making the distributed
# files (dist) or testing those (test-dist), through the distribution's own package manager.
#
# It looks for the programs and libraries, not for packages: a clang from elsewhere will do, and
# where nothing is missing no package manager is called, on any distribution. Missing packages are
# installed on Debian, Ubuntu and their derivatives; elsewhere they are listed in one line, because
# guessed package names do not help.
set -eu

usage() {
    echo "usage: $0 build|test|kernels|btf|bench|dist|test-dist" >&2
    exit 64
}

[ $# -eq 1 ] || usage
case $1 in
build | test | kernels | btf | bench | dist | test-dist) purpose=$1 ;;
*) usage ;;
esac

distribution=
if [ -r /etc/os-release ]; then
    # shellcheck source=/dev/null
    distribution=$(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}")
fi

have() {
    command -v "$1" >/dev/null 2>&1
}

# Ubuntu's perf is a wrapper that needs the package of the running kernel; cloud providers have
# flavours of their own.
perf_package() {
    case " $distribution " in
    *" ubuntu "*)
        if apt-cache show "linux-tools-$(uname -r)" >/dev/null 2>&1; then
            echo "linux-tools-common linux-tools-$(uname -r)"
        else
            echo linux-tools-generic
        fi
        ;;
    *) echo linux-perf ;;
    esac
}

# Any of the browsers that tests/support/oracle/browser.rs starts.
have_browser() {
    have chromium-headless-shell || have chromium || have google-chrome || have chromium-browser
}

# Debian has a headless one, which needs fewer packages; on Ubuntu chromium-browser installs the
# snap.
browser_package() {
    case " $distribution " in
    *" ubuntu "*) echo chromium-browser ;;
    *) echo chromium-headless-shell ;;
    esac
}

# A library that can be linked statically. The compiler prints the bare name of a file that it does
# not find.
have_static() {
    case $(cc "-print-file-name=$1" 2>/dev/null) in
    */*) ;;
    *) return 1 ;;
    esac
}

# The missing things: as words for messages, and as packages.
missing=
packages=
lacks() {
    missing="$missing${missing:+, }$1"
    packages="$packages${packages:+ }$2"
}

find_missing() {
    missing=
    packages=
    have clang || lacks clang clang
    # The C library's headers are not part of gcc's package, and nothing can be linked without that
    # library.
    echo '#include <stdlib.h>' | cc -fsyntax-only -x c - 2>/dev/null || lacks "a C compiler" "gcc libc6-dev"
    have make || lacks make make
    if have pkg-config; then
        pkg-config --exists libelf || lacks "libelf with headers" libelf-dev
        pkg-config --exists zlib || lacks "zlib with headers" zlib1g-dev
    else
        lacks pkg-config pkg-config
        lacks "libelf with headers" libelf-dev
        lacks "zlib with headers" zlib1g-dev
    fi
    case $purpose in
    test | kernels | bench)
        have gprofng || lacks "gprofng (binutils 2.39 or later)" binutils
        perf_works || lacks perf "$(perf_package)"
        # Its assembly is unwound.
        have openssl || lacks openssl openssl
        # Lines and inlined functions are compared with llvm-addr2line's; dwz moves debug
        # information into a common file.
        have llvm-addr2line || lacks llvm-addr2line llvm
        have dwz || lacks dwz dwz
        # It compresses symbol tables as Fedora's programs have them; debuginfod serves debug files.
        have xz || lacks xz xz-utils
        have debuginfod || lacks debuginfod debuginfod
        # Files on it have other device numbers in the kernel than for user space.
        have mkfs.btrfs || lacks mkfs.btrfs btrfs-progs
        # For a disk that fails.
        [ -x /sbin/mkfs.ext4 ] || have mkfs.ext4 || lacks mkfs.ext4 e2fsprogs
        # It runs the service.
        [ -x /lib/systemd/systemd ] || lacks systemd systemd
        # It makes system calls fail.
        have strace || lacks strace strace
        # Programs of its language have unwind tables and a memory profile of their own.
        have go || lacks Go golang-go
        # It opens the pages.
        have_browser || lacks Chromium "$(browser_package)"
        ;;
    dist | test-dist)
        # The start files and libraries of a static program, and the libraries that libelf was built
        # with.
        { have_static libc.a && have_static rcrt1.o; } || lacks "the C library, static" libc6-dev
        have_static libelf.a || lacks "libelf, static" libelf-dev
        have_static libz.a || lacks "zlib, static" zlib1g-dev
        case " $(pkg-config --static --libs-only-l libelf 2>/dev/null)" in
        *" -lzstd"*) have_static libzstd.a || lacks "zstd, static" libzstd-dev ;;
        esac
        have readelf || lacks readelf binutils
        have dpkg-deb || lacks dpkg-deb dpkg
        have xz || lacks xz xz-utils
        ;;
    esac
    if [ "$purpose" = test-dist ]; then
        have gprofng || lacks "gprofng (binutils 2.39 or later)" binutils
        have man || lacks man man-db
        have groff || lacks groff groff
        have unshare || lacks unshare util-linux
        have bash || lacks bash bash
    fi
    if [ "$purpose" = kernels ]; then
        have qemu-system-x86_64 || lacks qemu-system-x86_64 qemu-system-x86
    fi
    if [ "$purpose" = btf ]; then
        # Kernels are compressed in one of these ways.
        have zstd || lacks zstd zstd
        have lz4 || lacks lz4 lz4
        have xz || lacks xz xz-utils
    fi
    if [ "$purpose" = kernels ] || [ "$purpose" = btf ]; then
        # Their packages are Debian's, signed with its keys.
        have apt-get || lacks apt-get apt
        have dpkg-deb || lacks dpkg-deb dpkg
        [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || lacks "the keys of Debian's archive" debian-archive-keyring
    fi
    if [ "$purpose" = bench ]; then
        have offcputime || lacks "offcputime of bcc's libbpf-tools" libbpf-tools
        # For a load. The server's own package would start a server.
        have redis-check-rdb || lacks "redis, as its tools have it" redis-tools
        # For another load, of 200 processes.
        have perl || lacks perl perl-base
    fi
}

perf_works() {
    (PATH=$("$(dirname "$0")/perf-path.sh") && perf --version) >/dev/null 2>&1
}

find_missing
[ -n "$missing" ] || exit 0

case " $distribution " in
*" debian "* | *" ubuntu "*) ;;
*)
    echo "kcollect: install with your package manager: $missing" >&2
    exit 69
    ;;
esac

as_root=
if [ "$(id -u)" -ne 0 ]; then
    have sudo || {
        echo "kcollect: install as root: apt-get install $packages" >&2
        exit 77
    }
    as_root=sudo
fi

echo "kcollect: installing $packages (apt-get${as_root:+, with sudo})"
$as_root apt-get update -qq </dev/null
# The name of perf's package may be known only now.
find_missing
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages </dev/null

find_missing
if [ -n "$missing" ]; then
    echo "kcollect: still missing after apt-get install $packages: $missing" >&2
    exit 69
fi
