# The README has `make dist`, `make run` and `make test`; each first installs the packages that are
# missing.

TARGET := $(or $(CARGO_TARGET_DIR),target)
KCOLLECT := $(abspath $(TARGET))/release/kcollect
export KCOLLECT
# The kernels of `make test-kernels`, unpacked, and which of them are booted: the oldest and the
# newest, or one of each kind.
KERNELS := $(abspath $(TARGET))/kernels
KERNEL_NAMES ?= $(if $(ALL),6.1 6.12 7.2 newest rt,6.1 newest)
export KERNELS KERNEL_NAMES

# The distributed files, and the build directory that they are made in.
DIST := $(abspath $(TARGET))/dist

.PHONY: help build run check deny test test-fast test-kernels check-btf wild bench bench-report bench-page programs causes growth day fuzz faults dist test-dist rust

help:
	@echo 'make run     build it, profile this machine for ten seconds under a small load, write ktest.N.er here'
	@echo 'make test    build it, run all tests, those that need root through sudo'
	@echo 'make test-fast PACKAGE=kcollect-bpf, or any other package: its tests that need no root (under a minute after a change)'
	@echo 'make test-kernels build it, record and check workloads on the oldest and the newest Linux of Debian, in qemu (no root, minutes); ALL=1: on five kernels'
	@echo 'make check-btf BTF=FILE  print what the BPF programs would not find in a kernel with these types (seconds, no root)'
	@echo 'make bench   build it, measure its cost to other programs, next to other profilers (as root, minutes)'
	@echo 'make bench-report build it, time reports of a large experiment, next to gprofng (a minute or two)'
	@echo 'make bench-page build it, time the page of a large experiment in a browser: until it is shown, and dragging (a minute)'
	@echo 'make programs build it, count complete user stacks of the installed programs (as root, minutes)'
	@echo 'make causes  build it, compare the causes of waits with what a person says of loads and installed programs (as root, minutes)'
	@echo 'make wild    build it, compare what it says of the installed programs with strace, gdb, perf, c++filt and readelf; PERCENT=10 SEED=7: of a tenth (as root, minutes)'
	@echo 'make growth  build it, measure how its cost grows with threads, processes and time (as root, minutes)'
	@echo 'make day     build it, record an hour of rotations, kills, a full disk, a clock that is set; check all of it (as root)'
	@echo 'make fuzz    run libFuzzer on every reader of untrusted bytes, SECONDS=60 for each (minutes)'
	@echo 'make faults  kill recordings with SIGKILL, FAULTS=200 times at any moment; fail each single call that writes once (as root, minutes)'
	@echo 'make dist    build a package and a tarball in $(TARGET)/dist, of one program that needs no library (minutes)'
	@echo 'make test-dist make dist, test the result in a directory with nothing else (as root)'
	@echo 'make check   check formatting, run clippy, rustdoc, and cargo-deny if it is installed'
	@echo 'make deny    check licences and sources of dependencies, if cargo-deny is installed'
	@echo 'make build   only build $(TARGET)/release/kcollect'

rust:
	@scripts/rust.sh

build: rust
	@scripts/packages.sh build
	cargo build --locked --release -p kcollect

run: build
	scripts/as-root.sh $(KCOLLECT) -p on scripts/demonstration.sh 10

# `kernels` and `wild` are no part of --all-targets, since they have `test = false`.
check: rust
	@scripts/packages.sh build
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --test kernels --test wild -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps
	@$(MAKE) --no-print-directory deny

# The rules for dependencies, in deny.toml.
deny:
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check licenses bans sources; \
	else echo 'skipped: cargo deny check (cargo install --locked cargo-deny)'; fi

# The name of a test that needs root begins with root_. Those of the package `tests` profile the
# machine: what takes it for itself begins with root_alone_ (tests::machine::Exclusive), and the
# others run side by side (Shared). Two threads there too: with one, the test harness runs tests in
# its main thread, and what is not judged is printed without a name. All runs have all packages, so
# that only the first compiles: with fewer, libraries would have other features.
OUTCOMES := $(abspath $(TARGET))/outcomes
AS_ROOT = --config "target.'cfg(all())'.runner=['$(CURDIR)/scripts/as-root.sh']"
test: build
	@scripts/packages.sh test
	cargo test --locked --workspace --no-fail-fast -- --skip root_
	rm -f $(OUTCOMES)
	PATH="$$(scripts/perf-path.sh)"; export KCOLLECT_OUTCOMES=$(OUTCOMES); failed=0; \
	for tests in 'root_ --skip root_alone_ --test-threads=4' 'root_alone_ --test-threads=2'; do \
		cargo test --locked --workspace --tests --no-fail-fast $(AS_ROOT) -- $$tests || failed=1; \
	done; scripts/outcomes.sh $(OUTCOMES) || failed=1; exit $$failed

# After a change: one package, or all of them, without root and without the release build.
test-fast: rust
	cargo test --locked $(if $(PACKAGE),-p $(PACKAGE),--workspace --exclude tests) --lib --bins --tests -- --skip root_

# Kernels other than the running one: Debian's, in qemu, which needs neither KVM nor root.
test-kernels: build
	@scripts/packages.sh kernels
	@scripts/kernels.sh $(KERNELS) $(KERNEL_NAMES)
	$(if $(ALL),WRITE_TESTED=1) cargo test --locked --workspace --test kernels

# The types of a kernel, as BTF or in an ELF file (vmlinux). Nothing is loaded.
BTF ?= /sys/kernel/btf/vmlinux
check-btf: rust
	@scripts/packages.sh build
	@cargo run -q --locked -p kcollect-bpf --example kernel-types -- check $(BTF)

bench: build
	@scripts/packages.sh bench
	PATH="$$(scripts/perf-path.sh)" cargo bench --locked -p tests --bench cost \
		$(AS_ROOT)

bench-report: build
	@scripts/packages.sh bench
	cargo bench --locked -p tests --bench report

bench-page: build
	@scripts/packages.sh test
	cargo bench --locked -p tests --bench page

programs: build
	@scripts/packages.sh bench
	cargo bench --locked -p tests --bench programs \
		$(AS_ROOT)

causes: build
	@scripts/packages.sh bench
	cargo bench --locked -p tests --bench causes \
		$(AS_ROOT)

PERCENT ?= 100
SEED ?= 1
wild: build
	@scripts/packages.sh test
	cargo test --locked --workspace --test wild $(AS_ROOT) -- --percent $(PERCENT) --seed $(SEED) \
		--cases $(abspath $(TARGET))/wild

growth: build
	@scripts/packages.sh test
	cargo bench --locked -p tests --bench growth \
		$(AS_ROOT)

day: build
	@scripts/packages.sh bench
	cargo bench --locked -p tests --bench day \
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
