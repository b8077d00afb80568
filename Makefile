# Linear ICL. `make help` lists the targets.
#
# Everything below needs GNU make, Python 3.11 to 3.13 and, for the first call, a network.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed.stamp
HTML   := _build/html
PORT   ?= 8000

# Two processes of tests share the cores better than eight threads each.
export OMP_NUM_THREADS ?= 1
# A step's heading, so that a long run says where it is.
step = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

.DEFAULT_GOAL := help
.PHONY: help setup book serve test lint types unit doctests readme nbval site-tests \
        notebooks format clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- set-up ---------------------------------------------------------------------------------

setup: $(STAMP) ## Create .venv and install the pinned requirements (done by all others)

$(STAMP): requirements.txt pyproject.toml
	$(call step,Set-up: $(VENV) with the pinned requirements (once; some minutes))
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	|| { echo "Linear ICL needs Python 3.11, 3.12 or 3.13; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing)." >&2; \
	     echo "Name another one: make PYTHON=python3.12 book" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt \
	| grep --line-buffered -E '^(Collecting|Downloading|Installing|Successfully|ERROR)' || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

# ---- the book -------------------------------------------------------------------------------

book: $(STAMP) ## Build the site from the executed notebooks into _build/html
	$(call step,Notebooks: executed; without errors)
	@$(BIN)/python -m linear_icl.chapters check
	@$(BIN)/python -m linear_icl.chapters table
	$(call step,Site: built from a clean state; a warning is an error)
	@rm -rf _build
	@$(BIN)/jupyter-book build . -W -n --keep-going --quiet
	@test -z "$$(find $(HTML)/reports -name '*.err.log' 2>/dev/null)"

clean: ## Remove the built site and the caches
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis
