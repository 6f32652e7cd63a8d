#!/bin/sh
# Prints PATH, with a directory before it that has a perf that works, where the first one along PATH does not.
#
# Ubuntu's /usr/bin/perf looks only for the build of the running kernel. A perf of another build does for the tests.
if ! perf --version >/dev/null 2>&1; then
    for perf in /usr/lib/linux-tools/*/perf /usr/lib/linux-tools-*/perf; do
        if "$perf" --version >/dev/null 2>&1; then
            PATH=$(dirname "$perf"):$PATH
            break
        fi
    done
fi
echo "$PATH"
