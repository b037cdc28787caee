#!/bin/bash
# Record profiles of two public models on a GPU into ./profiles: one period of layers each, prompts up to 32K, batched
# as an engine does. Meant for less than five minutes. DEVICE=cpu tries it out with small numbers, and takes 12 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
device=${DEVICE:-cuda}
out=${OUT:-profiles}

if [ "$device" = cuda ]; then
	points=(--lengths 1024,2048,4096,8192,16384,32768 --batches 1,4,16,64 --contexts 1024,8192,32768)
	rounds=(--warmup 1 --repeats 5)
else
	points=(--lengths 64,128 --batches 1,2 --contexts 64,128)
	rounds=(--warmup 0 --repeats 1)
fi

for model in kimi_linear_48b qwen3_5_397b; do
	"$python" -m testbed.record --model "$model" --device "$device" --layers 4 --batched --force \
		"${points[@]}" "${rounds[@]}" --out "$out/$model-$device.parquet"
done
