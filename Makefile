# Targets that need Debian packages install the missing ones first, and say so.

SHELL := /bin/bash
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
WEIR := $(TARGET_DIR)/release/weir
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 10
SOAK_FUZZ_SECONDS ?= 120
export FUZZ_SECONDS
SOAK_SECONDS ?= 30
SIMULATE_SEEDS ?= 10000
KILLS ?= 1000
CYCLES ?= 100
GUEST_KILLS ?= 30
REPEAT ?= 50
export REPEAT
# Another build of weir, with which the bench compares this one.
BEFORE ?=
before = $(if $(BEFORE), --before $(BEFORE))

.PHONY: help setup build demo test test-repeat lint fuzz mutants bench bench-full figures peers soak book dist image install
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that building and testing need
	@tests/setup.sh test

build: ## build target/release/weir, and in the same folder the libraries for other programs
	@tests/setup.sh build
	cargo build --locked --release -p weir --bin weir
	cargo rustc --locked --release -p weir-c --lib --crate-type cdylib
	cargo rustc --locked --release -p weir-pcap --lib --crate-type cdylib

demo: build ## build, then show a capture and its ledger (more of it as root)
	$(WEIR) demo

test: setup ## every check: lints, tests, models, static link, package, image, Debian 6.1 guest, fuzzing
	@tests/all.sh

test-repeat: setup ## run every test with threads, processes or interfaces REPEAT times (50), LANES runs at a time; over an hour; needs root
	@tests/repeat.sh

lint: setup ## check formatting and lints; warnings are errors
	@tests/lint.sh

fuzz: setup ## fuzz every parser for FUZZ_SECONDS each (10)
	@tests/fuzz.sh

mutants: setup ## change the code piece by piece and check that a test fails each time; hours, for releases
	@tests/mutants.sh

# Debian 12 has no package of Suricata 7: tests/setup.sh bench unpacks it here, if it can.
SURICATA := .cache/tools/suricata
suricata = $(if $(wildcard $(SURICATA)/usr/bin/suricata), --suricata $(SURICATA))
# A kernel for guests, as for the tests: tests/setup.sh bench unpacks it here.
GUEST_KERNEL := .cache/guest/debian-6.1
guests = $(if $(wildcard $(GUEST_KERNEL)/vmlinuz), --guest-kernel $(GUEST_KERNEL))

bench: build peers ## compare every engine with other tools, some 20 minutes (BEFORE=PROGRAM: also with another build); needs root
	@$(call need_root,lab bench$(before)$(suricata)$(guests))
	$(WEIR) lab bench$(before)$(suricata)$(guests)

bench-full: build peers ## the same at six frame sizes, some 30 minutes, into bench.html and bench.json; needs root
	@$(call need_root,lab bench --full$(before)$(suricata)$(guests))
	$(WEIR) lab bench --full --json bench.json --html bench.html$(before)$(suricata)$(guests)

# The figures name one commit, so the build must contain no uncommitted change.
figures: ## measure as bench-full does and put the tables into docs/figures.md; needs root and a tree without changes
	@[ -z "$$(git status --porcelain --untracked-files=no)" ] || { \
		echo 'error: files differ from the last commit; commit or stash them first: figures are of one commit' >&2; exit 1; }
	@$(MAKE) --no-print-directory build peers
	@$(call need_root,lab bench --full --markdown $(TARGET_DIR)/figures.md$(suricata)$(guests))
	$(WEIR) lab bench --full --markdown $(TARGET_DIR)/figures.md$(suricata)$(guests)
	tests/figures.sh $(TARGET_DIR)/figures.md docs/figures.md

# The row of a tool that cannot be installed says so. Tools that read a daemon's feed load libweirpcap.
peers:
	cargo rustc --locked --release -p weir-pcap --lib --crate-type cdylib
	@tests/setup.sh bench || echo 'warning: measuring without the tools that are missing' >&2

# In a folder of their own: libraries that are built for tests have the same names, and are slower (no optimisation across
# crates), and cargo would not notice that they are not those of `make build`.
soak_tests = CARGO_TARGET_DIR=$(TARGET_DIR)/soak cargo test --locked --release
soak: build ## compare every engine's ledger with its generator, SOAK_SECONDS for each frame size (30), simulate SIMULATE_SEEDS runs (10000), compare flows and lines of 257 traces with tshark and tcpdump, kill a recorder 50 times, kill daemon and clients KILLS times (1000), plug a guest's devices in and out CYCLES times (100), kill its broker, its QEMU and the daemon GUEST_KILLS times (30), fuzz every parser for SOAK_FUZZ_SECONDS (120); needs root
	@$(call need_root,lab soak --duration $(SOAK_SECONDS))
	$(WEIR) lab soak --duration $(SOAK_SECONDS)
	$(WEIR) lab simulate --seeds $(SIMULATE_SEEDS) --shrink
	WEIR_TRACES=$$(tests/traces.sh) $(soak_tests) -p weir --test flows traces_of_others
	WEIR_TRACES=$$(tests/traces.sh) $(soak_tests) -p weir-print --test tcpdump
	WEIR_SOAK=1 $(soak_tests) -p weir --test recorder -- --test-threads=1 root_kills
	WEIR_KILLS=$(KILLS) $(soak_tests) -p weir --test serve -- --test-threads=1 is_killed
	WEIR_CYCLES=$(CYCLES) tests/vm.sh cycles
	WEIR_GUEST_KILLS=$(GUEST_KILLS) tests/vm.sh kills
	FUZZ_SECONDS=$(SOAK_FUZZ_SECONDS) tests/fuzz.sh

book: ## docs/ as a book of web pages, in dist/book
	@tests/setup.sh book
	packaging/book.sh dist/book

dist: ## Debian packages, their debug symbols and a tarball, in dist/
	@tests/setup.sh dist
	cargo build --locked --release -p weir --bin weir
	packaging/dist.sh

image: ## a container image with the daemon and its clients, in dist/ (docs/containers.md)
	@tests/setup.sh dist
	packaging/image/build.sh

# Under sudo there is often no cargo, and a build by root would leave files in target/ that belong to root.
# So build as yourself, then run `sudo make install`.
install: ## install to $(DESTDIR)$(PREFIX), default /usr/local
	@if [ -z "$$SUDO_USER" ]; then $(MAKE) --no-print-directory build; \
	elif [ ! -x $(WEIR) ] || [ ! -f $(TARGET_DIR)/release/libweir.so ] || [ ! -f $(TARGET_DIR)/release/libweirpcap.so ]; \
	then echo 'error: $(WEIR) or a library beside it is not built; run `make build` without sudo first' >&2; exit 1; fi
	packaging/stage.sh $(WEIR) $(TARGET_DIR)/release $(DESTDIR)$(PREFIX) $(PREFIX)
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/weir LICENSE-APACHE LICENSE-MIT
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" -eq 0 ]; then ldconfig; fi

need_root = if [ "$$(id -u)" -ne 0 ]; then \
	echo 'error: this makes network namespaces and loads BPF programs, so it needs root. It is built; run: sudo $(WEIR) $(1)' >&2; \
	exit 1; fi
