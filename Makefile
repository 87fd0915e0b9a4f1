# What one types. CI runs `make check`.

CARGO ?= cargo
PREFIX ?= /usr/local
# mount(8) looks for its helpers here and nowhere else.
SBINDIR ?= /sbin
DESTDIR ?=
DATADIR ?= $(PREFIX)/share
# Debian's zsh reads $(DATADIR)/zsh/vendor-completions below /usr.
ZSHDIR ?= $(DATADIR)/zsh/site-functions
# Where `make install` finds the programs.
PROGRAMS ?= target/release
STATIC_TARGET ?= x86_64-unknown-linux-musl
# ring has C of its own, which calls nothing of libc but memcpy and the like: the system's compiler
# does. A hardened one would call glibc's checked versions of these.
STATIC_C = CC_$(subst -,_,$(STATIC_TARGET))="$${CC:-cc}" \
	CFLAGS_$(subst -,_,$(STATIC_TARGET))=-U_FORTIFY_SOURCE
# The licences of the crates in the programs.
LICENSES ?= target/licenses.txt
STATIC_PROGRAMS = target/$(STATIC_TARGET)/release
DEMO_ARGS ?=
BENCH_ARGS ?= --quick --peers sshfs,floor --out target/bench
# Minutes, and a number that repeats the choices of a run; docs/reliability.md.
SOAK_MINUTES ?= 10
SOAK_SEED ?=
FUZZ_SECONDS ?= 60
# Shown in the manual. SOURCE_DATE_EPOCH is what packagers set for builds that can be repeated.
MANUAL_DATE ?= $(shell date -u $(if $(SOURCE_DATE_EPOCH),-d @$(SOURCE_DATE_EPOCH),-r CHANGELOG.md) +%F)
MANUAL_PROGRAMS ?= $(PROGRAMS)
MANUAL_PAGES = sshoal $(addprefix sshoal-,mount umount status stats profile doctor run login where pull push \
	cache warm helper branch set unit autofs config demo bench help)
MAN = $(DESTDIR)$(DATADIR)/man
DOC = $(DESTDIR)$(DATADIR)/doc/sshoal
BASH_COMPLETION = $(DESTDIR)$(DATADIR)/bash-completion/completions/sshoal
ZSH_COMPLETION = $(DESTDIR)$(ZSHDIR)/_sshoal
FISH_COMPLETION = $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/sshoal.fish
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.PHONY: build static dist test-package test-source lint-packages setup demo bench test test-big soak \
	posix check format lint doc install uninstall fuzz clean

build: $(LICENSES)
	$(CARGO) build --release -p sshoal
	scripts/split-debug.sh target/release/sshoal target/release/sshoal-bench

# Programs for every Linux of one architecture: `rustup target add x86_64-unknown-linux-musl` first. For
# another architecture than this one, see packaging/README.md.
static: $(LICENSES)
	$(STATIC_C) $(CARGO) build --release --target $(STATIC_TARGET) -p sshoal
	scripts/split-debug.sh $(STATIC_PROGRAMS)/sshoal $(STATIC_PROGRAMS)/sshoal-bench

target/licenses.txt: Cargo.lock scripts/licenses.sh
	mkdir -p target
	scripts/licenses.sh >$@.$$$$ && mv $@.$$$$ $@

# Archives, a Debian package and checksums, in target/dist; of static programs if they can be built.
dist:
	if [ -d "$$(rustc --print sysroot)/lib/rustlib/$(STATIC_TARGET)" ]; then \
		$(MAKE) static && scripts/dist.sh $(STATIC_PROGRAMS) target/dist; \
	else \
		$(MAKE) build && scripts/dist.sh target/release target/dist; \
	fi

# Installs the package in a fresh Debian: needs root and a mirror, so it is not in `check`. A test there
# installs it in a copy of this system.
test-package:
	scripts/setup.sh --packaging
	$(CARGO) build -p sshoal
	scripts/test-package.sh "$$(scripts/package-deb.sh target/debug target/test-package)"

# Builds from the source archive without a network, up to what the compiler checks.
test-source:
	scripts/test-source.sh "$$(XZ_OPT=-0 scripts/package-source.sh target/test-package)"

