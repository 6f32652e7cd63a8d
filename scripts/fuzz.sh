#!/bin/sh
# Runs libFuzzer for SECONDS on each target of tests/fuzz, or on one: fuzz.sh SECONDS [NAME].
#
# Inputs that reach new code are kept in target/fuzz/NAME for the next run, inputs that fail in
# target/fuzz/found. Stable Rust is enough: the counters at branches are LLVM's, and only libFuzzer
# itself has to be compiled, in C++.
set -eu
cd "$(dirname "$0")/.."
seconds=$1
work=$(realpath -m "${CARGO_TARGET_DIR:-target}/fuzz")
names=${2:-$(ls tests/fuzz/corpora)}
# Some targets make an experiment of each input: in memory 740 a second were measured, on a disk
# 480.
[ -w /dev/shm ] && export TMPDIR="${TMPDIR:-/dev/shm}"
command -v c++ >/dev/null 2>&1 || export CXX=clang++

pass='-Cpasses=sancov-module'
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    pass="$pass -Cllvm-args=-sanitizer-coverage-$option"
done
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$work/found"
for name in $names; do
    mkdir -p "$work/$name"
    printf '\n== %s\n' "$name"
    # With --target, build scripts and procedural macros get no counters.
    KCOLLECT_FUZZ=$name RUSTFLAGS="${RUSTFLAGS:-} $pass" \
        cargo bench --locked --quiet -p fuzz --bench guided --features guided --profile fuzz --target "$host" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$work/found/$name-" "$work/$name" "$PWD/tests/fuzz/corpora/$name"
done
