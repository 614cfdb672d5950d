# Everything torchnan's own commands do, each in one line of `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help build demo test test-cpp test-python zoo lint bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

# One stamp per environment: what is there is not installed twice, what has changed is built again.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/pip install -qq --disable-pip-version-check "$(TORCH)" numpy
	$(BIN)/pip install -qq --disable-pip-version-check "setuptools>=77" wheel cmake ninja nlohmann-json==3.12.0
	touch $@

$(VENV)/.demo: | $(VENV)/.torch
	$(BIN)/pip install -qq --disable-pip-version-check transformers==5.23.0 tqdm
	touch $@

$(VENV)/.test: | $(VENV)/.torch $(VENV)/.demo
	$(BIN)/pip install -qq --disable-pip-version-check -r tests/requirements.txt
	touch $@

$(VENV)/.lint: | $(VENV)/.torch
	$(BIN)/pip install -qq --disable-pip-version-check ruff==0.17.5 mypy==2.4.1 clang-format==23.1.5 clang-tidy==23.1.4
	touch $@

SOURCES := $(shell find csrc cmake python -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.cmake' -o -name CMakeLists.txt)

$(VENV)/.built: $(SOURCES) CMakeLists.txt setup.py pyproject.toml | $(VENV)/.torch
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -qq --disable-pip-version-check --no-build-isolation --no-deps .
	touch $@

build: $(VENV)/.built ## a .venv with PyTorch and torchnan in it
