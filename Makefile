PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup
STAMP := $(VENV)/.installed
CLI_STAMP := $(VENV)/.installed-cli
# The packages are installed without bytecode, so Python must be allowed to keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo setup check test test-long test-gpu coverage dist sbom lint
.PHONY: bench bench-steps bench-kernels bench-bits bench-trainer bench-inference bench-runs tables

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(CLI_STAMP)  ## Fine-tune a small model on film reviews, plain and with two methods: minutes on a CPU, no hub
	$(BIN)/attendrop demo --overwrite

$(CLI_STAMP): pyproject.toml $(CONSTRAINTS)
	@echo "Installing PyTorch, transformers and attendrop into $(VENV), about a minute:"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch by its exact version: a range would take gigabytes of CUDA packages. Without bytecode, because Python compiles
	@# what it imports by itself, and pip would compile all 14,000 files one after the other.
	$(BIN)/pip install --quiet --no-compile --constraint $(CONSTRAINTS) "$$(grep '^torch==' $(CONSTRAINTS))" --editable '.[cli]'
	touch $@

setup: $(STAMP)  ## Create .venv and install everything, with the pinned versions

$(STAMP): $(CLI_STAMP)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

check: lint test docs  ## Everything that must pass before a change is merged

test: setup  ## Run the tests, without the slow ones
	@echo "about 6 minutes on 2 cores, where nothing else runs:"
	$(PYTEST)

test-long: setup  ## Run all tests, the slow ones too: 200 steps of every method in bfloat16, and more
	$(PYTEST) -m ''

test-gpu: setup  ## Run the tests that need a GPU, and those of the kernels on it
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python -m pytest tests/kernels/test_kernels.py

coverage: setup  ## Run the tests and measure their branch coverage of the package, without the parts that need a GPU
	$(PYTEST) --cov --cov-report=
	$(BIN)/coverage report --fail-under=90

dist: setup  ## Build the wheel and the source archive in dist/, and check them
	rm -rf dist
	@# The time of the commit and one mode of files: two builds of a commit are equal to the byte.
	umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

sbom: dist  ## List what an installation of the wheel contains, with versions, in build/sbom.json (CycloneDX)
	rm -rf build/installed && $(PYTHON) -m venv build/installed
	build/installed/bin/pip install --quiet --constraint $(CONSTRAINTS) "$$(grep '^torch==' $(CONSTRAINTS))" dist/*.whl
	$(BIN)/pip install --quiet 'cyclonedx-bom>=7'
	$(BIN)/cyclonedx-py environment build/installed/bin/python --output-reproducible --output-file build/sbom.json

lint: setup  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

bench: setup  ## Everything on the page about cost, on the GPU where there is one, and the tables
	$(BIN)/python -m benchmarks.all

bench-runs: setup  ## Time of whole runs on few texts, captured against eager; needs a GPU
	$(BIN)/python -m benchmarks.whole_runs

bench-steps: setup  ## Time and memory of a training step, as multiples of plain fine-tuning
	$(BIN)/python -m benchmarks.steps

bench-kernels: setup  ## Time of the mask kernel against attention itself; needs a GPU
	$(BIN)/python -m benchmarks.kernels --device cuda

bench-bits: setup  ## Time of attention that reads its mask as bits against PyTorch's; needs a GPU
	$(BIN)/python -m benchmarks.bits

bench-trainer: setup  ## Time of captured and eager steps inside Trainer.train(); needs a GPU
	$(BIN)/python -m benchmarks.trainer_steps

bench-inference: setup  ## Time of a forward with 11 of 12 attention layers pruned, in five ways of running it
	$(BIN)/python -m benchmarks.inference

DOCS_STAMP := $(VENV)/.installed-docs
.PHONY: docs docs-serve docs-version

docs: $(DOCS_STAMP)  ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m docs.links site

docs-version: $(DOCS_STAMP)  ## Add the site of this version to the branch gh-pages, as 0.1 and as latest; nothing is pushed
	git config user.email >/dev/null || git config user.email attendrop@users.noreply.github.com
	git config user.name >/dev/null || git config user.name attendrop
	@# mike calls mkdocs by its name
	version=$$($(BIN)/python -c 'import attendrop; print(attendrop.__version__.rpartition(".")[0])') && \
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $$version latest
	$(BIN)/mike set-default latest

docs-serve: $(DOCS_STAMP)  ## Serve the documentation site and rebuild it when a file changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

$(DOCS_STAMP): $(CLI_STAMP)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[docs]'
	touch $@

tables: setup  ## Regenerate the tables in the docs from benchmarks/results, studies/results and the cards of the methods
	$(BIN)/python -m docs.tables
