# Everything runs in .venv, which `make env` builds from pyproject.toml and builds again when that file changes.
# Tools are configured in pyproject.toml, none here. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: env demo test lint types unit kafka clients thresholds fleet chaos soak fuzz spark kills bench clean help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
ARGS ?=
DURATION ?= 3600
JOBS ?= 1

# The first Python on PATH that is new enough and able to make a virtual environment; PYTHON=… names another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# $(call step,name,command): says on standard error what runs, and afterwards how long it took. (The `||` is needed:
# `set -e` does not end a shell for a failing command before `&&`.)
step = @echo '$(1) …' >&2; began=$$SECONDS; { $(2); } || exit; echo "$(1): ok, $$((SECONDS - began)) s" >&2

env: $(READY) ## make .venv with everything, and fetch Kafka (once; again when pyproject.toml changes)

$(READY): pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer with venv on PATH: install one (Debian, Ubuntu: python3 python3-venv), or set PYTHON." >&2; exit 1; }
	@$(PYTHON) -m gateway.embedded java >/dev/null
	$(call step,virtual environment in $(VENV),$(PYTHON) -m venv $(VENV))
	$(call step,packages (500 MB of them PySpark),$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[audit$(comma)dev]')
	$(call step,Apache Kafka,$(BIN)/python -m gateway.embedded fetch >/dev/null)
	@touch $@

comma := ,

demo: env ## real producers held to their limits in front of a real Kafka, audited to the byte (ARGS=--json)
	@$(BIN)/produce-gateway demo $(ARGS)

test: lint types ## everything CI runs: lint, types, all tests (ARGS='-k name' for pytest; JOBS=3: in processes)
	@echo 'tests …' >&2
	@$(BIN)/pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadgroup) $(ARGS)

lint: env ## ruff: rules and format; import-linter: who may import whom
	$(call step,lint,$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/lint-imports --no-logo >$(VENV)/imports.log || { cat $(VENV)/imports.log; false; })

types: env ## mypy, strict
	$(call step,types,$(BIN)/mypy --no-error-summary)

unit: env ## tests that need neither Kafka nor Java nor other clients: seconds
	@$(BIN)/pytest -m 'not kafka and not clients and not spark' $(ARGS)

kafka: env ## tests against a real Kafka
	@$(BIN)/pytest -m kafka $(ARGS)

clients: env ## tests with real clients, the whole matrix: Java, librdkafka, Python, Go, Node
	@CLIENTS_FULL=1 $(BIN)/pytest -m clients $(ARGS)

thresholds: env ## what the seed's rule admits over four minutes, against its promises: prints a table
	@$(BIN)/python -m tests.integration.thresholds_full $(ARGS)

fleet: env ## one limit over two gateways with two workers each, while members come and go: prints a table
	@$(BIN)/python -m tests.integration.fleet_full $(ARGS)

chaos: env ## kills, stops, resets, full disks and the like under load with limits active: prints a table (ARGS='killed clock')
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: env ## an hour (DURATION=600: seconds) of mixed load and made-up names: memory, descriptors, /metrics must not grow
	@$(BIN)/python -m tests.chaos.soak $(DURATION)

spark: env ## tests of the audit with Spark
	@$(BIN)/pytest -m spark $(ARGS)

kills: env ## the audit's stream and upkeep, killed again and again in the middle of their work: tables must be exact
	@$(BIN)/python -m tests.audit.kill_stream --kills 20 $(ARGS)
	@$(BIN)/python -m tests.audit.kill_upkeep --kills 10

bench: env ## what the gateway costs per request and per gigabyte (ARGS=--help)
	@$(BIN)/python tests/bench/bench.py $(ARGS)

fuzz: env ## sessions and links with everything on, fed with broken traffic: prints a table (INPUTS=… SECONDS=… SEED=… ARGS=--help)
	@$(BIN)/python -m tests.hostile.fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean: ## remove .venv and what tools left behind (the downloaded Kafka stays in the user's cache directory)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info tests/clients/node/node_modules
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
