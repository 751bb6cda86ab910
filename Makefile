# Everything on a fresh machine with Python >= 3.11 and make: `make train`, `make test`.
PYTHON ?= python3
# A CPU build of torch where one is offered; any torch that is already in the environment is kept.
TORCH ?= torch==2.13.0
VENV ?= .venv
# The lowest versions that pyproject.toml allows, for Python 3.11 or 3.12, and what is tested with them.
LOWEST ?= .venv-lowest
LOWEST_TESTS ?= functional kernels nn data training evaluation viz reporting explorer cli
# Every network compiles on both: with its gradients, where a graph breaks, and to machine code.
COMPILE_TESTS = tests/models/test_compile.py tests/ops/test_operators.py
# Lightning, skorch and others, which the library itself does not need.
TRAINERS ?= .venv-trainers
# The newest versions that pip offers for this Python.
NEWEST ?= .venv-newest
# Where Ray and Spark are.
ENGINES ?= .venv-engines
# What builds and checks the packages, and an environment where only the wheel is.
RELEASE ?= .venv-release
INSTALL ?= .venv-package
# Processes that share the tests.
WORKERS ?= 2
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Of `make check`: fast tests of the parts that all others stand on.
CHECK_TESTS = tests/functional tests/published tests/nn tests/properties/test_layers.py \
  tests/evaluation/accuracy tests/test_imports.py tests/test_api_surface.py tests/test_docstrings.py tests/test_glossary.py

# Of `make faults`: which ones, such as functional/*.
ONLY ?= *

# Of `make campaign`: how many cases, or for how many minutes, and which ones are drawn.
CASES ?= 10000
MINUTES ?=
SEED ?= 0
CAMPAIGN = PYTHONPATH=tests $(BIN)/python -m campaign --seed $(SEED)

.PHONY: train check pytest-check test pytest test-slow test-fake-gpu test-engines engines gpu-bundle test-trainers test-lowest test-newest package campaign campaign-kills faults lint docs site dependencies gallery picture weights install browser clean

train: $(INSTALLED)
	$(BIN)/torchcaps train capsnet-small-digits

# After each edit: lint, types, and the tests of layers and functions.
check: $(INSTALLED)
	$(MAKE) -j 2 pytest-check lint

pytest-check: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(CHECK_TESTS)

# Lint, types and documents run beside the tests.
test: $(INSTALLED)
	$(MAKE) -j 2 pytest lint docs

pytest: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: $(INSTALLED) browser
	$(BIN)/python -m pytest -m slow --timeout 3600

# Every system on a GPU of host memory, for which the CPU build of torch gets a device: docs/gpu.md. Minutes.
test-fake-gpu: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m fakecuda.build
	PYTHONPATH=src:tests:. OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or not slow" --timeout 1200 \
	  -p fakecuda.gpu -o python_files='check_*.py' tests/fakecuda/on_device

# Predictions by Ray Data, and by Spark, which needs Java 17 or newer; a worker of each is killed.
test-engines: engines
	$(ENGINES)/bin/python -m pytest -m "slow or not slow" tests/reporting/test_engines.py

engines:
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -c "import torch" 2>/dev/null || $(ENGINES)/bin/python -m pip install "$(TORCH)"
	$(ENGINES)/bin/python -m pip install -c constraints.txt -e ".[dev,ray,log,docs]" "pyspark>=4.3"

# What `python -m benchmarks.gpu --output DIR` needs on a machine without network, beside torch: 62 MB.
gpu-bundle: $(INSTALLED)
	mkdir -p gpu-bundle/wheels
	$(BIN)/python -m pip wheel --no-deps -w gpu-bundle/wheels .
	$(BIN)/python -m pip download --only-binary :all: --python-version 3.12 --no-deps -d gpu-bundle/wheels \
	  jaxtyping wadler-lindig safetensors scipy pillow rich markdown-it-py mdurl pygments jinja2 markupsafe
	$(BIN)/torchcaps data fetch mnist --root gpu-bundle
	find gpu-bundle/mnist -name '*-ubyte' -exec gzip -f {} +

