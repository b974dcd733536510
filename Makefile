# Every target sets up what it needs in .venv; a second call finds it there.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TRITON := triton==3.6.0

.DEFAULT_GOAL := help
.PHONY: help demo test gpu equality newest setup fix format lint types imports unit clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## complete real Python code with the embedded pair, then measure the policies
	OMP_NUM_THREADS=1 $(BIN)/hybridspec generate
	OMP_NUM_THREADS=1 $(BIN)/hybridspec bench decode

test: $(READY) format lint types imports unit  ## format, lint, types, imports and the tests for a CPU

gpu: $(READY)  ## the tests that need a CUDA device
	$(BIN)/python benchmarks/gpu_tests.py

equality: $(READY)  ## drafted output against plain decoding, at length
	$(BIN)/python benchmarks/equality.py

newest: $(READY)  ## the target against the newest Transformers, which stays apart in .newest
	$(PIP) --upgrade --no-deps --target .newest transformers
	PYTHONPATH=.newest OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(addprefix tests/models/test_,\
		parity.py dtypes.py layouts.py config.py)

setup: $(READY)  ## the virtual environment alone

fix: $(READY)  ## format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/basedpyright

imports: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

clean:  ## remove the virtual environment and all caches
	rm -rf .venv .newest .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or newer is needed: make PYTHON=python3.11 ...'; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# first, so that a torch that brings its own may replace it; a torch for the CPU brings none
	test "$$(uname -s)" != Linux || $(PIP) --no-deps $(TRITON)
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@
