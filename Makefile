# make quickstart and make test need git, make and python3 with venv; everything else is installed into .venv.
PYTHON ?= python3
# Where torch comes from. Empty: what pip finds. On a machine without a GPU: TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
BIN := .venv/bin
# Python keeps what it compiles, whatever the environment says: the tests start thousands of processes, and pytest would rewrite each test
# module in each of its workers.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt
# What headway is measured against: each of benchmarks/peers in a venv of its own.
PEERS := $(patsubst benchmarks/peers/%.txt,.venv-peers/%/installed.stamp,$(wildcard benchmarks/peers/*.txt))

# The oldest that is carried, some between, the one that all tests run with, and the newest.
COMPAT ?= 2.6.0 2.9.1 2.13.0 2.15.0

BENCHES := check planner checkpoint recovery replica_recovery slurm_recovery trainer detection overhead control_plane fabric

SOAK_EXAMPLES ?= 4000
SOAK_DAMAGES ?= 10000
# Kills on each tier are one of 200 of this: two hours and more.
SOAK_KILLS ?= 40000
# Moments at which a rank of each script of tests/harmless is killed: an hour each.
SOAK_MOMENTS ?= 3

.PHONY: help soak test-gpu test-fixtures compat venv quickstart test-fast test lint peers bench

help:
	@echo 'make quickstart   install into .venv, train the example, kill a worker half-way, show how it recovered'
	@echo 'make test         lint and every test; what a machine lacks is skipped with its reason'
	@echo 'make test-fast    the tests that start no training process and no real part, and take little CPU'
	@echo 'make test-fixtures   the tests of the fixtures that start real parts; run it after a change in tests/real'
	@echo 'make test-gpu     the tests that need a GPU, and the share of its peak that the builtin trainer reaches'
	@echo 'make lint         ruff, mypy and the import rules'
	@echo 'make soak         every variant that make test leaves out, and the random tests with many more cases; counts go to docs/soak.json'
	@echo 'make compat       what must hold under any torch from 2.6 on, under several: .venv-compat/VERSION each, of gigabytes where pip finds CUDA builds'
	@echo 'make bench        every claim on speed, measured beside a peer'
	@echo 'make venv         .venv with all that the tests want'
	@echo 'make peers        .venv-peers with what make bench measures headway against'

.venv/torch.stamp: .ci/constraints.txt
	$(PYTHON) -m venv --clear .venv
	@echo 'installing torch and headway into .venv ...'
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	@touch $@

.venv/runner.stamp: pyproject.toml .venv/torch.stamp
	$(PIP_INSTALL) --editable .
	@$(BIN)/python -m compileall -q headway jobspec templates infra runner
	@touch $@

.venv/dev.stamp: .venv/runner.stamp
	$(PIP_INSTALL) --editable '.[torch,infra,kubernetes,remote,huggingface,dev]'
	@touch $@

venv: .venv/dev.stamp

quickstart: .venv/runner.stamp
	$(BIN)/headway run examples/quickstart/job.yaml --kill 1@90

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy headway tests benchmarks
# What Python 3.10 does not have: torch's types, which take most of the time, are not asked for again.
	$(BIN)/mypy --config-file= --python-version 3.10 --follow-imports skip headway/runner headway/checkpoint.py headway/runs.py
	$(BIN)/lint-imports --no-cache

soak: .venv/dev.stamp
	$(BIN)/python -m pytest -m 'hypothesis and not slow' --hypothesis-profile=many tests
	HEADWAY_EXAMPLES=$(SOAK_EXAMPLES) $(BIN)/python -m pytest tests/properties tests/runner/checkpoint/test_chain_machine.py tests/faults/test_two_writers.py
	HEADWAY_EXAMPLES=$(SOAK_DAMAGES) HEADWAY_SOAK=docs/soak.json $(BIN)/python -m pytest \
	    tests/runner/checkpoint/test_damage.py tests/runner/checkpoint/test_elastic.py tests/runner/train/test_parallel.py
	HEADWAY_SOAK=docs/soak.json $(BIN)/python -m pytest tests/faults/test_scripts.py tests/soak/flipped.py
	HEADWAY_SOAK=docs/soak.json $(BIN)/python -m pytest -o timeout=7200 tests/soak/curve.py
	HEADWAY_EXAMPLES=$(SOAK_KILLS) HEADWAY_SOAK=docs/soak.json $(BIN)/python -m pytest -o timeout=14400 tests/faults/test_save_kills.py
	HEADWAY_EXAMPLES=$(SOAK_MOMENTS) HEADWAY_SOAK=docs/soak.json $(BIN)/python -m pytest -o timeout=1200 tests/harmless
	$(BIN)/python -m pytest -m variant --ignore=tests/harmless --ignore=tests/faults/test_scripts.py --ignore=tests/faults/test_save_kills.py
	HEADWAY_SLURM=current $(BIN)/python -m pytest tests/real/slurm -m 'slow and not fixture'

test-gpu: .venv/dev.stamp
	$(BIN)/python -m pytest tests/gpu
	$(BIN)/python -m benchmarks.gpu

test-fixtures: .venv/dev.stamp
	$(BIN)/python -m pytest -m fixture tests/real

# A torch of each version is there first, as in an image, and headway is installed beside it. numpy 1.26 stands for the older images.
.venv-compat/%/torch.stamp:
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$* $(if $(filter 2.6.%,$*),numpy==1.26.4)
	@touch $@

.venv-compat/%/installed.stamp: pyproject.toml .venv-compat/%/torch.stamp
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable . pytest pytest-timeout hatchling==1.33.0
	@test "$$($(@D)/bin/python -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])')" = $*
	@touch $@

.PRECIOUS: .venv-compat/%/torch.stamp .venv-compat/%/installed.stamp
compat: $(COMPAT:%=.venv-compat/%/installed.stamp)
	@failed=; for version in $(COMPAT); do \
	    echo "== torch $$version"; .venv-compat/$$version/bin/python -m pytest tests/compat || failed="$$failed $$version"; \
	done; if [ -n "$$failed" ]; then echo "do not hold under:$$failed" >&2; exit 1; fi

test-fast: .venv/dev.stamp
	@$(MAKE) --no-print-directory --keep-going --jobs=$(words $(COMPUTING)) SELECTION="-m 'not slow' --hypothesis-profile=few" $(COMPUTING)

# Tests of real parts and of whole runs mostly wait, for daemons, timers and each other: four lanes of them run beside seven lanes that
# compute, which take the processors that the others leave. Each lane runs one test at a time, and each test is collected in one lane: two
# workers of pytest-xdist would collect it twice. Some tests send interrupts, which processes ignore that a shell has started in the
# background.
PYTEST := env --default-signal=INT $(BIN)/python -m pytest
# What belongs to make soak, make test-fixtures and make test-gpu.
ONCE := not variant and not fixture and not gpu
COMPUTING := lane-checkpoint lane-runner lane-planner lane-templates lane-jobspec lane-others
LANES := lane-slurm lane-kubernetes lane-fabric lane-runs $(COMPUTING) lane-lint
# Folders of the lanes that compute, about as long as each other; lane-others has the rest.
CHECKPOINT := tests/runner/checkpoint tests/harmless
RUNNER := tests/runner tests/compat
PLANNER := tests/planner tests/cli
TEMPLATES := tests/templates tests/report tests/corpus
JOBSPEC := tests/jobspec tests/errors
test: .venv/dev.stamp
	@$(MAKE) --no-print-directory --keep-going --jobs=$(words $(LANES)) $(LANES)

# What all lanes but one print is shown at their end.
at_the_end = out=$$(mktemp); trap 'kill $$pid 2>/dev/null' INT TERM; \
	$(1) >$$out 2>&1 & pid=$$!; wait $$pid; code=$$?; cat $$out; rm $$out; exit $$code
lane_of = $(call at_the_end,$(PYTEST) -m 'slow and $(ONCE)' $(1))
# make test-fast runs the lanes that compute with another selection, and fewer examples in each random test.
SELECTION = -m 'not (slow and waits) and $(ONCE)'
computing = nice -n 10 $(PYTEST) $(SELECTION)

lane-slurm:
	@$(call lane_of,tests/real/slurm)

# Kubernetes comes last: its daemons compute as long as they run, and they run to the end.
lane-kubernetes:
	@$(call lane_of,tests/real/pulumi tests/real/ssh tests/real/kubernetes)

lane-fabric:
	@$(call lane_of,tests/real/fabric tests/real/infiniband tests/real/sonic)

lane-runs:
	@$(call lane_of,tests/faults)

lane-checkpoint:
	@$(call at_the_end,$(computing) $(CHECKPOINT))

lane-runner:
	@$(call at_the_end,$(computing) $(RUNNER) $(CHECKPOINT:%=--ignore=%))

lane-planner:
	@$(call at_the_end,$(computing) $(PLANNER))

lane-templates:
	@$(call at_the_end,$(computing) $(TEMPLATES))

lane-jobspec:
	@$(call at_the_end,$(computing) $(JOBSPEC))

lane-others:
	@$(computing) $(patsubst %,--ignore=%,$(CHECKPOINT) $(RUNNER) $(PLANNER) $(TEMPLATES) $(JOBSPEC))

lane-lint:
	@nice -n 10 $(MAKE) --no-print-directory lint

# The frameworks whose parsers read what their trainers render to: beside the torch and the libraries of .venv.
.venv-peers/trainers/installed.stamp: benchmarks/peers/trainers.txt .venv/dev.stamp
	$(PYTHON) -m venv --clear $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >$$(echo $(@D)/lib/python*/site-packages)/dev.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

# Megatron-LM's parser is in no package: a checkout of its repository.
MEGATRON_LM ?= https://github.com/NVIDIA/Megatron-LM
.venv-peers/megatron/installed.stamp:
	rm -rf $(@D)
	git clone --quiet --depth 1 --branch core_v0.16.1 $(MEGATRON_LM) $(@D)
	@touch $@

.venv-peers/%/installed.stamp: benchmarks/peers/%.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

peers: $(PEERS)

bench: .venv/dev.stamp peers
	@failed=; for bench in $(BENCHES); do \
	    echo "== $$bench"; $(BIN)/python -m benchmarks.$$bench || failed="$$failed $$bench"; \
	done; if [ -n "$$failed" ]; then echo "do not hold:$$failed" >&2; exit 1; fi
