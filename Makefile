# The interpreter to build the environment with; .ci/venv looks for another one when it is too old.
PYTHON ?= python3
# More arguments for pytest, for instance: make test PYTEST_ARGS="tests/settings -x"
PYTEST_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint types format venv clean

help:
	@echo "make demo    simulated engines, real Kafka, load, faults, and a summary (4 minutes)"
	@echo "make test    all tests (10 minutes or less)"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy --strict"
	@echo "make format  let ruff rewrite what it can"
	@echo "make venv    only the environment, in .venv"
	@echo "make clean   remove .venv, caches and .evenload (the embedded Kafka's data)"

demo: $(STAMP)
	$(BIN)/evenload demo

test: $(STAMP)
	$(BIN)/pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml .ci/venv
	PYTHON="$(PYTHON)" .ci/venv
	@touch $@

clean:
	rm -rf .venv .evenload .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
