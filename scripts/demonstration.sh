#!/bin/sh
# A load for a demonstration: reads, short-lived processes and hashing in turn, with pauses, for
# about $1 seconds (default 10).
end=$(($(date +%s) + ${1:-10}))
while [ "$(date +%s)" -lt "$end" ]; do
    # In the kernel: filling memory with zeros.
    dd if=/dev/zero of=/dev/null bs=64k count=20000 2>/dev/null
    # In the kernel, in pieces: fork, exec, exit.
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        /bin/true
    done
    # In user mode.
    head -c 20000000 /dev/zero | sha256sum >/dev/null
    # Idle.
    sleep 0.1
done
