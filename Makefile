# The interpreter to build the environment with; .ci/venv looks for another one when it is too old.
PYTHON ?= python3
# More arguments for pytest, for instance: make test PYTEST_ARGS="tests/settings -x"
PYTEST_ARGS ?=
# How many tests at a time, each worker with a Kafka of its own. 0: one test after the other.
WORKERS ?= 2
# How many faults `make soak` makes, and the seed that decides their order; a failure names its seed.
FAULTS ?= 200
SEED ?= 20261130

# What `make conformance` checks: Evenload, a PEER that it starts, or a URL that was told to use UPSTREAM_PORTS.
URL ?=
UPSTREAM_PORTS ?=
PEER ?=
PEERS ?= evenload nginx vllm-router sglang-router litellm
CONFORMANCE := .evenload/conformance

# What `make real-engine` does, for instance REAL_ENGINE_ARGS="ready killed"; all steps without it.
REAL_ENGINE_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed

# The compose stack (docs/compose.md). Without .env the simulated engines are part of it; with one, what it says.
COMPOSE ?= docker compose
COMPOSE_UP ?= --build
export COMPOSE
COMPOSE_PROFILE := $(if $(wildcard .env),,--profile demo)

.DEFAULT_GOAL := help
.PHONY: help demo demo-providers test lint types format venv clean compose-up compose-demo compose-down test-compose soak \
  conformance conformance-matrix fuzz aborts third-party real-engine

help:
	@echo "make demo    simulated engines, real Kafka, load, faults, and a summary (4 minutes)"
	@echo "make demo-providers    six simulated providers, one slows from 200 to 3500 ms and heals (2 minutes)"
	@echo "make test    all tests (15 minutes on two cores)"
	@echo "make soak    kills, stops and hands over real scorers $(FAULTS) times (FAULTS=20: 3 minutes)"
	@echo "make conformance [PEER=nginx | URL=... UPSTREAM_PORTS=...]    what an LLM proxy has to do: docs/conformance.md"
	@echo "make conformance-matrix    the same for Evenload and its peers; rewrites the table (15 minutes)"
	@echo "make fuzz    any bytes, for longer than the tests do (10 minutes)"
	@echo "make aborts  200,000 requests, a fifth of them aborted: flat memory, no leaked lease (20 minutes)"
	@echo "make third-party    clients and load tools of others through the router: docs/conformance.md"
	@echo "make real-engine    two real vLLM engines on the CPU, killed and stopped: docs/real-engines.md (6 GB, 20 minutes)"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy --strict"
	@echo "make format  let ruff rewrite what it can"
	@echo "make venv    only the environment, in .venv"
	@echo "make compose-up | compose-demo | compose-down    the stack in containers: docs/compose.md"
	@echo "make test-compose    its test, which needs a Docker engine and the images"
	@echo "make clean   remove .venv, caches and .evenload (the embedded Kafka's data)"

demo: $(STAMP)
	$(BIN)/evenload demo

demo-providers: $(STAMP)
	$(BIN)/evenload demo --story providers

test: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) $(PYTEST_ARGS)

soak: $(STAMP)
	SOAK_FAULTS=$(FAULTS) SOAK_SEED=$(SEED) $(BIN)/pytest -m soak tests/soak $(PYTEST_ARGS)

conformance: $(STAMP)
	CONFORMANCE_URL="$(URL)" CONFORMANCE_PORTS="$(UPSTREAM_PORTS)" CONFORMANCE_PEER="$(PEER)" \
	  CONFORMANCE_REPORT=$(CONFORMANCE)/$(or $(PEER),$(if $(URL),given,evenload)).json \
	  $(BIN)/pytest tests/conformance -p no:randomly --tb=line $(PYTEST_ARGS)

# A peer that fails checks, or cannot be had here, is a row of the table, not an error.
conformance-matrix: $(STAMP)
	for peer in $(PEERS); do $(MAKE) conformance PEER=$$peer || true; done
	$(BIN)/python -m tests.conformance.matrix $(CONFORMANCE) docs/conformance.md

fuzz: $(STAMP)
	FUZZ_EXAMPLES=4000 $(BIN)/pytest tests/router/test_fuzz.py tests/router/test_openapi.py --timeout=0 $(PYTEST_ARGS)

aborts: $(STAMP)
	DATAPLANE_REQUESTS=200000 $(BIN)/pytest tests/router/test_bounds.py -k memory_stays -rP $(PYTEST_ARGS)

third-party: $(STAMP)
	$(BIN)/python -m tests.third_party

real-engine: $(STAMP)
	$(BIN)/python -m tests.real_engine $(REAL_ENGINE_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

compose-up:
	$(COMPOSE) $(COMPOSE_PROFILE) up --detach --wait $(COMPOSE_UP)

# Ports come from .env or the environment, as for compose.
compose-demo: $(STAMP)
	set -a; if [ -f .env ]; then . ./.env; fi; $(BIN)/python -m tools.compose_demo $(COMPOSE_DEMO_ARGS)

# The volumes stay; COMPOSE_DOWN=--volumes takes them away too.
compose-down:
	$(COMPOSE) --profile demo --profile audit down --remove-orphans $(COMPOSE_DOWN)

test-compose: $(STAMP)
	$(BIN)/pytest -m compose tests/compose $(PYTEST_ARGS)

$(STAMP): requirements/dev.txt pyproject.toml .ci/venv
	PYTHON="$(PYTHON)" .ci/venv
	@touch $@

clean:
	rm -rf .venv .evenload .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
