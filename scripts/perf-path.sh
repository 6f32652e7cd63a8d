#!/bin/sh
# Prints PATH. Where the first perf along it does not work, a directory with one that does comes
# first.
#
# Ubuntu's /usr/bin/perf looks only for the build of the running kernel. For the tests, a perf of
# another build is enough.
if ! perf --version >/dev/null 2>&1; then
    for perf in /usr/lib/linux-tools/*/perf /usr/lib/linux-tools-*/perf; do
        if "$perf" --version >/dev/null 2>&1; then
            PATH=$(dirname "$perf"):$PATH
            break
        fi
    done
fi
echo "$PATH"
