# `make demo` and `make test` do their own set-up: a virtual environment with
# SGLang in it (11 GB, about 4 minutes). A second run reuses it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := python test docs benchmark

# Tests that run at a time.
WORKERS ?= 2
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile

.PHONY: demo doctor test test-intree lint format surface clean

demo: $(VENV)/.installed
	$(BIN)/sglang-dsv4-nvfp4 demo

doctor: $(VENV)/.installed
	$(BIN)/sglang-dsv4-nvfp4 doctor

test: $(VENV)/.installed
	$(BIN)/python -m pytest $(PARALLEL) --junitxml=build/with-plugin.xml

# The same tests over a copy of SGLang that has the feature in its tree, after `test`.
test-intree: $(VENV)/.installed
	$(BIN)/python test/support/in_tree.py $(PARALLEL)

lint: $(VENV)/.installed
	$(BIN)/black --check $(SOURCES)
	$(BIN)/isort --check-only $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/python docs/render_tables.py --check

format: $(VENV)/.installed
	$(BIN)/isort $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/black $(SOURCES)

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# After a look at another SGLang: record what the seams find there.
surface: $(VENV)/.installed
	$(BIN)/python test/support/record_surface.py

clean:
	rm -rf $(VENV) build python/*.egg-info
