# Tests: every tests/unit/ROOM/test_NAME.c is a program; what they share (tests/help) is an archive. `make test` runs
# all that a machine without a GPU can.
#   make check          the C tests, in seconds to a minute
#   make test           its parts side by side (tests/parts.py): check; sanitize, the same under ASan and UBSan; races,
#                       threads under TSan; gpu, the emulated GPU: test_ops in three orders, the backend as a whole;
#                       cli, the command line, the demo pair and installing; serve; packages, in a bare Debian; arm,
#                       under qemu
#   make part-NAME      one of the parts, once everything is built
#   make test-serve     the server over real sockets: bad input, jobs, texts, the README's curl lines, the page (in
#                       Chromium), and the official SDKs where pip can get them
#   make test-arm       the ARM code alone: installs Debian's cross compiler and qemu where that works, else says why it
#                       was skipped
#   make test-long      test, and tests that take minutes: a context of 262,144 tokens, the server under long load, with
#                       less memory than its model takes, and under sanitizers, spoiled model files, requests and cache
#                       folders, the Dockerfile from its first line
#   make test-clock     the C tests by a clock that jumps and runs unevenly (tests/help/random_clock.h), once per CLOCK_SEEDS
#   make cuda-archs     compiles the GPU kernels for NVIDIA's older chips (NVRTC, fetched by pip) and for AMD's (Debian's
#                       clang-19 and lld-19)
#   make test-serve-sanitized   the server's tests against a server built with ASan and UBSan, and one with TSan
#   make run-test_NAME  builds and runs one C test program
#   make fuzz           every target of tests/fuzz under clang's libFuzzer, each for FUZZ_SECONDS; FUZZ="record request":
#                       only these. Needs Debian's clang-19 and libclang-rt-19-dev (its clang 14 supports too few atomics
#                       and processors); CLANG=...: another compiler

