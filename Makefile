# Every target makes the environment it needs under .venvs/ and renews it only when what it is made from has changed.
# PYTHON=... chooses the interpreter, ARGS=... is passed on to pytest.

MAKEFLAGS += --no-builtin-rules --no-print-directory
.NOTPARALLEL:

ifndef PYTHON
PYTHON := $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
endif
VERSIONS ?= 3.11 3.12 3.13
VENV ?= .venvs/test

# The stamp carries the interpreter's name, so that another PYTHON gets another environment.
STAMP := $(VENV)/.made-by-$(notdir $(PYTHON))
DEMO := .venvs/demo/.made-by-$(notdir $(PYTHON))
PIP := -m pip install -qq --disable-pip-version-check
heading = @printf '\n=== %s ===\n' "$(1)"

.PHONY: help demo test lint types unit ruff imports test-pgbouncer test-versions isolation

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO) ## see Durably at work: installs only the base package, needs no server
	@.venvs/demo/bin/durably demo

test: ruff types imports unit ## everything that must pass: lint, types, import rules, tests
	$(call heading,all checks passed)

lint: ruff imports ## ruff and the rules about who may import whom

types: $(STAMP) ## mypy
	$(call heading,mypy)
	@$(VENV)/bin/python -m mypy

unit: $(STAMP) ## only the tests
	$(call heading,pytest)
	@$(VENV)/bin/python -m pytest $(ARGS)

isolation: $(STAMP) ## every interleaving of the transactions that can meet, exhaustively
	$(call heading,pytest tests/isolation --exhaustive)
	@$(VENV)/bin/python -m pytest tests/isolation --exhaustive $(ARGS)

test-pgbouncer: $(STAMP) ## the store behind the real PgBouncer (needs the program pgbouncer)
	$(call heading,pytest tests/pgbouncer)
	@$(VENV)/bin/python -m pytest tests/pgbouncer $(ARGS)

test-versions: ## the tests with every supported Python that is found
	@found=; for version in $(VERSIONS); do \
	  python=; for candidate in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python$$version; do \
	    if "$$candidate" -c '' 2>/dev/null; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then printf '\n=== Python %s was not found ===\n' $$version; continue; fi; \
	  printf '\n=== Python %s: %s ===\n' $$version "$$python"; \
	  $(MAKE) unit PYTHON="$$python" VENV=.venvs/test-$$version || exit 1; found="$$found $$version"; \
	done; \
	[ -n "$$found" ] || { echo 'no supported Python was found'; exit 1; }; \
	printf '\n=== passed with Python%s ===\n' "$$found"

ruff: $(STAMP)
	$(call heading,ruff check)
	@$(VENV)/bin/python -m ruff check
	$(call heading,ruff format --check)
	@$(VENV)/bin/python -m ruff format --check

imports: $(STAMP)
	$(call heading,lint-imports)
	@$(VENV)/bin/lint-imports

$(STAMP): pyproject.toml requirements/test.txt
	$(call heading,making $(VENV) with $(PYTHON))
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(VENV)/bin/python $(PIP) --editable '.[postgres]' --requirement requirements/test.txt
	@touch $@

$(DEMO): pyproject.toml README.md LICENSE $(shell find src -type f ! -name '*.pyc')
	$(call heading,making .venvs/demo with $(PYTHON))
	@"$(PYTHON)" -m venv --clear .venvs/demo
	@.venvs/demo/bin/python $(PIP) .
	@touch $@
