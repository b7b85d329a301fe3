# Everything runs in .venv, which `make env` builds from pyproject.toml, constraints.txt and requirements/build.txt, and
# builds again when one of them changes.
# Tools are configured in pyproject.toml, none here. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: env demo test tested lint types tests collected classes unit kafka full clients storm thresholds fleet disk chaos simulate soak fuzz spark differential sanitize kills mutants bench bench-compare docs dist clean help

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
READY := $(VENV)/ready
ARGS ?=
DURATION ?= 3600
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Processes that share the tests: they wait for two thirds of their time, so four more than there are cores.
JOBS ?= $(shell echo $$(($(CORES) > 4 ? 8 : $(CORES) + 4)))

# Tests start hundreds of our processes: whatever the environment says, they find modules compiled. They do so when one
# is needed first, in all processes at once; pip would compile all of PySpark's, one after the other.
COMPILED := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/compiled

# The first Python on PATH that is new enough and able to make a virtual environment; PYTHON=… names another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# $(call step,name,command): says on standard error what runs, and afterwards how long it took. (The `||` is needed:
# `set -e` does not end a shell for a failing command before `&&`.)
step = @echo '$(1) …' >&2; began=$$SECONDS; { $(2); } || exit; echo "$(1): ok, $$((SECONDS - began)) s" >&2

NATIVE := $(VENV)/native
BUILT := $(VENV)/built
TYPED := $(wildcard protocol/*.pxd protocol/*/*.pxd policies/*/*.pxd gateway/data/*/*.pxd)
COMPILED_FROM := $(TYPED) $(wildcard protocol/*/*.pyx gateway/data/*/*.pyx $(TYPED:.pxd=.py))

# Both at once: the packages are fetched and unpacked, which keeps one core busy, while the other one compiles.
env: ## make .venv with everything, and fetch Kafka (once; again when pyproject.toml changes)
	@$(MAKE) --no-print-directory --silent $(if $(filter 0,$(MAKELEVEL)),-j2) $(BUILT)

$(TOOLS): requirements/build.txt
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer with venv on PATH: install one (Debian, Ubuntu: python3 python3-venv), or set PYTHON." >&2; exit 1; }
	@$(PYTHON) -m gateway.embedded java >/dev/null
	$(call step,virtual environment in $(VENV),$(PYTHON) -m venv $(VENV))
	$(call step,tools of builds,$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --requirement requirements/build.txt)
	@touch $@

$(READY): $(TOOLS) pyproject.toml extras/pyproject.toml constraints.txt
	$(call step,packages (500 MB of them PySpark),PURE_PYTHON=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[audit$(comma)audit-tables$(comma)demo$(comma)dev]' --editable ./extras)
	$(call step,Apache Kafka,$(BIN)/python -m gateway.embedded fetch >/dev/null)
	@touch $@

# The hot path in C, beside its sources: setup.py says so where it can't be, and Python runs instead. Here and not when
# pip installs the project, which would compile one module after the other.
$(NATIVE): $(TOOLS) setup.py $(COMPILED_FROM)
	$(call step,hot path,$(BIN)/python setup.py build_ext --inplace --force --parallel $(CORES) >$(VENV)/native.log 2>&1)
	@touch $@

$(BUILT): $(READY) $(NATIVE)
	@$(BIN)/python -m gateway version
	@touch $@

comma := ,

demo: env ## real producers held to their limits in front of a real Kafka, audited to the byte (ARGS=--json)
	@$(COMPILED) $(BIN)/produce-gateway demo $(ARGS)

# mypy takes what the others leave of the cores. It says at once what it finds, and again at the end, since much is
# printed between.
test: env ## everything CI runs: lint, types, all tests in JOBS processes (ARGS='-k name' for pytest)
	@$(MAKE) --no-print-directory -j4 --keep-going tested types || { cat $(VENV)/types.log; false; }

tested: lint collected classes
	@$(MAKE) --no-print-directory tests

tests: env
	@echo 'tests in $(JOBS) processes …' >&2
	@MAKEFLAGS= $(COMPILED) $(BIN)/pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadscope) $(ARGS)

lint: env ## ruff: rules and format; import-linter: who may import whom
	$(call step,lint,$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/lint-imports --no-logo >$(VENV)/imports.log || { cat $(VENV)/imports.log; false; })

types: env ## mypy, strict
	$(call step,types,nice $(BIN)/mypy --no-error-summary >$(VENV)/types.log || { cat $(VENV)/types.log; false; })

# pytest compiles each test file once, with its asserts made telling: three times the work of reading what it compiled.
# Here one process does it for all that run the tests.
collected: env
	$(call step,tests found and compiled,$(COMPILED) $(BIN)/pytest --collect-only --quiet --quiet -p no:cacheprovider >$(VENV)/collected.log || { cat $(VENV)/collected.log; false; })

