# Everything on a fresh machine with Python >= 3.11 and make: `make train`, `make test`.
PYTHON ?= python3
# A CPU build of torch where one is offered; any torch that is already in the environment is kept.
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: train test test-slow lint docs install clean

train: $(INSTALLED)
	$(BIN)/torchcaps train capsnet-digits

test: $(INSTALLED) lint docs
	$(BIN)/python -m pytest

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/python tools/check_docs.py

install: $(INSTALLED)

$(INSTALLED): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install "$(TORCH)"
	$(BIN)/python -m pip install -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
