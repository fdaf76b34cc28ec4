# Every target makes its own environment in .venv; PYTHON picks the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
THREADS ?= 2
THREAD_ENV := OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) NUMBA_NUM_THREADS=$(THREADS)

.PHONY: demo test lint format bench docs clean help

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

test: $(VENV)/.extra-test  ## All tests and doctests
	$(BIN)/python -m pytest

lint: $(VENV)/.extra-test $(VENV)/.extra-lint  ## Style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.extra-lint  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.extra-test  ## Benchmarks, each beside what it is measured against
	$(THREAD_ENV) $(BIN)/python -m pytest benchmarks --benchmark-only -q -s

docs: $(VENV)/.extra-docs  ## The documentation as HTML, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:  ## Remove everything that was made
	rm -rf $(VENV) build dist docs/_build demo_output .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks
