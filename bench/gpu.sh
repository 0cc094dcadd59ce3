#!/bin/bash
# gpu.sh - what is to be shown on a machine with an NVIDIA GPU, in calls of at most LIMIT seconds (default 480):
#
#   bench/gpu.sh DIR [STEP...]      the steps that DIR has no result of yet, or these again
#
# A step that has passed leaves DIR/STEP.ok with commit, card and time, and its output in DIR/STEP.log, so a call goes on where
# the one before ended. No step is begun that would not fit into what is left of LIMIT, and none runs longer: what a sanitizer
# has looked at is remembered case by case, and any other step that does not end in time has failed. Exit status 0: all steps
# have passed, but for those of which the last line says that they cannot run here; 75: call again; 1: a step failed; 2: there
# is no such step.
#
#   build         kernels for this card, the program and its tests (skipped if they are built and pkg-config finds no libraries)
#   instructions  every wrapped instruction against the host's own computation: what the emulation believes of the hardware
#   parity        every operation against cpu:portable, bit for bit
#   faults        the host side: memory, graphs, images from one backend to the other
#   verify        the demo pair: plain, chains, trees; no differing token, and the CPU's text; over two cards, too,
#                 where the machine has them
#   memcheck      compute-sanitizer over the operations, a part of the long cases;  racecheck, initcheck: likewise
#   demo          passes and prompts of the demo pair
#   passes-SHAPE  qwen35-27b, -4b, -0.8b (random weights, Q4_K_M): passes of 1 to 64 rows behind 1,024 and 16,384 tokens, f16 and q8_0
#   rates-SHAPE   prompts of 2,048 tokens and plain decoding; with LLAMA_BENCH=... llama.cpp beside it on the same file
#   steps-27b     whole steps with a drafter of the 27B's size: acceptance is simulated
#
# From the environment: LLAMA_BENCH, BUILD (a build folder), BACKEND (cuda:1), MODELS (a folder of models, or for them);
# TOKENS and PROMPTS: what is verified (64 tokens of 4 prompts); JOBS: tests at once (one for each processor).
# RATOON_CUDA_DRIVER=build/libfake_cuda.so RATOON_EMU_DRY=FILE: everything but the arithmetic runs on the emulated GPU
# (tests/gpu/test_script.py).
set -uo pipefail
dir=${1:?usage: bench/gpu.sh DIR [STEP...]}
shift
limit=${LIMIT:-480} began=$SECONDS
build=${BUILD:-build} backend=${BACKEND:-cuda} models=${MODELS:-$dir/models}
jobs=${JOBS:-$(nproc)}
rt=$build/ratoon
[ -x "$rt" ] || rt=./ratoon
mkdir -p "$dir" "$models"
commit=$(git describe --always --dirty --exclude '*' 2>/dev/null || cat "$dir/commit" 2>/dev/null || echo unknown)
card=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
cc=$(printf %s "$card" | awk -F', ' '{ gsub(/\./, "", $2); print $2 }')

build_it()
{
    if pkg-config --exists jansson libpcre2-8 libutf8proc libxxhash libmicrohttpd libcurl cmocka 2>/dev/null; then
        within make cuda CUDA_ARCHS="${cc:-90}" && within make -j"$(nproc)" ratoon tests-built bench/make_synthetic
    else
        echo "no libraries to build with: what is built is used"
        [ -x "$rt" ] && [ -x "$build/tests/test_ops" ]
    fi
}

left() { echo $((limit > SECONDS - began ? limit - (SECONDS - began) : 1)); }

within() # COMMAND: ended where LIMIT does
{
    timeout -k 5 "$(left)" "$@"
    local code=$?
    [ "$code" != 124 ] || echo "no end within the $limit s of a call: LIMIT=... gives it more"
    return "$code"
}

# Most of it is the CPU's part, so it is divided.
parity()
{
    local i code=0 parts=()
    for ((i = 0; i < jobs; i++)); do
        RATOON_TEST_PART=$i/$jobs within "$build/tests/test_ops" --backend "$backend" > "$dir/parity.$i" 2>&1 &
        parts+=($!)
    done
    for ((i = 0; i < jobs; i++)); do
        wait "${parts[i]}" || { code=1; echo "part $i of $jobs:"; grep -v "^\[ *\(RUN\|OK\)" "$dir/parity.$i"; }
    done
    [ "$code" != 0 ] || cat "$dir/parity.0"
    rm -f "$dir"/parity.[0-9]*
    return "$code"
}

# A sanitizer may take a hundred times as long: some cases at once, in as many calls as that takes.
sanitize() # TOOL
{
    local i at name code=0 cases todo=() some=() running=()
    cases=$(sed -n 's/^\[ *OK \] \([a-z0-9_]*\)$/\1/p' "$dir/parity.log" 2>/dev/null)
    [ -n "$cases" ] || { echo "the cases are those of the step parity, which has not run here yet"; return 1; }
    touch "$dir/$1.cases"
    for name in $cases; do grep -qx "$name" "$dir/$1.cases" || todo+=("$name"); done
    for ((at = 0; at < ${#todo[@]}; at += jobs)); do
        [ "$(left)" -gt $((limit / 4)) ] || { echo "$(wc -l < "$dir/$1.cases") of $(wc -w <<< "$cases") cases so far"; return 75; }
        some=("${todo[@]:at:jobs}") running=()
        for name in "${some[@]}"; do
            RATOON_TEST_PART=0/8 within compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 \
                --print-limit 20 "$build/tests/test_ops" --backend "$backend" "$name" > "$dir/$1.$name" 2>&1 &
            running+=($!)
        done
        for i in "${!some[@]}"; do
            name=${some[i]}
            wait "${running[i]}" && echo "$name" >> "$dir/$1.cases" || { code=1; echo "in the case $name"; }
            cat "$dir/$1.$name"
            rm -f "$dir/$1.$name"
        done
        [ "$code" = 0 ] || return 1
    done
    rm "$dir/$1.cases"
}

marked() # CSV: says of what commit and card it is
{
    sed -i "1a # commit: $commit, card: ${card:-none that nvidia-smi sees}" "$@"
}

model() # SHAPE: a file of random weights, made once
{
    [ -s "$models/$1.gguf" ] || { within bench/make_synthetic "$1" "$models/$1.part" --type Q4_K_M && mv "$models/$1.part" "$models/$1.gguf"; }
}

passes() # SHAPE
{
    model "$1" || return 1
    local kv
    for kv in f16 q8_0; do
        within "$rt" bench -q -m "$models/$1.gguf" -d none --backend "$backend" --ctx 20480 -ctk $kv -ctv $kv --repeats 8 \
            --passes 1,2,4,8,9,16,22,32,48,64 --after 1024,16384 --csv "$dir/$1-$kv.csv" --svg "$dir/$1-$kv.svg" || return 1
        marked "$dir/$1-$kv.csv" || return 1
    done
}

rates() # SHAPE
{
    local beside=()
    if [ -z "${LLAMA_BENCH:-}" ]; then
        echo "without llama.cpp beside it: LLAMA_BENCH=.../llama-bench $0 $dir rates-$1 measures both"
    elif command -v "$LLAMA_BENCH" > /dev/null; then
        beside=(--compare "$LLAMA_BENCH -m '$models/$1.gguf' -ngl 99 -fa 1 -p 2048 -n 64 -r 2 -o json")
    else
        echo "LLAMA_BENCH: '$LLAMA_BENCH' is no program, expected llama.cpp's llama-bench"
        return 1
    fi
    model "$1" || return 1
    within "$rt" bench -q -m "$models/$1.gguf" -d none --backend "$backend" --prompt-tokens 2048 -n 64 --repeats 3 "${beside[@]}" \
        --csv "$dir/$1-rates.csv" --svg "$dir/$1-rates.svg" && marked "$dir/$1-rates.csv"
}

steps()
{
    [ -s "$dir/profile.json" ] || { echo "no acceptance profile: run the step demo first"; return 1; }
    model qwen35-27b && model dflash-qwen35-27b || return 1
    head -n 1 models/demo/prompts/code.jsonl > "$dir/code.jsonl"
    within "$rt" bench -q -m "$models/qwen35-27b.gguf" -d "$models/dflash-qwen35-27b.gguf" --backend "$backend" --prompts "$dir/code.jsonl" \
        --simulate-acceptance "$dir/profile.json" --ignore-eos -n 128 --pairs 3 --csv "$dir/steps-27b.csv" &&
        marked "$dir/steps-27b.csv"
}

demo()
{
    within "$rt" bench -q --backend "$backend" --passes 1,2,4,8,16,22,32,64 --repeats 40 --csv "$dir/demo-passes.csv" \
        --svg "$dir/demo-passes.svg" &&
        within "$rt" bench -q --backend "$backend" --prompts models/demo/prompts/code.jsonl --special -n 128 --pairs 5 \
            --csv "$dir/demo-prompts.csv" --write-profile "$dir/profile.json" &&
        marked "$dir/demo-passes.csv" && marked "$dir/demo-prompts.csv"
}

verify()
{
    local backends="cpu,$backend"
    [ -n "${RATOON_CUDA_DRIVER:-}" ] || [ "$(nvidia-smi -L 2> /dev/null | wc -l)" -lt 2 ] || backends+=,cuda:0+1
    head -n "${PROMPTS:-4}" models/demo/prompts/code.jsonl > "$dir/verify.jsonl"
    within "$rt" verify -q --backend "$backends" --special --prompts "$dir/verify.jsonl" -n "${TOKENS:-64}"
}

run_step() # a step's name
{
    case $1 in
    build)        build_it ;;
    instructions) within "$build/tests/test_gpu_instructions" ;;
    parity)       parity ;;
    faults)       within "$build/tests/test_cuda" --device ;;
    verify)       verify ;;
    memcheck | racecheck | initcheck) sanitize "$1" ;;
    demo)         demo ;;
    passes-*)     passes "${1#passes-}" ;;
    rates-*)      rates "${1#rates-}" ;;
    steps-27b)    steps ;;
    esac
}

# step and the seconds that it may take
plan="build 300
instructions 30
parity 120
faults 60
verify 60
demo 60
passes-qwen35-27b 240
rates-qwen35-27b 200
passes-qwen35-4b 120
rates-qwen35-4b 90
passes-qwen35-0.8b 60
rates-qwen35-0.8b 60
steps-27b 240
memcheck 400
racecheck 400
initcheck 400"

for step in "$@"; do
    grep -q "^$step " <<< "$plan" || { echo "gpu.sh: no step '$step', expected some of $(cut -d ' ' -f 1 <<< "$plan" | xargs)"; exit 2; }
done
echo "$commit" > "$dir/commit"
printf 'card: %s\ncommit: %s\n' "${card:-none that nvidia-smi sees}" "$commit"
status=0 missing= begun=
while read -r step seconds <&3; do
    if [ $# -gt 0 ]; then
        case " $* " in *" $step "*) ;; *) continue ;; esac
    elif [ -e "$dir/$step.ok" ]; then
        continue
    fi
    case $step in memcheck | racecheck | initcheck)
        command -v compute-sanitizer > /dev/null || { missing="$missing $step"; continue; } ;;
    esac
    if [ -n "$begun" ] && [ "$(left)" -lt "$seconds" ]; then
        echo "$step: takes up to $seconds s, $(left) s are left: call again"
        [ "$status" != 0 ] || status=75
        break
    fi
    begun=$step
    echo "== $step"
    start=$SECONDS
    (set -o pipefail; run_step "$step" 2>&1 | tee "$dir/$step.log")
    code=$?
    if [ "$code" = 0 ]; then
        printf '%s\n%s\n%s s\n' "$commit" "$card" $((SECONDS - start)) > "$dir/$step.ok"
        echo "$step: passed, $((SECONDS - start)) s"
    elif [ "$code" = 75 ]; then
        echo "$step: not done yet: call again"
        [ "$status" != 0 ] || status=75
        break
    else
        rm -f "$dir/$step.ok"
        echo "$step: FAILED (see $dir/$step.log)"
        status=1
        case $step in build | instructions | parity) exit 1 ;; esac    # nothing that comes after would mean anything
    fi
done 3<<< "$plan"
[ -z "$missing" ] || echo "not run, since there is no compute-sanitizer here (a part of the CUDA toolkit):$missing"
exit "$status"
