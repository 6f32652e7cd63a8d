#!/bin/sh
# Runs a command as root, with this environment. It is cargo's runner for the tests that need root.
#
# sudo replaces PATH, and its policy may drop variables in spite of -E: those that the tests read
# are passed by name.
[ "$(id -u)" -eq 0 ] && exec "$@"
command -v sudo >/dev/null 2>&1 || {
    echo "kcollect: this needs root: run make as root, or install sudo" >&2
    exit 77
}
exec sudo -E env "PATH=$PATH" "KCOLLECT=${KCOLLECT:-}" "KCOLLECT_FAULTS=${KCOLLECT_FAULTS:-}" \
    "KCOLLECT_OUTCOMES=${KCOLLECT_OUTCOMES:-}" "$@"
