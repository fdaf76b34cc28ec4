# Every target makes its own environment in .venv; PYTHON picks the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
MINIMUM := .venv-minimum
CUPY := .venv-cupy
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
THREADS ?= 2
THREAD_ENV := OMP_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS)

.PHONY: demo test test-native campaign test-minimum test-cuda test-cupy lint format bench bench-gpu paper pictures docs package \
	clean help

DATA ?=
FRESH ?= --fresh
PAPER := $(THREAD_ENV) $(BIN)/python benchmarks/paper

help:  ## What there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	touch $@

# the native core is compiled when the package is installed
NATIVE := CMakeLists.txt $(wildcard scq_gpu/kernels/native/*.cpp scq_gpu/kernels/native/*.h)

# one stamp for each extra; pyproject.toml or the native core changed, install again
$(VENV)/.extra-%: $(VENV)/.base pyproject.toml $(NATIVE)
	$(PIP) -e ".[$*]"
	touch $@

demo: $(VENV)/.extra-plots $(VENV)/.extra-cli  ## Fit on real data, print a table, save a picture
	$(BIN)/scq-gpu demo

# Matrices of tests are small: threads of BLAS would wait for one another, so each of two processes has one. A test file
# stays in one process, for what its tests share. Files come in their order, the quick ones last: both end together.
WORKERS ?= 2
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
ALL_TESTS := -m pytest -m "not cuda_toolchain" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.extra-test  ## All tests and doctests that need no NVIDIA wheels
	$(TEST_ENV) $(BIN)/python $(ALL_TESTS)

SCALE ?= 1
campaign: $(VENV)/.extra-test  ## Fuzzed files, kills, threads, interrupts, soak: docs/reliability.md; SCALE=0.1 for less
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m campaigns.campaigns --scale $(SCALE)

# an environment of its own. Old libraries warn about their newer dependencies
$(MINIMUM)/.ready: pyproject.toml tests/minimum.txt $(NATIVE)
	$(PYTHON) -m venv --clear $(MINIMUM)
	$(MINIMUM)/bin/python -m pip --disable-pip-version-check install --quiet -e ".[test]" -c tests/minimum.txt
	touch $@

test-minimum: $(MINIMUM)/.ready  ## The tests with the oldest versions that pyproject.toml allows
	$(TEST_ENV) $(MINIMUM)/bin/python $(ALL_TESTS) -W ignore::DeprecationWarning

test-cuda: $(VENV)/.extra-test $(VENV)/.extra-cuda-toolchain  ## Compile every CUDA kernel, check its budgets
	$(BIN)/python -m pytest -m cuda_toolchain

# CuPy's own wheel over CPU stand-ins for the CUDA libraries (docs/gpu.md). Dask's workers want numba (or RMM) to exchange
# CuPy arrays; the package does not.
$(CUPY)/.extra-test: pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(CUPY)
	$(CUPY)/bin/python -m pip --disable-pip-version-check install --quiet -e ".[test]" numba
	touch $@

$(CUPY)/.ready: $(CUPY)/.extra-test $(filter-out %/counts.py, $(wildcard tests/cupy_on_cpu/*.py tests/cupy_on_cpu/*/*))
	$(PYTHON) tests/cupy_on_cpu/build.py $(CUPY)
	touch $@

GPU_TESTS := $(TEST_ENV) $(CUPY)/bin/python -m pytest -q -m gpu

test-cupy: $(CUPY)/.ready  ## The GPU tests through CuPy itself, on a stand-in for CUDA; needs g++, no GPU
	$(GPU_TESTS)
	STANDIN_DEVICES=2 $(GPU_TESTS) tests/encoders/test_cupy_devices.py tests/rows/test_cupy_cluster.py \
		tests/kernels/test_cupy_standin.py tests/encoders/test_backends.py tests/kernels/test_cuda_gpu.py::test_second_device
	STANDIN_MEMORY=67108864 $(GPU_TESTS) tests/encoders/test_cupy_small_device.py tests/kernels/test_cupy_standin.py
	STANDIN_CC=70 $(GPU_TESTS) tests/kernels/test_cuda_gpu.py -k "encoder or product or older"
	for seed in 1 2 3; do STANDIN_ASYNC=$$seed $(GPU_TESTS) tests/kernels/test_cupy_standin.py \
		tests/encoders/test_backends.py tests/kernels/test_cuda_gpu.py tests/encoders/test_fit_from_files.py \
		tests/training/test_joint.py -k "not test_encode and not test_search" || exit 1; done

lint: $(VENV)/.extra-test $(VENV)/.extra-lint  ## Style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/make_architecture.py --check

format: $(VENV)/.extra-lint  ## Let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.extra-test  ## Benchmarks, each beside what it is measured against
	$(THREAD_ENV) $(BIN)/python -m pytest benchmarks -o addopts=--import-mode=importlib --benchmark-only -q -s

bench-gpu: $(VENV)/.extra-test  ## Kernel timings against the roofs of a GPU; says so where there is none
	$(BIN)/python benchmarks/bench_gpu.py

paper: $(VENV)/.extra-test  ## The paper's tables and figures from DATA=folder into docs/results; hours. FRESH= resumes
	@test -n "$(DATA)" || { echo "make paper needs DATA=folder, with the CIFAR-10 features"; exit 1; }
	$(PAPER)/figures.py --data $(DATA) --threads $(THREADS)
	$(PAPER)/deep_table.py --data $(DATA) --threads $(THREADS) $(FRESH)
	$(PAPER)/training_time.py --data $(DATA) --threads $(THREADS)
	$(PAPER)/state_of_the_art.py --data $(DATA) --threads $(THREADS) $(FRESH)

pictures: $(VENV)/.extra-test $(VENV)/.extra-docs  ## The pictures and command output in the documentation
	$(BIN)/python docs/make_plots.py
	$(BIN)/python docs/make_cli.py

package: $(VENV)/.base  ## Wheel and sdist, each installed in an environment of its own and put to work
	rm -rf dist build
	$(PIP) build
	$(BIN)/python -m build --outdir dist .
	for file in dist/*.whl dist/*.tar.gz; do \
		rm -rf build/clean && $(PYTHON) -m venv build/clean && \
		build/clean/bin/python -m pip --disable-pip-version-check install --quiet "$$file[cli,plots]" && \
		(cd build && clean/bin/scq-gpu info && clean/bin/scq-gpu demo) || exit 1; done
	# once more where PATH has no compiler: array operations do the work
	rm -rf build/clean && $(PYTHON) -m venv build/clean
	PATH=$(CURDIR)/build/clean/bin build/clean/bin/python -m pip --disable-pip-version-check install --quiet \
		"$$(echo dist/*.tar.gz)[cli,plots]"
	cd build && clean/bin/scq-gpu info | grep -i "native core.*none" && clean/bin/scq-gpu demo

test-native: $(VENV)/.extra-test $(VENV)/.extra-native  ## The native core under sanitizers, with AVX-512 and NEON emulated
	$(BIN)/python tests/native/run.py

docs: $(VENV)/.extra-docs  ## The documentation as HTML, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:  ## Remove everything that was made
	rm -rf $(VENV) $(MINIMUM) $(CUPY) build dist docs/_build docs/auto_gallery demo_output .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks
