# Short names. Everything works without make: `python3 manage.py demo|up|test`.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
RUN = $(PYTHON) -m
MANAGE = $(PYTHON) manage.py

.PHONY: check lint style format types contracts migrations schema test slow demo up lock screenshots
.PHONY: bench-decisions bench-decisions-full bench-analysis bench-planning

check: lint test          ## everything

lint: style types contracts migrations schema

style:
	$(RUN) ruff check .
	$(RUN) ruff format --check .

format:
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

types:
	$(RUN) mypy

contracts:
	$(PYTHON) -c "from importlinter.cli import lint_imports_command as run; run()" --no-cache

migrations:
	$(MANAGE) makemigrations --check --dry-run
	$(MANAGE) check --fail-level WARNING

schema:
	$(MANAGE) spectacular --validate --fail-on-warn --file /dev/null

test:
	$(MANAGE) test

slow:                     ## what takes minutes and is left out by default
	$(MANAGE) test -m slow

demo:
	$(MANAGE) demo

screenshots:              ## docs/images from the database that the demo left
	$(RUN) tests.browser.screenshots

up:
	$(MANAGE) up

# Write both locks anew from pyproject.toml. They hold hashes and no addresses.
LOCK = $(RUN) uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url
lock:
	$(LOCK) pyproject.toml --output-file requirements/runtime.txt
	$(LOCK) pyproject.toml --group dev --output-file requirements/dev.txt

bench-decisions:          ## the judge, its peers and the limits on the same waves; under 5 minutes
	$(RUN) benchmarks.decisions

bench-decisions-full:     ## the same with all cells and replications; hours
	$(RUN) benchmarks.decisions --full

bench-planning:           ## what 100,000 machines cost, on SQLite and on PostgreSQL
	$(RUN) benchmarks.planning_cost

bench-analysis:           ## what one look costs, beside the bare products
	$(RUN) benchmarks.analysis_cost
