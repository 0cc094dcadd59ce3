#!/bin/sh
# bench.sh DIR - the figures of the README: CSV and SVG files in DIR. Called by `make bench`, which explains the variables.
# Twelve minutes on two cores for the demo pair and a model of four billion weights. Nothing else should run on the machine meanwhile.
set -eu
dir=${1:?usage: bench/bench.sh DIR}
rt=${RATOON:-./ratoon}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$dir"
commit=$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)

say() { printf '\n== %s\n' "$*"; }

# name, then the arguments of ratoon bench: NAME.csv, NAME.svg and the text.
measure()
{
    name=$1
    shift
    "$rt" bench -q "$@" --csv "$dir/$name.csv" --svg "$dir/$name.svg"
    sed -i "1a # commit: $commit" "$dir/$name.csv"
}

say 'the machine'
measure roofline --roofline

say 'demo pair: passes'
measure demo-passes --passes 1,2,4,8,16,22,32,64 --repeats 40

say 'demo pair: prompts, eight of each class'
for class in code arithmetic stdlib prose; do
    head -n 8 "models/demo/prompts/$class.jsonl" | sed "s/^{/{\"class\": \"$class\", /"
done > "$work/prompts.jsonl"
measure demo-prompts --prompts "$work/prompts.jsonl" --special -n 128 --pairs 21 --write-profile "$work/profile.json"

[ -n "${MODEL:-}" ] || exit 0
name=${NAME:-$(basename "$MODEL" .gguf)}
threads=$(nproc)

# llama-bench's prompts of n tokens are its passes of n rows, with the head for one of them.
quoted=\'$(printf %s "$MODEL" | sed "s/'/'\\\\''/g")\'
say "$name: passes"
if [ -n "${COMPARE:-}" ]; then
    measure "$name-passes" -m "$MODEL" -d none --passes 1,2,4,8,16,22,32,64 --repeats 4 --pairs 3 \
        --compare "$COMPARE -m $quoted -t $threads -p 1,8,16,22,32,64 -n 0 -r 2 -o json"
else
    measure "$name-passes" -m "$MODEL" -d none --passes 1,2,4,8,16,22,32,64
fi

say "$name: prompt and decoding"
if [ -n "${COMPARE:-}" ]; then
    measure "$name-rates" -m "$MODEL" --prompt-tokens 512 -n 16 --repeats 2 --pairs 2 --compare "$COMPARE -m $quoted -t $threads -p 512 -n 16 -r 1 -o json"
else
    measure "$name-rates" -m "$MODEL" --prompt-tokens 512 -n 16
fi

[ -n "${DRAFT:-}" ] || exit 0
say "$name: prompts"
head -n 2 models/demo/prompts/code.jsonl > "$work/code.jsonl"
if [ -n "${PROFILE:-}" ]; then
    measure "$name-simulated" -m "$MODEL" -d "$DRAFT" --prompts "$work/code.jsonl" -n 64 --pairs 3 --simulate-acceptance "$PROFILE"
else
    measure "$name-prompts" -m "$MODEL" -d "$DRAFT" --prompts "$work/code.jsonl" -n 64 --pairs 3
fi
