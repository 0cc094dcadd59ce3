# make bench    measures the demo pair, and MODEL=FILE (COMPARE=llama-bench beside it); writes bench/*.csv and bench/*.svg
#   NAME=...        what the large model's files are called (default: MODEL's name)
#   DRAFT=FILE      its drafter; with PROFILE=FILE acceptance is simulated, for models with random weights
#   BENCH_DIR=...   where the files go

BENCH_DIR ?= bench
bench: ratoon
	@RATOON=./ratoon MODEL='$(MODEL)' DRAFT='$(DRAFT)' PROFILE='$(PROFILE)' COMPARE='$(COMPARE)' NAME='$(NAME)' bench/bench.sh '$(BENCH_DIR)'

.PHONY: bench
