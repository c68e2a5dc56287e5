# Everything starts here: a fresh clone needs Python 3.11 or later, a C++20 compiler and make.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
# An index with CPU-only wheels of torch, for the tests' environment; empty means pip's own choice.
TORCH_INDEX ?=
PYTEST_ARGS ?= -n 2 --dist loadfile
BENCH_ARGS ?=
CPU_BARS_ARGS ?=
SOAK_ARGS ?=
MINUTES ?= 15
FUZZ_ARGS ?=
TRUTH_ARGS ?=
MUTANTS_ARGS ?=
FUZZERS := http frames parsers templates grammars schemas combinations pooling pictures replicas streams openapi evidence cluster images
FILE_FUZZERS := safetensors folder quantized gguf
FUZZ_FILES ?= 20000

VENV := .venv
BIN := $(VENV)/bin
# As a variable the pins reach the isolated build environment too; as a flag they would not. The path
# is relative because pip splits the variable at spaces.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --quiet
INSTALL := $(PIP) --config-settings=cmake.define.QUIRE_WERROR=ON --editable
TORCH := $(shell sed -n 's/^torch==/&/p' constraints.txt)
NATIVE := CMakeLists.txt $(wildcard csrc/* csrc/*/*)

.PHONY: help demo test test-all test-light newcomer soak soak-worlds soak-server fuzz truth mutants sanitize lint format bench cpu-bars gpu-bars web clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(VENV)/.quire  ## Install Quire and let its built-in model tell a story
	@echo "==> A story from the built-in model: quire complete"
	@$(BIN)/quire complete --chat --temperature 0 --max-tokens 500 "Tell me a story."
	@echo "==> Next: source $(BIN)/activate, then quire --help"

test: $(VENV)/.quire-dev  ## Install the development tools and run the tests: each kind of proof once
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(VENV)/.quire-dev  ## Run the repetitions too, on random examples (QUIRE_TEST_SEED=N repeats a run)
	@QUIRE_TEST_SEED=$${QUIRE_TEST_SEED:-$$RANDOM} $(BIN)/python -m pytest -m "" $(PYTEST_ARGS)

test-light:  ## Run the tests that need no torch, in an environment without it (.venv-light)
	@$(MAKE) --no-print-directory VENV=.venv-light .venv-light/.quire-test
	@.venv-light/bin/python -m pytest $(PYTEST_ARGS)

newcomer: $(VENV)/.quire  ## Run forty things that a new user types, and write docs/newcomer.md
	@$(BIN)/python -m tools.newcomer --output docs/newcomer.md

soak: soak-worlds soak-server  ## Run both soaks: the scheduler's worlds, then a server with faults

soak-worlds: $(VENV)/.quire  ## Run 200,000 simulated worlds (SOAK_ARGS="--seeds N --first N --jobs N --states")
	@$(BIN)/python -m tests.simulation.soak $(SOAK_ARGS)

soak-server: $(VENV)/.quire-dev  ## Serve under overload, with faults, for MINUTES (15)
	@$(BIN)/python benchmarks/soak_faults.py --minutes $(MINUTES)

fuzz: $(FUZZERS:%=fuzz-%) $(FILE_FUZZERS:%=fuzz-%)  ## Send a million wrong requests, and as bad frames, files, grammars … (-j2; FUZZ_ARGS="--count N --seed N")

$(FUZZERS:%=fuzz-%): fuzz-%: $(VENV)/.quire-dev
	@$(BIN)/python -m tests.fuzz.$* $(FUZZ_ARGS)

$(FILE_FUZZERS:%=fuzz-%): fuzz-%: $(VENV)/.quire-dev
	@$(BIN)/python -m tests.fuzz.model_files $* --cases $(FUZZ_FILES)

truth: $(VENV)/.quire-dev  ## Compare 500 random configurations with Transformers (TRUTH_ARGS="--count N --seed N")
	@$(BIN)/python -m tests.truth $(TRUTH_ARGS)

mutants: $(VENV)/.quire-dev  ## Count the small mistakes that tests notice (MUTANTS_ARGS="--count N --seed N")
	@$(BIN)/python -m tools.mutants $(MUTANTS_ARGS)

sanitize: $(VENV)/.quire-dev  ## Run the native tests under ASan, UBSan and TSan (PYTEST_ARGS="-n 2")
	@$(BIN)/python tools/sanitize.py address $(PYTEST_ARGS)
	@$(BIN)/python tools/sanitize.py thread $(PYTEST_ARGS)

lint: $(VENV)/.quire-dev  ## Check style, types and import layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/python tools/layer_lint.py

format: $(VENV)/.quire-dev  ## Format the sources and fix what can be fixed
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/.quire  ## Measure this machine with the built-in model
	@$(BIN)/quire bench $(BENCH_ARGS)

cpu-bars: $(VENV)/.quire-dev  ## Measure all that the CPU kernels are held to (CPU_BARS_ARGS="--peer vllm=PYTHON …")
	@$(BIN)/python benchmarks/cpu_bars.py $(CPU_BARS_ARGS)

gpu-bars: $(VENV)/.quire-dev  ## Measure a GPU's kernels and models (GPU_ARGS="--dry-run" tries it without one)
	@$(BIN)/python benchmarks/gpu_bars.py $(GPU_ARGS)

web:  ## Build the dashboard's page from web/ into the package (needs npm)
	@cd web && npm ci --silent --ignore-scripts && npm run --silent build

clean:  ## Remove the build tree and caches; the environment stays
	rm -rf build build-sanitize dist web/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.quire $(VENV)/.quire-dev .venv-light/.quire-test

# Stamps: an installation step is repeated only when what it depends on has changed.
# Byte code is made once, here: where PYTHONDONTWRITEBYTECODE is set, each process would make it.
BYTE_CODE := $(BIN)/python -m compileall -q src/quire

$(BIN)/python:
	@echo "==> Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# To run it, this machine needs one instruction set's kernels; the tests compile the others.
$(VENV)/.quire: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "==> Compiling the CPU kernels and installing Quire into $(VENV)"
	@$(INSTALL) . --config-settings=cmake.define.QUIRE_ONE_ISA=ON
	@$(BYTE_CODE)
	@touch $@

# The development installations contain the plain one.
$(VENV)/.quire-test: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "==> Compiling the CPU kernels and installing Quire with its tests' tools into $(VENV)"
	@$(INSTALL) ".[test]"
	@$(BYTE_CODE)
	@touch $(VENV)/.quire $@

$(VENV)/.quire-dev: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "==> Compiling the CPU kernels and installing Quire with its development tools"
	@$(if $(TORCH_INDEX),$(PIP) $(TORCH) --index-url $(TORCH_INDEX))
	@$(INSTALL) ".[dev]"
	@$(BYTE_CODE)
	@touch $(VENV)/.quire $@
