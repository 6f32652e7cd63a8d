# memleak-bpfcc of a command.
#
# memleak watches a process by its number, since it would not wait for what it starts itself. So the
# command waits until memleak watches.
sh -c 'kill -STOP $$; exec "$@"' sh "$@" &
load=$!
PYTHONUNBUFFERED=1 memleak-bpfcc -p "$load" >leaks 2>errors &
memleak=$!
# It says so before its probes are there. Its first report comes when they are.
until grep -q 'outstanding allocations' leaks; do
    kill -0 "$memleak" 2>/dev/null || {
        kill -KILL "$load"
        cat errors >&2
        exit 1
    }
    sleep 0.1
done
kill -CONT "$load"
wait "$load"
code=$?
# A background process of a script ignores Ctrl-C.
kill -TERM "$memleak"
wait "$memleak"
exit "$code"
