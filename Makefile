# The commands of the project. `make demo` needs Python 3.11 and a package index, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BENCH_MB ?= 200
# Such as --only replay,verify and --kafka-backup PATH; see benchmarks/README.md.
BENCH_OPTIONS ?=
FAULTS ?= 3000
SCHEDULES ?= 200000
PROTOCOL_SCHEDULES ?= 1000000
MAINTAINER_SCHEDULES ?= 200000
KERNEL_CASES ?= 5000000
SANITIZED_CASES ?= 1000000
FUZZ_MINUTES ?= 60
SANITIZED := build/sanitized
COMPILE_SANITIZED = gcc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -shared -fPIC -std=gnu11 \
	-DPy_LIMITED_API=0x030B0000 -I index_format/kernel \
	-I "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')"
SANITIZED_TESTS := tests/replayer/broker/test_record_batches.py tests/index_format/record_formats/test_json_lines_kernel.py tests/index_format/test_canonical_kernel.py \
	tests/blockgz/kafka/test_kernel_client.py tests/blockgz/kafka/test_batch_producer.py
# Memory that is freed stays for a while, so that its use is seen: no test of memory among them.
# Python's allocator and Arrow's would hide from the sanitizer what is read and written beside an object.
IN_SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system PYTHONPATH=$(CURDIR)/$(SANITIZED):$(CURDIR) $(BIN)/python -P
# Of the first schedule of a long simulation: another one makes other schedules.
SEED ?= 0
SOAK_MINUTES ?= 60
SOAK_PARTITIONS ?= 2000
REPLAY_ROUNDS ?= 200
TAKEOVER_ENDS ?= 500
BROKER_RESTARTS ?= 20
# The Git revision that `make house` compares the working tree with.
BASE ?=
KERNELS := $(wildcard index_format/kernel/*.[ch] blockgz/kafka/kernel/*.[ch])
# Files of tests run side by side, each process with servers of its own. Much of a system test is waiting.
SIDE_BY_SIDE ?= -n 4 --dist loadfile
SYSTEM_SIDE_BY_SIDE ?= -n 4 --dist loadfile --no-loadscope-reorder

# Tests start thousands of processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test unit units system spark check docs house bench bench-quick faults mutants simulate sanitize fuzz long lakehouse registry deployment soak replay-faults storms clean

demo: $(VENV)/.runtime
	@$(BIN)/archiver demo

# Linters use one processor at a time: unit tests run beside them. System tests run alone: beside the others they
# exceed their deadlines.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j 2 check units
	@$(MAKE) --no-print-directory system

# Without the tests that are marked slow: what is worth running at every save.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest tests -m "not slow" -n 3 --dist loadfile --durations=5

units: $(VENV)/.dev
	$(BIN)/python -m pytest tests $(SIDE_BY_SIDE) --durations=10

# What is fetched or built once comes first, classes of Java that each later broker and Spark session loads among it.
system: $(VENV)/.dev
	-nice $(BIN)/python -m system_test.support.parts
	$(BIN)/python -m pytest system_test $(SYSTEM_SIDE_BY_SIDE) --durations=20

spark: $(VENV)/.dev
	$(BIN)/python -m pytest system_test/test_spark_*.py $(SYSTEM_SIDE_BY_SIDE) --durations=5

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@$(MAKE) --no-print-directory docs

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

house: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.house --base "$(BASE)"
	@$(BIN)/python -m benchmarks.house --running

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks --mb $(BENCH_MB) $(BENCH_OPTIONS)

bench-quick: $(VENV)/.dev
	$(BIN)/python -m benchmarks --quick

faults: $(VENV)/.dev
	$(BIN)/python -m system_test.faults --faults $(FAULTS) --resume

mutants: $(VENV)/.dev
	$(BIN)/python -m system_test.mutants

simulate: $(VENV)/.dev
	$(BIN)/python -m tests.support.campaign service --schedules $(SCHEDULES) --seed $(SEED)

# Hours: the fault campaigns on real servers, the simulators at length, every test and mutant, as much of each as there is.
long: $(VENV)/.dev
	$(MAKE) faults replay-faults storms
	$(BIN)/python -m tests.support.campaign protocols --schedules $(PROTOCOL_SCHEDULES) --seed $(SEED)
	$(BIN)/python -m tests.support.campaign lifecycle --schedules $(MAINTAINER_SCHEDULES) --seed $(SEED)
	$(BIN)/python -m tests.support.campaign losses --schedules $(MAINTAINER_SCHEDULES) --seed $(SEED)
	$(BIN)/python -m tests.support.kernel_campaign --cases $(KERNEL_CASES) --seed $(SEED)
	$(MAKE) sanitize fuzz mutants
	BLOCKGZ_LONG=1 BLOCKGZ_RESTORE_KILLS=20 BLOCKGZ_OPERATIONS=20000 \
		BLOCKGZ_TRANSLATED_ARCHIVES=2000 $(MAKE) units system
	$(BIN)/python -m system_test.soak --partitions 200 --minutes 10
	BLOCKGZ_NO_KERNEL=1 $(MAKE) system
	$(MAKE) simulate
	$(BIN)/python -m tests.support.campaign wide --schedules 500 --seed $(SEED)

# Delta, Iceberg and the oldest Spark, each in an environment that pip makes the first time; about ten minutes.
lakehouse: $(VENV)/.dev
	BLOCKGZ_LONG=1 $(BIN)/python -m pytest system_test/test_spark_lakehouse.py system_test/test_spark_versions.py \
		system_test/test_spark_deployed.py --durations=5

# Schema registries archived and restored: Apicurio, which Maven fetches the first time, and Karapace if it is on PATH.
registry: $(VENV)/.dev
	BLOCKGZ_LONG=1 $(BIN)/python -m pytest system_test/test_schema_registry.py --durations=5

# What deploy/ holds, by helm, promtool and systemd, which are fetched or built the first time; else a minute.
deployment: $(VENV)/.dev
	BLOCKGZ_LONG=1 $(BIN)/python -m pytest system_test/test_deployment.py --durations=5

# The C extensions compiled with sanitizers, in a folder of their own: their tests, and records and lines by chance.
sanitize: $(VENV)/.dev
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED) && cp -r index_format blockgz $(SANITIZED)
	$(COMPILE_SANITIZED) index_format/kernel/*.c -o $(SANITIZED)/index_format/_kernel.abi3.so
	$(COMPILE_SANITIZED) blockgz/kafka/kernel/*.c -ldl -o $(SANITIZED)/blockgz/kafka/_kernel.abi3.so
	$(IN_SANITIZED) -m tests.support.kernel_campaign --cases $(SANITIZED_CASES) --seed $(SEED)
	$(IN_SANITIZED) -m pytest --import-mode=append $(SANITIZED_TESTS) -k "not leave_nothing_behind"

fuzz: $(VENV)/.dev
	$(BIN)/python -m system_test.kernel_fuzz --minutes $(FUZZ_MINUTES) --seed $(SEED)

soak: $(VENV)/.dev
	$(BIN)/python -m system_test.soak --partitions $(SOAK_PARTITIONS) --minutes $(SOAK_MINUTES)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Compiles the C extensions as well, where there is a compiler.
$(VENV)/.runtime: setup.cfg setup.py constraints.txt $(KERNELS) | $(VENV)/bin/python
	@rm -f index_format/_kernel.*.so blockgz/kafka/_kernel.*.so
	$(INSTALL) -e .
	@touch $@

# The same and what developers need, in one go.
$(VENV)/.dev: setup.cfg setup.py constraints.txt $(KERNELS) | $(VENV)/bin/python
	@rm -f index_format/_kernel.*.so blockgz/kafka/_kernel.*.so
	$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.runtime $@

replay-faults: $(VENV)/.dev
	$(BIN)/python -m system_test.replay_faults --rounds $(REPLAY_ROUNDS)

# Archivers whose static ids others take, and every admin call while a broker restarts: nothing dies unless it is killed.
storms: $(VENV)/.dev
	$(BIN)/python -m system_test.storms takeovers --ends $(TAKEOVER_ENDS)
	$(BIN)/python -m system_test.storms restarts --restarts $(BROKER_RESTARTS)

clean:
	rm -rf $(VENV) build *.egg-info .ruff_cache .mypy_cache .hypothesis index_format/_kernel.*.so blockgz/kafka/_kernel.*.so
