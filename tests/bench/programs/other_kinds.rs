//! Programs of other kinds: with assembly that has no unwind information, with a compiler of their
//! own for what they run (JIT), compiled from other languages, or an image of memory that is
//! mapped.

use crate::program::{Goal, Program};

/// All of them.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "x264",
        packages: "ffmpeg",
        needs: &["ffmpeg"],
        processes: &["ffmpeg"],
        goal: Goal::Assembly,
        prepare: "",
        run: r#"timeout -s INT "$T" ffmpeg -v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=30 -c:v libx264 -f null - 2> ffmpeg.out || true"#,
    },
    Program {
        name: "x265",
        packages: "ffmpeg",
        needs: &["ffmpeg"],
        processes: &["ffmpeg"],
        goal: Goal::Assembly,
        prepare: "",
        run: r#"timeout -s INT "$T" ffmpeg -v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=30 -c:v libx265 -x265-params log-level=none -f null - 2> ffmpeg.out || true"#,
    },
    Program {
        name: "ffmpeg",
        packages: "ffmpeg",
        needs: &["ffmpeg"],
        processes: &["ffmpeg"],
        goal: Goal::Assembly,
        prepare: "ffmpeg -v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=30 -t 8 -c:v libx264 -preset veryfast video.mkv",
        run: r#"timeout -s INT "$T" ffmpeg -v error -nostdin -stream_loop 1000 -i video.mkv -vf scale=320:180 -pix_fmt rgb24 -f null - 2> ffmpeg.out || true"#,
    },
    Program {
        name: "numpy",
        packages: "python3-numpy libopenblas0-pthread",
        needs: &["/usr/lib/python3/dist-packages/numpy/__init__.py"],
        processes: &["python3"],
        goal: Goal::Assembly,
        prepare: "",
        run: r#"/usr/bin/python3 -c '
import sys, time, numpy
end = time.monotonic() + float(sys.argv[1])
random = numpy.random.default_rng(7)
while time.monotonic() < end:
    a = random.random((300, 300))
    numpy.linalg.solve(a, a @ a.T)
    numpy.sort(a, axis=None); numpy.exp(a).sum(); numpy.fft.fft2(a)
' "$T""#,
    },
    Program {
        name: "luajit",
        packages: "luajit",
        needs: &["luajit"],
        processes: &["luajit"],
        goal: Goal::Jit,
        prepare: r#"cat > work.lua <<'END'
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local last = os.time() + tonumber(arg[1])
while os.time() < last do
  fib(22)
  local t, parts = {}, {}
  for i = 1, 20000 do t[i] = i * 7919 % 10007 end
  table.sort(t)
  for i = 1, #t do parts[i] = tostring(t[i]) end
  local text = table.concat(parts, ",")
  local n = 0
  for word in text:gmatch("%d+") do n = n + #word end
  text:gsub("7(%d)", function(d) return d end)
end
END"#,
        run: r#"luajit work.lua "$T""#,
    },
    Program {
        name: "lua",
        packages: "lua5.4",
        needs: &["lua5.4"],
        processes: &["lua5.4"],
        goal: Goal::Compiled,
        prepare: r#"cat > work.lua <<'END'
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local last = os.time() + tonumber(arg[1])
while os.time() < last do
  fib(18)
  local t = {}
  for i = 1, 5000 do t[i] = tostring(i * 7919 % 10007) end
  table.sort(t)
  table.concat(t, ","):gsub("7(%d)", function(d) return d end)
end
END"#,
        run: r#"lua5.4 work.lua "$T""#,
    },
    Program {
        name: "sbcl",
        packages: "sbcl",
        needs: &["sbcl"],
        processes: &["sbcl"],
        goal: Goal::Jit,
        prepare: r#"cat > work.lisp <<'END'
(defun fib (n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(let ((end (+ (get-universal-time) (parse-integer (second sb-ext:*posix-argv*)))))
  (loop while (< (get-universal-time) end) do
    (fib 22)
    (let ((table (make-hash-table :test 'equal)))
      (dotimes (i 5000) (setf (gethash (format nil "n~a" (mod (* i 7919) 10007)) table) i))
      (sort (loop for key being the hash-keys of table collect key) #'string<))))
END"#,
        run: r#"sbcl --noinform --no-sysinit --no-userinit --disable-debugger --load work.lisp --quit --end-toplevel-options "$T" > out 2>&1 || sbcl --script work.lisp "$T" > out"#,
    },
    Program {
        name: "ocaml",
        packages: "ocaml",
        needs: &["ocamlopt"],
        processes: &["work"],
        goal: Goal::Compiled,
        prepare: r#"cat > work.ml <<'END'
module M = Map.Make (String)
let rec fib n = if n < 2 then n else fib (n - 1) + fib (n - 2)
let () =
  let last = Unix.gettimeofday () +. float_of_string Sys.argv.(1) in
  while Unix.gettimeofday () < last do
    ignore (fib 24);
    let words = List.init 5000 (fun i -> string_of_int (i * 7919 mod 10007)) in
    let map = List.fold_left (fun m w -> M.add w (String.length w) m) M.empty words in
    ignore (Digest.string (M.fold (fun k _ all -> k ^ all) (M.filter (fun k _ -> k < "2") map) ""));
    ignore (List.sort compare words)
  done
END
ocamlopt unix.cmxa work.ml -o work"#,
        run: r#"./work "$T""#,
    },
    Program {
        name: "haskell",
        packages: "ghc",
        needs: &["ghc"],
        processes: &["work"],
        goal: Goal::Jit,
        prepare: r#"cat > work.hs <<'END'
import qualified Data.Map as Map
import Data.List (sort, foldl')
import System.Environment (getArgs)
import Data.Time.Clock
fib :: Int -> Int
fib n = if n < 2 then n else fib (n - 1) + fib (n - 2)
work :: Int -> Int
work n = fib 22 + length (show (Map.toList (foldl' (\m i -> Map.insert (show (i * 7919 `mod` 10007)) i m) Map.empty [n .. n + 4000]))) + length (sort (map show [n, n - 1 .. n - 2000]))
main :: IO ()
main = do
  [t] <- getArgs
  start <- getCurrentTime
  let loop n = do
        now <- work n `seq` getCurrentTime
        if diffUTCTime now start < fromIntegral (read t :: Int) then loop (n + 1) else print n
  loop 1
END
ghc -O work.hs > ghc.out 2>&1"#,
        run: r#"./work "$T" > out"#,
    },
    Program {
        name: "guile",
        packages: "guile-3.0",
        needs: &["guile"],
        processes: &["guile"],
        goal: Goal::Jit,
        prepare: r#"cat > work.scm <<'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define end (+ (current-time) (string->number (cadr (command-line)))))
(let loop ()
  (fib 20)
  (let ((table (make-hash-table)))
    (do ((i 0 (+ i 1))) ((= i 3000)) (hash-set! table (number->string (modulo (* i 7919) 10007)) i))
    (sort (hash-map->list (lambda (key value) key) table) string<?))
  (if (< (current-time) end) (loop)))
END"#,
        run: r#"guile --no-auto-compile work.scm "$T""#,
    },
    Program {
        name: "racket",
        packages: "racket",
        needs: &["racket"],
        processes: &["racket"],
        goal: Goal::Jit,
        prepare: r#"cat > work.rkt <<'END'
#lang racket/base
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define end (+ (current-seconds) (string->number (vector-ref (current-command-line-arguments) 0))))
(let loop ()
  (fib 22)
  (let ((table (make-hash)))
    (for ((i 3000)) (hash-set! table (number->string (modulo (* i 7919) 10007)) i))
    (sort (hash-keys table) string<?))
  (when (< (current-seconds) end) (loop)))
END"#,
        run: r#"racket work.rkt "$T""#,
    },
    Program {
        name: "pypy3",
        packages: "pypy3",
        needs: &["pypy3"],
        processes: &["pypy3"],
        goal: Goal::Jit,
        prepare: "",
        run: r#"pypy3 -c '
import json, re, sys, time
end = time.time() + float(sys.argv[1])
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
while time.time() < end:
    fib(20)
    words = ["n%d" % (i * 7919 % 10007) for i in range(5000)]
    words.sort(key=lambda w: (len(w), w))
    text = json.dumps({w: list(range(9)) for w in words})
    json.loads(text)
    re.sub(r"n([0-9]+)", lambda m: m.group(1), text)
' "$T""#,
    },
    Program {
        name: "php",
        packages: "php-cli",
        needs: &["php"],
        processes: &["php"],
        goal: Goal::Compiled,
        prepare: PHP,
        run: r#"php work.php "$T""#,
    },
    Program {
        name: "php-jit",
        packages: "php-cli",
        needs: &["php"],
        processes: &["php"],
        goal: Goal::Jit,
        prepare: PHP,
        run: r#"php -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=tracing work.php "$T""#,
    },
    Program {
        name: "ruby",
        packages: "ruby",
        needs: &["/usr/bin/ruby"],
        processes: &["ruby", "ruby3.1", "ruby3.3"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"/usr/bin/ruby -e '
finish = Time.now + ARGV[0].to_f
def fib(n) n < 2 ? n : fib(n - 1) + fib(n - 2) end
while Time.now < finish
  fib(18)
  words = (1..5000).map { |i| "n#{i * 7919 % 10007}" }
  words.sort_by { |w| [w.size, w] }
  text = words.join(",")
  text.gsub(/n(\d+)/) { $1 }
  words.each_with_object({}) { |w, h| h[w] = w.to_sym }
end' "$T""#,
    },
    Program {
        name: "mono",
        packages: "mono-runtime mono-mcs",
        needs: &["mono", "mcs"],
        processes: &["mono", "mono-sgen"],
        goal: Goal::Jit,
        prepare: r#"cat > work.cs <<'END'
using System; using System.Collections.Generic; using System.Diagnostics; using System.Linq;
class Work {
    static int Fib(int n) { return n < 2 ? n : Fib(n - 1) + Fib(n - 2); }
    static void Main(string[] words) {
        var watch = Stopwatch.StartNew();
        while (watch.Elapsed.TotalSeconds < double.Parse(words[0])) {
            Fib(22);
            var map = new SortedDictionary<string, int>();
            for (int i = 0; i < 3000; i++) map["n" + i * 7919 % 10007] = i;
            string.Join(",", map.Keys.OrderBy(k => k.Length)).Replace("n1", "m");
        }
    }
}
END
mcs -out:work.exe work.cs"#,
        run: r#"mono work.exe "$T""#,
    },
    Program {
        name: "erlang",
        packages: "erlang-base",
        needs: &["erl", "erlc"],
        processes: &["beam.smp", "erl"],
        goal: Goal::Jit,
        prepare: r#"cat > work.erl <<'END'
-module(work).
-export([main/1]).
fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).
main([T]) ->
    loop(erlang:monotonic_time(second) + list_to_integer(atom_to_list(T))), init:stop().
loop(End) ->
    fib(20),
    Words = [integer_to_list(I * 7919 rem 10007) || I <- lists:seq(1, 5000)],
    Map = maps:from_list([{W, length(W)} || W <- lists:sort(Words)]),
    term_to_binary(Map),
    case erlang:monotonic_time(second) < End of true -> loop(End); false -> ok end.
END
erlc work.erl"#,
        run: r#"erl -noshell -s work main "$T""#,
    },
    Program {
        name: "gawk",
        packages: "gawk",
        needs: &["gawk"],
        processes: &["gawk"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"gawk 'function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }
BEGIN { last = systime() + ENVIRON["T"]
while (systime() < last) { fib(15); for (i = 0; i < 20000; i++) a[i] = i * 7919 % 10007 "x"; n = asort(a, b)
text = ""; for (i = 1; i <= 2000; i++) text = text b[i]; gsub(/7([0-9])x/, "<&>", text) } }'"#,
    },
    Program {
        name: "imagemagick",
        packages: "imagemagick",
        needs: &["/usr/bin/convert"],
        processes: &["convert", "convert-im6.q16"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"for n in $(seq "$T"); do
/usr/bin/convert -size 500x500 plasma:red-blue -blur 0x4 -rotate 30 -resize 150% -sharpen 0x2 -quality 90 out.jpg
/usr/bin/convert out.jpg -colors 64 out.png; done"#,
    },
    Program {
        name: "octave",
        packages: "octave",
        needs: &["octave-cli"],
        processes: &["octave-cli", "octave-cli-7.3.0"],
        goal: Goal::Assembly,
        prepare: "",
        run: r#"octave-cli --no-init-file --eval '
last = time() + str2double(getenv("T"));
while time() < last
  a = rand(200); b = a * a; c = a \ b; fft(a); sort(a(:)); s = 0;
  for i = 1:3000 s = s + sin(i); end
  regexprep(num2str(a(1:20)), "([0-9])5", "$1");
end'"#,
    },
    Program {
        name: "qemu-user",
        packages: "qemu-user",
        needs: &["qemu-x86_64", "gawk"],
        processes: &["qemu-x86_64"],
        goal: Goal::Jit,
        prepare: "",
        run: r#"qemu-x86_64 /usr/bin/gawk 'function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }
BEGIN { last = systime() + ENVIRON["T"]
while (systime() < last) { fib(15); for (i = 0; i < 5000; i++) a[i] = i * 7919 % 10007 "x"; n = asort(a, b) } }'"#,
    },
    Program {
        name: "pascal",
        packages: "fp-compiler",
        needs: &["fpc"],
        processes: &["work"],
        goal: Goal::Jit,
        prepare: r#"cat > work.pas <<'END'
program work;
{$mode objfpc}{$H+}
uses sysutils;
function fib(n: longint): longint;
begin if n < 2 then fib := n else fib := fib(n - 1) + fib(n - 2) end;
var last: qword; i: longint; s: string;
begin
  last := GetTickCount64 + 1000 * StrToInt(ParamStr(1));
  while GetTickCount64 < last do begin
    fib(24); s := '';
    for i := 1 to 5000 do s := s + IntToStr(i * 7919 mod 10007);
    s := StringReplace(s, '77', 'x', [rfReplaceAll]);
  end;
end.
END
fpc -O2 work.pas > fpc.out 2>&1"#,
        run: r#"./work "$T""#,
    },
];

const PHP: &str = r#"cat > work.php <<'END'
<?php
function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
$end = microtime(true) + $argv[1];
while (microtime(true) < $end) {
    fib(20);
    $words = [];
    for ($i = 0; $i < 5000; $i++) $words["n" . ($i * 7919 % 10007)] = $i;
    ksort($words);
    $text = json_encode($words);
    json_decode($text, true);
    preg_replace('/n(\d+)/', '$1', $text);
    md5($text);
}
END"#;
