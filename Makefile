# `make demo` and `make test` do everything, set-up included. Nothing is installed outside .venv.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A third of what is installed is hardly ever loaded. Python compiles it then. pip would compile all, on one core.
SELDOM := site-packages/(.*/tests?|transformers/models)/
PACKAGES := protocol models node bootstrap lab
# tests/conftest.py says how many workers, which is none for a selection; ARGS='-n 0' keeps all tests in one process.
SIDE_BY_SIDE := -n auto --dist loadscope --no-loadscope-reorder
# Where real swarms are, so that no worker looks at twelve thousand other tests for them (tests/test_tiers.py).
SWARMS := -o testpaths="tests/swarm tests/docs"

# A night's worlds of lying peers: other ones each day.
SEED ?= $(shell date +%Y%m%d)000000

.PHONY: help setup demo quick test test-swarm night lint format messages wheels clean

help:
	@echo "make demo        a swarm on this machine trains, loses a stage and heals (ARGS='--steps 100' are passed on)"
	@echo "make quick       tests of the rooms that you changed, the core's tables, 50 seeds: half a minute"
	@echo "make test        what every change has to pass, but for real swarms, side by side (ARGS='-k name' selects)"
	@echo "make test-swarm  the same with real swarms, side by side"
	@echo "make night       all tests, with all seeds and swarms, hostile bytes and a million lies to the core: four hours"
	@echo "make lint        ruff and mypy, which looks again at what has changed only"
	@echo "make format      ruff's formatter"
	@echo "make messages    protobuf's Python for node/links/p2pd_wire.proto, after a change of it"
	@echo "make wheels      what others install without a compiler, into dist/"
	@echo "make setup       only the virtual environment in $(VENV)"
	@echo "make clean       remove $(VENV), caches and build folders"

setup: $(STAMP)

# The stamp is written last, so that a set-up that was cut off starts again.
$(STAMP): pyproject.toml constraints.txt .ci/wheels
	@test -n "$(PYTHON)" || { echo "ftnode needs Python 3.11, 3.12 or 3.13"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13; choose one with make PYTHON=..."; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	.ci/wheels build/wheels "$(BIN)/python"
	"$(BIN)/pip" install --quiet --disable-pip-version-check --no-compile --find-links build/wheels -c constraints.txt \
		-e '.[dev]'
	"$(BIN)/python" -m compileall -qq -j 0 -x '$(SELDOM)' "$(VENV)"/lib/python3.*/site-packages || true
	touch "$@"

demo: $(STAMP)
	"$(BIN)/ftnode" demo $(ARGS)

quick: $(STAMP)
	"$(BIN)/python" -m tests.quick $(ARGS)

test: $(STAMP)
	"$(BIN)/python" -m pytest -rs -m "not swarm and not night" $(SIDE_BY_SIDE) $(ARGS)

test-swarm: $(STAMP)
	"$(BIN)/python" -m pytest -rs -m "swarm and not night" $(SWARMS) $(SIDE_BY_SIDE) $(ARGS)

night: $(STAMP)
	FTNODE_NIGHT=1 "$(BIN)/python" -m pytest -rs -m "not swarm" --hypothesis-profile night $(SIDE_BY_SIDE) $(ARGS)
	"$(BIN)/python" -m pytest -rs -m swarm $(SIDE_BY_SIDE) -n $(shell nproc) $(ARGS)
	"$(BIN)/python" -m tests.node.fuzz_bytes --seconds 600 --seed $(SEED)
	"$(BIN)/python" -m tests.sim.fuzz $(SEED) $$(($(SEED) + 999999)) --events 1000000
	"$(BIN)/python" -m tests.sim.lying_members $(SEED) $$(($(SEED) + 1999)) --processes $(shell nproc)

# mypy looks for the packages under the names that they are imported by; on disk they stand at the top.
lint: $(STAMP)
	@mkdir -p build/typing/ftnode
	@for package in $(PACKAGES); do ln -sfn ../../../$$package build/typing/ftnode/$$package; done
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	MYPYPATH="$(CURDIR)/build/typing" "$(BIN)/mypy" --strict $(addprefix -p ftnode.,$(PACKAGES))

format: $(STAMP)
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

messages: $(STAMP)
	"$(BIN)/python" -m grpc_tools.protoc --proto_path=node/links --python_out=node/links --pyi_out=node/links node/links/p2pd_wire.proto

wheels: $(STAMP)
	rm -rf dist build/lib build/bdist.*
	.ci/wheels dist "$(BIN)/python"
	"$(BIN)/pip" wheel --quiet --disable-pip-version-check --no-deps -w dist .

clean:
	rm -rf "$(VENV)" build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
