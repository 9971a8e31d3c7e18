# A newcomer's two commands are `make demo` and `make test`; each sets up what it needs in .venv: the demo what the
# program runs on, everything else the tools of development, too.
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/.runtime
READY := .venv/.ready
REGISTRY ?=
CONTAINER_TOOL ?= docker
PLATFORMS ?= linux/amd64,linux/arm64
IMAGE_FLAGS ?=
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' neuron_plugin/__init__.py 2>/dev/null)
TAGGED := $(if $(REGISTRY),$(REGISTRY)/)neuron-plugin:$(VERSION)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The demo and many tests start daemons as processes of their own: without bytecode each would compile every library.
unexport PYTHONDONTWRITEBYTECODE

# pip is silent while it unpacks: $(call dotted,TEXT,COMMANDS) prints a dot a second until they are done. The dots end
# with this shell, too, so that Ctrl-C leaves nothing behind.
dotted = printf '%s ' '$(1)'; while kill -0 $$$$ 2>/dev/null; do printf .; sleep 1; done & \
	$(2); status=$$?; kill $$!; echo; exit $$status

# A lock is complete, so nothing has to be resolved; bytecode is made of what is imported, when it is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCKED := $(PIP) --no-compile --require-hashes

.PHONY: demo test check venv lock protos docs pictures bench image clean

demo: $(RUNTIME)
	$(BIN)/neuron-plugin demo

test: venv
	$(BIN)/pytest --numprocesses auto --dist worksteal

check: venv
	$(BIN)/nox --non-interactive --no-venv --sessions lint types layers protos-check

venv: $(READY)

$(RUNTIME): locks/runtime.txt locks/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python %d.%d found, 3.11 or newer is needed: make PYTHON=python3.11" % sys.version_info[:2])'
	@$(call dotted,Making .venv with what the program runs on, \
		$(PYTHON) -m venv --clear .venv && \
		$(LOCKED) --requirement locks/runtime.txt --requirement locks/build.txt && \
		$(PIP) --no-build-isolation --editable . && touch $(RUNTIME))

$(READY): $(RUNTIME) locks/dev.txt
	@$(call dotted,Adding the tools of development, $(LOCKED) --requirement locks/dev.txt && touch $(READY))

# Locks name versions and hashes only, for every platform; `uv` resolves them.
lock: venv
	$(BIN)/nox --non-interactive --no-venv --sessions lock

protos: venv
	$(BIN)/nox --non-interactive --no-venv --sessions protos

docs: venv
	$(BIN)/nox --non-interactive --no-venv --sessions docs

pictures: venv
	$(BIN)/nox --non-interactive --no-venv --sessions pictures

bench: venv
	$(BIN)/nox --non-interactive --no-venv --sessions bench

# `make image` for this machine; `make image REGISTRY=registry.example.com/team` for all of PLATFORMS, and pushed there.
# CONTAINER_TOOL may be docker, podman or buildah. The latter two add to a list that is there, so it is removed first.
image: FLAGS = --build-arg REVISION="$$(git rev-parse HEAD)" $(IMAGE_FLAGS)
image:
ifeq ($(REGISTRY),)
	$(CONTAINER_TOOL) build $(FLAGS) --tag $(TAGGED) .
else ifeq ($(notdir $(CONTAINER_TOOL)),docker)
	docker buildx build $(FLAGS) --platform $(PLATFORMS) --tag $(TAGGED) --push .
else
	@$(CONTAINER_TOOL) manifest rm $(TAGGED) >/dev/null 2>&1 || true
	$(CONTAINER_TOOL) build $(FLAGS) --platform $(PLATFORMS) --manifest $(TAGGED) .
	$(CONTAINER_TOOL) manifest push --all $(TAGGED) docker://$(TAGGED)
endif

clean:
	rm -rf .venv .nox .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
