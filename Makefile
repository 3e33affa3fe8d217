# Every target makes the environment it needs under .venvs/ and renews it only when what it is made from has changed.
# PYTHON=... chooses the interpreter, ARGS=... is passed on to pytest, or to the bench.

MAKEFLAGS += --no-builtin-rules --no-print-directory
.NOTPARALLEL:

ifndef PYTHON
PYTHON := $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
endif
VERSIONS ?= 3.11 3.12 3.13
VENV ?= .venvs/test
SEEDS ?= 20000
MINUTES ?= 10
STORE ?= both

# The stamp carries the interpreter's name, so that another PYTHON gets another environment.
STAMP := $(VENV)/.made-by-$(notdir $(PYTHON))
DEMO := .venvs/demo/.made-by-$(notdir $(PYTHON))
BENCH := .venvs/bench/.made-by-$(notdir $(PYTHON))
PIP := -m pip install -qq --disable-pip-version-check
heading = @printf '\n=== %s ===\n' "$(1)"

.PHONY: help demo test lint types unit coverage ruff imports simulate soak mutate isolation bench anatomy test-pgbouncer test-versions

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO) ## see Durably at work: installs only the base package, needs no server
	@.venvs/demo/bin/durably demo

test: ruff types imports coverage unit ## everything that must pass: lint, types, import rules, tests
	$(call heading,all checks passed)

lint: ruff imports ## ruff and the rules about who may import whom

types: $(STAMP) ## mypy
	$(call heading,mypy)
	@$(VENV)/bin/python -m mypy

# Two at a time: one half waits for processes that crash and recover while the other computes. What is measured runs last
# and alone.
WAITING := tests/soak tests/crash tests/failure_modes tests/stores tests/conformance tests/isolation tests/bad_input
MEASURED := tests/test_measure.py

unit: $(STAMP) ## only the tests, or those that ARGS=... names
ifdef ARGS
	$(call heading,pytest $(ARGS))
	@$(VENV)/bin/python -m pytest $(ARGS)
else
	$(call heading,pytest)
	@$(VENV)/bin/python -m pytest -p no:cacheprovider $(WAITING) > $(VENV)/waiting.log 2>&1 & waiting=$$!; \
	trap 'kill $$waiting 2>/dev/null' EXIT; \
	$(VENV)/bin/python -m pytest $(WAITING:%=--ignore=%) --ignore=$(MEASURED); computed=$$?; \
	wait $$waiting; waited=$$?; cat $(VENV)/waiting.log; \
	[ $$computed -eq 0 ] && [ $$waited -eq 0 ]
	$(call heading,pytest $(MEASURED))
	@$(VENV)/bin/python -m pytest $(MEASURED)
endif

coverage: $(STAMP) ## that the unit tests take every branch of the core
	$(call heading,branches of durably.core)
	@$(VENV)/bin/python -m coverage run --rcfile=tests/unit/coverage.ini -m pytest -q tests/unit/core
	@$(VENV)/bin/python -m coverage report --rcfile=tests/unit/coverage.ini

simulate: $(STAMP) ## the real worker in virtual time: SEEDS=20000 scenarios, and the story of the first that fails
	@$(VENV)/bin/python -m durably.testing.simulation --seeds $(SEEDS)

soak: $(STAMP) ## real processes, really killed, for MINUTES=10 on each store (STORE=sqlite, postgres or both)
	@$(VENV)/bin/python -m tests.soak --minutes $(MINUTES) --store $(STORE) $(if $(REPORT),--report $(REPORT))
ifneq ($(STORE),sqlite)
	@$(VENV)/bin/python -m tests.isolation --minutes $(MINUTES)
endif

mutate: $(STAMP) ## every small change to the core that a unit test should notice
	@$(VENV)/bin/python -m tests.mutation

isolation: $(STAMP) ## every interleaving of the transactions that can meet, exhaustively: takes hours
	@$(VENV)/bin/python -m tests.isolation

bench: $(BENCH) ## Durably, its peers and the bare databases side by side; ARGS=--quick takes two minutes
	@.venvs/bench/bin/python -m bench $(ARGS)

anatomy: $(BENCH) ## what one task costs at each hop, as a picture
	@.venvs/bench/bin/python -m bench.anatomy $(ARGS)

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
	@$(VENV)/bin/python $(PIP) --editable '.[postgres,http,smtp,apprise]' --requirement requirements/test.txt
	@touch $@

$(DEMO): pyproject.toml README.md LICENSE $(shell find src -type f ! -name '*.pyc')
	$(call heading,making .venvs/demo with $(PYTHON))
	@"$(PYTHON)" -m venv --clear .venvs/demo
	@.venvs/demo/bin/python $(PIP) .
	@touch $@

$(BENCH): pyproject.toml requirements/bench.txt $(shell find src -type f ! -name '*.pyc')
	$(call heading,making .venvs/bench with $(PYTHON))
	@"$(PYTHON)" -m venv --clear .venvs/bench
	@.venvs/bench/bin/python $(PIP) '.[postgres,http]' --requirement requirements/bench.txt
	@touch $@
