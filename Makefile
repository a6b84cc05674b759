# On a fresh machine with Python 3.11 or newer: `make run` serves, `make test` proves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := topics shards gateway spark_sinks

.PHONY: run test check fix bench clean

run: $(VENV)/.installed
	$(BIN)/topics serve

test: check
	$(BIN)/pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(PACKAGES) benchmarks tests
	$(BIN)/lint-imports

fix: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Beside Redis Streams where redis-server is installed; needs wrk. BENCH="--quick" takes a minute.
bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "topics needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.installed
