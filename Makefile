# Two commands a newcomer needs: `make demo` and `make test`. Both make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format docs clean

demo: $(STAMP)
	$(BIN)/kmem optimize problems/softmax --target h200 --rounds 1 --minutes 3 --out runs/demo

test: $(STAMP)
	$(BIN)/kmem --help > /dev/null
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered --cov-fail-under=85

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python tools/write_schema.py
	$(BIN)/python tools/write_skill_index.py
	$(BIN)/python tools/write_help.py

# torch first and pinned, so that a machine that offers the CPU build takes it; then everything else against the same pins.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache .coverage
