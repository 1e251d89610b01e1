# `make demo`, `make test` and `make check` are the whole interface; each sets up .venv on a fresh machine.
# `make docs`, `make coverage` and `make package` are for who publishes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo serve test-services check test slow format docs coverage package clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prism needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lm,serve,dev]'
	touch $@

demo: $(READY)
	$(BIN)/prism demo

# the demo's model, live, with its page
serve: $(READY)
	test -d prism-demo/model || { $(BIN)/prism demo && $(BIN)/prism export prism-demo/prism prism-demo/model; }
	$(BIN)/prism serve prism-demo/model --store prism-demo/events.db --browse

# also what needs a browser, schemathesis or the real servers, killing with -9 and memory; on Debian or Ubuntu
test-services: $(READY)
	which chromium redis-server strace psql >/dev/null || apt-get install -y chromium redis-server postgresql strace
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[redis,postgresql]' playwright schemathesis
	$(BIN)/python -m pytest -q tests/recommend/serve

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu"

slow: $(READY)
	$(BIN)/python -m pytest -q -m "slow and not gpu"

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo 'docs/_build/html/index.html'

# Compiled kernels are not seen from inside (numba), and are left out of the number: pyproject.toml says which.
coverage: $(READY)
	$(BIN)/python -m coverage erase
	NUMBA_NUM_THREADS=2 $(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu" --cov --cov-report=
	$(BIN)/python -m coverage report --skip-covered --sort=cover | tail -40

# The sdist and the wheel, and the wheel alone in an empty environment without extras.
package: $(READY)
	rm -rf dist .package
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv .package
	.package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .package && bin/python ../tests/support/smoke.py
	rm -rf .package

clean:
	rm -rf $(VENV) .package dist docs/_build .coverage .pytest_cache .mypy_cache .ruff_cache
