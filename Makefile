# make          builds ./ratoon and the library
# make demo     sets up, builds, decodes three prompts with the demo pair, with and without its drafter
# make test     sets up, builds, runs every test that needs no GPU       (make check: the quick ones; make test-long: the slow ones too)
# make bench    measures the demo pair, and MODEL=FILE (COMPARE=llama-bench beside it); writes bench/*.csv and bench/*.svg
# make oracle   recomputes what transformers says of the tests' models (PYTHON=... with torch and transformers)
# make install  PREFIX=/usr/local DESTDIR=; make uninstall; make clean; make setup installs packages only

BUILD   ?= build
CC      ?= gcc
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := $(shell cat VERSION)

PKGS     := jansson libpcre2-8 libutf8proc libxxhash
PACKAGES := gcc libc6-dev make pkg-config python3 libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libcmocka-dev libmicrohttpd-dev libedit-dev
ARM_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes
SAN     ?=
COMMON   = -std=gnu11 -D_GNU_SOURCE -DRATOON_VERSION='"$(VERSION)"' $(CFLAGS) $(SAN) $(WARN) -ffp-contract=off -fPIC -Isrc -Iinclude $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
# The server's own library: the program links it, libratoon does not.
HTTP     = $(shell pkg-config --libs libmicrohttpd 2>/dev/null || echo -lmicrohttpd)
LIBS     = $(shell pkg-config --libs $(PKGS) 2>/dev/null || echo -ljansson -lpcre2-8 -lutf8proc -lxxhash) -lm -lpthread

# One short line per file; make V=1 shows the commands.
ifeq ($(V),)
Q       := @
SAY      = @echo "  $(1)" $(patsubst $(BUILD)/%,%,$@)
endif

# What stays in one core's registers is compiled once per level of the architecture that CC compiles for (src/backend/cpu/level.h) and
# chosen at run time; no file is compiled for this machine.
SIMD_OPT ?= -O3
ARCH    := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
LEVELS_x86_64  := avx2 avxvnni avx512
LEVELS_aarch64 := neon i8mm
LEVELS         := portable $(LEVELS_$(ARCH))
# A level that shares all but the product with the one before it.
TILES_x86_64   := amx
TILES          := $(TILES_$(ARCH))
FLAGS_avx2     := -mavx2 -mfma -mf16c
FLAGS_avxvnni  := $(FLAGS_avx2) -mavxvnni
FLAGS_avx512   := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c
FLAGS_amx      := $(FLAGS_avx512) -mavx512vbmi -mgfni -mamx-tile -mamx-int8
# Scheduling before registers are given out costs gcc 12 a dozen spills in each inner loop of these; the processors reorder by themselves.
FLAGS_neon     := -march=armv8.2-a+dotprod -fno-schedule-insns
FLAGS_i8mm     := -march=armv8.2-a+dotprod+i8mm -fno-schedule-insns

SIMD     := $(wildcard src/backend/cpu/simd_*.c)
SIMD_TILES := src/backend/cpu/simd_matmul_amx.c src/backend/cpu/simd_attend.c src/backend/cpu/simd_roofline.c
LIB_SRC  := $(filter-out $(SIMD),$(wildcard src/base/*.c src/format/*.c src/text/*.c src/backend/*.c src/backend/cpu/*.c src/model/*.c src/decode/*.c src/engine/*.c))
PROG_SRC := $(wildcard src/programs/*.c src/programs/serve/*.c)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(foreach l,$(LEVELS),$(SIMD:%.c=$(BUILD)/%.$(l).o)) $(foreach l,$(TILES),$(SIMD_TILES:%.c=$(BUILD)/%.$(l).o))
PROG_OBJ := $(PROG_SRC:%.c=$(BUILD)/%.o)

all: ratoon $(BUILD)/libratoon.so bench/make_synthetic

# The line editor of `ratoon chat` is the programs' own: libratoon does not link it.
ratoon $(BUILD)/ratoon $(BUILD)/tests/%: LIBS += $(shell pkg-config --libs libedit 2>/dev/null || echo -ledit)

ratoon $(BUILD)/ratoon: $(PROG_OBJ) $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(HTTP) $(LIBS)

$(BUILD)/libratoon.a: $(LIB_OBJ)
	@rm -f $@
	$(call SAY,AR)
	$(Q)ar rcs $@ $^

# Only what ratoon.h declares is visible.
$(BUILD)/libratoon.so: $(LIB_OBJ) src/engine/exports.map
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -shared -Wl,-soname,libratoon.so.0 -Wl,--version-script=src/engine/exports.map -o $@ $(LIB_OBJ) $(LIBS)

$(BUILD)/src/base/%.o $(BUILD)/src/format/%.o $(BUILD)/src/text/%.o: WARN += -Wconversion

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call SAY,CC)
	$(Q)$(CC) $(COMMON) -MMD -MP -c -o $@ $<

$(BUILD)/src/programs/serve/page.o: src/programs/serve/page.html

define LEVEL_RULE
$(BUILD)/src/backend/cpu/simd_%.$(1).o: src/backend/cpu/simd_%.c
	@mkdir -p $$(@D)
	$$(call SAY,CC)
	$$(Q)$(CC) $$(COMMON) $$(SIMD_OPT) $$(FLAGS_$(1)) -DLEVEL=$(1) -DLEVEL_IS_$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach l,$(LEVELS) $(TILES),$(eval $(call LEVEL_RULE,$(l))))

bench/lab_matmul: $(BUILD)/bench/lab_matmul.o $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)

bench/make_synthetic: $(BUILD)/bench/make_synthetic.o $(BUILD)/src/programs/progress.o $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)

# Laboratories of the kernels: make bench/lab_matmul, make bench/lab_attend, make bench/lab_grammar.
LABS := bench/lab_matmul bench/lab_attend bench/lab_grammar bench/lab_trace
bench/lab_%: $(BUILD)/bench/lab_%.o $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)

# ---- setting up, running, installing ----

# Installs what is missing, as root or with sudo. Nothing is asked of a machine that has it all.
setup:
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	    echo "installing:" $$missing; \
	    if [ $$(id -u) = 0 ]; then sudo=; else sudo=sudo; fi; \
	    $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

demo: setup
	@$(MAKE) --no-print-directory ratoon
	@python3 examples/demo.py

MANUAL  := $(DESTDIR)$(PREFIX)/share/man/man1/ratoon.1
BASHED  := $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ratoon
ZSHED   := $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ratoon
FISHED  := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ratoon.fish
SERVICE := $(DESTDIR)$(PREFIX)/lib/systemd/system/ratoon.service

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/ratoon/models/demo
	install -m 755 ratoon $(DESTDIR)$(PREFIX)/bin/ratoon
	install -m 644 include/ratoon.h $(DESTDIR)$(PREFIX)/include/ratoon.h
	install -m 644 $(BUILD)/libratoon.a $(DESTDIR)$(PREFIX)/lib/libratoon.a
	install -m 755 $(BUILD)/libratoon.so $(DESTDIR)$(PREFIX)/lib/libratoon.so.0
	ln -sf libratoon.so.0 $(DESTDIR)$(PREFIX)/lib/libratoon.so
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(PKGS)|' src/engine/ratoon.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/ratoon.pc
	install -m 644 models/demo/*.gguf models/demo/README.md $(DESTDIR)$(PREFIX)/share/ratoon/models/demo/
	install -d $(dir $(MANUAL) $(BASHED) $(ZSHED) $(FISHED) $(SERVICE))
	./ratoon help --man > $(MANUAL)
	./ratoon help --completion bash > $(BASHED)
	./ratoon help --completion zsh > $(ZSHED)
	./ratoon help --completion fish > $(FISHED)
	sed -e 's|@PREFIX@|$(PREFIX)|' share/systemd/ratoon.service > $(SERVICE)

uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/bin/ratoon $(DESTDIR)$(PREFIX)/include/ratoon.h $(DESTDIR)$(PREFIX)/lib/libratoon.* $(DESTDIR)$(PREFIX)/lib/pkgconfig/ratoon.pc $(DESTDIR)$(PREFIX)/share/ratoon $(MANUAL) $(BASHED) $(ZSHED) $(FISHED) $(SERVICE)

clean:
	rm -rf $(BUILD) build-* ratoon bench/make_synthetic $(LABS)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# make deps     draws the layers and fails on an include that points up
deps:
	@python3 tests/deps.py

include tests/tests.mk
include bench/bench.mk

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all setup demo install uninstall clean help deps
