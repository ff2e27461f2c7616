# All commands run from .venv and write only inside this checkout. .ci/setup installs what they need of the system.

SHELL := bash
.SHELLFLAGS := -o pipefail -c

BIN := .venv/bin
STAMP := .venv/.installed
# MPL-2.0, in tests only
AXE := 4.14.1
AXE_SHA512 := 1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5
AXE_STAMP := .local/npm/axe-core-$(AXE).checked
SOURCES := jobs tests dags plugins docs/site

# Four workers, because tests often wait for a server: they need two cores, and 12 GB of memory.
ON_TWO_CORES := -n 4 --no-loadscope-reorder

# Where .ci/setup puts a Java and a PgBouncer that it has unpacked; those of the system come first.
export PATH := $(PATH):$(CURDIR)/$(BIN)

# A test run starts hundreds of processes that import the same modules, so keep the bytecode even if the shell disables it.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help venv java servers browser archive jars demo test test-slow test-long test-airflow test-browser test-spark matrix fuzz faults soak mutants bench bench-page docs reference lint format requirements release-check clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# setuptools leaves an egg-info beside the sources. Airflow would take it for a second installation, and report that the
# page is registered twice.
venv: $(STAMP) ## install all packages into .venv (1.6 GB; takes a minute or two on a fast connection)

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml
	@.ci/setup python
	@echo '· installing packages into .venv'
	@{ $(BIN)/python -m pip install --quiet --retries 1 --disable-pip-version-check --require-hashes \
	    -r <(sed -n '/^uv==/,/# via/p' requirements-dev.txt) \
	  && $(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --require-hashes \
	    -r requirements.txt -r requirements-dev.txt 2>&1 | sed '/^ [+~-] /d' \
	  && $(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation --editable . \
	  && rm -rf jobs/*.egg-info; } || { \
	  echo 'error: could not install the packages of requirements.txt.' \
	    'Check the network and the lines above, then run `make venv` again.' >&2; exit 1; }
	@touch $@

java: $(STAMP)
	@.ci/setup java

archive: java ## record the classes of Spark's JVM, so that drivers start sooner (150 MB, once)
	@$(BIN)/exactbatch archive

jars: java ## download the Kafka broker's jars into .local/jars (45 MB, once)
	@$(BIN)/python -m exactbatch.local jars

demo: archive ## run flights through real Kafka, Airflow, Spark and Postgres; EXIT=1 stops the servers afterwards
	@$(BIN)/python -m exactbatch.local.demo $(if $(EXIT),--exit)

servers: $(STAMP)
	@.ci/setup java pgbouncer

test: servers ## run the tests except the slow ones, with real Kafka, Postgres, Spark and Airflow; ARGS="-k name" selects some of all
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@$(BIN)/python -m exactbatch.compiled >/dev/null # once, instead of by each worker
	@$(BIN)/python -m pytest $(ON_TWO_CORES) -m "not slow" tests/e2e tests/faults tests/integration tests/unit
endif

test-slow: servers ## run the slow tests: whole scenarios in Airflow, clusters, failovers, networks, random histories
	@$(BIN)/python -m exactbatch.compiled >/dev/null
	@$(BIN)/python -m pytest $(ON_TWO_CORES) -m slow tests/e2e tests/faults tests/integration tests/unit $(ARGS)

test-long: servers ## run the tests with servers in their long form: a day's backfill, all moments, more random steps and values
	@EXACTBATCH_LONG=1 $(BIN)/python -m pytest tests/e2e tests/faults tests/integration $(ARGS)

test-spark: java ## run the tests that every supported Spark passes, with another one: SPARK=4.1.4; ARGS="--python python3.13"
	@$(BIN)/python tests/versions/run_spark.py $(SPARK) $(ARGS)

test-airflow: java ## run what a scheduler runs, and the page, on another Airflow: VERSION=3.0.6, 3.1.8, 3.2.2 or 2.11.2, installed in .local/venvs (1.4 GB)
	@$(BIN)/python tests/versions/run_airflow.py $(VERSION) $(ARGS)

matrix: servers ## run what each version of Airflow, Spark, Python, Postgres and Kafka promises → docs/requirements.md; ARGS=--all, or ARGS=Kafka=2.8.2
	@$(BIN)/python tests/versions/matrix.py $(ARGS)

fuzz: $(STAMP) ## decode hostile records of each format in 2 GB of address space, MINUTES=10 for each (30 with EXACTBATCH_LONG=1)
	@EXACTBATCH_FUZZ_MINUTES=$(or $(MINUTES),$(if $(EXACTBATCH_LONG),30,10)) $(BIN)/python -m pytest tests/unit/test_fuzzed_formats.py $(ARGS)

browser: $(STAMP)
	@.ci/setup java chromium npm

$(AXE_STAMP): | browser
	@mkdir -p $(@D) && cd $(@D) && npm pack --loglevel error axe-core@$(AXE) >/dev/null \
	  && sha512sum --check --quiet <<<'$(AXE_SHA512)  axe-core-$(AXE).tgz' && tar xzf axe-core-$(AXE).tgz || { \
	  echo 'error: npm could not fetch axe-core $(AXE), or it has changed. Check the network and the lines above, then' \
	    'run this again.' >&2; exit 1; }
	@touch $@

test-browser: browser $(AXE_STAMP) ## try Airflow's page of pipelines in Chromium, check it with axe, and picture it in build/page
	@$(BIN)/python -m pytest tests/browser $(ARGS)

faults: java ## run every fault at every moment with every sink → docs/evidence/faults.md; ARGS=rest continues an interrupted run
	@PYTHONPATH=tests $(BIN)/python -m support.faults.run_matrix $(ARGS)

soak: java ## run random faults for MINUTES=30 with SEED=…; exit status 0 only if every record is loaded exactly once
	@PYTHONPATH=tests $(BIN)/python -m soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: java ## break a copy of the program in one place at a time, and check that tests fail each time
	@$(BIN)/python tests/mutants.py $(ARGS)

bench: java ## compare speed and memory with other ways to load a topic
	@$(BIN)/python tests/benchmarks/bench.py $(ARGS)

bench-page: $(STAMP) ## write docs/evidence/benchmark.md from the numbers of the benchmarks
	@$(BIN)/python tests/benchmarks/page.py

docs: $(STAMP) ## build the documentation as a site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

reference: $(STAMP) ## write docs/reference/commands.md from the commands
	@$(BIN)/python docs/site/commands.py

lint: $(STAMP) ## check style, types and the direction of imports
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

requirements: $(STAMP) ## compile requirements*.in into requirements*.txt; ARGS=--upgrade takes newer versions
	$(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 requirements.in requirements-local.in requirements-fast.in -o requirements.txt $(ARGS)
	$(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 requirements-executor.in -o requirements-executor.txt $(ARGS)
	$(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 requirements-dev.in -o requirements-dev.txt $(ARGS)

release-check: $(STAMP) ## build the wheel and its bill of materials (CycloneDX) in build/release, and say what a release lacks
	@rm -rf build/release && mkdir -p build/release
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir build/release
	@$(BIN)/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml --output-file build/release/sbom.json \
	  requirements.txt
	@cd build/release && sha256sum *.whl sbom.json > SHA256SUMS && cat SHA256SUMS
	@$(BIN)/python tests/release_check.py

clean: ## stop the local stacks; remove their data and all caches, but not .venv and the jars
	@for state in .local/*/state.json; do \
	  test ! -e "$$state" || $(BIN)/python -m exactbatch.local down --delete --yes --home .local --name "$$(basename "$$(dirname "$$state")")" \
	  || exit 1; done
	@rm -rf .local/*.jsa build jobs/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	@find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
