# Commands for developing Sluice; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JARS := .sluice/jars/.provided
FAB := build/fab/.installed
KEYCLOAK := build/keycloak/.installed

# Without bytecode files, every process would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

# Set-up should also work on slow networks.
export UV_HTTP_TIMEOUT ?= 180
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1mmake %-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(JARS) ## Create .venv and download the jars; does nothing if both are up to date

.PHONY: demo
demo: $(JARS) ## Start Kafka and Airflow, process sample orders and query the results; EXIT=1 stops after the queries; PIPELINE=words; FORMAT=avro, protobuf or json_schema
	@$(BIN)/sluice demo $(PIPELINE) $(if $(EXIT),--exit) $(if $(FORMAT),--format $(FORMAT))

.PHONY: test
test: $(JARS) ## Run all tests but the heavy ones, in PROCESSES=6; or pass ARGS= to pytest in one process, e.g. ARGS='tests/unit -x'
	@$(BIN)/pytest $(or $(ARGS),-n $(or $(PROCESSES),6) --durations=15)

.PHONY: lint
lint: $(INSTALLED) ## Check style, format, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: fmt
fmt: $(INSTALLED) ## Format the code and sort imports
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: docs
docs: $(INSTALLED) ## Generate docs/reference.md, docs/licences.md, the drawings and the list of packages, and build the site in build/docs
	@$(BIN)/python -m docs.make_reference
	@$(BIN)/python -m docs.make_licences
	@$(BIN)/python -m docs.packages_picture
	@$(BIN)/python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going docs build/docs
	@echo "The site's first page is build/docs/index.html"

.PHONY: bench
bench: $(JARS) ## Time a million orders; PEER=folder also times the Kafka Streams program there; ARGS='--orders 10000000'
	@PYTHONPATH=. $(BIN)/python benchmarks/orders.py $(if $(PEER),--peer "$(PEER)") $(ARGS)

.PHONY: bench-scaling
bench-scaling: $(JARS) ## Show how time, CPU and memory grow: ARGS='records keys shards partitions stores groupings shapes workers executors outputs model'
	@PYTHONPATH=. $(BIN)/python benchmarks/scaling.py $(ARGS)

.PHONY: bench-operators
bench-operators: $(JARS) ## Time a million records through each kind of operator; PEER= as above, ARGS='--records N --kind K --before CHECKOUT'
	@PYTHONPATH=. $(BIN)/python benchmarks/operators.py $(if $(PEER),--peer "$(PEER)") $(ARGS)

.PHONY: bench-workers
bench-workers: $(INSTALLED) ## Show where the workers' CPU time for each kind of operator goes; ARGS='--records N --batches N --kind K --runs N'
	@PYTHONPATH=. $(BIN)/python benchmarks/workers.py $(ARGS)

.PHONY: bench-formats
bench-formats: $(INSTALLED) ## Time the decoding and encoding of orders in JSON, JSON Schema, Avro and Protobuf; ARGS='--records N --runs N'
	@PYTHONPATH=. $(BIN)/python benchmarks/formats.py $(ARGS)

.PHONY: nexmark
nexmark: $(JARS) ## Time the 24 queries of Nexmark over a million events; PEER=folder-with-Flink, ARGS='--events N --query q5'
	@PYTHONPATH=. $(BIN)/python benchmarks/nexmark.py $(if $(PEER),--peer "$(PEER)") $(ARGS)

.PHONY: bench-tests
bench-tests: $(INSTALLED) ## Time the test driver: the first result of a process, a further driver, a thousand records; ARGS='--runs N', PEER=1 for Kafka Streams' beside it
	@PYTHONPATH=. $(BIN)/python benchmarks/drivers.py $(if $(PEER),--peer) $(ARGS)

.PHONY: bench-freshness
bench-freshness: $(JARS) ## Time records until REST answers with them, from idle and while lingering; ARGS='--bursts 30'
	@PYTHONPATH=. $(BIN)/python benchmarks/freshness.py $(ARGS)

.PHONY: bench-fleet
bench-fleet: $(JARS) ## Time the runs of PIPELINES=60 small pipelines, cold and with a warm driver; PEER=1 for Kafka Streams' beside it, ARGS='--active 10 --records 1000 --rounds 3 --places 2'
	@PYTHONPATH=. $(BIN)/python benchmarks/fleet.py $(if $(PIPELINES),--pipelines $(PIPELINES)) $(if $(PEER),--peer) $(ARGS)

.PHONY: bench-monitoring
bench-monitoring: $(JARS) ## Show what the overview, /metrics and the DAG file cost for many pipelines; ARGS='--pipelines 60'
	@PYTHONPATH=. $(BIN)/python benchmarks/monitoring.py $(ARGS)

