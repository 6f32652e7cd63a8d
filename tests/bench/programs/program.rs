//! The programs: how each is made to work for some seconds, as a script of the shell.
//!
//! They are what a distribution ships, as it ships it: without frame pointers, with the assembly of
//! their libraries, with interpreters and compilers of their own. A script begins in an empty
//! directory that all users may write to, with the number of seconds in `$T`.

use std::ffi::OsStr;
use std::path::Path;

/// A program and its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// The packages of Debian that have it.
    pub(crate) packages: &'static str,
    /// Commands without which it can't be run.
    pub(crate) needs: &'static [&'static str],
    /// The names of the processes that count.
    pub(crate) processes: &'static [&'static str],
    /// The share of complete stacks that is wanted.
    pub(crate) goal: Goal,
    /// The script that prepares it.
    pub(crate) prepare: &'static str,
    /// The script that is recorded.
    pub(crate) run: &'static str,
}

/// What kind of code the program's time is in: how many of its ticks have to reach the thread's
/// first function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Compiled from C, C++, Rust or Go.
    Compiled,
    /// With hand-written assembly that has no unwind information.
    Assembly,
    /// Compiled while it runs, or from another language.
    Jit,
}

impl Goal {
    /// Returns the percent of ticks that have to be complete.
    pub(crate) fn percent(self) -> f64 {
        match self {
            Goal::Compiled => 99.5,
            Goal::Assembly => 97.0,
            Goal::Jit => 95.0,
        }
    }
}

impl Program {
    /// Returns the first of the commands that is not installed.
    pub(crate) fn missing(&self, path: &OsStr) -> Option<&'static str> {
        self.needs.iter().copied().find(|need| {
            !std::env::split_paths(path).any(|directory| directory.join(need).is_file())
                && !Path::new(need).is_file()
        })
    }
}