TEST_SRC  := $(sort $(shell find tests/unit -name 'test_*.c' 2>/dev/null))
TEST_NAME := $(basename $(notdir $(TEST_SRC)))
TEST_BIN  := $(TEST_NAME:%=$(BUILD)/tests/%)
LONG_SRC  := $(sort $(shell find tests/unit -name 'long_*.c' 2>/dev/null))
LONG_NAME := $(basename $(notdir $(LONG_SRC)))
TOOL_SRC  := tests/help/make_tiny.c tests/oracle/peer_tokenizer.c tests/oracle/peer_template.c
HELP_SRC  := $(filter-out $(TOOL_SRC),$(wildcard tests/help/*.c))
HELP_OBJ  := $(HELP_SRC:%.c=$(BUILD)/%.o) $(filter-out $(BUILD)/src/programs/main.o,$(PROG_OBJ))
FUZZ      := gguf safetensors hotness template tokenizer grammar schema image record reply request
FUZZ_BIN  := $(FUZZ:%=$(BUILD)/tests/replay_%)

# PART: of the longest tests one case in PART runs (tests/help/part.h).
PART ?= 1
$(BUILD)/tests/%.o: COMMON += -Itests -Itests/help -DPART=$(PART)
$(BUILD)/tests/libhelp.a: $(HELP_OBJ)
	@rm -f $@
	$(call SAY,AR)
	$(Q)ar rcs $@ $^
# A test program is linked from the object of its source, in whatever folder that is, and the shared archives.
PROGRAM_SRC := $(TEST_SRC) $(LONG_SRC) $(TOOL_SRC)
$(foreach s,$(PROGRAM_SRC),$(eval $(BUILD)/tests/$(basename $(notdir $(s))): $(BUILD)/$(s:.c=.o)))
$(TEST_BIN): $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(HTTP) $(HUB) $(LIBS)
# counts its calls of these functions
$(BUILD)/tests/test_conversation: LDFLAGS += -Wl,--wrap=chat_prompt_render,--wrap=rt_tokenize_prompt
# Makes these fail. private: the archives that it is linked from must not be made with it. The linker does not look into
# an archive for what is wrapped.
DISK_FAULTS := open pread posix_fadvise malloc calloc pthread_create io_uring_queue_init io_uring_queue_exit io_uring_submit \
               io_uring_submit_and_wait io_uring_peek_batch_cqe
$(BUILD)/tests/test_disk: private LDFLAGS += $(DISK_FAULTS:%=-Wl,--wrap=%)
EXPERT_FAULTS := open pread mmap malloc calloc realloc aligned_alloc io_uring_queue_init io_uring_peek_batch_cqe
$(BUILD)/tests/test_experts: private LDFLAGS += $(EXPERT_FAULTS:%=-Wl,--wrap=%)
$(BUILD)/tests/test_disk $(BUILD)/tests/test_experts: $(URING)
$(addprefix $(BUILD)/tests/,$(basename $(notdir $(LONG_SRC)))): $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(HTTP) $(HUB) $(LIBS)
$(addprefix $(BUILD)/tests/,$(basename $(notdir $(TOOL_SRC)))): $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(HTTP) $(HUB) $(LIBS)
$(BUILD)/tests/replay_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(HTTP) $(HUB) $(LIBS)
.SECONDARY:

# The emulated GPU: kernels, the fibers they run on, and a driver over both, as the backend would load NVIDIA's.
CXX     ?= g++
GPU_SRC := $(wildcard src/backend/gpu/*.cu tests/gpu/*.cu)
GPU_OBJ := $(GPU_SRC:%.cu=$(BUILD)/tests/gpu/%.o) $(BUILD)/tests/gpu/emu.o $(BUILD)/tests/gpu/fake_cuda.o
# For this machine's processor: without its fma instruction every fma would be a call.
GPU_FMA := $(shell grep -qs '^flags.* fma .* avx2 ' /proc/cpuinfo && echo -mavx2 -mfma)
GPU_CXX := -std=c++17 -O2 -g -D_GNU_SOURCE -DGPU_EMU -ffp-contract=off -fPIC -fvisibility=hidden $(GPU_FMA) -Isrc -Itests/gpu \
           -Wall -Wextra -Wno-unknown-pragmas
$(BUILD)/tests/gpu/%.o: %.cu
	@mkdir -p $(@D)
	$(call SAY,CXX)
	$(Q)$(CXX) $(GPU_CXX) $(SAN) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/tests/gpu/%.o: tests/gpu/%.cpp
	@mkdir -p $(@D)
	$(call SAY,CXX)
	$(Q)$(CXX) $(GPU_CXX) $(SAN) -MMD -MP -c -o $@ $<
$(BUILD)/libfake_cuda.so: $(GPU_OBJ)
	$(call SAY,LINK)
	$(Q)$(CXX) $(SAN) $(LDFLAGS) -shared -Wl,-Bsymbolic -o $@ $^

# The same once more with every access to memory reported: how many sectors and banks it takes, and what orders it
# (emu_watch.h).
GPU_REPORTED := -DEMU_WATCHED -fsanitize=kernel-address --param asan-instrumentation-with-call-threshold=0 \
                --param asan-stack=0 --param asan-globals=0 -fno-tree-vectorize
WATCH_OBJ := $(GPU_SRC:%.cu=$(BUILD)/tests/watched/%.o) $(BUILD)/tests/watched/emu.o $(BUILD)/tests/watched/fake_cuda.o \
             $(BUILD)/tests/watched/emu_count.o $(BUILD)/tests/watched/emu_race.o
$(BUILD)/tests/watched/%.o: %.cu
	@mkdir -p $(@D)
	$(call SAY,CXX)
	$(Q)$(CXX) $(GPU_CXX) $(GPU_REPORTED) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/tests/watched/%.o: tests/gpu/%.cpp
	@mkdir -p $(@D)
	$(call SAY,CXX)
	$(Q)$(CXX) $(GPU_CXX) -DEMU_WATCHED -MMD -MP -c -o $@ $<
$(BUILD)/libfake_cuda_watched.so: $(WATCH_OBJ)
	$(call SAY,LINK)
	$(Q)$(CXX) $(LDFLAGS) -shared -Wl,-Bsymbolic -o $@ $^

# The tests' own kernels for a card, where `make cuda` has been asked for.
$(BUILD)/tests/%.fatbin: tests/gpu/%.cu $(wildcard tests/gpu/*.h) $(wildcard src/backend/gpu/gpu*.h) $(BUILD)/cuda/made.mk
	@mkdir -p $(@D)
	$(call SAY,NVCC)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(NVCC_CODE) -Itests/gpu -o $@ $<

# Kernels compiled for chips that `make cuda` leaves out: NVIDIA's of 2016 to 2018, and AMD's. Nothing is run.
cuda-archs:
	@[ -d $(BUILD)/nvrtc ] || python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	    --target $(BUILD)/nvrtc -r tests/gpu/nvrtc.txt || true
	python3 tests/gpu/archs.py $(BUILD)

# On the emulated GPU, unless another driver is named (libcuda.so.1); test_cuda is of the emulated driver alone.
run-test_gpu_%: export RATOON_CUDA_DRIVER ?= $(abspath $(BUILD)/libfake_cuda.so)
run-test_cuda:  export RATOON_CUDA_DRIVER := $(abspath $(BUILD)/libfake_cuda.so)
run-test_gpu_%: $(BUILD)/tests/test_gpu_% $(BUILD)/libfake_cuda.so
	$(GPU_PART) ./$<
run-test_cuda: $(BUILD)/tests/test_cuda $(BUILD)/libfake_cuda.so
	$(GPU_PART) ./$<
run-%: $(BUILD)/tests/%
	./$<
run-replay-%: $(BUILD)/tests/replay_%
	./$< tests/fuzz/corpus/$*

# Findings go to build-fuzz/found, inputs that reached new code to build-fuzz/corpus.
CLANG        ?= clang-19
FUZZ_SECONDS ?= 60
FUZZING := CC=$(CLANG) SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" CFLAGS="-O1 -g" SIMD_OPT="-O1 -fno-sanitize=all" BUILD=build-fuzz
$(BUILD)/tests/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(HTTP) $(HUB) $(LIBS)
run-fuzz-%: $(BUILD)/tests/fuzz_%
	@mkdir -p $(BUILD)/found $(BUILD)/corpus/$*
	./$< -max_total_time=$(FUZZ_SECONDS) -timeout=100 -report_slow_units=100 -artifact_prefix=$(BUILD)/found/$*- -print_final_stats=1 $(BUILD)/corpus/$* tests/fuzz/corpus/$*
run-fuzz: $(FUZZ:%=run-fuzz-%)
fuzz:
	@$(MAKE) --no-print-directory $(FUZZING) run-fuzz

tests-built: $(BUILD)/libfake_cuda.so $(if $(CUDA_MADE),$(BUILD)/tests/instructions.fatbin) $(TEST_BIN) $(FUZZ_BIN) $(BUILD)/tests/make_tiny
check: setup
	@$(MAKE) --no-print-directory ratoon tests-built $(LABS)
	@$(MAKE) --no-print-directory run-all
run-all: $(TEST_NAME:%=run-%) $(FUZZ:%=run-replay-%)

# FLAGS_portable: as for the emulated GPU, without which this level takes ten times as long in these builds.
SANITIZE := SAN="-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow" CFLAGS="-O1 -g" \
            SIMD_OPT="-O1 -fno-var-tracking" FLAGS_portable="$(GPU_FMA)" PART=7 BUILD=build-sanitize
RACES    := SAN="-fsanitize=thread" CFLAGS="-O1 -g" SIMD_OPT="-O1 -fno-var-tracking" FLAGS_portable="$(GPU_FMA)" PART=7 BUILD=build-tsan

# All parts side by side (tests/parts.py); a part alone, once it is built: make part-cli. The longest come first.
PARTS := sanitize serve packages check cli gpu races arm
test: export XDG_CONFIG_HOME := /nonexistent
test: export XDG_CACHE_HOME := $(CURDIR)/$(BUILD)/cache
test: setup-arm
	@$(MAKE) --no-print-directory all tests-built $(LABS) bench/make_synthetic $(BUILD)/install/libratoon.a
	+@python3 tests/parts.py $(BUILD)/parts $(PARTS)

# The emulated GPU takes minutes: here another seventh of its longest tests than under sanitizers (`make test-long`: all).
part-check: GPU_PART := RATOON_TEST_PART=3/7
part-check: run-all
part-sanitize:
	@$(MAKE) --no-print-directory $(SANITIZE) tests-built
	@$(MAKE) --no-print-directory $(SANITIZE) run-all
	python3 tests/gpu/orders.py build-sanitize --orders 6 --share 8
# The emulated driver and its kernels run as they are: fibers are not for this sanitizer.
part-races:
	@$(MAKE) --no-print-directory $(RACES) run-test_threads run-test_pool run-test_disk run-test_experts \
	    build-tsan/tests/test_gpu_store
	RATOON_CUDA_DRIVER=$(abspath $(BUILD)/libfake_cuda.so) build-tsan/tests/test_gpu_store
# Without nvcc what it makes of the kernels is not checked.
part-gpu:
	python3 tests/gpu/orders.py $(BUILD) --orders 0,3,6 --share 8
	python3 tests/gpu/test_compiled.py
	@$(MAKE) --no-print-directory $(BUILD)/libfake_cuda_watched.so
	python3 tests/gpu/test_counts.py $(BUILD)
	python3 tests/gpu/test_races.py $(BUILD)
	python3 tests/gpu/test_backend.py $(BUILD)
	python3 tests/gpu/test_script.py $(BUILD)
# Runs tests/$(1) one by one, also behind one that fails.
RUN_EACH = @failed=; for t in $(1); do echo "python3 tests/$$t"; python3 tests/$$t || failed="$$failed $$t"; done; \
           [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
CLI_TESTS := parts cli demo chat drafters costs manual options json experts mistakes install python hub plan gpu documents train
part-cli:
	$(call RUN_EACH,deps.py "fuzz/make_cache_corpus.py --check" $(CLI_TESTS:%=cli/test_%.py))
# The server's tests wait longer here, since other parts run at the same time.
part-serve: export SLOW := 3
part-serve: test-serve
# Without its tools the tests are skipped, so failing to install them is not an error.
part-packages: export SLOW := 3
part-packages:
	@$(MAKE) --no-print-directory setup-packages || true
	python3 tests/packages/test_packages.py
part-arm:
	python3 tests/cli/test_arm.py

SERVE_TESTS := sdk_replay test_http test_health test_jobs test_text test_llama test_ollama test_bounds test_experts \
               test_diffusion test_page test_sdk
test-serve: export BUILD := $(BUILD)
test-serve: ratoon
	$(call RUN_EACH,$(SERVE_TESTS:%=serve/%.py))

# A sanitizer's report, also of leaks at the end, gives the server a non-zero exit status: its test fails.
test-serve-sanitized: export SLOW := 10
test-serve-sanitized:
	$(MAKE) --no-print-directory $(SANITIZE) build-sanitize/ratoon
	$(MAKE) --no-print-directory $(RACES) build-tsan/ratoon run-test_pool run-test_session run-test_threads
	for r in build-sanitize build-tsan; do for t in http jobs text llama ollama; do RATOON=$$r/ratoon python3 tests/serve/test_$$t.py || exit 1; done; \
	    RATOON=$$r/ratoon MIX_SECONDS=300 python3 tests/serve/long_serve.py Long.test_everything_at_once || exit 1; done
	RATOON=build-sanitize/ratoon python3 tests/serve/test_page.py

# Nothing that a test expects may be due to this machine's speed. CLOCK_SEED is read by the tests' clock.
CLOCK       := CFLAGS="-O2 -g -include tests/help/random_clock.h" BUILD=build-clock
CLOCK_SEEDS ?= 1 2 3 4
test-clock:
	@$(MAKE) --no-print-directory $(CLOCK) tests-built
	for s in $(CLOCK_SEEDS); do CLOCK_SEED=$$s $(MAKE) --no-print-directory $(CLOCK) run-all || exit 1; done

test-long: test
	@$(MAKE) --no-print-directory run-test_gpu_layers run-test_gpu_cards run-test_gpu_store run-test_cuda
	python3 tests/gpu/orders.py $(BUILD) --all
	python3 tests/gpu/test_compiled.py --all
	python3 tests/gpu/orders.py build-sanitize
	@$(MAKE) --no-print-directory cuda-archs
	$(MAKE) --no-print-directory $(LONG_NAME:%=run-%)
	@$(MAKE) --no-print-directory test-clock
	ROUNDS=200 python3 tests/serve/test_jobs.py Exact
	python3 tests/serve/long_serve.py
	python3 tests/serve/long_memory.py
	python3 tests/serve/long_hostile.py
	BUILD_STAGE=1 python3 tests/packages/test_packages.py Container
	@$(MAKE) --no-print-directory test-serve-sanitized

# Programs that documents use. One at a time: apt-get has a lock.
setup-test: setup
	@$(MAKE) --no-print-directory setup PACKAGES="curl git chromium fonts-dejavu-core"

# Without these packages the ARM tests are skipped, so failing to install them is not an error.
setup-arm: setup-test
	@[ $(ARCH) = aarch64 ] || $(MAKE) --no-print-directory setup PACKAGES="$(ARM_PACKAGES)" || true
test-arm: ratoon setup-arm
	python3 tests/cli/test_arm.py

oracle: ratoon $(BUILD)/tests/make_tiny $(BUILD)/tests/peer_template
	PYTHON=$(PYTHON) tests/oracle/run.sh
PYTHON ?= python3

.PHONY: check cuda-archs test test-clock test-serve test-serve-sanitized test-arm test-long tests-built setup-arm setup-test run-all run-fuzz fuzz oracle \
        $(PARTS:%=part-%)
