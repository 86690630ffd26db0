# `make help` lists what there is. Targets that build or test install what they lack first (scripts/setup.sh says what).
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
CARGO ?= cargo
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# The DPDK link is built where libdpdk is (apt-get install libdpdk-dev); the program runs without it, too.
DPDK := $(shell pkg-config --exists libdpdk 2>/dev/null && echo --features dpdk)
PROGRAM := $(TARGET)/release/tsumuji
# Where `make bench` leaves its figures as JSON; seconds that `make fuzz` gives each parser.
BENCH_JSON ?= $(TARGET)/bench.json
FUZZ_SECONDS ?= 60
# How long `make soak` tries random runs.
MINUTES ?= 10
# Where `make install` installs to, and a folder before that (for packagers).
PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: help setup build lib sockets headers install deb demo test quick lint fmt doc bench fuzz soak clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building, testing and benchmarking need (Debian 12)
	@bash scripts/setup.sh build test sockets fuzz bench

build: ## Build the release program: target/release/tsumuji
	@bash scripts/setup.sh build
	$(CARGO) build --release --package tsumuji $(DPDK)

lib: ## Build the C library: target/release/libtsumuji.so and .a
	@bash scripts/setup.sh build
	$(CARGO) build --release --package tsumuji-c $(DPDK)

sockets: ## Build the library of `tsumuji run`: target/release/libtsumuji_sockets.so
	@bash scripts/setup.sh build
	$(CARGO) build --release --package tsumuji-sockets

headers: ## Write the C headers anew from the sources of bindings/c
	TSUMUJI_WRITE_HEADERS=1 $(CARGO) test --quiet --package tsumuji-c --test headers

install: build lib sockets ## Install program, libraries, headers and manual pages: PREFIX=/usr/local DESTDIR=
	LIBS=$(TARGET)/release PROGRAM=$(PROGRAM) PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) bindings/c/install.sh

deb: build lib sockets ## Build a Debian package with all that: target/tsumuji_VERSION_ARCHITECTURE.deb
	@bash scripts/setup.sh deb
	LIBS=$(TARGET)/release PROGRAM=$(PROGRAM) bash scripts/deb.sh $(TARGET)

demo: build ## Solve a real circuit, a real power grid and a dense system over shared memory and UDP
	@bash scripts/demo.sh $(PROGRAM)

test: ## Lint, all tests, the checks against SciPy
	@bash scripts/setup.sh build test sockets deb dpdk
	@bash scripts/test.sh

quick: ## Unit tests only, no lint
	@bash scripts/setup.sh build
	$(CARGO) test --workspace --lib

lint: ## Format, clippy, documentation and house rules
	@bash scripts/setup.sh build lint
	@bash scripts/lint.sh

fmt: ## Format all code
	$(CARGO) fmt --all

doc: ## Build the API documentation: target/doc/tsumuji_node/index.html
	@bash scripts/setup.sh build
	$(CARGO) doc --workspace --no-deps

bench: ## Print every figure beside its limit or peer (leave the machine alone meanwhile)
	@bash scripts/setup.sh build test sockets bench
	$(CARGO) build --release --package tsumuji $(DPDK)
	$(CARGO) build --release --package tsumuji-sockets
	$(PROGRAM) bench figures --output $(BENCH_JSON)

fuzz: ## Fuzz every parser of outside bytes, guided by coverage, FUZZ_SECONDS each (needs a nightly toolchain)
	@bash scripts/setup.sh build fuzz
	@bash scripts/fuzz.sh $(FUZZ_SECONDS)

soak: ## Random runs in the simulator for MINUTES, until one fails: a seed, and the steps that do it
	@bash scripts/setup.sh build
	$(CARGO) run --release --package tsumuji-sim --example soak -- $(MINUTES)

clean: ## Remove what was built
	$(CARGO) clean
