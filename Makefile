# What one types. CI runs `make check`.

CARGO ?= cargo
PREFIX ?= /usr/local
# mount(8) looks for its helpers here and nowhere else.
SBINDIR ?= /sbin
DESTDIR ?=
# Where `make install` finds the programs.
PROGRAMS ?= target/release
DEMO_ARGS ?=
BENCH_ARGS ?= --quick --peers sshfs,floor --out target/bench
# Minutes, and a number that repeats the choices of a run; docs/reliability.md.
SOAK_MINUTES ?= 10
SOAK_SEED ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= program $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.PHONY: build setup demo bench test test-big soak posix check format lint doc install uninstall fuzz clean

build:
	$(CARGO) build --release -p sshoal
	scripts/split-debug.sh target/release/sshoal target/release/sshoal-bench

setup:
	scripts/setup.sh

demo: setup build
	target/release/sshoal demo $(DEMO_ARGS)

# Two minutes: sshoal, sshfs and the floor. `scripts/setup.sh --bench` installs more peers.
bench: setup build
	target/release/sshoal bench $(BENCH_ARGS)

test: setup
	scripts/test.sh --workspace

# The kernel's sources through a mount, 400,000 random operations, and as many over links that
# break: more than an hour.
test-big:
	scripts/setup.sh --big
	SSHOAL_TEST_BIG=1 scripts/test.sh --release -p sshoal --test e2e -- big:: model:: links:: --nocapture

# Random work while links, servers, daemons, disks and caches fail; prints a table, and fails if
# anything is lost or wrong. The program is built as it is shipped.
soak: setup build
	SOAK_MINUTES=$(SOAK_MINUTES) SOAK_SEED=$(SOAK_SEED) \
		SSHOAL_TEST_PROGRAM=$(CURDIR)/target/release/sshoal \
		scripts/test.sh -p sshoal --test soak nothing_is_lost -- --exact --nocapture || exit 1

# The test suites of others: pjdfstest and fsx, see docs/posix.md.
posix: setup
	scripts/test.sh -p sshoal --test e2e suites::

check: format lint doc test

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

# Does not build, since root seldom has a compiler: run `make` first.
install:
	@test -x "$(PROGRAMS)/sshoal" || { echo "run make first" >&2; exit 1; }
	install -D -m 755 "$(PROGRAMS)/sshoal" "$(DESTDIR)$(PREFIX)/bin/sshoal"
	install -D -m 755 "$(PROGRAMS)/sshoal-bench" "$(DESTDIR)$(PREFIX)/bin/sshoal-bench"
	install -d "$(DESTDIR)$(SBINDIR)"
	ln -sfn "$(PREFIX)/bin/sshoal" "$(DESTDIR)$(SBINDIR)/mount.sshoal"
	ln -sfn "$(PREFIX)/bin/sshoal" "$(DESTDIR)$(SBINDIR)/mount.fuse.sshoal"

uninstall:
	rm -f "$(DESTDIR)$(SBINDIR)/mount.sshoal" "$(DESTDIR)$(SBINDIR)/mount.fuse.sshoal"
	rm -f "$(DESTDIR)$(PREFIX)/bin/sshoal" "$(DESTDIR)$(PREFIX)/bin/sshoal-bench"

# Needs a nightly compiler and cargo-fuzz.
fuzz:
	for target in $(FUZZ_TARGETS); do \
		$(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean:
	$(CARGO) clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts
