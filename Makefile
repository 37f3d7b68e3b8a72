# Every target makes .venv on first use and reuses it after that.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
DEMO_READY := $(VENV)/demo-ready
INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-fast fuzz lint docs bench mutants reproduce build format hooks browser clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make demo       measure everything here, show it, and write report.html (under three minutes)"
	@echo "make test       all tests, in parallel; ARGS=--cov adds coverage"
	@echo "make test-fast  all but the slow tests (under a minute on two cores, once the kernels are compiled)"
	@echo "make fuzz       random comparisons for MINUTES=10, from SEED= on; prints the shortest case that fails"
	@echo "make lint       ruff, pyright and import-linter"
	@echo "make docs       the pages of docs/ and the reference as a site: site/index.html"
	@echo "make bench      verify and time everything against its peers (about ten minutes)"
	@echo "make mutants    errors put into the theory one at a time: which ones do no tests notice? (SAMPLE=60 SEED=0 FILES='mpc/partners.py')"
	@echo "make reproduce  the paper's two figures and ours, from nothing (a quarter of an hour; PROFILE=full: all, days)"
	@echo "make build      the wheel and the source distribution: dist/"
	@echo "make format     rewrite the sources in the project's style"
	@echo "make hooks      run ruff and the import contract before every commit (pre-commit)"
	@echo "make browser    install Chromium with apt-get, for the tests of the report page; they are skipped without it"
	@echo "make clean      remove build products, caches and compiled kernels; .venv stays"
	@echo "make distclean  remove .venv as well"

$(READY): pyproject.toml constraints.txt
	@echo "installing into $(VENV): some minutes, 3 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -e ".[cli,dev,docs,hf,ray,report]"
	touch $(DEMO_READY) $@

# What the demo needs, without Ray, browsers, the site and the tests.
$(DEMO_READY): pyproject.toml constraints.txt
	@echo "installing into $(VENV): a minute or two, 1.3 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -e ".[cli,report]"
	touch $@

demo: $(DEMO_READY)
	@$(BIN)/annattn demo

test: $(READY)
	$(BIN)/python -m pytest -n auto $(ARGS)

test-fast: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow" $(ARGS)

MINUTES ?= 10
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

bench: $(READY)
	$(BIN)/python $(INSTALL) -e ".[bench]"
	$(BIN)/python -m benchmarks $(ARGS)

# A second run goes on where the first stopped. SAMPLE= takes all.
SAMPLE ?= 60
SEED ?= 0
mutants: $(READY)
	$(BIN)/python -m tests.mutants $(FILES) $(if $(SAMPLE),--sample $(SAMPLE)) --seed $(SEED) $(ARGS)

PROFILE ?= quick
reproduce: $(READY)
	@$(BIN)/annattn reproduce --profile $(PROFILE) $(ARGS)

build: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(READY)
	$(BIN)/pre-commit install

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
browser:
	$(SUDO) apt-get update
	$(SUDO) apt-get install --yes --no-install-recommends chromium

# Numba keeps compiled kernels in the __pycache__ folders beside the sources: the next run compiles them anew.
clean:
	rm -rf dist site htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
