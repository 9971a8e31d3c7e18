# A newcomer's two commands are `make demo` and `make test`; each sets up everything it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test check venv lock protos docs bench clean

demo: venv
	$(BIN)/neuron-plugin demo

test: venv
	$(BIN)/pytest

check: venv
	$(BIN)/nox --non-interactive --no-venv --sessions lint types layers protos-check

venv: $(READY)

$(READY): locks/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python %d.%d found, 3.11 or newer is needed: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement locks/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

# Locks name versions and hashes only, for every platform; `uv` resolves them.
lock: venv
	$(BIN)/nox --non-interactive --no-venv --sessions lock

protos: venv
	$(BIN)/nox --non-interactive --no-venv --sessions protos

docs: venv
	$(BIN)/nox --non-interactive --no-venv --sessions docs

bench: venv
	$(BIN)/nox --non-interactive --no-venv --sessions bench

clean:
	rm -rf .venv .nox .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
