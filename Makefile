# Linear ICL. `make help` lists the targets.
#
# Needs GNU make and Python 3.11, 3.12 or 3.13; a network only for the set-up.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/installed
HTML    := _build/html
PORT    ?= 8000
# Processes of pytest at a time, and threads of linear algebra in each.
WORKERS ?= 2
# What `make reproduce` measures; empty is everything.
PARTS   ?=
export OMP_NUM_THREADS ?= 1

# A failure counts wherever it stands in a pipe.
SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTEST  := $(BIN)/python -m pytest
heading  = @printf '\n\033[1m=== %s\033[0m\n' '$(1)'

.DEFAULT_GOAL := help
.PHONY: help setup book serve test lint types unit doctests readme nbval rerun site \
        notebooks reproduce format clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- Set-up ------------------------------------------------------------------------------------

setup: $(STAMP) ## Create .venv with the pinned requirements (every target does so)

$(STAMP): requirements.txt pyproject.toml
	$(call heading,Set-up: the pinned requirements into $(VENV) (some minutes the first time))
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo 'Linear ICL needs Python 3.11, 3.12 or 3.13. "$(PYTHON)" is' \
	       "$$($(PYTHON) --version 2> /dev/null || echo not there)." >&2; \
	  echo 'Name another one, for example: make book PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo 'This Python cannot create environments. On Debian: apt-get install python3-venv' >&2; \
	  exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	@touch $@

# ---- The book ----------------------------------------------------------------------------------

book: $(STAMP) ## Build the site from the executed notebooks
	$(call heading,Notebooks: executed and without errors)
	@$(BIN)/python -m linear_icl.chapters check
	@$(BIN)/python -m linear_icl.chapters table
	$(call heading,Site: built from a clean state where a warning is an error)
	@rm -rf _build && mkdir _build
	@$(BIN)/jupyter-book build . -W -n --keep-going --quiet > _build/log.txt 2>&1 \
	|| { cat _build/log.txt; exit 1; }
	$(call heading,Site: nothing from the network and no dead link)
	@$(BIN)/python book/check_site.py $(HTML)
	@printf '\nThe book is built. Open it:\n  file://%s/$(HTML)/index.html\nor run: make serve\n' "$(CURDIR)"

serve: ## Serve the site on this machine and open it (PORT=8000)
	@test -f $(HTML)/index.html || $(MAKE) book
	@echo 'http://localhost:$(PORT)/ (stop with Ctrl-C)'
	@(sleep 1; $(BIN)/python -m webbrowser http://localhost:$(PORT)/ > /dev/null 2>&1 || true) &
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

notebooks: $(STAMP) ## Execute every notebook again and store the outputs
	$(call heading,Notebooks: executed in place)
	@$(BIN)/python -m linear_icl.chapters execute
	@$(BIN)/python -m linear_icl.chapters table

reproduce: $(STAMP) ## Measure everything again and compare (PARTS="experiments rank" for some)
	$(call heading,Measurements: from nothing and in a copy under runs)
	@$(BIN)/python benchmarks/reproduce.py $(PARTS)

# ---- The tests ---------------------------------------------------------------------------------

test: ## Check everything: code, notebooks, README, site
	@$(MAKE) --no-print-directory lint types unit doctests readme nbval rerun
	@$(MAKE) --no-print-directory book
	@$(MAKE) --no-print-directory site
	$(call heading,Everything passed)

lint: $(STAMP) ## Format and lint, without changing anything
	$(call heading,Lint)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(STAMP) ## Check the types of the package
	$(call heading,Types)
	@$(BIN)/mypy src

unit: $(STAMP) ## Unit and property tests
	$(call heading,Unit and property tests)
	@$(PYTEST) -n $(WORKERS) tests --ignore tests/test_site.py --ignore tests/test_notebooks.py \
	  --ignore tests/test_readme.py

doctests: $(STAMP) ## The examples in the docstrings
	$(call heading,Examples in the docstrings)
	@$(PYTEST) -n $(WORKERS) --doctest-modules src

readme: $(STAMP) ## The snippets of the README
	$(call heading,Snippets of the README)
	@$(PYTEST) tests/test_readme.py

nbval: $(STAMP) ## Run every notebook and compare its outputs with the stored ones
	$(call heading,Notebooks: the stored outputs are current)
	@$(PYTEST) -n $(WORKERS) --dist loadscope --nbval --nbval-current-env notebooks

rerun: $(STAMP) ## Run every notebook through papermill with other parameters
	$(call heading,Notebooks: run again with other parameters)
	@$(PYTEST) -n $(WORKERS) tests/test_notebooks.py

site: $(STAMP) ## The built site in a browser (needs `make book` and Chromium)
	$(call heading,Site in a browser)
	@$(PYTEST) -n $(WORKERS) tests/test_site.py

# ---- Keeping house -----------------------------------------------------------------------------

format: $(STAMP) ## Format the code and mend what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove the built site and the caches
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean ## Remove the environment too
	rm -rf $(VENV)
