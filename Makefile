# Two commands do everything: `make demo` and `make test`.

.PHONY: demo demo-redis test lint bench setup built programs fuzz thorough torture deb test-deb audit sbom soak

# A test often waits: for a delay, a timeout, a reservation that ends. This many keep the processors busy all the same.
export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))

# Builds, and drains real captured Laravel payloads from a SQLite file: no server, no PHP.
demo:
	cargo build --quiet --bin artisand
	$${CARGO_TARGET_DIR:-target}/debug/artisand demo

# The same from a private Redis.
demo-redis:
	php-interop/setup.sh --redis-only
	cargo build --quiet --bin artisand --example push_payloads
	php-interop/demo

# Floods of jobs and the largest payloads: here it pays to optimize artisand, unlike in the suite.
thorough torture: export CARGO_PROFILE_DEV_OPT_LEVEL ?= 1

# The whole suite, with Laravel 8, 10 and 13; installs what is missing.
test: built
	cargo test --quiet --lib -- --include-ignored
	cargo test --quiet --test it -- --include-ignored
	cargo test --quiet --doc

# Nothing is linked here, so jemalloc need not be built.
lint: export JEMALLOC_OVERRIDE = /dev/null
lint:
	cargo fmt --all --check
	cargo clippy --all-targets --all-features -- -D warnings
	cargo clippy -- -D warnings
	cargo clippy --lib --no-default-features -- -D warnings
	cargo check --quiet --lib --profile test --no-default-features
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --lib --quiet

bench:
	php-interop/setup.sh --host-only
	cargo bench --bench codec
	cargo build --release --examples --quiet
	cargo bench --bench drain

# Some minutes of fuzzing each; see fuzz/README.md.
fuzz:
	fuzz/run

# A Debian package of a release build, in target/debian.
deb:
	packaging/deb

# Installs a package of the debug build into a scratch root, and purges it.
test-deb: setup
	cargo build --quiet --bin artisand
	packaging/test-deb

# Known weaknesses, licences and sources of the dependencies, by deny.toml: needs `cargo install cargo-deny`, and a
# network for the list of weaknesses.
audit:
	cargo deny --all-features check

# What a build contains, as CycloneDX, in artisand.cdx.json: needs `cargo install cargo-cyclonedx`.
sbom:
	cargo cyclonedx --format json --target x86_64-unknown-linux-gnu

setup:
	php-interop/setup.sh

# What the suite needs. Both at once: installing packages leaves the processors to the compiler.
built:
	$(MAKE) --no-print-directory -j2 setup programs

# Cargo divides the work itself, whatever make says. A test reads the licences of all dependencies, also of those that
# are not built here, without a network.
programs:
	MAKEFLAGS= cargo fetch --quiet --locked --target x86_64-unknown-linux-gnu
	MAKEFLAGS= cargo build --examples --quiet
	MAKEFLAGS= cargo test --quiet --no-run --lib --test it

# The tests that kill workers, with 210 kills on each driver, floods of 10,000 jobs, and payloads of 512 MB.
thorough: setup
	cargo build --examples --quiet
	ARTISAND_THOROUGH=1 cargo test --quiet --test it -- --include-ignored after_kills workers_are_killed live::drain failovers_under_load cluster::served limits::

# Random kills of everything beside real Laravel: make torture MINUTES=10 [LARAVEL=8] [SEED=..]
MINUTES ?= 10
LARAVEL ?= 13
torture: setup
	cargo build --examples --quiet
	TORTURE_MINUTES=$(MINUTES) $(if $(SEED),TORTURE_SEED=$(SEED)) cargo test --quiet --test it -- \
		--include-ignored --nocapture live::torture::torture::laravel_$(LARAVEL)

# Steady load on a release build beside queue:work: make soak MINUTES=120; it prints medians and writes OUT/soak.svg.
OUT ?= target
soak: setup
	cargo build --release --examples --quiet
	SOAK_MINUTES=$(MINUTES) SOAK_RUST=4000 SOAK_PHP=200 SOAK_OUT=$(abspath $(OUT)) \
		ARTISAND_EXAMPLES=$(abspath $${CARGO_TARGET_DIR:-target}/release/examples) \
		cargo test --quiet --test it -- --include-ignored --nocapture live::soak
