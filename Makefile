# `make report` and `make test` need nothing before them: a bare machine with Python 3.11+ and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is imported is compiled once and kept, even where Python is told to keep nothing.
export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/pytest
SPREAD := --numprocesses auto --dist loadfile --no-loadscope-reorder
# Of 25,000 files a run imports some thousands: to compile all is a third of the processor's time.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: setup setup-dev report docs test suite test-fast lint style types bench clean

setup: $(VENV)/.product
setup-dev: $(VENV)/.dev

$(VENV)/.product: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[explore]'
	@touch $@

$(VENV)/.dev: $(VENV)/.product
	sh tests/install_chromium.sh & browser=$$!; $(PIP) --editable '.[dev]' && wait $$browser
	@touch $@

report: setup
	$(BIN)/nope-interp compare
	@echo
	@echo "Next:"
	@echo "  $(BIN)/nope-interp compare --model openai-community/gpt2    # which codes does your model use?"
	@echo "  $(BIN)/nope-interp heads                                    # what do the small model's heads do?"
	@echo "  $(BIN)/nope-interp reproduce --list                         # what do the papers claim?"

# Every tutorial is run. Warnings, broken links and cells that fail end the build.
docs: setup-dev
	$(BIN)/sphinx-build -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "Documentation: build/docs/index.html"

# Types are checked beside the suite: either leaves a core idle now and then.
test: style
	$(MAKE) --jobs=2 types suite

suite: setup-dev
	$(PYTEST) $(SPREAD)

test-fast: setup-dev
	$(PYTEST) $(SPREAD) -m 'not slow and not gemma and not browser'

lint: style types

style: setup-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup-dev
	$(BIN)/mypy

bench: setup-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
