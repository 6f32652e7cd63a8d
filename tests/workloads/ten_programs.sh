#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
# `ten_programs.sh DIRECTORY`: runs small jobs of ten programs in the directory, of those that are
# installed. curl gets a page from a server of this machine.
cd "$1" || exit 1
run() { command -v "$1" >/dev/null && "$@" >/dev/null 2>&1 </dev/null; }
run python3 -c '
import http.server, subprocess, threading
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    for _ in range(3):
        subprocess.run(["curl", "-s", "http://127.0.0.1:%d/" % server.server_port])
except FileNotFoundError:
    pass
server.shutdown()
'
run git init -q repository
echo text > repository/file
run git -C repository add file
run git -C repository -c user.name=a -c user.email=a@b commit -q -m message
run git -C repository log
run node -e '
const fs = require("fs");
fs.writeFileSync("node.txt", "x".repeat(100000));
fs.readFile("node.txt", () => require("child_process").exec("cat node.txt", () => {}));
'
echo 'int main(void) { return 0; }' > main.c
run gcc -o main main.c
run tar -czf archive.tar.gz repository
run sqlite3 data.db 'create table t (a); insert into t values (1), (2); select sum(a) from t;'
run perl -e '
$SIG{ALRM} = sub { die };
pipe(my $in, my $out);
for (1 .. 3) { eval { alarm 1; sysread($in, my $byte, 1); }; }
$SIG{CHLD} = sub { wait };
for (1 .. 3) { if (!fork) { select undef, undef, undef, 0.1; exit } }
sleep 1;
'
printf 'all: a b c\na b c:\n\techo $@ > $@.out\n' > Makefile
run make -j2
run apt-cache policy bash
exit 0
