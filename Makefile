# Two commands do everything: `make demo` and `make test`.

.PHONY: demo test lint bench setup fuzz

# Builds, and drains real captured Laravel payloads from a private Redis.
demo:
	php-interop/setup.sh --redis-only
	cargo build --quiet --bin artisand --example push_payloads
	php-interop/demo

# The whole suite, with Laravel 8, 10 and 13; installs what is missing.
test: setup
	cargo build --examples --quiet
	cargo test --quiet -- --include-ignored
	cargo test --quiet --lib --no-default-features

lint:
	cargo fmt --all --check
	cargo clippy --all-targets --all-features -- -D warnings
	cargo clippy --lib --no-default-features -- -D warnings

bench:
	php-interop/setup.sh --host-only
	cargo bench --bench codec
	cargo bench --bench drain

# Some minutes of fuzzing each; see fuzz/README.md.
fuzz:
	fuzz/run

setup:
	php-interop/setup.sh
