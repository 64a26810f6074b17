# Start with `make demo` and `make test`. CI runs `make check`.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# With more OpenMP threads than idle cores, threads that wait actively slow the others down.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test check format lint types layers docs bench chaos siege eval clean

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[worker,aws,dev]"
	@touch $(STAMP)

# An old OpenAI SDK that sends JSON, beside the newest one, for the conformance suite.
OLD_SDK := build/openai-2.20.0
$(OLD_SDK): $(STAMP)
	$(PY) -m pip install --quiet --no-deps --target $@ openai==2.20.0 distro==1.9.0
	@touch $@

demo: $(STAMP)
	@$(VENV)/bin/filmgate generate "a red ball bounces on the grass" -o out/demo.mp4

test: $(STAMP) $(OLD_SDK)
	$(PY) -m pytest -q -n 3 --dist loadfile

check: format lint types layers test

format: $(STAMP)
	$(PY) -m ruff format --check .

lint: $(STAMP)
	$(PY) -m ruff check .

types: $(STAMP)
	$(PY) -m mypy

layers: $(STAMP)
	$(VENV)/bin/lint-imports

# The pages that are generated from the code; tests fail while they are out of date.
docs: $(STAMP)
	$(PY) -m filmgate.settings.reference docs/settings.md
	FILMGATE_WRITE_DOCS=1 $(PY) -m pytest -q tests/integration/test_walk.py

bench: $(STAMP)
	$(PY) -m benchmarks.bench_pipeline

# Attackers of every kind beside two honest tenants; SIEGE_SECONDS is its length.
SIEGE_SECONDS ?= 300
siege: $(STAMP)
	$(PY) -m benchmarks.bench_siege --seconds $(SIEGE_SECONDS)

chaos: $(STAMP)
	FILMGATE_TEST_CHAOS=1 FILMGATE_TEST_CHAOS_JOBS=200 $(PY) -m pytest -q tests/chaos --timeout 1200

eval: $(STAMP)
	$(PY) -m training.flipbook.evaluate

clean:
	rm -rf $(VENV) out
