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

# bindgen loads libclang. Debian's clang depends on it; one from elsewhere may come without it.
have_libclang() {
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    for library in /usr/lib*/libclang.so* /usr/lib*/*/libclang.so* /usr/lib*/*/*/libclang.so* \
        /usr/local/lib*/libclang.so* /usr/local/lib*/*/*/libclang.so* /usr/local/llvm*/lib*/libclang.so*; do
        [ ! -e "$library" ] || return 0
    done
    return 1
}

# The missing things: as words for messages, and as packages.
missing=
packages=
missing() {
    missing="$missing${missing:+, }$1"
    packages="$packages${packages:+ }$2"
}

find_missing() {
    missing=
    packages=
    have clang || missing clang clang
    have_libclang || missing libclang libclang1
    # The C library's headers are not part of gcc's package, and nothing can be linked without that
    # library.
    echo '#include <stdlib.h>' | cc -fsyntax-only -x c - 2>/dev/null || missing "a C compiler" "gcc libc6-dev"
    have make || missing make make
    if have pkg-config; then
        pkg-config --exists libelf || missing "libelf with headers" libelf-dev
        pkg-config --exists zlib || missing "zlib with headers" zlib1g-dev
    else
        missing pkg-config pkg-config
        missing "libelf with headers" libelf-dev
        missing "zlib with headers" zlib1g-dev
    fi
    case $purpose in
    test | kernels | bench)
        have gprofng || missing "gprofng (binutils 2.39 or later)" binutils
        perf_works || missing perf "$(perf_package)"
        # Its assembly is unwound.
        have openssl || missing openssl openssl
        # Lines and inlined functions are compared with llvm-addr2line's; dwz moves debug
        # information into a common file.
        have llvm-addr2line || missing llvm-addr2line llvm
        have dwz || missing dwz dwz
        # It compresses symbol tables as Fedora's programs have them; debuginfod serves debug files.
        have xz || missing xz xz-utils
        have debuginfod || missing debuginfod debuginfod
        # Files on it have other device numbers in the kernel than for user space.
        have mkfs.btrfs || missing mkfs.btrfs btrfs-progs
        # For a disk that fails.
        [ -x /sbin/mkfs.ext4 ] || have mkfs.ext4 || missing mkfs.ext4 e2fsprogs
        # It runs the service.
        [ -x /lib/systemd/systemd ] || missing systemd systemd
        # It makes system calls fail.
        have strace || missing strace strace
        # Programs of its language have unwind tables and a memory profile of their own.
        have go || missing Go golang-go
        # It opens the pages.
        have_browser || missing Chromium "$(browser_package)"
        ;;
    dist | test-dist)
        # The start files and libraries of a static program, and the libraries that libelf was built
        # with.
        { have_static libc.a && have_static rcrt1.o; } || missing "the C library, static" libc6-dev
        have_static libelf.a || missing "libelf, static" libelf-dev
        have_static libz.a || missing "zlib, static" zlib1g-dev
        case " $(pkg-config --static --libs-only-l libelf 2>/dev/null)" in
        *" -lzstd"*) have_static libzstd.a || missing "zstd, static" libzstd-dev ;;
        esac
        have readelf || missing readelf binutils
        have dpkg-deb || missing dpkg-deb dpkg
        have xz || missing xz xz-utils
        ;;
    esac
    if [ "$purpose" = test-dist ]; then
        have gprofng || missing "gprofng (binutils 2.39 or later)" binutils
        have man || missing man man-db
        have groff || missing groff groff
        have unshare || missing unshare util-linux
        have bash || missing bash bash
    fi
    if [ "$purpose" = kernels ]; then
        have qemu-system-x86_64 || missing qemu-system-x86_64 qemu-system-x86
    fi
    if [ "$purpose" = btf ]; then
        # Kernels are compressed in one of these ways.
        have zstd || missing zstd zstd
        have lz4 || missing lz4 lz4
        have xz || missing xz xz-utils
    fi
    if [ "$purpose" = kernels ] || [ "$purpose" = btf ]; then
        # Their packages are Debian's, signed with its keys.
        have apt-get || missing apt-get apt
        have dpkg-deb || missing dpkg-deb dpkg
        [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing "the keys of Debian's archive" debian-archive-keyring
    fi
    if [ "$purpose" = bench ]; then
        have offcputime || missing "offcputime of bcc's libbpf-tools" libbpf-tools
        # For a load. The server's own package would start a server.
        have redis-check-rdb || missing "redis, as its tools have it" redis-tools
        # For another load, of 200 processes.
        have perl || missing perl perl-base
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
