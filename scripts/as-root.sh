#!/bin/sh
# Runs a command as root, with this environment. It is cargo's runner for the tests that need root.
#
# sudo cuts PATH down to its own, and may keep from -E what it likes; what the tests look up is given by name.
[ "$(id -u)" -eq 0 ] && exec "$@"
command -v sudo >/dev/null 2>&1 || {
    echo "kcollect: this needs root: run make as root, or install sudo" >&2
    exit 77
}
exec sudo -E env "PATH=$PATH" "KCOLLECT=${KCOLLECT:-}" "KCOLLECT_FAULTS=${KCOLLECT_FAULTS:-}" "$@"
