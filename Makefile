# The two commands of a newcomer: `make demo` trains on this machine, `make test` runs every test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The versions that are installed, as pip takes them.
CONSTRAINTS ?= constraints.txt
# For build environments too; a relative path, since pip splits this at spaces.
# Without bytecode of everything, which takes a minute: what is imported is compiled then.
PIP := PIP_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
# Two more than there are cores: most tests wait for something now and then.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)')
# Which tests, as pytest takes it: make test TESTS='tests/unit -k spec'
TESTS ?=
# What is installed for them: all, or `test` for those of launcher, trainer and providers alone.
EXTRA ?= dev
# What to build, as cloudtrain image build takes it: make image IMAGE=cpu
IMAGE ?= cuda

# What third-party programs need; torch and what the tests need are .venv's.
PROGRAMS := .programs

PYTEST_ARGS := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q

# AWS's container toolkit and Azurite, which judge what the client reads and writes.
ORACLES := .oracles

# The Pythons of jobs, beside .venv's: the image's, and that of AWS's containers.
VERSIONS ?= 3.12 3.13

# Which recordings `make fidelity` replays; by default those of tests/data.
FILES ?=

# Where `make live` tries: aws or azure.
CLOUD ?=

.PHONY: help demo test thorough quick check coverage versions bounds programs oracles fidelity live gpu lint types imports image bench count docs clean

help:
	@echo "make demo    train handwritten digits on two processes of this machine (installs into .venv first)"
	@echo "make test    run every test"
	@echo "make quick   what to run after a change: lint, types, imports, unit and golden tests (under a minute)"
	@echo "make thorough   what takes long: ten kills where the tests try three, builds with a compiler"
	@echo "make check   what CI runs: lint, types, imports, every test"
	@echo "make coverage   run the tests and tell which lines none of them reached, in subprocesses too"
	@echo "make versions   run the tests of what runs in jobs on Python $(VERSIONS), if installed"
	@echo "make bounds   run the tests of specs, requests and providers with the oldest and the newest packages allowed"
	@echo "make programs   run programs of Lightning, Accelerate and others (installs those into .programs first)"
	@echo "make oracles   let AWS's own tools and Azurite judge (installs those into .oracles first)"
	@echo "make fidelity   replay what the real services answered against the imitations"
	@echo "make live CLOUD=aws   try in your own account, for 1 USD at most, what no test without one can prove"
	@echo "make gpu   collect on one GPU, in ten minutes at most, what only a GPU can prove (writes gpu.json)"
	@echo "make image   build the image for GPUs; make image IMAGE=cpu the one for CPUs"
	@echo "make bench   measure the speed bars (some minutes)"
	@echo "make count   count the instructions of plan, list and --help by valgrind; fails above a limit"
	@echo "make docs    write anew what pages show of the code: reference, outputs, picture"
	@echo "make clean   remove .venv and caches"

demo: $(VENV)/.train
	@$(BIN)/cloudtrain submit examples/digits/job.yaml --provider local

# Tests start many interpreters: with bytecode on disk they take 7 % less time, whatever the shell has set.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev
	$(BIN)/python $(PYTEST_ARGS) $(TESTS)

quick: lint types imports
	$(BIN)/python $(PYTEST_ARGS) tests/unit tests/golden

check: lint types imports test

# The files that have tests which `make test` skips, or shortens.
THOROUGH = $(shell grep -rlE 'mark\.thorough|thorough: bool' tests --include='test_*.py')

thorough: $(VENV)/.dev
	$(BIN)/python $(PYTEST_ARGS) --thorough $(THOROUGH)

# Lines that subprocesses reach count too: `patch` in pyproject.toml. What was measured is shown if tests fail as well.
coverage: $(VENV)/.dev
	$(BIN)/coverage erase
	@failed=0; $(BIN)/coverage run $(PYTEST_ARGS) $(TESTS) || failed=$$?; \
	  $(BIN)/coverage combine --quiet && $(BIN)/coverage report --ignore-errors && exit $$failed

versions:
	@.ci/versions $(VERSIONS)

bounds:
	@.ci/bounds oldest newest

programs: $(PROGRAMS)/.installed
	CLOUDTRAIN_TEST_PROGRAMS=$(PROGRAMS)/bin/python $(BIN)/python $(PYTEST_ARGS) --dist load tests/programs

oracles: $(ORACLES)/.installed
	CLOUDTRAIN_TEST_ORACLES=$(ORACLES) $(BIN)/python $(PYTEST_ARGS) --dist load tests/oracles

fidelity: $(VENV)/.dev
	@$(BIN)/python -m tests.fidelity $(FILES)

live: $(VENV)/.dev
	CLOUDTRAIN_LIVE=$(CLOUD) $(BIN)/python -m tests.live $(CLOUD)

gpu: $(VENV)/.dev
	$(BIN)/python -m tests.live.gpu

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m tests.repo.style

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

image: $(VENV)/.train
	$(BIN)/cloudtrain image build $(IMAGE)

bench: $(VENV)/.dev
	@for bench in tests/bench/bench_*.py; do $(BIN)/python $$bench || exit 1; done

count: $(VENV)/.dev
	@for bench in help plan list; do $(BIN)/python tests/bench/bench_$$bench.py --count || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python docs/make/make_reference.py
	$(BIN)/python docs/make/make_outputs.py --write README.md docs/*.md docs/guides/*.md docs/concepts/*.md
	$(BIN)/python docs/make/make_picture.py

clean:
	rm -rf $(VENV) $(PROGRAMS) $(ORACLES) .versions .bounds .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* dist

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cloudtrain needs Python 3.11 or newer; say which: make demo PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "no venv module here; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.train: $(VENV)/.venv pyproject.toml constraints.txt
	@echo "installing into $(VENV) (some minutes the first time, torch is large) ..."
	@$(PIP) torch
	@$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	@echo "installing what the tests need ..."
	@$(PIP) --editable '.[$(EXTRA)]'
	@touch $@

# An environment that sees the packages of .venv, so that torch is there once.
define beside
@echo "installing into $(1) ..."
@$(BIN)/python -m venv --clear $(1)
@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
  >"$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
endef

# Each test names what is missing, such as a compiler for the toolkit or npm for Azurite.
$(ORACLES)/.installed: $(VENV)/.dev tests/oracles/requirements.txt
	$(call beside,$(ORACLES))
	@$(ORACLES)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps \
	  --requirement tests/oracles/requirements.txt || echo "no sagemaker-training"
	@npm install --silent --no-audit --no-fund --prefix $(ORACLES) azurite@3.35.0 || echo "no Azurite"
	@touch $@

$(PROGRAMS)/.installed: $(VENV)/.dev tests/programs/requirements.txt
	$(call beside,$(PROGRAMS))
	@PIP_CONSTRAINT=constraints.txt $(PROGRAMS)/bin/python -m pip --quiet --disable-pip-version-check install \
	  --requirement tests/programs/requirements.txt
	@touch $@
