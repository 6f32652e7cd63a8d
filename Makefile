# The two commands of the README are `make run` and `make test`; both install what is missing first.

TARGET := $(or $(CARGO_TARGET_DIR),target)
KCOLLECT := $(abspath $(TARGET))/release/kcollect
export KCOLLECT
# The kernels of `make test-kernels`, unpacked.
KERNELS := $(abspath $(TARGET))/kernels
export KERNELS

# What is handed out, and what it is built from.
DIST := $(abspath $(TARGET))/dist

.PHONY: help build run check test test-fast test-kernels bench bench-report programs fuzz faults dist test-dist rust

help:
	@echo 'make run     build it, profile this machine for ten seconds under a small load, leave ktest.N.er here'
	@echo 'make test    build it, run all tests, those that need root through sudo'
	@echo 'make test-fast PACKAGE=bpf, or any other: the tests of one package that need no root (under a minute after a change)'
	@echo 'make test-kernels build it, record and judge workloads on Linux 6.1 and 6.12, in qemu (no root, minutes)'
	@echo 'make bench   build it, measure what it costs other programs, next to other profilers (as root, minutes)'
	@echo 'make bench-report build it, time reports of a large experiment, next to gprofng (a minute or two)'
	@echo 'make programs build it, count complete user stacks of the programs that are installed (as root, minutes)'
	@echo 'make fuzz    libFuzzer on all that reads what others wrote, SECONDS=60 for each (minutes)'
	@echo 'make faults  FAULTS=200 SIGKILLs at any moment; each single call that writes refused once (as root, minutes)'
	@echo 'make dist    build what is handed out, in $(TARGET)/dist: a package and a tarball, of one program that needs no library (minutes)'
	@echo 'make test-dist make dist, try it in a place with nothing but it (as root)'
	@echo 'make check   formatting, clippy, rustdoc'
	@echo 'make build   only build $(TARGET)/release/kcollect'

rust:
	@scripts/rust.sh

build: rust
	@scripts/packages.sh build
	cargo build --locked --release -p kcollect

run: build
	scripts/as-root.sh $(KCOLLECT) -p on scripts/demonstration.sh 10

check: rust
	@scripts/packages.sh build
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps

# The name of a test that needs root begins with root_. Those of the package tests profile the machine: each takes it for
# itself or beside others (tests::machine::Exclusive and Shared), so two threads are never two checks that judge times.
# The others run one by one.
AS_ROOT = --config "target.'cfg(all())'.runner=['$(CURDIR)/scripts/as-root.sh']"
test: build
	@scripts/packages.sh test
	cargo test --locked --workspace --no-fail-fast -- --skip root_
	cargo test --locked --workspace --exclude tests --tests --no-fail-fast $(AS_ROOT) -- root_ --test-threads=1
	PATH="$$(scripts/perf-path.sh)" cargo test --locked -p tests --tests --no-fail-fast $(AS_ROOT) -- root_ --test-threads=2

# After a change: one package, or all of them, without root and without the release build.
test-fast: rust
	cargo test --locked $(if $(PACKAGE),-p $(PACKAGE),--workspace --exclude tests) --lib --bins --tests -- --skip root_

# Other kernels than the one that runs: Debian's, in qemu, which needs neither KVM nor root.
test-kernels: build
	@scripts/packages.sh kernels
	@scripts/kernels.sh $(KERNELS)
	cargo test --locked --workspace --test kernels

bench: build
	@scripts/packages.sh bench
	PATH="$$(scripts/perf-path.sh)" cargo bench --locked -p tests --bench cost \
		$(AS_ROOT)

bench-report: build
	@scripts/packages.sh bench
	cargo bench --locked -p tests --bench report

programs: build
	@scripts/packages.sh bench
	cargo bench --locked -p tests --bench programs \
		$(AS_ROOT)

SECONDS ?= 60
fuzz: rust
	@scripts/packages.sh build
	scripts/fuzz.sh $(SECONDS) $(TARGETS)

FAULTS ?= 200
faults: build
	@scripts/packages.sh test
	KCOLLECT_FAULTS=$(FAULTS) cargo test --locked -p tests --test hostile --no-fail-fast \
		$(AS_ROOT) -- sigkill:: every_write:: --test-threads=1 --nocapture

dist: rust
	@scripts/packages.sh dist
	scripts/dist.sh $(DIST)

test-dist: dist
	@scripts/packages.sh test-dist
	scripts/as-root.sh scripts/test-dist.sh $(DIST)
