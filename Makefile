# `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
VENV_LOWER ?= .venv-lower
VENV_ENGINE ?= .venv-engine
BIN := $(VENV)/bin
DEVICE ?= cpu
SCALE ?= small
FAULTS ?= 300
PYTEST ?=
SEED ?= 0

PAPERS := pipeoptim pipemare zhang timeprest pipedream one_step_delay asyncpp paci basis_rotation

# Where versions may matter: the command, private APIs, torch's pipelines, optimizers and hooks, figures, images, vocabularies,
# texts and videos of other packages, torchvision's models.
LOWER_TESTS := tests/test_cli.py tests/test_private_apis.py tests/data/libraries \
	tests/plugins/torch_schedules tests/engine/methods/test_lwp.py tests/runner/executors/test_method_runs.py \
	tests/engine/optim tests/engine/stage tests/engine/models tests/graph tests/zoo/models tests/zoo/optim \
	tests/runner/training/components/test_torch_scheduler.py \
	tests/planning/tables tests/reporting/sweep tests/reporting/timeline tests/reporting/test_distances.py \
	tests/zoo/data/images tests/data/test_loader.py tests/data/test_samples.py \
	tests/zoo/data/test_vocabulary.py tests/zoo/data/translation/test_synthetic.py tests/zoo/data/video/test_msvd.py

# Tests start many processes: each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-engine test-slow test-exhaustive test-lower test-cuda lint format docs site dist bench bench-planner drill reproduce clean map slowdown messages $(PAPERS)

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# $(call install,ENVIRONMENT,CONSTRAINTS,PACKAGES)
define install
$(PYTHON) -m venv $(1)
$(1)/bin/pip install --quiet --no-compile --constraint $(2) $(3)
@touch $@
endef

setup: $(VENV)/.installed  ## Create a virtual environment with pipetrain and the tested versions

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt,--editable ".[dev]")

demo: setup  ## Train ResNet-20 in two processes under PipeOptim on a bundled subset of Fashion-MNIST (about a minute)
	$(BIN)/pipetrain run experiment=demo

test: setup  ## Run the quick tests
	$(BIN)/python -m pytest -m "not slow and not cuda" -n 3 --dist worksteal

test-engine: $(VENV_ENGINE)/.installed  ## Run the quick tests of the engine and the loader where only torch, numpy, pytest and hypothesis are installed
	$(VENV_ENGINE)/bin/python -m pytest -m "not slow and not cuda" tests/engine tests/data

$(VENV_ENGINE)/.installed: constraints.txt
	$(call install,$(VENV_ENGINE),constraints.txt,torch numpy pytest pytest-timeout hypothesis)

test-slow: setup  ## Run the tests that take longer
	$(BIN)/python -m pytest -m "slow and not exhaustive and not cuda" -n 4 --dist worksteal

test-exhaustive: setup  ## Train every model at its default size, and the combinations that test-slow leaves out, in both executors, to compare their bits (hours; PYTEST="-k resnet20": one model)
	$(BIN)/python -m pytest -m exhaustive -v $(PYTEST)

test-lower: $(VENV_LOWER)/.installed  ## Run part of the quick tests on the lowest versions that pyproject.toml allows
	$(VENV_LOWER)/bin/python -m pytest -m "not slow and not cuda" -n 3 --dist worksteal $(LOWER_TESTS)

$(VENV_LOWER)/.installed: pyproject.toml constraints-lower.txt
	$(call install,$(VENV_LOWER),constraints-lower.txt,--editable ".[test]")

test-cuda: setup  ## Run the tests that need CUDA devices, one to four of them; the end lists what was skipped and why
	$(BIN)/python -m pytest -m cuda $(PYTEST)

lint: setup  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## Write the pages and images of docs/ that are made from the code
	$(BIN)/python scripts/write_settings_page.py
	$(BIN)/python scripts/write_models_page.py
	$(BIN)/python scripts/draw_docs_images.py
	$(BIN)/python scripts/write_v_versions.py
	$(BIN)/python -m papers pages

site: setup  ## Build the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: setup  ## Build the wheel and the sdist in dist/, and check both in an empty virtual environment
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python scripts/check_dist.py

bench: setup  ## Measure the runtime against torch's own pipelines (DEVICE=cuda on a GPU), replicas, simulation, the host's time, fine-grained pipelines, many workers, the start, and loading
	for model in resnet56 alexnet vgg16_bn; do $(BIN)/python benchmarks/runtime.py --model $$model --device $(DEVICE) || exit 1; done
	for model in resnet56 alexnet; do $(BIN)/python benchmarks/replicas.py --model $$model || exit 1; done
	$(BIN)/python benchmarks/simulated.py
	$(BIN)/python benchmarks/host_time.py
	$(BIN)/python benchmarks/finegrained.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/scale.py

bench-planner: setup  ## Measure predicted against measured throughput and memory of pipelines, on a quiet machine
	$(BIN)/python benchmarks/planner.py

drill: setup  ## Inject faults into 300 short runs and check each outcome (FAULTS=300 SEED=0; under an hour); then measure the share of time that faults leave (half an hour)
	$(BIN)/python benchmarks/drill.py --faults $(FAULTS) --seed $(SEED)
	$(BIN)/python benchmarks/drill_goodput.py

reproduce: setup  ## Run all experiments of the papers at SCALE=small or full, the cheapest first, and write their pages
	$(BIN)/python -m papers reproduce papers --scale $(SCALE); code=$$?; $(BIN)/python -m papers pages && exit $$code

# A paper, the map of the field, the slowdowns or the formats of messages; and a table, a figure or a preset of it: make zhang, make zhang-table2
$(PAPERS) map slowdown messages: setup
	$(BIN)/python -m papers reproduce $@ --scale $(SCALE)

$(PAPERS:%=%-%) map-% slowdown-% messages-%: setup
	$(BIN)/python -m papers reproduce $@ --scale $(SCALE)

clean:  ## Remove what the other targets created, except results
	rm -rf $(VENV) $(VENV_LOWER) $(VENV_ENGINE) outputs multirun build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
