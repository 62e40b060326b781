#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that wants a GPU, into the files of bench/results: checks against the oracle and by compute-sanitizer,
# gpu_bench, the command line, the peers.
#
#   bench/on_gpu.sh [--binaries DIR] [--commit ID --trees LIST] OUT [checks|bench|command-line|peers]...
#
#   --binaries  where gpu_tests, gpu_bench and headrace are (build/cuda/gpu)
#   --commit, --trees  what is measured, as bench/revision.py prints it, for a machine without git
#   OUT         folder for the results
#
# Peers need PyTorch, and this library's Python package on PYTHONPATH. Fails where a check does.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

binaries=build/cuda/gpu
revision=()
commit=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --binaries) binaries=$2 ;;
    --commit) commit=$2 && revision+=(--commit "$2") ;;
    --trees) revision+=(--trees "$2") ;;
    *) echo "on_gpu.sh: unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done
if [[ $# -lt 1 ]]; then
  sed -n '6,13s/^# \{0,3\}//p' "$0" >&2
  exit 2
fi
out=$1
shift
parts=("${@:-checks}")
[[ $# -gt 0 ]] || parts=(checks bench command-line peers)
: "${commit:=$(git rev-parse HEAD)}"
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1) || exit 1
where="${gpu/, /, driver }, at commit ${commit:0:7}"
mkdir -p "${out}"

# check COMMAND...: prints it and what it prints; says where it failed, and the rest goes on.
check() {
  echo "\$ $*"
  "$@" 2>&1 || echo "failed: exit status $?"
}

# sanitize TOOL FILTER: tests under one of compute-sanitizer's tools.
sanitize() {
  local status=(--error-exitcode 1)
  # What it reports is explained in docs/performance.md and fails nothing here.
  [[ $1 != racecheck ]] || status=()
  check timeout 200 compute-sanitizer --tool "$1" "${status[@]}" --print-limit 30 \
    "${binaries}/gpu_tests" --gtest_brief=1 --gtest_filter="$2" |
    grep -E '^\$|PASSED|FAILED|SUMMARY|^failed|Race reported' | cut -c1-240
}

# Every test; then those that reach every kernel of attention, in few cases, under compute-sanitizer.
checks() {
  export HEADRACE_GPU_CASES=${HEADRACE_GPU_CASES:-40}
  check "${binaries}/gpu_tests" --gtest_brief=1
  export HEADRACE_GPU_CASES=6
  local tool
  for tool in memcheck initcheck synccheck racecheck; do
    sanitize "${tool}" 'MhaPaths*:Spaces/GpuBitMask.HasTheBits*:Formats/*pages_of_3'
    sanitize "${tool}" 'TopkMqa.EqualsTheOracle:TopkMqa.EndsOf*:Trials/GpuUnionList.Holds*group_4:*SharedSelection*stages'
  done
  for tool in memcheck initcheck synccheck; do
    sanitize "${tool}" 'Formats/MqaSm90.*'
  done
}

command_line() {
  local recording options
  for recording in deepseek_v32 glm5_next glm_moe_dsa glm_moe_dsa_8heads; do
    for options in '' '--prefill-chunk 64' '--selection indexer' '--kv-cache-dtype fp8' '--force topk_mqa' \
      '--force topk_mqa --prefill-chunk 64' '--force topk_mqa --kv-cache-dtype fp8'; do
      # R is 64 there, for which topk_mqa is not compiled.
      [[ ${recording}${options} != *8heads*topk_mqa* ]] || continue
      # shellcheck disable=SC2086
      check "${binaries}/headrace" verify --device cuda --model "tests/data/recordings/${recording}" ${options} |
        grep -E '^\$|all pass|FAIL|fail|headrace:'
    done
  done
  for options in '8x2048' '2048,1x3000+1096,4x1+8k' '1x16k' '1x16k --force topk_mqa' \
    '1x16k --force topk_mqa --kv-cache-dtype fp8_ds_mla' '1x128k --force topk_mqa --workspace-limit 256MiB'; do
    # shellcheck disable=SC2086
    check "${binaries}/headrace" prefill --device cuda --model glm-5.3-flash --tp 4 --check --batch ${options}
  done
  check "${binaries}/headrace" prefill --device cuda --model glm-5.3-flash --tp 8 --check --batch 1x128k \
    --force masked_mha --workspace-limit 256MiB
  check "${binaries}/headrace" prefill --device cuda --model deepseek-v3 --tp 16 --check --batch 1x128k \
    --workspace-limit 256MiB
  check "${binaries}/headrace" bench --device cuda --repetitions 7
}

for part in "${parts[@]}"; do
  case ${part} in
    checks | bench | command-line | peers) echo "== ${part}, ${SECONDS} s" >&2 ;;
    *) echo "on_gpu.sh: no part is called ${part}" >&2 && exit 2 ;;
  esac
  case ${part} in
    checks) { echo "${where}" && checks; } >"${out}/h200-checks.txt" ;;
    bench) { echo "${where}" && check "${binaries}/gpu_bench"; } >"${out}/h200-gpu_bench.txt" ;;
    command-line) { echo "${where}" && command_line; } >"${out}/h200-command-line.txt" ;;
    peers)
      check python3 -W ignore bench/peers.py "${revision[@]}" --json "${out}/h200-peers.json" >"${out}/h200-peers.txt"
      ;;
  esac
done
! grep '^failed' "${out}"/h200-*.txt
