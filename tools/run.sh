#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `make run`: builds the command line, verifies a recorded layer, then prefills a GLM-5.3-Flash layer at its true shape
# and checks it against the float64 oracle: first as the router decides, then with each path forced.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/options.sh
take_option '' "$@"

# Prints a command, then runs it.
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

readonly headrace=build/release/headrace
readonly recording=tests/data/recordings/glm5_next
# 2048 new tokens; 3000 after 1096 cached ones; 4 requests of a single token after 8192.
readonly batch=2048,1x3000+1096,4x1+8k
readonly layer=(--model glm-5.3-flash --tp 4)

tools/setup.sh
run cmake --preset release
run cmake --build --preset release --target headrace_cli --parallel "$(nproc)"

run "${headrace}" verify --model "${recording}" --recording "${recording}/recording.safetensors"

run "${headrace}" prefill "${layer[@]}" --batch "${batch}" --check
run "${headrace}" prefill "${layer[@]}" --batch "${batch}" --check --force topk_mqa
run "${headrace}" prefill "${layer[@]}" --batch "${batch}" --check --force masked_mha
# dense_mha needs a selection that covers every key: of this batch, the first request has one.
run "${headrace}" prefill "${layer[@]}" --batch 2048 --check --force dense_mha
