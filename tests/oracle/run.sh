#!/bin/sh
# run.sh - recomputes what transformers says about the small models of tests/help/tiny.c (make oracle). From the repository's root:
#   PYTHON=.venv/bin/python tests/oracle/run.sh            compares with the committed expectations, and ./ratoon logits with both
#   ... run.sh write                                       writes tests/oracle/expect anew
# TEMPLATES=DIR compares every chat template of a folder too.
# LLAMA=DIR (a llama.cpp build's bin) and LLAMA_LOGITS=PROGRAM (README.md) compare with llama.cpp too.
set -eu
here=$(dirname "$0")
PYTHON=${PYTHON:-python3}
RATOON=${RATOON:-./ratoon}
MAKE_TINY=${MAKE_TINY:-build/tests/make_tiny}
dir=$(mktemp -d "${TMPDIR:-/tmp}/ratoon-tiny-XXXXXX")
trap 'rm -rf "$dir"' EXIT INT TERM
"$MAKE_TINY" all "$dir"
if [ "${1:-check}" = write ]; then
    "$PYTHON" "$here/oracle.py" write "$dir"
    exit
fi
status=0
"$PYTHON" "$here/oracle.py" check "$dir" || status=1
if [ -x "$RATOON" ]; then "$PYTHON" "$here/oracle.py" ratoon "$dir" "$RATOON" || status=1; fi
if [ -n "${LLAMA_LOGITS:-}" ]; then "$PYTHON" "$here/oracle.py" peer "$dir" "$LLAMA_LOGITS" || status=1; fi
if [ -n "${LLAMA_LOGITS:-}" ] && [ -x "${LLAMA:-}/llama-quantize" ] && [ -x "$RATOON" ]; then
    "$PYTHON" "$here/quant_layers.py" ratoon "$MAKE_TINY" "$LLAMA/llama-quantize" "$LLAMA_LOGITS" "$RATOON" || status=1
fi
if [ -n "${LLAMA:-}" ] && [ -x "$LLAMA/llama-speculative-simple" ]; then "$PYTHON" "$here/peer_draft.py" "$dir" "$LLAMA" || status=1; fi
if [ -x "${PEER_TEMPLATE:-build/tests/peer_template}" ]; then
    "$PYTHON" "$here/templates.py" check ${TEMPLATES:-} || status=1
    "$PYTHON" "$here/templates.py" fuzz 300 || status=1
fi
exit $status
