# One target for each thing that people do. `make demo PYTHON=python3.12` chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Versions of the Hub's client that what is installed on a server is loaded with.
HUBS := 0.36 1.33 2.4
MIRROR := $(BIN)/mirror

.PHONY: help demo test lint fuzz bench faults format clean

help:
	@echo "make demo    build, install and verify manifests/demo.yaml on this machine"
	@echo "make test    lint, then every test, real ones too (about twenty minutes)"
	@echo "make lint    ruff, mypy, import rules"
	@echo "make format  ruff's formatter and its safe fixes"
	@echo "make fuzz    wrong bytes for every reader of bundles, for ten minutes (SECONDS=600)"
	@echo "make bench   speed, side by side with cat, tar, aria2c, hf, uv, pip and rattler"
	@echo "make faults  every kill, refused call, power cut and wrong input (an hour)"
	@echo "make clean   remove what the above made"

demo: .venv/demo.stamp
	$(MIRROR) build manifests/demo.yaml
	$(MIRROR) install bundles/demo-*.tar.gz --root .demo
	$(MIRROR) verify --root .demo

test: lint .venv-olah/stamp .venv-ray/stamp $(HUBS:%=.venv-hub-%/stamp)
	$(BIN)/python -m pytest -n 2 --dist loadscope

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

SECONDS := 600
fuzz: .venv/test.stamp
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS)

bench: .venv/test.stamp
	$(BIN)/python -m tests.bench.run

faults: .venv/test.stamp
	$(BIN)/python -m tests.faults.run --all

clean:
	rm -rf .venv .venv-olah .venv-ray $(HUBS:%=.venv-hub-%) .demo bundles/*.tar.gz build dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing mirror, torch and accelerate into .venv; the first time takes a while."
	$(PIP) install --quiet --constraint constraints.txt --editable '.[train]'
	@touch $@

.venv/test.stamp: .venv/demo.stamp
	$(PIP) install --quiet --constraint constraints.txt --editable '.[train,test]'
	@touch $@

# A third-party hub server, for one end-to-end test; it wants an environment of its own.
.venv-olah/stamp: constraints.txt
	$(PYTHON) -m venv .venv-olah
	.venv-olah/bin/python -m pip --disable-pip-version-check install --quiet olah==0.5.4
	@touch $@

# Ray, for the stage `ray`: not in .venv, whose packages would have to suit it.
.venv-ray/stamp: | .venv/test.stamp
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-ray
	$(BIN)/uv pip install --quiet --python .venv-ray/bin/python 'ray>=2.40'
	@touch $@

.venv-hub-%/stamp: | .venv/test.stamp
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-hub-$*
	$(BIN)/uv pip install --quiet --python .venv-hub-$*/bin/python 'huggingface_hub==$*.*'
	@touch $@
