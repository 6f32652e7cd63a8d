//! More programs as a distribution ships them: compilers, codecs, archivers, interpreters of page
//! descriptions. The unwinder was finished before they were tried.

use crate::program::{Goal, Program};

/// All of them.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "clang",
        packages: "clang libstdc++-12-dev",
        needs: &["clang++"],
        processes: &["clang", "clang-14", "clang++"],
        goal: Goal::Compiled,
        prepare: r#"cat > work.cc <<'END'
#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>
int main(int argc, char **argv) {
  std::map<std::string, std::vector<int>> map;
  for (int i = 0; i < argc; i++) map[argv[i]].push_back(i);
  std::vector<std::string> words;
  for (auto &entry : map) words.push_back(std::regex_replace(entry.first, std::regex("a(b+)"), "$1"));
  std::sort(words.begin(), words.end());
  for (auto &word : words) std::cout << word << '\n';
}
END"#,
        run: r#"last=$(($(date +%s) + T)); while [ $(date +%s) -lt $last ]; do clang++ -O2 -c work.cc -o work.o; done"#,
    },
    Program {
        name: "gfortran",
        packages: "gfortran",
        needs: &["gfortran"],
        processes: &["work"],
        goal: Goal::Compiled,
        prepare: r#"cat > work.f90 <<'END'
program work
  implicit none
  real(8) :: a(120, 120), b(120, 120)
  integer :: now, last, rate
  character(len=16) :: word
  character(len=32) :: text
  call get_command_argument(1, word)
  call system_clock(now, rate)
  read (word, *) last
  last = now + last * rate
  do while (now < last)
    call random_number(a)
    b = matmul(a, transpose(a))
    write (text, '(F20.6)') sum(exp(-b / 100))
    call system_clock(now)
  end do
  print *, text
end program
END
gfortran -O2 work.f90 -o work"#,
        run: r#"./work "$T""#,
    },
    Program {
        name: "ripgrep",
        packages: "ripgrep",
        needs: &["rg"],
        processes: &["rg"],
        goal: Goal::Compiled,
        prepare: "",
        run: r#"last=$(($(date +%s) + T)); while [ $(date +%s) -lt $last ]; do rg -c --no-messages '(for|while) [a-z]+ed|\w+ing the' /usr/share/doc /usr/share/perl /usr/include > out || true; done"#,
    },
    Program {
        name: "7z",
        packages: "7zip",
        needs: &["7zz"],
        processes: &["7zz"],
        goal: Goal::Assembly,
        prepare: "cat /usr/bin/*[a-f] 2>/dev/null | head -c 30000000 > data || true",
        run: r#"last=$(($(date +%s) + T)); while [ $(date +%s) -lt $last ]; do rm -f data.7z; 7zz a -mx=3 data.7z data > out; 7zz t data.7z > out; done"#,
    },
    Program {
        name: "ghostscript",
        packages: "ghostscript",
        needs: &["gs"],
        processes: &["gs"],
        goal: Goal::Compiled,
        prepare: r#"cat > work.ps <<'END'
%!PS
/Times-Roman findfont 11 scalefont setfont
1 1 40 { pop
  0 1 60 { 11 mul 50 add 50 exch moveto (words to be drawn) show } for
  0 1 30 { dup 10 mul 300 exch 40 0 360 arc 30 div setgray fill } for
  showpage
} for
END"#,
        run: r#"last=$(($(date +%s) + T)); while [ $(date +%s) -lt $last ]; do gs -q -dBATCH -dNOPAUSE -dSAFER -sDEVICE=png16m -r100 -sOutputFile=page%d.png work.ps; done"#,
    },
    Program {
        name: "R",
        packages: "r-base-core",
        needs: &["Rscript"],
        processes: &["R", "Rscript"],
        goal: Goal::Assembly,
        prepare: "",
        run: r#"Rscript --vanilla -e '
last <- Sys.time() + as.numeric(Sys.getenv("T"))
fib <- function(n) if (n < 2) n else fib(n - 1) + fib(n - 2)
while (Sys.time() < last) {
  fib(14)
  a <- matrix(runif(22500), 150); b <- solve(a, a %*% a); f <- lm(a[, 1] ~ a[, 2:9])
  w <- sort(as.character((1:3000 * 7919) %% 10007)); paste(gsub("7([0-9])", "\\1", w), collapse = ",")
}'"#,
    },
    Program {
        name: "vp9",
        packages: "ffmpeg",
        needs: &["ffmpeg"],
        processes: &["ffmpeg"],
        goal: Goal::Assembly,
        prepare: "",
        run: r#"timeout -s INT "$T" ffmpeg -v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=30 -c:v libvpx-vp9 -deadline realtime -cpu-used 6 -f null - 2> ffmpeg.out || true"#,
    },
    Program {
        name: "valgrind",
        packages: "valgrind gawk",
        needs: &["valgrind", "gawk"],
        processes: &["memcheck-amd64-", "valgrind", "valgrind.bin"],
        goal: Goal::Jit,
        prepare: "",
        run: r#"valgrind -q gawk 'function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }
BEGIN { last = systime() + ENVIRON["T"]
while (systime() < last) { fib(12); for (i = 0; i < 2000; i++) a[i] = i * 7919 % 10007 "x"; n = asort(a, b) } }'"#,
    },
    Program {
        name: "graphviz",
        packages: "graphviz",
        needs: &["dot"],
        processes: &["dot"],
        goal: Goal::Compiled,
        prepare: r#"{ echo 'digraph g {'; for n in $(seq 150); do echo "n$n -> n$((n * 7 % 151)); n$n -> n$((n * 31 % 151));"; done; echo '}'; } > work.dot"#,
        run: r#"last=$(($(date +%s) + T)); while [ $(date +%s) -lt $last ]; do dot -Tsvg work.dot > out; done"#,
    },
];
