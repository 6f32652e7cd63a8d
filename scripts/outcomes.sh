#!/bin/sh
# `outcomes.sh FILE`: says which checks judged nothing, and fails if more than 3 of 100 of the
# checks of times were inconclusive; and which checks took longest.
# tests/support/machine/disturbance.rs writes the file.
[ -f "$1" ] || exit 0
count() { cut -f1 "$1" | grep -cx "$2"; }
judged=$(count "$1" judged)
inconclusive=$(count "$1" inconclusive)
repeated=$(count "$1" repeated)
impossible=$(count "$1" impossible)
printf '\n%s checks of times judged, %s tries repeated; %s inconclusive, %s not possible on this machine\n' \
    "$judged" "$repeated" "$inconclusive" "$impossible"
grep -E '^(inconclusive|impossible)' "$1" | cut -c1-300
grep -P '^took\t' "$1" | sort -t "$(printf '\t')" -k3,3 -rn | awk -F '\t' '
    { seconds += $3; if (NR <= 12) slowest = slowest sprintf("%6.1f s  %s\n", $3, $2) }
    END { printf "%d checks had the machine for %.0f s, one after the other or side by side; the slowest:\n%s", NR, seconds, slowest }'
if [ $((100 * inconclusive)) -gt $((3 * (judged + inconclusive))) ]; then
    echo "more than 3 of 100 are inconclusive: this machine is too busy to judge times; run the tests again" >&2
    exit 1
fi
