# make demo   train, certify, attack and plot the embedded default
# make test   everything that must hold, in under ten minutes on two cores
# make lint   ruff and mypy alone
# make docs   the documentation site, into build/site; without a warning, or not at all
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint docs clean

demo: .venv/installed
	$(BIN)/gloronet train

test: .venv/installed lint
	$(BIN)/pytest -n auto -m "not slow"

test-all: .venv/installed lint
	$(BIN)/pytest -n auto

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/installed
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/site

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv runs build src/gloronet.egg-info