# Not for `make demo`, whose only session it would cost more than it spares. Where there is no making it, it says why,
# and Spark starts without.
classes: env
	$(call step,archive of the classes of Spark,$(COMPILED) $(BIN)/python -m gateway.audit.class_data >/dev/null || true)

unit: env ## tests that need neither Kafka nor Java nor other clients: seconds
	@$(BIN)/pytest -m 'not kafka and not clients and not spark' $(ARGS)

kafka: env ## tests against a real Kafka
	@$(BIN)/pytest -m kafka $(ARGS)

full: env classes ## tests that `make test` leaves out, since shorter ones hold the same: real disks, events, Spark masters
	@TESTS_FULL=1 $(BIN)/pytest -m full $(ARGS)

clients: env ## tests with real clients, the whole matrix: Java, librdkafka, Python, Go, Node
	@CLIENTS_FULL=1 TESTS_FULL=1 $(BIN)/pytest -m clients $(ARGS)

storm: env ## each client library far over limits that delay, alone and in fleets, beside Kafka's own quota: prints a table (an hour)
	@$(BIN)/python -m tests.clients.limits.storm $(ARGS)

thresholds: env ## what the seed's rule admits over four minutes, against its promises: prints a table
	@$(BIN)/python -m tests.integration.limits.thresholds_full $(ARGS)

fleet: env ## one limit over two gateways with two workers each, while members come and go: prints a table
	@$(BIN)/python -m tests.integration.fleet.fleet_full $(ARGS)

disk: env ## a disk of 200 MB under one of three brokers at full load: only its topics pause (ARGS='--plot FILE.svg')
	@$(BIN)/python -m tests.integration.storage.disk_full $(ARGS)

chaos: env ## kills, stops, resets, full disks and the like under load with limits active: prints a table (ARGS='killed clock')
	@$(BIN)/python -m tests.chaos $(ARGS)

simulate: env ## whole gateways under simulated time, with faults, from seeds: SEED=1000 HOURS=0.1 WORLDS=20 (ARGS=--minimise, --mutations)
	@$(BIN)/python -m tests.simulation --seed $(or $(SEED),1000) --hours $(or $(HOURS),0.1) --worlds $(or $(WORLDS),20) $(ARGS)

soak: env ## an hour (DURATION=600: seconds) of mixed load, made-up names and strangers on all ports: nothing must grow or end
	@$(BIN)/python -m tests.chaos.soak $(DURATION)

spark: env classes ## tests of the audit with Spark
	@$(BIN)/pytest -m spark $(ARGS)

kills: env ## the audit's stream and upkeep, killed again and again in the middle of their work: tables must be exact
	@$(BIN)/python -m tests.audit.stream.kill_stream --kills 20 $(ARGS)
	@$(BIN)/python -m tests.audit.stream.kill_upkeep --kills 10

bench: env ## what the gateway costs per request and per gigabyte (ARGS=--help)
	@$(BIN)/python -m tests.bench.bench $(ARGS)

bench-compare: env ## this checkout beside another revision, in turns: is it slower? (REV=v0.1.0, ARGS=--help)
	@$(BIN)/python -m tests.bench.compare $(REV) $(ARGS)

fuzz: env ## sessions, links, control and the admin server, fed with broken traffic: prints a table (INPUTS=… SECONDS=… SEED=… ARGS=--help)
	@$(BIN)/python -m tests.hostile.fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

differential: env ## INPUTS=10000000 random requests through the fast path and without it: the same must come out (ARGS=--help)
	@$(BIN)/python -m tests.gateway.data.session.fast_path.differential $(if $(INPUTS),--inputs $(INPUTS)) $(ARGS)

sanitize: env ## the compiled hot path under AddressSanitizer and UBSan: its tests, then SECONDS=600 of fuzz
	@$(BIN)/python -m tests.hostile.sanitize $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

mutants: env ## the code behind each row of docs/seeds.md, broken line by line: its tests must fail (ROWS=V1.13,82 ARGS=--help)
	@PURE_PYTHON=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[mutants]'
	@$(BIN)/python -m tests.mutants $(subst $(comma), ,$(ROWS)) $(ARGS)

docs: env ## the documentation site, into build/site (ARGS=--help)
	$(call step,site,NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS) >$(VENV)/site.log 2>&1 || { cat $(VENV)/site.log; false; })

dist: env ## wheels of pure Python, source archive and bill of materials into dist/, tried in an environment of their own
	@rm -rf dist build extras/build
	$(call step,wheels and source archive,PURE_PYTHON=1 $(BIN)/python -m build --no-isolation --outdir dist >$(VENV)/build.log 2>&1 && $(BIN)/python -m build --no-isolation --wheel --outdir dist extras >>$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; false; })
	$(call step,installed from scratch and used,$(BIN)/python -m tests.release dist)

clean: ## remove .venv and what tools left behind (the downloaded Kafka stays in the user's cache directory)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist extras/build *.egg-info tests/clients/node/node_modules
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find protocol policies gateway -name '*.so' -delete

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
