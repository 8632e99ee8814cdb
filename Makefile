# Commands for a newcomer: `make demo`, `make check` and `make test`. Each makes .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# On a new machine the browser is installed beside the packages; lint runs beside types.
MAKEFLAGS += --jobs=2

# How tests are spread: files, not tests, for those of a file share what they set up. Three workers
# keep two cores busy, for a fifth of the time a worker waits for what it started.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder
COVER := --cov --cov-report=term:skip-covered --cov-fail-under=85

.PHONY: demo check test coverage browser lint types format docs clean

demo: $(STAMP)
	$(BIN)/kmem optimize problems/layer_norm --target h200 --rounds 1 --minutes 3
	@printf '\nNext:\n'
	@printf '  . $(VENV)/bin/activate         from here on kmem is a command\n'
	@printf '  kmem doctor                  what this machine can do\n'
	@printf '  kmem problem new mine.py     a module of your own; kmem problem check mine.py\n'
	@printf '  kmem optimize mine.py --target h200     without --target on the GPU of this machine\n'

# For every commit: two minutes on two cores.
check: lint types
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not gpu"

# Everything. This is what CI runs.
test: $(STAMP) browser
	$(BIN)/kmem --help > /dev/null
	$(BIN)/python -m pytest $(SPREAD)

# Everything once more, counting which lines run, in processes that tests start too: at least 85%
# must. It takes a quarter more time than the tests alone.
coverage: $(STAMP) browser
	$(BIN)/python -m pytest $(SPREAD) $(COVER)

# The page is tested in a real Chromium, of Debian's packages; without it its tests are skipped.
browser:
	@command -v chromedriver > /dev/null || \
		(apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver) \
		> /dev/null 2>&1 || echo "No Chromium (Debian: chromium, chromium-driver): \
	tests in a browser are skipped"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python tools/write_schema.py
	$(BIN)/python tools/write_skill_index.py
	$(BIN)/python tools/write_help.py

# torch first and pinned, so that a machine that offers the CPU build takes it; then everything else
# against the same pins. pip would compile one file at a time, those of packages nobody loads too.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/(transformers|scipy|sklearn|mypy|fontTools)/' \
		$(VENV)/lib > /dev/null || true  # some packages carry files that are no Python
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache .coverage
