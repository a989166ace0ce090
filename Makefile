# Every target makes the environment it needs inside the checkout (.venv) and is quick
# the second time. PYTHON chooses the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARCHIVE := $(VENV)/spark.jsa
# How many processes run tests. Two of them have those with a JVM; tests wait for disks,
# sockets and each other's processes, so that four keep two cores busy.
TEST_PROCESSES ?= 4
# How long `make fuzz` and how many rounds `make crash` run.
FUZZ_SECONDS ?= 300
CRASH_ROUNDS ?= 2000
# How long `make soak` runs, and how many rows `make long` sends through Spark.
SOAK_SECONDS ?= 3600
# How long each campaign runs, and which of them: CAMPAIGN="kill flips"; all by default.
CAMPAIGN_SECONDS ?= 1800
CAMPAIGN ?=
LONG_ROWS ?= 20000000
# What `make compare` compares with, the least ratio that passes, how many rounds, and
# what is measured: COMPARE="broker columnar spark".
BASE ?= main
COMPARE_MIN ?= 0.97
COMPARE_ROUNDS ?= 9
COMPARE ?= broker columnar

# How `make bench-kafka` measures: BENCH_KAFKA="--quick --rounds 3".
BENCH_KAFKA ?=

.DEFAULT_GOAL := help
.PHONY: help env demo test check docs notebooks screenshots bench bench-kafka compare fuzz crash soak campaign long coverage format dist clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml setup.py $(wildcard lance_spark/*/*.c) scripts/preflight
	@scripts/preflight "$(PYTHON)"
	@echo "Creating $(VENV) (about a minute, once) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,cli,metrics,ui,sql,docs,dev]'
	@touch $(READY)

# A JVM starts in half the time with it, and the tests start many.
$(ARCHIVE): $(READY)
	@echo "Archiving the classes of Spark (about a minute, once) ..."
	@$(BIN)/python -m tests.spark.engine.archive 2>/dev/null || echo "without it the tests take longer"

env: $(READY) ## Create or refresh the environment in .venv.

demo: $(READY) ## Kill a broker under load, then read, write and stream with Spark.
	@$(BIN)/lance-spark demo

# Without a browser its tests are skipped, and say why.
test: $(ARCHIVE) ## Run the test suite.
	@scripts/browser >/dev/null || echo "tests of the console will be skipped"
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup --no-loadscope-reorder

check: $(READY) ## Lint, format, types (strict) and the layer rule.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_layers.py
	@$(MAKE) --no-print-directory docs

# Without --quiet, which would also hide from --strict what it counts. The variable keeps
# the theme from advertising its successor in every build.
docs: $(READY) ## Build the documentation site into .build/site; broken links fail.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open .build/site/index.html"

notebooks: $(READY) ## Run the notebooks from clean, and write what they show into them.
	@$(BIN)/python scripts/run_notebooks.py

screenshots: $(READY) ## Take the pictures of the console anew.
	@scripts/browser >/dev/null
	@LANCE_SCREENSHOTS=1 $(BIN)/python -m pytest -q tests/console/test_screenshot.py

bench: $(READY) ## Measure, as ratios; rewrites tables and pictures of docs/performance.md.
	@$(BIN)/python -m benchmarks

bench-kafka: $(READY) ## Measure against Spark's own Kafka source and sink; fetches Kafka.
	@$(BIN)/python -m benchmarks.kafka $(BENCH_KAFKA)

compare: $(READY) ## Measure this checkout and revision BASE (main) in turns; print ratios.
	@$(BIN)/python -m benchmarks.compare $(BASE) --parts $(COMPARE) --rounds $(COMPARE_ROUNDS) --min $(COMPARE_MIN)

fuzz: $(READY) ## Fuzz the codec for FUZZ_SECONDS (300).
	@LANCE_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -m fuzz

crash: $(READY) ## Kill and recover store and broker CRASH_ROUNDS (2000) times.
	@LANCE_CRASH_ROUNDS=$(CRASH_ROUNDS) $(BIN)/python -m pytest -m crash

soak: $(READY) ## Load a broker, and kill streaming queries, SOAK_SECONDS (3600) each.
	@LANCE_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak

campaign: $(READY) ## Run each campaign CAMPAIGN_SECONDS (1800), or those of CAMPAIGN.
	@LANCE_CAMPAIGN_SECONDS=$(CAMPAIGN_SECONDS) $(BIN)/python -m pytest -m campaign --campaign "$(CAMPAIGN)"

long: $(READY) ## Send LONG_ROWS (20 000 000) rows through Spark and back.
	@LANCE_LONG_ROWS=$(LONG_ROWS) $(BIN)/python -m pytest -m long

coverage: $(READY) ## Run the tests under branch coverage.
	@$(BIN)/python -m coverage run -m pytest -q
	@$(BIN)/python -m coverage report --show-missing --skip-covered

format: $(READY) ## Reformat the code.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

dist: $(READY) ## Build wheel and source distribution into dist.
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@ls dist

clean: ## Remove the environment and everything built.
	rm -rf $(VENV) .build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find lance_spark -name '*.so' -delete
