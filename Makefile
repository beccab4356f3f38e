# `make quickstart` and `make test` need nothing but Python 3.11+, a C++ compiler and CMake; both create .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
RUNS ?= runs

.PHONY: install quickstart test test-slow chaos sanitize lint clean

install: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard kernels/*.cpp kernels/*/*.cpp)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

quickstart: $(STAMP)
	$(BIN)/sprout run quickstart --resume run.dir=$(RUNS)

test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m 'not slow' -n 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

# A two-rank quickstart whose parts are killed at random must come out as one that is left alone.
chaos: $(STAMP)
	$(BIN)/python tests/seed/chaos.py $(RUNS)/chaos

# The native kernels' tests on a build that stops at the first access out of bounds or undefined operation.
SANITIZED := build/sanitize
ISA = $(shell $(BIN)/python -c 'from sprout.kernels._native import ISA; print(ISA)')
sanitize: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(SANITIZED) . \
		-C build-dir=$(SANITIZED)-cmake -C install.strip=false \
		-C cmake.define.SPROUT_SANITIZE=ON -C cmake.define.SPROUT_ISAS=$(ISA)
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc OMP_NUM_THREADS=2 \
	PYTHONPATH=tests/kernels SPROUT_SANITIZED=$(SANITIZED) \
		$(BIN)/python -m pytest -q -p sanitized -m 'not slow' -k 'native and not triton' tests/kernels

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv build
