# make demo   set up, then plan and run two built-in models
# make test   set up, then all checks and tests
# make check  formatting, lint, types, floors, spelling
# make site    the documentation as pages, in site/index.html
# make bench  the benchmarks, long; results in benchmarks/results

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.ready
TOOLS := .venv/.tools

.PHONY: demo test untimed check site bench
.DELETE_ON_ERROR:

unexport PYTHONDONTWRITEBYTECODE  # compiled once, not by every process

demo: $(READY)
	$(BIN)/framefit demo

test: $(TOOLS)
	$(MAKE) --jobs 2 check untimed  # mypy keeps one core busy for half a minute
	$(BIN)/pytest --reruns 2 -m "timed and not slow and not gpu" $$(grep -rl mark.timed tests --include="test_*.py")  # other programs disturb

untimed: $(TOOLS)
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m "not timed and not slow and not gpu"

check: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files -z --cached --others --exclude-standard | xargs -0 $(BIN)/codespell

site: $(TOOLS)
	$(BIN)/python docs/make_site.py site

bench: $(TOOLS)
	for script in benchmarks/runtime_*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/python benchmarks/picture.py

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	touch $(READY)

$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[train]" --group dev  # most of it is never imported
	touch $(TOOLS)
