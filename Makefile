# Every target makes its own environment in .venv; PYTHON picks the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
THREADS ?= 2
THREAD_ENV := OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) NUMBA_NUM_THREADS=$(THREADS)

.PHONY: demo test test-cuda lint format bench bench-gpu docs clean help

help:  ## What there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	touch $@

# one stamp for each extra; pyproject.toml changed, install again
$(VENV)/.extra-%: $(VENV)/.base pyproject.toml
	$(PIP) -e ".[$*]"
	touch $@

demo: $(VENV)/.extra-plots  ## Fit on real data, print a table, save a picture
	$(BIN)/python -m scq_gpu.demo

test: $(VENV)/.extra-test  ## All tests and doctests that need no NVIDIA wheels
	$(BIN)/python -m pytest -m "not cuda_toolchain"

test-cuda: $(VENV)/.extra-test $(VENV)/.extra-cuda-toolchain  ## Compile every CUDA kernel, check its budgets
	$(BIN)/python -m pytest -m cuda_toolchain

lint: $(VENV)/.extra-test $(VENV)/.extra-lint  ## Style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.extra-lint  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.extra-test  ## Benchmarks, each beside what it is measured against
	$(THREAD_ENV) $(BIN)/python -m pytest benchmarks -o addopts=--import-mode=importlib --benchmark-only -q -s

bench-gpu: $(VENV)/.extra-test  ## Kernel timings against the roofs of a GPU; says so where there is none
	$(BIN)/python benchmarks/bench_gpu.py

docs: $(VENV)/.extra-docs  ## The documentation as HTML, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:  ## Remove everything that was made
	rm -rf $(VENV) build dist docs/_build demo_output .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks
