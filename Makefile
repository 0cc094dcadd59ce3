# make          builds ./ratoon and the library
# make cuda     the same with kernels for NVIDIA GPUs (fetches their compiler, 100 MB, where there is no nvcc of CUDA 12.8 or newer); takes minutes, 20 on two slow cores
# make demo     sets up, builds, decodes three prompts with the demo pair, with and without its drafter
# make check    the quick tests, a minute or two once it is built
# make test     sets up, builds, runs every test that needs no GPU, about an hour on two cores       (make test-long: the slow ones too)
# make bench    measures the demo pair, and MODEL=FILE (COMPARE=llama-bench beside it); writes bench/*.csv and bench/*.svg
# make oracle   recomputes what transformers says of the tests' models (PYTHON=... with torch and transformers)
# make deb      Debian packages in build/: the program, the library, its headers       (make setup-packages: what that needs)
# make tarball  build/ratoon-VERSION-linux-ARCH.tar.gz: the program with the libraries it needs, to be unpacked anywhere
# make install  PREFIX=/usr/local DESTDIR= STRIP=true (keeps symbols); make uninstall; make clean; make setup: packages

BUILD   ?= build
CC      ?= gcc
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
DESTDIR ?=
OBJCOPY ?= objcopy
STRIP   ?= strip
LDCONFIG ?= ldconfig
VERSION := $(shell cat VERSION)

PKGS     := jansson libpcre2-8 libutf8proc libxxhash
PACKAGES := gcc g++ libc6-dev make pkg-config python3 libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libcmocka-dev libmicrohttpd-dev libedit-dev libcurl4-openssl-dev libssl-dev liburing-dev node-markdown-it
ARM_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes
# What newer compilers call errors is one here, too.
WARN    += -Werror=incompatible-pointer-types -Werror=int-conversion -Werror=implicit-function-declaration
SAN     ?=
COMMON   = -std=gnu11 -D_GNU_SOURCE -DRATOON_VERSION='"$(VERSION)"' $(CFLAGS) $(SAN) $(WARN) -ffp-contract=off -fPIC -Isrc -Iinclude $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
# The server's own library: the program links it, libratoon does not.
HTTP     = $(shell pkg-config --libs libmicrohttpd 2>/dev/null || echo -lmicrohttpd)
# What fetches models, likewise: libcurl, and the SHA-256 of the OpenSSL below it.
HUB      = $(shell pkg-config --libs libcurl libcrypto 2>/dev/null || echo -lcurl -lcrypto)
LIBS     = $(shell pkg-config --libs $(PKGS) 2>/dev/null || echo -ljansson -lpcre2-8 -lutf8proc -lxxhash) -lm -lpthread

# One short line per file; make V=1 shows the commands.
ifeq ($(V),)
Q       := @
SAY      = @echo "  $(1)" $(patsubst $(BUILD)/%,%,$@)
endif

# What stays in one core's registers is compiled once per level of the architecture that CC compiles for (src/backend/cpu/level.h) and
# chosen at run time; no file is compiled for this machine.
SIMD_OPT ?= -O3
# Packing is vectors of the compiler's own, once for all levels; with loops unrolled it takes about 0.6 of the time.
$(BUILD)/src/backend/cpu/matmul_pack.o: COMMON += $(SIMD_OPT)
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
# Levels that this machine's processor lacks: compiled without sanitizers, since nothing here runs them.
FLAG_avx2 := avx2
FLAG_avxvnni := avx_vnni
FLAG_avx512 := avx512_vnni
FLAG_amx := amx_int8
ABSENT   := $(if $(SAN),$(foreach l,$(LEVELS_x86_64) $(TILES_x86_64),$(if $(shell grep -wm 1 $(FLAG_$(l)) /proc/cpuinfo),,$(l))))
# Scheduling before registers are given out costs gcc 12 a dozen spills in each inner loop of these; the processors reorder by themselves.
FLAGS_neon     := -march=armv8.2-a+dotprod -fno-schedule-insns
FLAGS_i8mm     := -march=armv8.2-a+dotprod+i8mm -fno-schedule-insns

# liburing, for src/base/disk.c, as an object of ours: neither programs nor ratoon.pc name it. The compiler is asked for
# it, since one for another machine must not find this machine's; where there is none, threads read.
URING    := $(shell $(CC) $(CFLAGS) $(LDFLAGS) -r -nostdlib -o /dev/null -include liburing.h -x c /dev/null -l:liburing.a 2>/dev/null && echo $(BUILD)/uring.o)

SIMD     := $(wildcard src/backend/cpu/simd_*.c)
SIMD_TILES := src/backend/cpu/simd_matmul_amx.c src/backend/cpu/simd_attend.c src/backend/cpu/simd_roofline.c
LIB_SRC  := $(filter-out $(SIMD),$(sort $(shell find src/base src/format src/text src/backend src/model src/decode src/engine -name '*.c' 2>/dev/null)))
PROG_SRC := $(sort $(shell find src/programs -name '*.c' 2>/dev/null))
LIB_OBJ  := $(BUILD)/src/backend/cuda/image.o $(URING) $(LIB_SRC:%.c=$(BUILD)/%.o) $(foreach l,$(LEVELS),$(SIMD:%.c=$(BUILD)/%.$(l).o)) $(foreach l,$(TILES),$(SIMD_TILES:%.c=$(BUILD)/%.$(l).o))
PROG_OBJ := $(PROG_SRC:%.c=$(BUILD)/%.o)

all: ratoon $(BUILD)/libratoon.so bench/make_synthetic

# The line editor of `ratoon chat` is the programs' own: libratoon does not link it.
ratoon $(BUILD)/ratoon $(BUILD)/tarball/ratoon $(BUILD)/tests/%: LIBS += $(shell pkg-config --libs libedit 2>/dev/null || echo -ledit)

ratoon $(BUILD)/ratoon $(BUILD)/tarball/ratoon: $(PROG_OBJ) $(BUILD)/libratoon.a
	@mkdir -p $(@D)
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(HTTP) $(HUB) $(LIBS)
	$(if $(CUDA_MADE),,@echo "  this build has no GPU kernels; make cuda adds them")

$(BUILD)/libratoon.a: $(LIB_OBJ)
	@rm -f $@
	$(call SAY,AR)
	$(Q)ar rcs $@ $^

# For others: one object, in which only what the headers declare is visible, so that their names cannot meet ours.
$(BUILD)/install/libratoon.a: $(LIB_OBJ)
	@mkdir -p $(@D)
	@rm -f $@
	$(call SAY,AR)
	$(Q)$(CC) -r -nostdlib -o $(@D)/ratoon.o $^
	$(Q)$(OBJCOPY) -w --keep-global-symbol='rt_*' $(@D)/ratoon.o
	$(Q)ar rcs $@ $(@D)/ratoon.o

# Only what the headers declare is visible.
$(BUILD)/libratoon.so: $(LIB_OBJ) src/engine/exports.map
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -shared -Wl,-soname,libratoon.so.0 -Wl,--version-script=src/engine/exports.map -o $@ $(LIB_OBJ) $(LIBS)

$(BUILD)/src/base/%.o $(BUILD)/src/format/%.o $(BUILD)/src/text/%.o: WARN += -Wconversion
# What reads files and requests of others is compiled with glibc's and the compiler's checks; sanitizers have better ones.
HARDEN = $(if $(SAN),,-fstack-protector-strong $(if $(findstring -O,$(CFLAGS)),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
$(BUILD)/src/base/%.o $(BUILD)/src/format/%.o $(BUILD)/src/text/%.o $(BUILD)/src/programs/%.o: COMMON += $(HARDEN)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call SAY,CC)
	$(Q)$(CC) $(COMMON) -MMD -MP -c -o $@ $<

# Notes which of the two this build is: liburing may come or go between two runs of make.
$(BUILD)/uring.made: always
	@mkdir -p $(@D)
	@echo '$(URING)' | cmp -s - $@ || echo '$(URING)' > $@
$(BUILD)/uring.o:
	@mkdir -p $(@D)
	$(call SAY,LD)
	$(Q)$(CC) $(LDFLAGS) -r -nostdlib -o $@ -Wl,--whole-archive -l:liburing.a
$(BUILD)/src/base/disk.o: COMMON += -DURING=$(if $(URING),1,0)
$(BUILD)/src/base/disk.o: $(BUILD)/uring.made

# The page at `/` of the server: its sources and markdown-it in one file (src/programs/serve/page/assemble.py).
# Elsewhere than on Debian: MARKDOWN_IT=.../markdown-it.min.js, from the package markdown-it of npm.
MARKDOWN_IT ?= /usr/share/nodejs/markdown-it
$(BUILD)/page.html: $(wildcard src/programs/serve/page/*) doc/licenses/markdown-it.txt $(wildcard $(MARKDOWN_IT))
	@mkdir -p $(@D)
	$(call SAY,PAGE)
	$(Q)python3 src/programs/serve/page/assemble.py $@ $(MARKDOWN_IT)
$(BUILD)/src/programs/serve/http/page.o: COMMON += -DPAGE_FILE='"$(BUILD)/page.html"'
$(BUILD)/src/programs/serve/http/page.o: $(BUILD)/page.html

# ---- kernels for GPUs (src/backend/gpu), as data in the program ----

# `make cuda` compiles them, one fatbin for each kernel file, and notes for which architectures (cuda/made.mk): from then
# on they are part of the program and are kept up to date; without it, or with CUDA_ARCHS= , the program has none. PTX is
# for newer cards; sm_89 runs the code of sm_86, which is the same. CUDA_ARCHS=native: for the cards of this machine.
CUDA_ARCHS ?= 75 80 86 90 100 120
CUDA_PTX   ?= 90
CUDA_CARDS  = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -nu)
CUDA_FOR    = $(if $(filter native,$(CUDA_ARCHS)),$(CUDA_CARDS),$(CUDA_ARCHS))
-include $(BUILD)/cuda/made.mk
NVCC       ?= $(or $(wildcard $(BUILD)/nvcc/nvidia/cu13/bin/nvcc),nvcc)
NVCC_FLAGS := -Isrc -std=c++17 -O3 -fmad=false
NVCC_CODE   = $(foreach a,$(CUDA_MADE),-gencode arch=compute_$(a),code=sm_$(a)) \
              -gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX) --threads 0 --compress-mode=size -fatbin
KERNELS    := $(sort $(wildcard src/backend/gpu/*.cu))
CUDA_FATBINS := $(if $(CUDA_MADE),$(KERNELS:src/backend/gpu/%.cu=$(BUILD)/cuda/%.fatbin))

cuda: setup
	@test $(CUDA_PTX) -ge 90 || { echo 'CUDA_PTX is $(CUDA_PTX), expected 90 or more: the program launches kernels early on every card from sm_90 on'; exit 1; }
	@[ "$(CUDA_ARCHS)" != native ] || [ "$(CUDA_FOR)" ] || { echo 'CUDA_ARCHS is native, but nvidia-smi names no card here'; exit 1; }
	@for a in $(CUDA_FOR); do \
	    { $(NVCC) --list-gpu-code | grep -qx sm_$$a && $(NVCC) --help | grep -q compress-mode; } 2>/dev/null || \
	    { $(MAKE) --no-print-directory cuda-compiler && break || exit 1; }; done
	@mkdir -p $(BUILD)/cuda
	@ls $(BUILD)/cuda/*.fatbin >/dev/null 2>&1 || echo "the kernels are compiled for sm $(CUDA_FOR), which takes minutes (20 on two slow cores; CUDA_ARCHS=native is faster)"
	@echo 'CUDA_MADE := $(CUDA_FOR)' | cmp -s - $(BUILD)/cuda/made.mk || echo 'CUDA_MADE := $(CUDA_FOR)' > $(BUILD)/cuda/made.mk
	@$(MAKE) --no-print-directory all
cuda-compiler:
	@echo "  FETCH the compiler for GPU kernels"
	@python3 -m pip --version >/dev/null 2>&1 || $(MAKE) --no-print-directory setup PACKAGES=python3-pip
	$(Q)python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade --target $(BUILD)/nvcc \
	    -r src/backend/cuda/compiler.txt
$(BUILD)/cuda/%.fatbin: src/backend/gpu/%.cu $(BUILD)/cuda/made.mk
	$(call SAY,NVCC)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(NVCC_CODE) -MMD -MP -MF $(@:.fatbin=.d) -MT $@ -o $@ $<
-include $(CUDA_FATBINS:.fatbin=.d)
$(BUILD)/cuda/images.inc: Makefile src/backend/cuda/images.py $(wildcard $(BUILD)/cuda/made.mk) $(CUDA_FATBINS)
	@mkdir -p $(@D)
	$(Q)python3 src/backend/cuda/images.py $@ $(NVCC) $(CUDA_FATBINS)
$(BUILD)/src/backend/cuda/image.o: src/backend/cuda/image.S $(BUILD)/cuda/images.inc
	@mkdir -p $(@D)
	$(call SAY,AS)
	$(Q)$(CC) -I. -DCUDA_IMAGES='"$(BUILD)/cuda/images.inc"' -c -o $@ $<

define LEVEL_RULE
$(BUILD)/src/backend/cpu/simd_%.$(1).o: src/backend/cpu/simd_%.c
	@mkdir -p $$(@D)
	$$(call SAY,CC)
	$$(Q)$(CC) $$(COMMON) $$(SIMD_OPT) $$(FLAGS_$(1)) $$(if $$(filter $(1),$$(ABSENT)),-fno-sanitize=all) -DLEVEL=$(1) -DLEVEL_IS_$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach l,$(LEVELS) $(TILES),$(eval $(call LEVEL_RULE,$(l))))

bench/lab_matmul: $(BUILD)/bench/lab_matmul.o $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)

bench/make_synthetic: $(BUILD)/bench/make_synthetic.o $(BUILD)/src/programs/progress.o $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)

# Laboratories of the kernels: make bench/lab_matmul, bench/lab_experts and the others.
LABS := bench/lab_matmul bench/lab_experts bench/lab_attend bench/lab_grammar bench/lab_trace
bench/lab_%: $(BUILD)/bench/lab_%.o $(BUILD)/libratoon.a
	$(call SAY,LINK)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)

# ---- setting up, running, installing ----

# Installs what is missing, as root or with sudo. Nothing is asked of a machine that has it all.
# Only Debian's packages are installed from here; elsewhere setup names what is missing.
FEDORA := gcc gcc-c++ make pkgconf-pkg-config python3 jansson-devel pcre2-devel utf8proc-devel xxhash-devel libcmocka-devel libmicrohttpd-devel libedit-devel libcurl-devel openssl-devel
ARCHLINUX := gcc make pkgconf python jansson pcre2 libutf8proc xxhash cmocka libmicrohttpd libedit curl openssl
ALPINE := gcc g++ musl-dev make pkgconf python3 jansson-dev pcre2-dev utf8proc-dev xxhash-dev cmocka-dev libmicrohttpd-dev libedit-dev curl-dev openssl-dev
setup:
	@if command -v dpkg-query >/dev/null; then \
	    missing=$$(for p in $(PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	    [ -n "$$missing" ] || exit 0; \
	    echo "installing:" $$missing; \
	    if [ $$(id -u) = 0 ]; then sudo=; else sudo=sudo; fi; \
	    $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $$missing >/dev/null; \
	elif ! { command -v $(CC) && pkg-config --exists $(PKGS) cmocka libmicrohttpd libedit libcurl; } >/dev/null 2>&1; then \
	    echo "This is not Debian: install what it takes to build, and run make again."; \
	    echo "  Fedora  sudo dnf install $(FEDORA)"; \
	    echo "  Arch    sudo pacman -S --needed $(ARCHLINUX)"; \
	    echo "  Alpine  sudo apk add $(ALPINE)   (with musl: not tested)"; \
	    echo "  and for Markdown on the server's page: make MARKDOWN_IT=.../markdown-it.min.js (npm pack markdown-it@14.1.0)"; \
	    exit 1; \
	fi

demo: setup
	@$(MAKE) --no-print-directory ratoon
	@python3 examples/demo.py

MANUAL  := $(DESTDIR)$(PREFIX)/share/man/man1/ratoon.1
BASHED  := $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ratoon
ZSHED   := $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ratoon
FISHED  := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ratoon.fish
SERVICE := $(DESTDIR)$(UNITDIR)/ratoon.service

install: install-program install-library
	install -d $(dir $(SERVICE))
	sed -e 's|@PREFIX@|$(PREFIX)|' share/systemd/ratoon.service > $(SERVICE)
	@$(MAKE) --no-print-directory ldconfig

PROGRAM ?= ratoon
install-program: $(PROGRAM)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/ratoon/models/demo $(dir $(MANUAL) $(BASHED) $(ZSHED) $(FISHED))
	install -m 755 -s --strip-program=$(STRIP) $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/ratoon
	install -m 644 models/demo/*.gguf models/demo/README.md $(DESTDIR)$(PREFIX)/share/ratoon/models/demo/
	install -m 644 share/drafters.json $(DESTDIR)$(PREFIX)/share/ratoon/drafters.json
	./ratoon help --man > $(MANUAL)
	./ratoon help --completion bash > $(BASHED)
	./ratoon help --completion zsh > $(ZSHED)
	./ratoon help --completion fish > $(FISHED)

install-library: $(BUILD)/libratoon.so $(BUILD)/install/libratoon.a
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 include/ratoon.h include/ratoon_chat.h include/ratoon_lab.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 $(BUILD)/install/libratoon.a $(DESTDIR)$(LIBDIR)/libratoon.a
	$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/libratoon.a
	install -m 755 -s --strip-program=$(STRIP) $(BUILD)/libratoon.so $(DESTDIR)$(LIBDIR)/libratoon.so.0
	ln -sf libratoon.so.0 $(DESTDIR)$(LIBDIR)/libratoon.so
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@LIBS@|$(strip $(LIBS))|' src/engine/ratoon.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/ratoon.pc

# Programs find a new shared library in a system's folder when the linker's cache knows of it, elsewhere when they are
# told where it lies.
ldconfig:
	@if [ -n "$(DESTDIR)" ]; then :; \
	elif [ $$(id -u) = 0 ] && { [ "$(PREFIX)" = /usr ] || [ "$(PREFIX)" = /usr/local ]; }; then $(LDCONFIG); \
	else echo "programs find $(LIBDIR)/libratoon.so after ldconfig, with LD_LIBRARY_PATH or an rpath"; fi

uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/bin/ratoon $(DESTDIR)$(PREFIX)/include/ratoon*.h $(DESTDIR)$(LIBDIR)/libratoon.* $(DESTDIR)$(LIBDIR)/pkgconfig/ratoon.pc $(DESTDIR)$(PREFIX)/share/ratoon $(MANUAL) $(BASHED) $(ZSHED) $(FISHED) $(SERVICE)

# ---- packages ----

setup-deb: setup
	@$(MAKE) --no-print-directory setup PACKAGES="build-essential debhelper"
setup-packages: setup-deb
	@$(MAKE) --no-print-directory setup PACKAGES="lintian debootstrap"

# In a copy of what they are made of, with the objects that are built already: packages have the code that was tested.
DEB := $(BUILD)/deb/ratoon-$(VERSION)
deb-tools:
	@command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null || \
	    { echo "make deb needs dpkg-dev and debhelper; make setup-packages installs them"; exit 1; }
deb: deb-tools ratoon $(BUILD)/libratoon.so $(BUILD)/install/libratoon.a
	@said=$$(dpkg-parsechangelog -S Version) && [ "$$said" = "$(VERSION)" ] || \
	    { echo "debian/changelog: the version is $$said, expected that of the file VERSION, $(VERSION)"; exit 1; }
	rm -rf $(BUILD)/deb $(BUILD)/*.deb
	mkdir -p $(DEB)
	tar -c --exclude=__pycache__ Makefile VERSION CHANGELOG.md LICENSE README.md bench debian doc examples include models/demo share src \
	    tests/tests.mk | tar -x -C $(DEB)
	ln -s $(abspath $(BUILD)) $(DEB)/build
	cd $(DEB) && DEB_BUILD_OPTIONS="noautodbgsym nocheck" dpkg-buildpackage -b -us -uc -nc
	mv $(BUILD)/deb/*.deb $(BUILD)/

TARBALL := ratoon-$(VERSION)-linux-$(ARCH)
# DT_RPATH and not DT_RUNPATH: it holds for what the libraries need as well.
$(BUILD)/tarball/ratoon: LDFLAGS += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib/ratoon'
tarball: ratoon $(BUILD)/tarball/ratoon
	rm -rf $(BUILD)/tarball/$(TARBALL) $(BUILD)/$(TARBALL).tar.gz
	@$(MAKE) --no-print-directory install-program DESTDIR=$(BUILD)/tarball/$(TARBALL) PREFIX= PROGRAM=$(BUILD)/tarball/ratoon
	sh share/package/bundle.sh $(BUILD)/tarball/$(TARBALL)
	tar -C $(BUILD)/tarball --sort=name --owner=0 --group=0 --numeric-owner -cz -f $(BUILD)/$(TARBALL).tar.gz $(TARBALL)

clean:
	rm -rf $(BUILD) build-* ratoon bench/make_synthetic $(LABS)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# make deps     draws the layers and fails on an include that points up
deps:
	@python3 tests/deps.py

include tests/tests.mk
include bench/bench.mk

-include $(shell find $(BUILD)/src $(BUILD)/tests $(BUILD)/bench -name '*.d' -type f 2>/dev/null)
.PHONY: all always cuda cuda-compiler setup setup-deb setup-packages demo install install-program install-library ldconfig uninstall deb deb-tools tarball clean help deps
