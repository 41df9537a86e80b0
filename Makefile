# Every target does its own set-up: all it needs is Python 3.10 or later with its venv module, and pip's indexes.

PYTHON ?= python3
# More arguments for the tool behind a target: make test ARGS="-k dispatcher"
ARGS ?=
# Families of benchmarks: make bench ONLY="emission counters"
ONLY ?=

ENVIRONMENT := $(PYTHON) tools/environment.py
BIN := .venv/bin

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo:  ## train a small model on two ranks and see what trackside saw
	@$(ENVIRONMENT) .venv --extra torch
	@$(BIN)/python examples/train_charlm.py $(ARGS)

.PHONY: test
test:  ## run the tests on every Python here, the long recipes at a tenth
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python tools/every_python.py $(ARGS)

.PHONY: test-all
test-all:  ## run the tests on every supported Python, those too that the machine lacks (as root, from Debian)
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python tools/every_python.py --provide $(ARGS)

# Two processes share the files, not the tests: a file's servers and jobs are set up once.
BY_FILE := --numprocesses 2 --dist loadfile

FLOOR_EXTRAS := accelerate completion google-cloud-logging google-cloud-monitoring lightning mlflow nats nvml \
	opentelemetry parquet prometheus-client psutil pytorch-lightning rich tensorboard torch transformers wandb
FLOOR_TESTS := accelerate fabric google_cloud_logging google_cloud_monitoring lightning lightning_alone mlflow nats \
	opentelemetry parquet prometheus tensorboard transformers wandb

.PHONY: test-floors
test-floors:  ## run the tests beside the oldest libraries that are allowed (Python 3.10 or 3.11)
	@$(ENVIRONMENT) .venv-floors --floors $(addprefix --extra ,$(FLOOR_EXTRAS)) --group floors
	@.venv-floors/bin/python tools/twice.py --numprocesses 2 --scale 0.01 -m "not integration and not once" \
		tests/wire tests/events tests/counters tests/handlers/eventlog --ignore tests/wire/test_hostile.py \
		$(addprefix tests/handlers/zeromq/test_,attach.py bounds.py reconnecting.py) $(ARGS)
	@# Some of the oldest clients leave sockets to the garbage collector.
	@.venv-floors/bin/python tools/twice.py $(BY_FILE) -m integration -W ignore::pytest.PytestUnraisableExceptionWarning \
		$(patsubst %,tests/integration/test_%.py,$(FLOOR_TESTS)) $(ARGS)

.PHONY: test-measured
test-measured:  ## as test-all, but of the Pythons besides the first 3.14 runs all and is measured, and the others the core's
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python tools/every_python.py --provide --measure $(ARGS)

.PHONY: test-long
test-long:  ## run the tests with the long recipes in full
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python -m pytest --full --numprocesses 2 $(ARGS)
	@$(BIN)/python -m pytest --full -m integration tests/handlers/zeromq $(ARGS)

.PHONY: fuzz
fuzz:  ## feed damaged and random input to everything that reads what others wrote, a minute each
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python tests/fuzz/run.py $(ARGS)

.PHONY: soak
soak:  ## run a job for an hour beside killed collectors and stopped viewers, and see that nothing grows
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python tests/soak/run.py $(ARGS)

.PHONY: coverage
coverage:  ## say which lines and branches test-measured and test-integrations reached; fails below the limit
	@$(ENVIRONMENT) .venv-integrations --group coverage
	@if ls build/coverage/data.3.14.* >/dev/null 2>&1; then \
		.venv-integrations/bin/python -W ignore -m coverage combine --quiet --keep && \
		.venv-integrations/bin/python -m coverage report $(ARGS); \
	else echo "coverage: not known, since make test-measured ran no tests on Python 3.14"; fi

.PHONY: verdicts
verdicts:  ## judge every labelled job of the test bed; ARGS=--write renews the table of docs/verdicts.md
	@$(ENVIRONMENT) .venv --extra torch --group test
	@$(BIN)/python tools/verdicts.py $(ARGS)

