# make         install what is missing, build the command (build/dgc), the library and the PyTorch package
# make demo    install what is missing, build, and train on 4 workers: dense, then DGC
# make test    install what is missing, build, and run all tests
# make check   what CI runs beside the tests: sanitizers, fuzzers, formatting, clang-tidy
# make clean   remove all build folders

FUZZ_SECONDS ?= 20

.PHONY: all build demo test check sanitize fuzz lint browser format clean

all: build

# -U: what `make demo` left out comes back.
build:
	@scripts/install-packages build
	@cmake --preset release -Wno-dev --log-level=WARNING -UDGC_BUILD_TESTS -UDGC_WITH_PYTHON
	@cmake --build --preset release

# Only the command: neither tests nor the PyTorch package.
demo:
	@scripts/install-packages demo
	@cmake --preset release -Wno-dev --log-level=WARNING -DDGC_BUILD_TESTS=OFF -DDGC_WITH_PYTHON=OFF
	@cmake --build --preset release --target dgc_command
	build/dgc train --preset small --compare dense,dgc

test: build
	@ctest --preset release

check: sanitize fuzz lint browser

sanitize:
	@scripts/install-packages check
	@for preset in asan-ubsan tsan; do \
	  cmake --preset $$preset -Wno-dev --log-level=WARNING && cmake --build --preset $$preset && \
	  ctest --preset $$preset || exit 1; \
	done

fuzz:
	@scripts/install-packages check
	@cmake --preset fuzz -Wno-dev --log-level=WARNING
	@cmake --build --preset fuzz
	@fuzz/run build-fuzz $(FUZZ_SECONDS)

lint: build
	@scripts/install-packages check
	@scripts/lint

# The report in headless Chromium, which `make test` does not install.
browser: build
	@scripts/install-packages check
	@ctest --preset release -R report_browser

format:
	@scripts/lint --fix

clean:
	rm -rf build build-*
