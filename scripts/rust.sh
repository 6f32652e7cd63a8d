#!/bin/sh
# Stops, and prints what to install, where Rust is missing or older than the version in Cargo.toml.
set -eu

hint="install Rust from https://rustup.rs, and run make as the user who has it (make calls sudo itself)"

command -v cargo >/dev/null 2>&1 || {
    echo "kcollect: cargo is missing: $hint" >&2
    exit 69
}

# Distributions have old ones, whose messages are about the manifest and not about their own age.
needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")
found=$(cargo --version | cut -d' ' -f2)
oldest=$(printf '%s\n' "$needed" "$found" | sort -V | head -n1)
if [ "$oldest" != "$needed" ]; then
    echo "kcollect: cargo $found is older than $needed: $hint" >&2
    exit 69
fi