.PHONY: bench-query
bench-query: $(JARS) ## Time queries with wrk; PEER= as above, ARGS='--keys 10000000' adds a large shard
	@PYTHONPATH=. $(BIN)/python benchmarks/queries.py $(if $(PEER),--peer "$(PEER)") $(ARGS)

.PHONY: pictures
pictures: $(INSTALLED) ## Picture every view of the page at two widths, light and dark, in FOLDER=build/pictures; ARGS='--scenes demo 7 60 300'
	@$(BIN)/python -m tests.browser.pictures $(or $(FOLDER),build/pictures) $(ARGS)

.PHONY: backlog
backlog: $(JARS) ## Run a backlog of RECORDS=100000 in batches of 1,000 and 10,000 and in one, and compare the results
	@BACKLOG=$(or $(RECORDS),100000) $(BIN)/pytest tests/engine/test_backlog.py -m "" -k size_of_batches

.PHONY: test-heavy
test-heavy: $(JARS) ## Run the tests that `make test` leaves out, except fault scenarios; ARGS='tests/docs -m heavy'
	@$(BIN)/pytest $(or $(ARGS),-m "(heavy or hypothesis) and not faults" --hypothesis-profile=heavy -n $(or $(PROCESSES),5) --durations=15)

.PHONY: test-spark
test-spark: $(JARS) ## Run on Spark the tests of runs and pipelines that `make test` runs in its own processes; ARGS='-k replay'
	@$(BIN)/pytest tests/engine tests/pipelines --spark $(ARGS)

.PHONY: test-postgres
test-postgres: $(JARS) ## Run the tests of pipelines with their state in PostgreSQL
	@$(BIN)/pytest tests/pipelines --postgres -m "" $(ARGS)

