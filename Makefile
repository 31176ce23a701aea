# Everything a user or a developer runs. Needs make and Python 3.11 or newer, nothing else.
# `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
LOCK := .ci/requirements.lock
DEMO := reports/runs/demo

# The interpreter that creates the environment: `make setup PYTHON=/path/to/python3.12`.
# Left empty, .ci/create_venv looks for one.
PYTHON ?=

# More arguments for pytest: `make test PYTEST_ARGS="-m 'not ray and not wheel'"`.
PYTEST_ARGS ?=

# The installed-marker names the folder it was made in, because a copied environment
# would still import the code of the original folder.
STAMP := $(VENV)/.installed-$(shell pwd | cksum | cut -d ' ' -f 1)

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PIP_INSTALL := $(PIP) install -qq --no-warn-script-location --root-user-action=ignore

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench docs lock clean

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create .venv with every locked dependency and the project itself
	@echo "setup: $(VENV) is ready; the command is $(BIN)/sieve"

$(STAMP): pyproject.toml $(LOCK) .ci/create_venv
	@sh .ci/create_venv $(VENV) $(notdir $(STAMP)) $(PYTHON)
	@echo "setup: installing the locked dependencies (a few hundred MB on the first run)"
	@$(PIP_INSTALL) --only-binary :all: --require-hashes --requirement $(LOCK)
	@echo "setup: installing sieve from this folder"
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP) ## size the example chat deployment and write its report
	@echo "demo: $(BIN)/sieve run examples/chat.yaml --out $(DEMO)"
	@rm -rf $(DEMO)
	@$(BIN)/sieve run examples/chat.yaml --out $(DEMO)

test: $(STAMP) ## run all tests
	@echo "test: pytest"
	@$(BIN)/python -m pytest --quiet --numprocesses auto --dist loadfile $(PYTEST_ARGS)

check: $(STAMP) ## check format, lint, types, layers and file sizes; changes nothing
	@echo "check: ruff format"
	@$(BIN)/ruff format --quiet --check . || { echo "check: run \`make format\`" >&2; exit 1; }
	@echo "check: ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "check: mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "check: lint-imports"
	@$(BIN)/lint-imports --no-logo
	@echo "check: licences"
	@$(BIN)/python .ci/licences.py --check
	@echo "check: file sizes"
	@$(BIN)/python .ci/check_file_sizes.py

format: $(STAMP) ## format the code and apply the safe lint fixes
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

bench: $(STAMP) ## time the hot paths; prints tables, judges nothing
	@if ls tests/benchmarks/*.py >/dev/null 2>&1; then \
	  echo "bench: pytest tests/benchmarks"; \
	  $(BIN)/python -m pytest -c tests/benchmarks/pytest.ini tests/benchmarks || [ $$? -eq 5 ]; \
	else \
	  echo "bench: tests/benchmarks holds no benchmark"; \
	fi
	@for script in run replay step_times blocks ray_overhead; do \
	  echo "bench: tests/benchmarks/$$script.py"; \
	  $(BIN)/python tests/benchmarks/$$script.py || exit 1; \
	done

docs: $(STAMP) ## build the documentation as a site in build/site, without a network
	@$(BIN)/python .ci/write_reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "docs: open build/site/index.html; search needs a server: python3 -m http.server -b 127.0.0.1 -d build/site"

lock: $(STAMP) ## resolve the dependencies anew into .ci/requirements.lock (needs uv)
	@uv=$$(command -v $(BIN)/uv || command -v uv) || \
	  { echo "lock: uv not found; install it with \`$(BIN)/python -m pip install uv\`" >&2; exit 1; }; \
	echo "lock: resolving pyproject.toml with $$uv"; \
	"$$uv" pip compile pyproject.toml --quiet --all-extras --universal --generate-hashes \
	  --no-emit-index-url --no-header --python-version 3.11 -o $(LOCK)
	@echo "lock: wrote $(LOCK); \`make setup\` installs it, then run .ci/licences.py"

clean: ## remove the environment, caches, builds and the demo's output
	rm -rf $(VENV) $(DEMO) build dist .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .benchmarks
	find sieve stages tests kernel_tables -type d -name __pycache__ -prune -exec rm -rf {} +
