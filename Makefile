# make demo   train, certify, attack and plot the embedded default
# make test   everything that must hold, in under ten minutes on two cores
# make lint   ruff and mypy alone
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint clean

demo: .venv/installed
	$(BIN)/gloronet train

test: .venv/installed lint
	$(BIN)/pytest -n auto -m "not slow"

test-all: .venv/installed lint
	$(BIN)/pytest -n auto

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv runs build src/gloronet.egg-info