# The tests of what nothing else reaches. To measure slows others down and would find few lines more.
MEASURED_TESTS := $(patsubst %,tests/integration/test_%.py,$(FLOOR_TESTS) nats_archive nats_collect nats_control \
	one_logger_exporter one_logger_lightning pytorch pytorch_loop straggler_watch) tests/integrations/test_pytorch.py \
	$(patsubst %,tests/compat/test_%.py,straggler torch_monitor torch_monitor_names) tests/instruments/test_collectives.py

.PHONY: test-integrations
test-integrations:  ## run the tests that need heavy third-party systems, most of them measured
	@$(ENVIRONMENT) .venv-integrations --extra torch --group integrations --group coverage
	@rm -f build/coverage/data.integrations.*
	@.venv-integrations/bin/python -m coverage run --data-file=build/coverage/data.integrations tools/twice.py \
		$(BY_FILE) -m "not unmeasured" $(MEASURED_TESTS) $(ARGS) || [ $$? -eq 5 ]  # 5: there are none
	@.venv-integrations/bin/python tools/twice.py $(BY_FILE) -m integration $(addprefix --ignore=,$(MEASURED_TESTS)) $(ARGS) || [ $$? -eq 5 ]

.PHONY: bench
bench:  ## measure speed against the peers; ONLY=emission runs one family
	@$(ENVIRONMENT) .venv-bench --extra torch --group bench
	@.venv-bench/bin/python -m benchmarks $(ONLY) $(ARGS)

.PHONY: profile
profile:  ## count the instructions of the hottest operations and show where their time goes
	@$(ENVIRONMENT) .venv --extra torch
	@$(BIN)/python -m benchmarks.instructions $(ARGS)

.PHONY: lint
lint:  ## check style (ruff)
	@$(ENVIRONMENT) .venv --group lint
	@$(BIN)/ruff check $(ARGS)
	@$(BIN)/ruff format --check

.PHONY: format
format:  ## bring the code into shape (ruff)
	@$(ENVIRONMENT) .venv --group lint
	@$(BIN)/ruff check --fix $(ARGS)
	@$(BIN)/ruff format

.PHONY: types
types:  ## check types (mypy, strict) and how much of the public surface has some (pyright)
	@$(ENVIRONMENT) .venv --extra torch --group test --group types
	@$(BIN)/mypy $(ARGS)
	@$(BIN)/python tools/typed_surface.py

.PHONY: docs
docs:  ## build the documentation into docs/_build
	@$(ENVIRONMENT) .venv --group docs
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build $(ARGS)
	@echo "docs/_build/index.html"

.PHONY: dist
dist:  ## build the sources and the wheels of a release, and try each in a fresh environment
	@$(ENVIRONMENT) .venv-dist --group dist
	@.venv-dist/bin/python tools/dist.py

.PHONY: pictures
pictures:  ## draw the pictures of README and docs from the logs of a real job; ARGS=runs/charlm-…
	@$(ENVIRONMENT) .venv-pictures --extra rich --group pictures
	@.venv-pictures/bin/python tools/pictures.py $(ARGS)

.PHONY: lock
lock:  ## bring requirements.lock up to date with pyproject.toml; ARGS=--upgrade for newer versions
	@$(PYTHON) -m venv .venv-lock # with nothing else in it: what is new in pyproject.toml has no hash yet
	@.venv-lock/bin/python -m pip install --quiet "$$(grep -o '^uv==[^ ]*' requirements.lock)"
	@.venv-lock/bin/python tools/lock.py $(ARGS)

.PHONY: clean
clean:  ## remove every environment and everything built; keeps runs/
	@rm -rf .venv .venvs .venv-* build dist docs/_build docs/reference docs/metric-names.md docs/vocabulary.md
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests examples tools docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