.PHONY: manifests
manifests: $(INSTALLED) ## Validate the manifests in docker/kubernetes against the schemas of Kubernetes's API
	@$(BIN)/uvx --quiet --from kubernetes-validate==1.37.0 kubernetes-validate --strict $(filter-out %/kustomization.yaml,$(wildcard docker/kubernetes/*.yaml))

.PHONY: test-cluster
test-cluster: $(JARS) ## Run orders and words on a Spark cluster with PostgreSQL, and kill a worker, a driver, a server
	@$(BIN)/pytest tests/cluster/test_cluster.py tests/cluster/test_executor_check.py tests/cluster/kills.py -m "" $(ARGS)

.PHONY: test-keycloak
test-keycloak: $(KEYCLOAK) ## Run the tests of the REST API with Airflow's Keycloak auth manager and a real Keycloak
	@PYTHONPATH=. build/keycloak/bin/python -m pytest tests/api --keycloak $(ARGS)

.PHONY: test-fab
test-fab: $(FAB) ## Run the tests of the REST API with Airflow's FAB auth manager, in a virtual environment of their own
	@PYTHONPATH=. build/fab/bin/python -m pytest tests/api --fab $(ARGS)

.PHONY: test-namespaces
test-namespaces: $(JARS) ## Test state servers, and drivers, in separate network namespaces; needs root
	@$(BIN)/pytest tests/servers/namespaces.py tests/cluster/drivers_in_namespaces.py

.PHONY: test-image
test-image: $(INSTALLED) ## Make the image of docker/ and test the services of compose.yaml, with Docker, or Podman as root
	@$(BIN)/pytest tests/image/containers.py $(ARGS)

.PHONY: conformance
conformance: $(JARS) ## Compare results with Kafka Streams': CASES=file, CUTS=one|each|random, FEATURES=a,b, EVERY=N, SPARK=1, CLUSTER=1
	@test -n "$(CASES)" || { echo "Name the file of cases: make conformance CASES=path/to/cases.jsonl" >&2; exit 2; }
	@$(BIN)/python -m tests.conformance.run "$(CASES)" $(if $(CUTS),--cuts $(CUTS)) $(if $(FEATURES),--features $(FEATURES)) \
		$(if $(EVERY),--every $(EVERY)) $(if $(SPARK),--spark) $(if $(CLUSTER),--cluster)

.PHONY: topologies
topologies: $(JARS) ## Compare COUNT=100 random topologies from SEED=1 with the model; or DEFINITIONS=1, TABLES=1, PAIRS=1, TRIPLES=1000, EVERY=N
	@$(BIN)/python -m tests.conformance.topologies --seed $(or $(SEED),1) $(if $(DEFINITIONS),--definitions) \
		$(if $(TABLES),--tables) $(if $(PAIRS),--pairs --every $(or $(EVERY),1)) \
		$(if $(TRIPLES),--triples $(TRIPLES)) $(if $(PAIRS)$(TRIPLES),,--count $(or $(COUNT),100))

.PHONY: model
model: $(INSTALLED) ## Compare the model of the operators with Kafka Streams' answers: CASES='file ...'; needs no Spark
	@test -n "$(CASES)" || { echo "Name files of cases: make model CASES=path/to/cases.jsonl" >&2; exit 2; }
	@$(BIN)/python -m tests.conformance.model $(CASES)

.PHONY: chaos
chaos: $(JARS) ## Play EPISODES=300 of random faults in random pipelines from SEED=1, and compare with the model: ACTIONS=8 POSTGRES=1
	@$(BIN)/python -m tests.chaos --episodes $(or $(EPISODES),300) --seed $(or $(SEED),1) --actions $(or $(ACTIONS),8) \
		$(if $(POSTGRES),--postgres)

.PHONY: faults
faults: $(JARS) ## Kill, pause and starve processes, and compare the results; ARGS='F1 F7' KILLS= PIPELINE= SHARDS=
	@KILLS="$(or $(KILLS),100)" PIPELINE="$(or $(PIPELINE),orders words)" SHARDS="$(or $(SHARDS),sqlite postgres)" \
		$(BIN)/python -m tests.faults $(ARGS)

.PHONY: incidents
incidents: $(JARS) ## Stage incidents on a real platform, and time when each place names them; ARGS='pool lease --write'
	@$(BIN)/python -m tests.incidents $(ARGS)

.PHONY: soak
soak: $(JARS) ## Let a run linger for MINUTES=10 at RATE=300 records a second, and show which processes and folders grow
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) --rate $(or $(RATE),300)

.PHONY: matrix
matrix: $(JARS) ## Try combinations of versions, each in an environment of its own: FOLDER=, CELLS='airflow3.1 spark4.0', PARTS='check orders', KEEP=1, WRITE=1
	@$(BIN)/python -m tests.matrix $(if $(FOLDER),--folder "$(FOLDER)") \
		$(if $(PARTS),--parts $(PARTS)) $(if $(WRITE),--write) $(if $(KEEP),--keep) $(if $(CELLS),--cells $(CELLS))

.PHONY: lock
lock: $(INSTALLED) ## Resolve pyproject.toml into requirements.txt and write the jars' checksums
	@$(BIN)/uv pip compile --universal --quiet pyproject.toml --extra dev -o requirements.txt
	@$(BIN)/python -m sluice.provision lock-jars

.PHONY: clean
clean: ## Remove .venv, .sluice and every cache
	rm -rf $(VENV) .sluice build dist *.egg-info spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- Set-up: each step touches a stamp file, and runs again when its dependencies are newer than the file. So every
# target can depend on set-up, and one command is enough after cloning ---

# The first Python of 3.11 or newer, unless PYTHON= names one.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" $(NEW_ENOUGH) && echo "$$python" && break; done)
UV = $(or $(shell command -v uv),$(BIN)/uv)

$(BIN)/python:
	@"$(PYTHON)" $(NEW_ENOUGH) || \
	{ echo "Python 3.11 or newer was not found: install it, or run make PYTHON=/path/to/python3." >&2; exit 2; }
	@echo "Making $(VENV) with $$("$(PYTHON)" --version)"
	@if command -v uv >/dev/null; then uv venv --quiet --allow-existing --python "$(PYTHON)" $(VENV); \
	else "$(PYTHON)" -m venv $(VENV) || \
	{ rm -rf $(VENV); echo "Python's venv module is missing: on Debian, apt-get install python3-venv." >&2; exit 2; }; fi

# uv installs the lock three times as fast as pip. If uv is not on the PATH, the locked version is installed into the venv.
# Compile bytecode now, as pip does: if Python must not write it later, each Airflow process would compile everything.
$(INSTALLED): requirements.txt pyproject.toml | $(BIN)/python
	@command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet "$$(grep -o '^uv==[^ ]*' requirements.txt)"
	@echo "Installing requirements.txt into $(VENV)"
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --compile-bytecode --requirement requirements.txt
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --editable .
	@touch $@

$(JARS): sluice/provision/jars.lock $(INSTALLED)
	@$(BIN)/python -m sluice.provision jars
	@touch $@

# Packages that an auth manager needs in other versions precede those of .venv.
$(FAB) $(KEYCLOAK): build/%/.installed: tests/api/%.txt $(INSTALLED)
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python build/$*
	@VIRTUAL_ENV=build/$* $(UV) pip install --quiet --no-deps --requirement tests/api/$*.txt
	@locked=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	build/$*/bin/python -c 'import pathlib, sys, sysconfig; \
	pathlib.Path(sysconfig.get_path("purelib"), "locked.pth").write_text(sys.argv[1])' "$$locked"
	@test $* != keycloak || $(BIN)/python -m tests.api.keycloak
	@touch $@
