# Tests: every tests/test_NAME.c is a program; what they share is an archive. `make test` runs all that a machine without a GPU can.
#   make check          the C tests, in seconds to a minute
#   make test           check, the same under sanitizers, fuzz corpora, the command line, the demo pair, the ARM code under qemu
#   make test-serve     the server over real sockets: bad input, jobs, texts, the README's curl lines, the page (in Chromium, where it is
#                       installed), and the official SDKs where pip can get them
#   make test-arm       the ARM code alone: Debian's cross compiler and qemu are installed where that works, or it says why it was skipped
#   make test-long      test, and what takes minutes: a context of 262,144 tokens, the server for longer and under sanitizers
#   make test-serve-sanitized   the server's tests against one built with ASan and UBSan, and one with TSan
#   make run-test_NAME  one of them
#   make fuzz           every target of tests/fuzz under clang's libFuzzer, each for FUZZ_SECONDS; FUZZ="record request": only these.
#                       Debian's clang-19 and libclang-rt-19-dev; its clang 14 knows too little of atomics and processors. CLANG=...: another

TEST_SRC  := $(wildcard tests/test_*.c)
TEST_NAME := $(TEST_SRC:tests/%.c=%)
TEST_BIN  := $(TEST_NAME:%=$(BUILD)/tests/%)
LONG_SRC  := $(wildcard tests/long_*.c)
LONG_NAME := $(LONG_SRC:tests/%.c=%)
HELP_SRC  := $(filter-out $(TEST_SRC) $(LONG_SRC) tests/make_tiny.c tests/peer_tokenizer.c tests/peer_template.c,$(wildcard tests/*.c))
HELP_OBJ  := $(HELP_SRC:%.c=$(BUILD)/%.o) $(filter-out $(BUILD)/src/programs/main.o,$(PROG_OBJ))
FUZZ      := gguf safetensors template tokenizer grammar schema image record reply request
FUZZ_BIN  := $(FUZZ:%=$(BUILD)/tests/replay_%)

# PART: one case in so many of the longest tests runs (tests/part.h).
PART ?= 1
$(BUILD)/tests/%.o: COMMON += -Itests -DPART=$(PART)
$(BUILD)/tests/libhelp.a: $(HELP_OBJ)
	@rm -f $@
	$(call SAY,AR)
	$(Q)ar rcs $@ $^
$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ -lcmocka $(HTTP) $(LIBS)
$(BUILD)/tests/long_%: $(BUILD)/tests/long_%.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ -lcmocka $(HTTP) $(LIBS)
$(BUILD)/tests/make_tiny $(BUILD)/tests/peer_tokenizer $(BUILD)/tests/peer_template: $(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(HTTP) $(LIBS)
$(BUILD)/tests/replay_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(HTTP) $(LIBS)
.SECONDARY:

run-%: $(BUILD)/tests/%
	./$<
run-replay-%: $(BUILD)/tests/replay_%
	./$< tests/fuzz/corpus/$*

# What is found lies in build-fuzz/found, inputs that reached something new in build-fuzz/corpus.
CLANG        ?= clang-19
FUZZ_SECONDS ?= 60
FUZZING := CC=$(CLANG) SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" CFLAGS="-O1 -g" SIMD_OPT="-O1 -fno-sanitize=all" BUILD=build-fuzz
$(BUILD)/tests/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/libhelp.a $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(HTTP) $(LIBS)
run-fuzz-%: $(BUILD)/tests/fuzz_%
	@mkdir -p $(BUILD)/found $(BUILD)/corpus/$*
	./$< -max_total_time=$(FUZZ_SECONDS) -timeout=100 -report_slow_units=100 -artifact_prefix=$(BUILD)/found/$*- -print_final_stats=1 $(BUILD)/corpus/$* tests/fuzz/corpus/$*
run-fuzz: $(FUZZ:%=run-fuzz-%)
fuzz:
	@$(MAKE) --no-print-directory $(FUZZING) run-fuzz

tests-built: $(TEST_BIN) $(FUZZ_BIN) $(BUILD)/tests/make_tiny
check: setup
	@$(MAKE) --no-print-directory ratoon tests-built $(LABS)
	@$(MAKE) --no-print-directory run-all
run-all: $(TEST_NAME:%=run-%) $(FUZZ:%=run-replay-%)

SANITIZE := SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined" CFLAGS="-O1 -g" SIMD_OPT="-O1 -fno-var-tracking" PART=7 BUILD=build-sanitize
test: export XDG_CONFIG_HOME := /nonexistent
test: check
	$(MAKE) --no-print-directory $(SANITIZE) tests-built
	$(MAKE) --no-print-directory $(SANITIZE) run-all
	python3 tests/deps.py
	python3 tests/fuzz/make_cache_corpus.py --check
	python3 tests/test_cli.py
	python3 tests/test_demo.py
	python3 tests/test_chat.py
	python3 tests/test_manual.py
	@$(MAKE) --no-print-directory test-serve
	@$(MAKE) --no-print-directory test-arm

test-serve: ratoon
	python3 tests/serve/sdk_replay.py
	python3 tests/serve/test_http.py
	python3 tests/serve/test_jobs.py
	python3 tests/serve/test_text.py
	python3 tests/serve/test_page.py
	BUILD=$(BUILD) python3 tests/serve/test_sdk.py

# A report ends the server with a status that is not 0, leaks at its end too: the test that it served fails.
RACES := SAN="-fsanitize=thread" CFLAGS="-O1 -g" SIMD_OPT="-O1 -fno-var-tracking" PART=7 BUILD=build-tsan
test-serve-sanitized: export SLOW := 10
test-serve-sanitized:
	$(MAKE) --no-print-directory $(SANITIZE) build-sanitize/ratoon
	$(MAKE) --no-print-directory $(RACES) build-tsan/ratoon run-test_pool run-test_session
	for r in build-sanitize build-tsan; do for t in http jobs text; do RATOON=$$r/ratoon python3 tests/serve/test_$$t.py || exit 1; done; \
	    RATOON=$$r/ratoon MIX_SECONDS=300 python3 tests/serve/long_serve.py Long.test_everything_at_once || exit 1; done
	RATOON=build-sanitize/ratoon python3 tests/serve/test_page.py

test-long: test
	$(MAKE) --no-print-directory $(LONG_NAME:%=run-%)
	ROUNDS=200 python3 tests/serve/test_jobs.py Exact
	python3 tests/serve/long_serve.py
	@$(MAKE) --no-print-directory test-serve-sanitized

# Without these packages it is skipped, so failing to get them fails nothing.
test-arm: ratoon
	@[ $(ARCH) = aarch64 ] || $(MAKE) --no-print-directory setup PACKAGES="$(ARM_PACKAGES)" || true
	python3 tests/test_arm.py

oracle: ratoon $(BUILD)/tests/make_tiny $(BUILD)/tests/peer_template
	PYTHON=$(PYTHON) tests/oracle/run.sh
PYTHON ?= python3

.PHONY: check test test-serve test-serve-sanitized test-arm test-long tests-built run-all run-fuzz fuzz oracle
