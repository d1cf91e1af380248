# make            install what is missing, build the command (build/dgc), the library and the PyTorch package
# make demo       install what is missing, build, and train on 4 workers: dense, then DGC; then some
#                 steps of both over an emulated slow network
# make test       install what is missing, build, and run the tests
# make check      what CI runs beside the tests: sanitizers, fuzzers, formatting, clang-tidy on what changed
# make check-all  before a release: all of that at full length, on all files, and libtorch's code sanitized
# make clean      remove all build folders
#
# TORCH=2.13.0 with make, make demo or make test: that PyTorch, from PyPI, in place of Debian's. What needs
# no libtorch is built in build, the rest in build-torch-2.13.0. The tests are those of the rest.

FUZZ_SECONDS ?= 10
# clang-tidy reads what changed since this commit.
CI_BASE ?= HEAD^
TORCH ?=

configure = cmake --preset $(1) -Wno-dev --log-level=WARNING
# The command alone: neither tests nor the PyTorch package.
command_alone = -DDGC_BUILD_TESTS=OFF -DDGC_WITH_PYTHON=OFF
# -U: what `make demo` left out comes back.
everything = -UDGC_BUILD_TESTS -UDGC_WITH_PYTHON

# $(call compile,options,target)
ifeq ($(TORCH),)
folder = build
define compile
	@$(call configure,release) $(1)
	@cmake --build build $(2)
endef
else
folder = build-torch-$(TORCH)
define compile
	@$(call configure,release) $(1)
	@cmake --build build --target dgc_core_build
	@place=$$(scripts/torch-environment $(TORCH) $(folder)/venv) && cmake -S . -B $(folder) -G Ninja \
	  -DCMAKE_BUILD_TYPE=Release -DDGC_CORE_BUILD=$(CURDIR)/build -DCMAKE_PREFIX_PATH=$$place \
	  -DDGC_PYTHON_EXECUTABLE=$(CURDIR)/$(folder)/venv/bin/python -DDGC_TEST_PYPI=ON \
	  -Wno-dev --log-level=WARNING $(1)
	@cmake --build $(folder) $(2)
endef
endif

.PHONY: all build demo test check check-all sanitize sanitize-torch threads fuzz lint lint-all browser storm mutations gpu format clean

all: build

build:
	@scripts/install-packages build
	$(call compile,$(everything))

demo:
	@scripts/install-packages $(if $(TORCH),build,demo)
	$(call compile,$(command_alone),--target dgc_command)
	$(folder)/dgc train --preset small --compare dense,dgc
	@echo && echo "The same over a slow network, 40 steps of each. The network is emulated: 100 Mbps, 20 ms."
	$(folder)/dgc train --preset small --compare dense,dgc --steps 40 --no-warmup --emulate-link 100Mbps,20ms

test: build
	@ctest --test-dir $(folder) --parallel 2 --output-on-failure --no-tests=error

check: sanitize threads fuzz lint browser

check-all:
	@$(MAKE) test
	@DGC_STORM=1 $(MAKE) sanitize threads
	@$(MAKE) sanitize-torch lint-all browser storm mutations
	@$(MAKE) fuzz FUZZ_SECONDS=300
	@if scripts/torch-environment 2.13.0; then $(MAKE) gpu; else echo "make: no PyPI: gpu is left out"; fi

sanitize:
	@scripts/install-packages check
	@$(call configure,asan-ubsan)
	@cmake --build --preset asan-ubsan
	@ctest --preset asan-ubsan

# What has threads, and no more.
threads:
	@scripts/install-packages check
	@$(call configure,tsan)
	@cmake --build --preset tsan
	@ctest --preset tsan

# Code that includes libtorch, whose headers clang 14 does not compile.
sanitize-torch: build
	@$(call configure,asan-torch)
	@cmake --build --preset asan-torch
	@ctest --preset asan-torch

# The same build as `sanitize`.
fuzz:
	@scripts/install-packages check
	@$(call configure,asan-ubsan)
	@cmake --build --preset asan-ubsan
	@fuzz/run build-asan-ubsan $(FUZZ_SECONDS)

lint:
	@scripts/install-packages check
	@$(call configure,lint)
	@scripts/lint --since $(CI_BASE)

lint-all:
	@scripts/install-packages check
	@$(call configure,lint)
	@scripts/lint --all

# The report and the hub's page in headless Chromium, which `make test` does not install.
browser: build
	@scripts/install-packages check
	@ctest --preset release -R '_browser$$'

# Killing and resuming, again and again.
storm: build
	@DGC_STORM=1 DGC_CHURN_SEEDS=1000 ctest --preset release \
	  -R '^(kill_and_resume|train_resume|train_local|HubChurn.*)$$'

# Breaks the code in ways that tests have to notice.
mutations:
	@scripts/mutations

# The fused kernels for GPUs, with PyTorch and Triton from PyPI: the whole list of dgc.selftest, the
# kernels broken on purpose, and compiled for GPUs that are not here.
gpu: TORCH = 2.13.0
gpu:
	@$(MAKE) build TORCH=$(TORCH)
	@export PYTHONPATH=$(CURDIR)/build-torch-$(TORCH)/python && cd build-torch-$(TORCH) && \
	  venv/bin/python -m dgc.selftest --device cpu --full && \
	  venv/bin/python ../scripts/mutations-gpu && venv/bin/python ../scripts/gpu-kernels

format:
	@scripts/lint --fix

clean:
	rm -rf build build-*
