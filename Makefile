# Two commands on a fresh machine: `make run` and `make test`. They need Python 3.11 or newer, and
# build everything else in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Twice the cores: many tests wait for sockets and timers.
CI_JOBS ?= 4
COMPILED := $(wildcard */_compiled.pyx */*/_compiled.pyx)
MINUTES ?= 30
SEEDS ?= 2000
KILLS ?= 20

.DEFAULT_GOAL := help
.PHONY: help run test coverage lint format bench bench-clients bench-console soak soak-client damage cluster stream-kills bench-spark test-spark screenshots fuzz mutants java chromium clean

help: ## list these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Made last, so that an environment that was left half built (no python3-venv, no network) is built
# again from the start.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "nsqd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.run: pyproject.toml hatch_build.py $(COMPILED) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.test: pyproject.toml hatch_build.py $(COMPILED) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test --group lint --editable '.[spark]'
	@touch $@ $(VENV)/.run

$(VENV)/.fuzz: pyproject.toml | $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group fuzz
	@touch $@

$(VENV)/.mutants: pyproject.toml | $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group mutants
	@touch $@

run: $(VENV)/.run ## run nsqd on its usual ports, with its data in ./data (ARGS="--flag=value ...")
	@mkdir -p data
	$(BIN)/nsqd --data-path=data $(ARGS)

test: $(VENV)/.test java chromium ## run all tests (ARGS="-k name" for some)
	$(BIN)/python -m pytest -q -n $(CI_JOBS) tests $(ARGS)

# Tracing changes what reference counting leaves behind, so the tests of that are left out.
coverage: $(VENV)/.test java ## run all tests and show the branch coverage of each package (ARGS="-k name")
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -q -n $(CI_JOBS) tests --deselect tests/wire/test_reference_cycles.py $(ARGS); \
	  status=$$?; $(BIN)/coverage combine -q && $(BIN)/coverage json -q && $(BIN)/python -m tests.coverage_table && exit $$status

lint: $(VENV)/.test ## check layout, style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy nsqd console diskqueue lookupd nsqadmin spark_jobs bench tests

format: $(VENV)/.test ## lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.run ## measure (ARGS=fairness: how long clients wait; ARGS=--clients: see bench-clients; ARGS='--against "CMD or host:port"': two in turns)
	$(BIN)/python -m bench $(ARGS)

bench-clients: $(VENV)/.test ## measure nsqd.client and nsq, with pynsq and Go's tools (ARGS="--against nsqd")
	$(BIN)/python -m bench.clients $(ARGS)

bench-console: $(VENV)/.test chromium ## measure every bar of the console, in 8 minutes (ARGS="page": that part alone)
	$(BIN)/python -m tests.console.bars $(ARGS)

soak: $(VENV)/.test ## kill nsqd and cut its power for MINUTES=30 (SEED=kill-1 plays one round again)
	$(BIN)/python -m tests.crash.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak-client: $(VENV)/.test ## kill and freeze nsqds under a producer and a consumer for MINUTES=30
	$(BIN)/python -m tests.client.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

damage: $(VENV)/.test ## damage queue files in any place, SEEDS=2000 times, and look what is left
	$(BIN)/python -m tests.crash.damage --seeds $(SEEDS) $(ARGS)

stream-kills: $(VENV)/.test java ## kill a Spark query and its nsqd KILLS=20 times each, and count the rows
	$(BIN)/python -m tests.spark.stream_kills --kills $(KILLS) $(ARGS)

cluster: $(VENV)/.run ## watch 2 nsqlookupd, 3 nsqd and nsqadmin at work (ARGS="--chaos 3" kills one every 3 s)
	$(BIN)/python -m bench.cluster $(ARGS)

screenshots: $(VENV)/.test chromium ## take the pictures of docs/console.md
	$(BIN)/python -m tests.console.screenshots $(ARGS)

bench-spark: $(VENV)/.test java ## measure how fast Spark reads queues and publishes (ARGS="--rounds 3")
	$(BIN)/python -m bench.spark $(ARGS)

# CI runs on the newest pyspark that pyproject.toml allows; this is its lower bound.
SPARK ?= 4.2.0
test-spark: $(VENV)/.test java ## run the Spark tests on another pyspark, the oldest allowed (SPARK=4.2.0)
	$(BIN)/pip install --quiet --upgrade --target $(VENV)/pyspark-$(SPARK) "pyspark==$(SPARK)"
	PYTHONPATH=$(abspath $(VENV))/pyspark-$(SPARK) $(BIN)/python -m pytest -q tests/spark $(ARGS)

fuzz: $(VENV)/.fuzz ## look for bytes that break a reader (TARGET=wire SECONDS=60 ARGS="--seed 1")
	$(BIN)/python -m tests.fuzz --target $(or $(TARGET),all) --seconds $(or $(SECONDS),60) $(ARGS)

mutants: $(VENV)/.mutants ## change SAMPLE=200 lines by lot, one at a time, and count the changes that tests notice (SEED=1)
	$(BIN)/python -m tests.mutation --seed $(or $(SEED),1) --sample $(or $(SAMPLE),200) $(ARGS)

chromium: # tests/console opens the page in it
	@sh .ci/ensure_chromium

java: # Spark's tests need Java 17 or newer
	@sh .ci/ensure_java

clean: ## remove what was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
