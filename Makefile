# make matrix: set up and run the main job.   make test: set up and run the tests.
# Set-up happens once: the stamp is remade only when the dependencies change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# A torch that is already there is left alone: the environment sees it, and no constraint pins another.
# Our own .venv may be the active one: the Python it was made from is the one to ask, and to make it from.
BASE := $(shell $(PYTHON) -c 'import os, sys; own = os.path.realpath(sys.prefix) == os.path.realpath("$(VENV)"); print(sys._base_executable if own else sys.executable)')
HAS_TORCH = $(shell $(BASE) -c 'import importlib.util as u; print("yes" if u.find_spec("torch") else "no")')

# pip compiles modules one by one; compileall does so on every core. A module written for another Python is no error.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

# Tests start some thousand processes: where this is set, each of them would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: matrix test test-all test-cluster test-torch lint docs site release setup clean

matrix: $(STAMP)
	$(BIN)/nsadiag matrix $(ARGS)

# Four at a time, on two cores too: many of these tests wait for real processes, which leaves a core idle. Each takes a part
# of the files in one piece, so that what a file's tests share is made once, and at the end a part of what others have left.
test: $(STAMP)
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow and not gpu and not cluster" $(ARGS)

# On hosts that are network namespaces: each test is several machines' work, so one at a time.
test-cluster: $(STAMP)
	$(BIN)/python -m pytest tests/hosts -m "cluster and not slow" $(ARGS)

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not gpu and not cluster" $(ARGS)
	$(BIN)/python -m pytest tests/hosts -m cluster $(ARGS)

# What runs inside a rank, on another torch, and on another Python: `make test-torch TORCH=2.6.0 PYTHON=python3.10`. Its
# environment stays in build/, gigabytes of it.
PROBES := tests/worker/probes/test_patch.py tests/worker/probes/test_probes.py tests/worker/probes/test_autograd_probes.py tests/worker/probes/test_gradient_hooks.py
test-torch:
	$(BASE) -m venv build/torch-$(TORCH)
	build/torch-$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check "torch==$(TORCH)" -e . \
	  "pytest>=8" "pytest-timeout>=2.3" "pytest-xdist>=3.5" "hypothesis>=6"
	PATH="$(CURDIR)/build/torch-$(TORCH)/bin:$$PATH" build/torch-$(TORCH)/bin/python -m pytest -n 2 $(PROBES) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Pages that repeat what rules, scripts and recordings say: docs/classes, and parts of three others.
docs: $(STAMP)
	$(BIN)/python -m tests.support.documents.pages

# The same as a site, with a page of a real run for each class: build/site. A broken link or anchor is an error.
site: $(STAMP)
	$(BIN)/python -m tests.support.documents.site

# Wheel and sdist, the same bytes for everyone, tried where nothing else is: build/release. With TORCH=2.6.0,2.13.0 a real job on each.
release: $(STAMP)
	$(BIN)/python packaging/release.py $(if $(TORCH),--torch $(TORCH)) $(ARGS)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(BASE) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "error: nsadiag needs Python 3.10 to 3.13, $(BASE) is $$($(BASE) --version 2>&1)"; \
	  echo "hint: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 3; }
ifeq ($(HAS_TORCH),yes)
	$(BASE) -m venv --system-site-packages $(VENV)
	$(INSTALL) -e '.[dev]'
else
	$(BASE) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -e '.[dev]'
endif
	@$(COMPILE)
	@touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