# Checks the spec file, the PKGBUILD and the flake.
lint-packages:
	scripts/setup.sh --packaging
	$(CARGO) build -p sshoal
	scripts/lint-packages.sh target/debug

setup:
	scripts/setup.sh

demo: setup build
	target/release/sshoal demo $(DEMO_ARGS)

# Two minutes: sshoal, sshfs and the floor. `scripts/setup.sh --bench` installs more peers.
bench: setup build
	target/release/sshoal bench $(BENCH_ARGS)

test: setup
	scripts/test.sh --workspace

# The kernel's sources through a mount, 400,000 random operations, as many over links that break, and
# idle mounts for a minute: more than an hour.
test-big:
	scripts/setup.sh --big
	SSHOAL_TEST_BIG=1 scripts/test.sh --release -p sshoal --test e2e -- big:: model:: links:: idle:: --nocapture

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
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -p sshoal --lib --no-deps --document-private-items

# Does not build, since root seldom has a compiler: run `make` first. The programs write their manual:
# for another architecture, MANUAL_PROGRAMS is a build that runs here.
install: $(LICENSES)
	@test -x "$(PROGRAMS)/sshoal" || { echo "run make first" >&2; exit 1; }
	install -D -m 755 "$(PROGRAMS)/sshoal" "$(DESTDIR)$(PREFIX)/bin/sshoal"
	install -D -m 755 "$(PROGRAMS)/sshoal-bench" "$(DESTDIR)$(PREFIX)/bin/sshoal-bench"
	install -d "$(DESTDIR)$(SBINDIR)" "$(DOC)/docs/results" "$(DOC)/examples" "$(MAN)/man1" "$(MAN)/man8"
	ln -sfn "$(PREFIX)/bin/sshoal" "$(DESTDIR)$(SBINDIR)/mount.sshoal"
	ln -sfn "$(PREFIX)/bin/sshoal" "$(DESTDIR)$(SBINDIR)/mount.fuse.sshoal"
	"$(MANUAL_PROGRAMS)/sshoal" manual "$(MAN)/man1" $(MANUAL_DATE)
	"$(MANUAL_PROGRAMS)/sshoal-bench" manual "$(MAN)/man1" $(MANUAL_DATE)
	ln -sfn sshoal.1 "$(MAN)/man1/sshoal-mount.1"
	ln -sfn ../man1/sshoal.1 "$(MAN)/man8/mount.sshoal.8"
	install -D -m 644 packaging/completions/sshoal.bash "$(BASH_COMPLETION)"
	install -D -m 644 packaging/completions/sshoal.zsh "$(ZSH_COMPLETION)"
	install -D -m 644 packaging/completions/sshoal.fish "$(FISH_COMPLETION)"
	install -m 644 README.md ARCHITECTURE.md CHANGELOG.md LICENSE "$(DOC)"
	install -m 644 "$(LICENSES)" "$(DOC)/licenses.txt"
	install -m 644 docs/*.md docs/*.svg "$(DOC)/docs"
	install -m 644 docs/results/*.md "$(DOC)/docs/results"
	install -m 644 packaging/examples/* "$(DOC)/examples"

uninstall:
	rm -f "$(DESTDIR)$(SBINDIR)/mount.sshoal" "$(DESTDIR)$(SBINDIR)/mount.fuse.sshoal"
	rm -f "$(DESTDIR)$(PREFIX)/bin/sshoal" "$(DESTDIR)$(PREFIX)/bin/sshoal-bench"
	rm -f $(MANUAL_PAGES:%="$(MAN)/man1/%.1") "$(MAN)/man8/mount.sshoal.8"
	rm -f "$(BASH_COMPLETION)" "$(ZSH_COMPLETION)" "$(FISH_COMPLETION)"
	rm -rf "$(DOC)"

# Needs a nightly compiler and cargo-fuzz. Threads of a server that are just ending look like leaks.
fuzz:
	for target in $(FUZZ_TARGETS); do \
		$(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) -detect_leaks=0 || exit 1; \
	done

clean:
	$(CARGO) clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts
