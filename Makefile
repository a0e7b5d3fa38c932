# Everything runs from .venv; `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
PIP_ARGS ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := out/tools
LOCK := $(TOOLS)/bin/uv pip compile --quiet -c constraints.txt --generate-hashes --universal \
	--python-version 3.11 --no-annotate --custom-compile-command "make lock" $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all check format docs chaos soak walk bench bench-peers lock dist clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 12

install: $(STAMP) ## Create .venv with everything (quick the second time)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "TrainMover needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "cannot create $(VENV): on Debian, install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[all,dev]'
	@touch $@

demo: install ## Move a slow machine, kill another, compare with an undisturbed run (3 minutes)
	$(BIN)/trainmover demo $(ARGS)

test: install ## Run the tests that need no minute-long job (some minutes)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		-m "not soak and not chaos and not walk and not long" $(ARGS)

test-all: install ## Run all tests, two files at a time (what CI does; half an hour)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: install ## Format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

docs: install ## Build the documentation as a site in out/docs; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: install ## Rewrite the sources in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

chaos: install ## Inject faults at every moment of a migration (200 runs, one to two hours)
	$(BIN)/python -m tests.chaos --runs 200 $(ARGS)

soak: install ## An hour of training with a fault every 10 to 20 seconds
	$(BIN)/python -m tests.soak --minutes 60 $(ARGS)

walk: install ## Carry out every command of the documentation (a quarter of an hour)
	$(BIN)/python -m pytest -m walk $(ARGS)

bench: install ## Run the benchmarks; each prints one JSON object
	@set -e; for name in overhead collectives pause rebuild redundancy vote looks; do echo "== python -m benchmarks.$$name"; \
		$(BIN)/python -m benchmarks.$$name $(ARGS); \
	done

PEERS := out/peers
$(PEERS)/.installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv --clear $(PEERS)/venv
	$(PEERS)/venv/bin/python -m pip install --quiet $(PIP_ARGS) -r $<
	$(PEERS)/venv/bin/python -m pip install --quiet $(PIP_ARGS) --no-deps --upgrade \
		--target $(PEERS)/nightly torchft-nightly==2026.10.26
	@touch $@

bench-peers: install $(PEERS)/.installed ## Measure TrainMover beside its peers (half an hour; installs them under out/peers)
	$(BIN)/python -m benchmarks.peers --venv $(PEERS)/venv --nightly $(PEERS)/nightly $(ARGS)

$(TOOLS)/.installed: deploy/tools.lock
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet $(PIP_ARGS) --require-hashes -r deploy/tools.lock
	@touch $@

lock: $(TOOLS)/.installed ## Write what the images are made of, with hashes (ARGS=--upgrade for newer versions)
	$(LOCK) pyproject.toml --extra console -o deploy/services.lock
	$(LOCK) pyproject.toml --extra console --extra train -o deploy/executor.lock
	$(LOCK) deploy/tools.in -o deploy/tools.lock

dist: $(TOOLS)/.installed ## Build wheel and source archive in out/dist, and a bill of materials of each image
	$(TOOLS)/bin/python -m build --no-isolation --outdir out/dist .
	@set -e; for name in services executor; do \
		$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
			--output-format JSON --output-file out/dist/trainmover-$$name.cdx.json deploy/$$name.lock; \
	done

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
