# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUN    ?= runs/first
DEVFLAGS = -n 2 --dist worksteal

.PHONY: run test test-all attack mutants lint types bench docs docs-version clean

run: $(VENV)/.core  ## set up, train and test the default experiment, write the report
	$(BIN)/acclimate run --out $(RUN) --overwrite
	@echo "report: $(RUN)/report.html"

# compiled once, not by every process that a test starts, where the machine says that Python keeps no compiled files
test test-all: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev lint types  ## lint, types and the fast tests
	$(BIN)/python -m pytest $(DEVFLAGS)

test-all: $(VENV)/.dev lint types  ## every test, the slow ones too
	$(BIN)/python -m pytest $(DEVFLAGS) -m "slow or not slow"

attack: $(VENV)/.dev  ## malformed messages, malicious clients, damaged run folders and settings, killed processes; JSON in results/attack (two calm cores: hours, by estimate)
	$(BIN)/python tests/attack/run.py all --jobs 2 --out build/attack
	$(BIN)/python tests/attack/run.py merge build/attack --out results/attack
	$(BIN)/python tests/attack/faults.py --faults 1000 --jobs 2 --out results/attack/faults.json
	$(BIN)/python tests/attack/run.py figures

mutants: $(VENV)/.dev  ## change the source in 1,000 places and see which ones no test notices (two cores: an hour or two, by estimate)
	$(BIN)/python scripts/mutate.py --jobs 2 --out runs/mutants.jsonl --map runs/mutants-map.json

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.core  ## what is fast, and by how much, on this machine
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/corruptions.py --quick

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

docs-version: $(VENV)/.docs  ## the documentation of this version, beside those of earlier ones, on the local branch gh-pages
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike deploy --update-aliases $$($(BIN)/acclimate --version | cut -d' ' -f2) latest
	$(BIN)/mike set-default latest

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.venv constraints.txt
	$(PIP) torch==2.13.0
	@touch $@

$(VENV)/.core: $(VENV)/.torch pyproject.toml
	$(PIP) -e .
	@touch $@

# all of the core, and more: what was installed once is not built again
$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) -e ".[dev]"
	@touch $(VENV)/.core $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
