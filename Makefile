# `make quickstart` and `make test` need nothing but Python 3.11+, a C++ compiler and CMake; both create .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
RUNS ?= runs

.PHONY: install quickstart test test-slow lint clean

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

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv build
