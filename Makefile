# make         build the command (build/dgc) and the library
# make demo    install what is missing, build, and run the benchmarks
# make test    install what is missing, build, and run all tests
# make check   what CI runs beside the tests: sanitizers, fuzzers, formatting, clang-tidy
# make clean   remove all build folders

FUZZ_SECONDS ?= 20

.PHONY: all build demo test check sanitize fuzz lint format clean

all: build

build:
	@scripts/install-packages build
	@cmake --preset release -Wno-dev --log-level=WARNING
	@cmake --build --preset release

demo: build
	build/dgc info
	build/dgc bench wire
	build/dgc bench exchange --workers 4 --elements 2560000
	build/dgc bench compress --threads 1,2

test: build
	@ctest --preset release

check: sanitize fuzz lint

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

format:
	@scripts/lint --fix

clean:
	rm -rf build build-*