/// All of them.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "python3",
        packages: "python3",
        needs: &["/usr/bin/python3"],
        processes: &["python3"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"/usr/bin/python3 -c '
import hashlib, json, os, re, sys, time, zlib
end = time.monotonic() + float(sys.argv[1])
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
while time.monotonic() < end:
    fib(18)
    words = [w for _, _, files in os.walk("/usr/share/doc") for w in files][:4000]
    sorted(words, key=lambda w: (len(w), w))
    text = json.dumps({w: list(range(9)) for w in words})
    json.loads(text)
    re.sub(r"([a-z]+)[.-]([0-9]+)", lambda m: m.group(2), text)
    zlib.compress(hashlib.sha256(text.encode()).digest() * 2000)
    with open("out", "w") as out:
        out.writelines(words)
' "$T""#,
    },
    Program {
        name: "nginx",
        packages: "nginx-light apache2-utils",
        needs: &["nginx", "ab"],
        processes: &["nginx"],
        goal: Goal::Compiled,
        prepare: r#"head -c 20000 /dev/urandom > index.html
cat > nginx.conf <<END
daemon off; user root; worker_processes 2; pid $PWD/pid; error_log $PWD/error;
events { worker_connections 200; }
http { access_log $PWD/access; gzip on; gzip_types text/html; gzip_min_length 1;
       types { text/html html; }
       server { listen 127.0.0.1:18080; root $PWD; } }
END"#,
        run: r#"nginx -p "$PWD" -c "$PWD/nginx.conf" & nginx=$!
sleep 0.3
ab -q -k -t "$T" -n 10000000 -c 8 -H 'Accept-Encoding: gzip' http://127.0.0.1:18080/index.html > ab.out
kill $nginx; wait $nginx"#,
    },
    Program {
        name: "redis",
        packages: "redis-server redis-tools",
        needs: &["redis-server", "redis-benchmark"],
        processes: &["redis-server", "redis-benchmark"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"redis-server --port 0 --unixsocket "$PWD/socket" --save '' --dir "$PWD" > redis.out & redis=$!
sleep 0.3
timeout -s INT "$T" redis-benchmark -s "$PWD/socket" -l -q -t set,get,lpush,zadd,lrange_100 -n 50000 -P 4 -r 10000 > bench.out 2>&1 || true
kill $redis; wait $redis"#,
    },
    Program {
        name: "postgresql",
        packages: "postgresql postgresql-contrib",
        needs: &["pgbench", "runuser"],
        processes: &["postgres", "pgbench"],
        goal: Goal::Compiled,
        prepare: r#"bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
mkdir data && chown postgres data
runuser -u postgres -- "$bin/initdb" -D data -A trust > initdb.out 2>&1"#,
        run: r#"bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
runuser -u postgres -- "$bin/postgres" -D data -k "$PWD" -h '' > postgres.out 2>&1 &
until runuser -u postgres -- psql -h "$PWD" -c 'select 1' postgres > psql.out 2>&1; do sleep 0.1; done
runuser -u postgres -- pgbench -h "$PWD" -i -s 4 postgres > init.out 2>&1
runuser -u postgres -- pgbench -h "$PWD" -T "$T" -c 4 -j 2 postgres > bench.out 2>&1
runuser -u postgres -- "$bin/pg_ctl" -D data -m fast stop > stop.out 2>&1; wait"#,
    },
    Program {
        name: "gcc",
        packages: "gcc",
        needs: &["gcc"],
        processes: &["cc1", "as", "gcc", "ld", "collect2"],
        goal: Goal::Compiled,
        prepare: r#"awk 'BEGIN { for (n = 0; n < 300 * ENVIRON["T"]; n++) printf "int f%d(int *a, int n) { int s = %d; for (int i = 0; i < n; i++) { switch (a[i] & 7) { case 0: s += a[i]; break; case 1: s ^= a[i] << 3; break; case 5: s *= a[i]; break; default: s -= i; } } return s; }\n", n, n }' > big.c"#,
        run: "gcc -O2 -g -c big.c -o big.o",
    },
    Program {
        name: "g++",
        packages: "g++",
        needs: &["g++"],
        processes: &["cc1plus", "as"],
        goal: Goal::Compiled,
        prepare: r#"for n in $(seq "$T"); do
printf '#include <algorithm>\n#include <iostream>\n#include <map>\n#include <regex>\n#include <string>\n#include <vector>\nint main() { std::map<std::string, std::vector<std::regex>> m; m["a"].emplace_back("(a|b)*"); std::cout << m.size(); return %d; }\n' "$n" > "$n.cc"
done"#,
        run: r#"for n in $(seq "$T"); do g++ -O2 -c "$n.cc" -o "$n.o"; done"#,
    },
    Program {
        name: "openssl",
        packages: "openssl",
        needs: &["/usr/bin/openssl"],
        processes: &["openssl"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"/usr/bin/openssl speed -seconds 1 -bytes 4096 sha256 aes-256-cbc md5 camellia-128-cbc rsa2048 ecdsap256 > speed.out 2>&1
for cipher in aes-256-gcm chacha20-poly1305 aes-128-ctr sha512 sha3-256 sha1; do
/usr/bin/openssl speed -seconds 1 -bytes 4096 -evp "$cipher" > speed.out 2>&1; done"#,
    },
    Program {
        name: "git",
        packages: "git",
        needs: &["/usr/bin/git"],
        processes: &["git"],
        goal: Goal::Compiled,
        prepare: r#"/usr/bin/git init -q -b main repository; cd repository
awk 'BEGIN { srand(7); for (n = 1; n <= 1500; n++) {
    printf "commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 1\nm\n", 1500000000 + 60 * n
    for (f = 0; f < 3; f++) { text = ""; for (l = 0; l < 200; l++) text = text int(rand() * (l % 20 ? 3 : 9999)) " line " l "\n"
    printf "M 644 inline d%d/file%d\ndata %d\n%s\n", (n * 7 + f) % 20, (n * 3 + f) % 30, length(text), text } } }' | /usr/bin/git fast-import --quiet"#,
        run: r#"cd repository
/usr/bin/git log -p > ../log.out
/usr/bin/git log --stat -M > ../log.out
/usr/bin/git repack -adfq --window=60
/usr/bin/git checkout -q main; /usr/bin/git status > ../log.out; /usr/bin/git grep -c 'li.e 1[0-9]*$' main > ../log.out
/usr/bin/git blame d1/file1 > ../log.out 2>&1 || true"#,
    },
    Program {
        name: "node",
        packages: "nodejs",
        needs: &["/usr/bin/node"],
        processes: &["node"],
        goal: Goal::Jit,
        prepare: r#"cat > work.js <<'END'
const crypto = require('crypto'), fs = require('fs'), zlib = require('zlib');
const end = Date.now() + 1000 * process.argv[2];
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
while (Date.now() < end) {
  fib(24);
  const objects = Array.from({length: 5000}, (_, i) => ({id: i, name: 'n' + (i * 7919) % 5000}));
  objects.sort((a, b) => a.name < b.name ? -1 : 1);
  const text = JSON.stringify(objects);
  JSON.parse(text);
  text.replace(/"n(\d+)"/g, (_, n) => n * 2);
  crypto.createHash('sha256').update(text).digest();
  zlib.deflateSync(text);
  fs.writeFileSync('out', text);
}
END"#,
        run: r#"/usr/bin/node work.js "$T""#,
    },
    Program {
        name: "bash",
        packages: "bash",
        needs: &["bash"],
        processes: &["bash"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"bash -c '
end=$((SECONDS + $1)); declare -A seen
f() { local n=$1; ((n < 2)) && return; f $((n - 1)); }
while ((SECONDS < end)); do
    for ((i = 0; i < 300; i++)); do seen[$((i * i % 97))]=${i/1/xx}; [[ $i =~ ^[1-5]+$ ]] && : "${BASH_REMATCH[0]}"; done
    f 40; x=$(echo "${!seen[@]}"); read -r _ < <(printf "%s\n" $x)
done' bash "$T""#,
    },
    Program {
        name: "xz",
        packages: "xz-utils",
        needs: &["xz"],
        processes: &["xz"],
        goal: Goal::Compiled,
        prepare: "cat /usr/bin/*g* 2> cat.out | head -c \"$T\"000000 > data",
        run: "xz -6 -T 2 -k data; xz -d -c data.xz > data.out",
    },
    Program {
        name: "zstd",
        packages: "zstd",
        needs: &["zstd"],
        processes: &["zstd"],
        goal: Goal::Compiled,
        prepare: "cat /usr/bin/*g* 2> cat.out | head -c \"$T\"000000 > data",
        run: "zstd -q -19 data -o 19.zst; for n in 1 2 3 4 5 6 7 8 9; do zstd -q -f -$n data -o data.zst; zstd -q -f -d data.zst -o out; done",
    },
    Program {
        name: "sqlite3",
        packages: "sqlite3",
        needs: &["sqlite3"],
        processes: &["sqlite3"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"for n in $(seq "$T"); do sqlite3 data.db "
drop table if exists t; create table t (id integer primary key, name text, value real);
insert into t with recursive c(n) as (select 1 union all select n + 1 from c where n < 150000) select n, hex(n * 7919 % 10007), n / 3.0 from c;
create index by_name on t (name); select count(*), max(s) from (select name, sum(value) s from t group by name);
select count(*) from t a join t b on a.name = b.name where a.id < 9000; update t set value = value * 2 where id % 3 = 0;" > out; done"#,
    },
    Program {
        name: "perl",
        packages: "perl",
        needs: &["/usr/bin/perl"],
        processes: &["perl"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"/usr/bin/perl -e '
my $end = time + $ARGV[0];
sub fib { my $n = shift; $n < 2 ? $n : fib($n - 1) + fib($n - 2) }
while (time < $end) {
    fib(15); my %h; $h{$_ * 7919 % 10007} .= "x$_" for 1 .. 20000;
    my $text = join ",", map { "$_=$h{$_}" } sort { $a <=> $b } keys %h;
    my $n = () = $text =~ /(\d+)=x(\d*)5/g; $text =~ s/x(\d)/chr(65 + $1)/ge;
    open my $f, ">", "out"; print $f $text; close $f;
}' "$T""#,
    },
    Program {
        name: "rustc",
        packages: "rustc",
        needs: &["rustc"],
        processes: &["rustc"],
        goal: Goal::Compiled,
        prepare: r#"awk 'BEGIN { for (n = 0; n < 40 * ENVIRON["T"]; n++) printf "pub fn f%d(v: &[u32]) -> std::collections::BTreeMap<u32, String> { v.iter().map(|x| (x %% %d, format!(\"{x} {}\", v.len()))).collect() }\n", n, n + 2 }' > big.rs"#,
        run: "rustc -O --crate-type rlib big.rs",
    },
    Program {
        name: "go",
        packages: "golang-go",
        needs: &["go"],
        processes: &["go", "compile", "link", "work", "stripped"],
        goal: Goal::Compiled,
        prepare: r#"cat > work.go <<'END'
package main
import ("crypto/sha256"; "encoding/json"; "fmt"; "os"; "regexp"; "sort"; "strconv"; "sync"; "time")
func fib(n int) int { if n < 2 { return n }; return fib(n-1) + fib(n-2) }
func main() {
	seconds, _ := strconv.ParseFloat(os.Args[1], 64)
	end := time.Now().Add(time.Duration(seconds * 1e9))
	pattern := regexp.MustCompile(`"n([0-9]+)"`)
	var all sync.WaitGroup
	for g := 0; g < 3; g++ { all.Add(1); go func() { defer all.Done()
		for time.Now().Before(end) {
			fib(20)
			m := map[string]int{}
			for i := 0; i < 3000; i++ { m[fmt.Sprint("n", i*7919%10007)] = i }
			keys := []string{}
			for k := range m { keys = append(keys, k) }
			sort.Strings(keys)
			text, _ := json.Marshal(m)
			sha256.Sum256(pattern.ReplaceAll(text, []byte("$1")))
			os.WriteFile("out", text, 0o600)
		} }() }
	all.Wait()
}
END
export HOME=$PWD GOFLAGS=-mod=mod GO111MODULE=off
go build -o work work.go && go build -ldflags '-s -w' -o stripped work.go"#,
        run: r#"./work "$T"; ./stripped "$T"
HOME=$PWD GO111MODULE=off GOCACHE=$PWD/cache timeout "$T" go build -o again work.go || true"#,
    },
    Program {
        name: "java",
        packages: "default-jdk-headless",
        needs: &["java", "javac"],
        processes: &["java"],
        goal: Goal::Jit,
        prepare: r#"cat > Work.java <<'END'
import java.util.*;
public class Work {
    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    public static void main(String[] words) throws Exception {
        long end = System.nanoTime() + (long) (Double.parseDouble(words[0]) * 1e9);
        while (System.nanoTime() < end) {
            fib(22);
            Map<String, Integer> map = new TreeMap<>();
            for (int i = 0; i < 5000; i++) map.merge("n" + i * 7919 % 10007, i, Integer::sum);
            String text = map.toString().replaceAll("n(\\d)", "$1");
            java.security.MessageDigest.getInstance("SHA-256").digest(text.getBytes());
        }
    }
}
END
javac Work.java"#,
        run: r#"java -XX:+PreserveFramePointer Work "$T""#,
    },
];