# The examples of docs/own-training.md. The torch that is installed first is kept: pip may not change it.
test-trainers:
	test -x $(TRAINERS)/bin/python || $(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/python -c "import torch" 2>/dev/null || $(TRAINERS)/bin/python -m pip install "$(TORCH)"
	$(TRAINERS)/bin/python -c "import torch; print('torch==' + torch.__version__)" > $(TRAINERS)/torch.txt
	$(TRAINERS)/bin/python -m pip install -c $(TRAINERS)/torch.txt -c constraints.txt -e ".[dev]" \
	  lightning accelerate skorch captum scikit-learn
	$(TRAINERS)/bin/python -m pytest -rs tests/e2e/test_own_training.py

test-lowest:
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install "$$(grep '^torch==' constraints-lowest.txt)"
	$(LOWEST)/bin/python -m pip install -c constraints-lowest.txt -e ".[dev]"
	$(LOWEST)/bin/python -m pytest $(addprefix tests/,$(LOWEST_TESTS))
	$(LOWEST)/bin/python -m pytest -m "slow or not slow" --timeout 1200 $(COMPILE_TESTS)

# The same tests with the newest versions. PYTHON chooses the Python: make test-newest PYTHON=python3.14.
test-newest:
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --upgrade --upgrade-strategy eager -e ".[dev]"
	$(NEWEST)/bin/python -m pytest $(addprefix tests/,$(LOWEST_TESTS))
	$(NEWEST)/bin/python -m pytest -m "slow or not slow" --timeout 1200 $(COMPILE_TESTS)

# Wheel and sdist: their metadata, their size in bytes, and README.md's commands with the installed wheel.
package:
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install build twine
	rm -rf dist $(INSTALL)
	$(RELEASE)/bin/python -m build
	$(RELEASE)/bin/python -m twine check --strict dist/*
	test $$(cat dist/*.whl | wc -c) -le 8000000
	$(PYTHON) -m venv $(INSTALL)
	$(INSTALL)/bin/python -m pip install "$(TORCH)"
	$(INSTALL)/bin/python -m pip install "$$(echo dist/*.whl)[plots,export]"
	PATH="$(CURDIR)/$(INSTALL)/bin:$$PATH" python tools/check_package.py

# Kills, full disks, hostile files and requests: docs/reliability.md. 10,000 cases take about 20 minutes on 2 cores.
campaign: $(INSTALLED)
	$(CAMPAIGN) $(if $(MINUTES),--minutes $(MINUTES),--cases $(CASES))

# 100 kills of a CapsNet of the published size, each resumed to its end: about 40 minutes.
campaign-kills: $(INSTALLED)
	$(CAMPAIGN) --only "kills/full size" --cases 100

# Faults put into a copy of the library, one at a time: do its tests notice?
faults: $(INSTALLED)
	$(BIN)/python -m tests.faults --only "$(ONLY)" --jobs $(WORKERS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/python tools/check_docs.py

# The site, build/site/index.html: these documents, tutorials that run, the reference. The first time takes minutes.
site: $(INSTALLED) build/site/index.html
	$(BIN)/python -c "import myst_nb, furo" 2>/dev/null || $(BIN)/python -m pip install -c constraints.txt -e ".[docs]"
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -b html -d build/doctrees docs build/site/docs

# Its first page, which explains a network while you draw.
build/site/index.html: tools/make_site.py $(wildcard claims/face/* src/torchcaps/explorer/static/* src/torchcaps/exporting/*.py src/torchcaps/models/weights/capsnet_small.*) | $(INSTALLED)
	$(BIN)/python tools/make_site.py $@

# The tested versions, the lowest ones, and the licenses: constraints*.txt and docs/dependencies.md.
dependencies: engines
	$(ENGINES)/bin/python tools/make_dependencies.py

# The gallery of figures; its runs are trained where they are absent, which takes minutes.
gallery: runs/capsnet-digits/model.safetensors
	$(BIN)/python tools/make_gallery.py runs/capsnet-digits
	$(BIN)/python tools/make_screenshots.py

runs/capsnet-digits/model.safetensors: | $(INSTALLED)
	$(BIN)/torchcaps train capsnet-digits --output runs/capsnet-digits

# The weights that come with the package: needs MNIST (torchcaps data fetch mnist) and about two hours of training.
WEIGHTS := runs/capsnet-small-mnist runs/efficient-capsnet-long
weights: $(addsuffix /evaluation.json,$(WEIGHTS))
	$(BIN)/python tools/make_weights.py $(WEIGHTS)

$(addsuffix /evaluation.json,$(WEIGHTS)): runs/%/evaluation.json: | $(INSTALLED)
	$(BIN)/torchcaps train $* --output runs/$*

# The picture at the head of README.md: needs MNIST (torchcaps data fetch mnist) and about half an hour of training.
picture: runs/capsnet-mnist/model.safetensors runs/capsnet-pairs/model.safetensors
	$(BIN)/python tools/make_picture.py runs/capsnet-mnist runs/capsnet-pairs

runs/capsnet-mnist/model.safetensors: | $(INSTALLED)
	$(BIN)/torchcaps train capsnet-mnist --seed 1 --output runs/capsnet-mnist

runs/capsnet-pairs/model.safetensors: | $(INSTALLED)
	$(BIN)/torchcaps train capsnet --data multi-digits --shift 0 --epochs 5 --output runs/capsnet-pairs

install: $(INSTALLED)

# Tests of the explorer's page drive a browser; where none can be had they are skipped, and this says so.
# Of one package only the script axe-core is used, which checks that a page is accessible.
browser: $(INSTALLED)
	@$(BIN)/python -m pip install -q --no-deps axe-playwright-python || echo "No axe-core: its tests will be skipped."
	@have() { for name; do command -v $$name >/dev/null && return; done; return 1; }; \
	whole() { have chromium chromium-browser google-chrome && have chromedriver; }; \
	root() { if [ "$$(id -u)" = 0 ]; then "$$@"; else sudo -n "$$@"; fi; }; \
	if ! whole && have apt-get && root true 2>/dev/null; then \
	  echo "installing Chromium and its driver ..."; \
	  { root apt-get update && root env DEBIAN_FRONTEND=noninteractive apt-get install -y chromium chromium-driver; } \
	    >/dev/null 2>&1; \
	fi; \
	whole || echo "No Chromium with chromedriver here, and it could not be installed: tests in a browser will be skipped."

$(INSTALLED): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install "$(TORCH)"
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) $(TRAINERS) $(ENGINES) $(RELEASE) $(INSTALL) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
