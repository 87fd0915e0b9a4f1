# What one types. CI runs `make check`.

CARGO ?= cargo
PREFIX ?= /usr/local
# mount(8) looks for its helpers here and nowhere else.
SBINDIR ?= /sbin
DESTDIR ?=
# What `make install` installs.
PROGRAM ?= target/release/sshoal
DEMO_ARGS ?=
BENCH_ARGS ?= --quick --peers sshfs,floor --out target/bench
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.PHONY: build setup demo bench test test-big posix check format lint doc install uninstall fuzz clean

build:
	$(CARGO) build --release -p sshoal

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
	@test -x "$(PROGRAM)" || { echo "run make first" >&2; exit 1; }
	install -D -m 755 "$(PROGRAM)" "$(DESTDIR)$(PREFIX)/bin/sshoal"
	install -d "$(DESTDIR)$(SBINDIR)"
	ln -sfn "$(PREFIX)/bin/sshoal" "$(DESTDIR)$(SBINDIR)/mount.sshoal"
	ln -sfn "$(PREFIX)/bin/sshoal" "$(DESTDIR)$(SBINDIR)/mount.fuse.sshoal"

uninstall:
	rm -f "$(DESTDIR)$(SBINDIR)/mount.sshoal" "$(DESTDIR)$(SBINDIR)/mount.fuse.sshoal"
	rm -f "$(DESTDIR)$(PREFIX)/bin/sshoal"

# Needs a nightly compiler and cargo-fuzz.
fuzz:
	for target in $(FUZZ_TARGETS); do \
		$(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean:
	$(CARGO) clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts
