//! Installed programs, and what a person says of their waits. Each load ends by itself.

use std::borrow::Cow;
use std::path::Path;

use tests::workload::waits::Verdict::{self, Idle, Suffered};

use crate::agreement::{Rule, Who};

/// A program and its load. All scripts run in the same empty directory, as root.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The commands that it needs.
    commands: &'static [&'static str],
    pub(crate) packages: &'static str,
    /// A script that runs once, before all others.
    pub(crate) prepare: &'static str,
    /// A script that executes a service, which SIGINT ends.
    pub(crate) service: Option<&'static str>,
    /// A script that works until it is ended.
    pub(crate) run: &'static str,
    /// The processes that are followed, for `-F`.
    pub(crate) follows: &'static str,
    pub(crate) rules: &'static [Rule],
}

impl Program {
    /// Returns the first of the commands that is not installed.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = std::env::split_paths(&path)
            .chain(["/usr/sbin".into()])
            .collect();
        let commands = self.commands.iter().copied();
        let is_missing = |command: &&str| {
            !Path::new(command).is_file()
                && !folders.iter().any(|folder| folder.join(command).is_file())
        };
        commands.clone().find(is_missing)
    }
}

const fn rule(who: Who, function: &'static str, verdict: Verdict) -> Rule {
    Rule {
        who,
        function: Cow::Borrowed(function),
        verdict,
    }
}

/// The commands of /usr/bin are scripts, so those that they execute are taken.
const CLUSTER: &str = "PG=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
mkdir data; chown postgres data
setpriv --reuid postgres --regid postgres --clear-groups $PG/initdb -D data >initdb.log";

const POSTMASTER: &str = "PG=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
exec setpriv --reuid postgres --regid postgres --clear-groups --pdeathsig INT \
    $PG/postgres -D data -k $PWD -h '' -p 7778";

/// A backend waits for its client in `secure_read`, for others' locks in `ProcSleep` and for
/// LWLocks in `PGSemaphoreLock`.
const BACKENDS: &[Rule] = &[
    rule(Who::Named("pgbench"), "", Suffered),
    rule(Who::Named("postgres"), "secure_read", Idle),
    rule(Who::Named("postgres"), "pg_sleep", Idle),
    rule(Who::Named("postgres"), "ProcSleep", Suffered),
    rule(Who::Named("postgres"), "PGSemaphoreLock", Suffered),
    rule(Who::Named("postgres"), "pg_fsync", Suffered),
    rule(Who::Named("postgres"), "pg_fdatasync", Suffered),
    rule(Who::Named("postgres"), "WaitLatch", Idle),
    rule(Who::Named("postgres"), "WaitEventSetWait", Idle),
];

/// The programs, in the order of the table.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "pgbench",
        commands: &["/usr/bin/pgbench", "setpriv"],
        packages: "postgresql postgresql-contrib",
        prepare: CLUSTER,
        service: Some(POSTMASTER),
        run: "PG=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
            $PG/pgbench -U postgres -h $PWD -p 7778 -i -q postgres 2>/dev/null
            exec $PG/pgbench -U postgres -h $PWD -p 7778 -n -c 4 -j 4 -T 60 postgres",
        follows: "=postgres|pgbench",
        rules: BACKENDS,
    },
    Program {
        name: "pgbench, one row",
        commands: &["/usr/bin/pgbench", "setpriv"],
        packages: "postgresql postgresql-contrib",
        prepare: CLUSTER,
        service: Some(POSTMASTER),
        run: "PG=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
            $PG/pgbench -U postgres -h $PWD -p 7778 -i -q postgres 2>/dev/null
            printf '%s\\n' 'BEGIN;' 'UPDATE pgbench_branches SET bbalance = 1 WHERE bid = 1;' \
                'SELECT pg_sleep(0.002);' 'END;' >row.sql
            exec $PG/pgbench -U postgres -h $PWD -p 7778 -n -c 4 -j 4 -T 60 -f row.sql postgres",
        follows: "=postgres|pgbench",
        rules: BACKENDS,
    },
    Program {
        name: "make -j2",
        commands: &["make", "gcc"],
        packages: "make gcc",
        prepare: "for one in 1 2 3 4 5 6 7 8; do
                printf '#include <stdio.h>\\n#include <stdlib.h>\\nint f%d;\\n' $one >f$one.c
            done
            printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n' >Makefile
            printf '%%.o: %%.c\\n\\tgcc -O2 -c $<\\n' >>Makefile",
        service: None,
        run: "while :; do make -s -j2; rm -f *.o; done",
        follows: "=make|gcc|cc1|as",
        rules: &[
            rule(Who::Named("make"), "", Suffered),
            rule(Who::Named("gcc"), "", Suffered),
            rule(Who::Named("cc1"), "", Suffered),
            rule(Who::Named("as"), "", Suffered),
        ],
    },
    Program {
        name: "python3, queue",
        commands: &["/usr/bin/python3"],
        packages: "python3",
        prepare: "cat >queue_load.py <<'END'
import queue, threading, time
jobs = queue.Queue()
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
def worker():
    while True:
        seconds, reply = jobs.get()
        spin(seconds)
        if reply: reply.put(1)
for one in range(2): threading.Thread(target=worker, daemon=True).start()
count = 0
while True:
    count += 1
    reply = queue.Queue() if count % 3 == 0 else None
    jobs.put((.0005, reply))
    if reply: reply.get()
    else: time.sleep(.002)
END",
        service: None,
        run: "exec /usr/bin/python3 queue_load.py",
        follows: "=python3.*",
        // Without PyThread_acquire_lock_timed, a futex is the interpreter's lock.
        rules: &[
            rule(Who::Main("python3"), "clock_nanosleep", Idle),
            rule(Who::Main("python3"), "", Suffered),
            rule(Who::Others("python3"), "PyThread_acquire_lock_timed", Idle),
            rule(Who::Others("python3"), "futex_wait", Suffered),
        ],
    },
    Program {
        name: "python3, GIL",
        commands: &["/usr/bin/python3"],
        packages: "python3",
        prepare: "cat >gil_load.py <<'END'
import threading, time
def spin():
    while True: sum(range(1000))
for one in range(3): threading.Thread(target=spin, daemon=True).start()
while True: time.sleep(1)
END",
        service: None,
        run: "exec /usr/bin/python3 gil_load.py",
        follows: "=python3.*",
        rules: &[
            rule(Who::Main("python3"), "clock_nanosleep", Idle),
            rule(Who::Main("python3"), "futex_wait", Suffered),
            rule(Who::Others("python3"), "futex_wait", Suffered),
        ],
    },
    Program {
        name: "cat | gzip | wc",
        commands: &["cat", "gzip", "wc"],
        packages: "gzip",
        prepare: "",
        service: None,
        run: "cat /dev/zero | gzip -1 | wc -c",
        follows: "=cat|gzip|wc",
        rules: &[
            rule(Who::Named("cat"), "ksys_write", Suffered),
            rule(Who::Named("gzip"), "ksys_write", Suffered),
            rule(Who::Named("gzip"), "ksys_read", Idle),
            rule(Who::Named("wc"), "ksys_read", Idle),
        ],
    },
    Program {
        name: "redis",
        commands: &["redis-server", "redis-benchmark"],
        packages: "redis-server redis-tools",
        prepare: "",
        service: Some("exec redis-server --port 7777 --save '' --dir $PWD"),
        run: "exec redis-benchmark -p 7777 -c 10 -n 100000000 -t get -q",
        follows: "=redis-.*",
        rules: &[
            rule(Who::Main("redis-server"), "", Idle),
            rule(Who::Named("redis-benchmark"), "", Suffered),
        ],
    },
    Program {
        name: "java",
        commands: &["java", "javac"],
        packages: "default-jdk-headless",
        prepare: "cat >Pool.java <<'END'
import java.util.concurrent.*;
public class Pool {
    static final Object monitor = new Object();
    static void spin(long us) {
        long end = System.nanoTime() + us * 1000;
        while (System.nanoTime() < end);
    }
    static void start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(3, work -> {
            Thread thread = new Thread(work, \"jpool\");
            thread.setDaemon(true);
            return thread;
        });
        start(\"jclient\", () -> {
            try {
                while (true) { spin(200); pool.submit(() -> spin(800)).get(); }
            } catch (Exception e) { throw new RuntimeException(e); }
        });
        for (int one = 0; one < 2; one++)
            start(\"jlock\", () -> {
                while (true) { synchronized (monitor) { spin(1000); } spin(300); }
            });
        Thread.sleep(60000);
    }
}
END
javac Pool.java",
        service: None,
        run: "exec java -XX:+UseSerialGC Pool",
        follows: "=java",
        rules: &[
            rule(Who::Named("jpool"), "", Idle),
            rule(Who::Named("jclient"), "", Suffered),
            rule(Who::Named("jlock"), "", Suffered),
        ],
    },
    Program {
        name: "go",
        commands: &["go"],
        packages: "golang-go",
        prepare: "cat >talk.go <<'END'
package main
import (\"net\"; \"os\"; \"time\")
func spin(us int64) {
	end := time.Now().Add(time.Duration(us) * time.Microsecond)
	for time.Now().Before(end) {
	}
}
func serve(c net.Conn) {
	b := make([]byte, 64)
	for {
		if _, err := c.Read(b); err != nil { return }
		spin(200)
		c.Write(b)
	}
}
func call() {
	c, err := net.Dial(\"tcp\", \"127.0.0.1:7790\")
	if err != nil { panic(err) }
	b := make([]byte, 64)
	for {
		spin(100)
		c.Write(b)
		c.Read(b)
	}
}
func main() {
	if os.Args[1] == \"serve\" {
		l, err := net.Listen(\"tcp\", \"127.0.0.1:7790\")
		if err != nil { panic(err) }
		for { c, _ := l.Accept(); go serve(c) }
	}
	for i := 0; i < 4; i++ { go call() }
	time.Sleep(time.Minute)
}
END
GOCACHE=$PWD/cache GO111MODULE=off go build -o goserver talk.go
cp goserver goclient",
        service: Some("exec ./goserver serve"),
        run: "exec ./goclient call",
        follows: "=goserver|goclient",
        // What waits for a client's answer is the thread that has the network; the others are idle.
        rules: &[
            rule(Who::Named("goclient"), "runtime.netpoll", Suffered),
            rule(Who::Named("goclient"), "runtime.lock2", Suffered),
            rule(Who::Named("goclient"), "", Idle),
            rule(Who::Named("goserver"), "runtime.lock2", Suffered),
            rule(Who::Named("goserver"), "", Idle),
        ],
    },
];
