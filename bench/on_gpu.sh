#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that wants a GPU, into the files of bench/results: checks against the oracle and by compute-sanitizer,
# gpu_bench, the command line, the peers.
#
#   bench/on_gpu.sh [--binaries DIR] [--commit ID --trees LIST] [--peer-version MODULE=VERSION]... OUT
#                   [checks|bench|command-line|peers]...
#
#   --binaries         where gpu_tests, gpu_bench and headrace are (build/cuda/gpu)
#   --commit, --trees  what is measured, as bench/revision.py prints it, for a machine without git
#   --peer-version     of a peer's module that no installed package brings, for the results
#   OUT                folder for the results
#
# Peers need PyTorch, and this library's Python package on PYTHONPATH. Fails where a check does.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

binaries=build/cuda/gpu
revision=()
peer_versions=()
while [[ ${1:-} == --* && $# -gt 1 ]]; do
  case $1 in
    --binaries) binaries=$2 ;;
    --commit | --trees) revision+=("$1" "$2") ;;
    --peer-version) peer_versions+=("$1" "$2") ;;
    *) echo "on_gpu.sh: unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done
if [[ ${1:--} == -* ]]; then
  sed -n '7,15s/^# \{0,3\}//p' "$0" >&2
  exit 2
fi
out=$1
shift
parts=("$@")
[[ $# -gt 0 ]] || parts=(checks bench command-line peers)
for part in "${parts[@]}"; do
  case ${part} in
    checks | bench | command-line | peers) ;;
    *) echo "on_gpu.sh: no part is called ${part}" >&2 && exit 2 ;;
  esac
done
[[ ${#revision[@]} -gt 0 ]] || read -ra revision <<<"$(python3 bench/revision.py)"
command -v nvidia-smi >/dev/null || { echo 'on_gpu.sh: there is no GPU here' >&2 && exit 1; }
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1) || exit 1
card=$(sed -E 's/^NVIDIA //; s/[ ,].*//' <<<"${gpu}" | tr '[:upper:]' '[:lower:]')
mkdir -p "${out}"

# header [FOLDER]: what was measured where, and with the code of which folder; tools/stale_results.sh reads the trees.
header() {
  echo "${gpu/, /, driver }, commit ${revision[1]:0:7}"
  sed -E 's/([^=,]+)=([^=,]+),?/"\1": "\2"\n/g' <<<"${revision[3]}" | sed -nE "\#^\"(src/[a-z]+${1:+|$1})\"#p"
}

# check COMMAND...: prints it and what it prints; says where it failed, and the rest goes on.
check() {
  echo "\$ $*"
  "$@" 2>&1 || echo "failed: exit status $?"
}

# sanitize TOOL FILTER: tests under one of compute-sanitizer's tools.
sanitize() {
  check timeout 200 compute-sanitizer --tool "$1" --error-exitcode 1 \
    "${binaries}/gpu_tests" --gtest_brief=1 --gtest_filter="$2" | grep -E '^\$|PASSED|FAILED|SUMMARY|^failed'
}

# find_races FILTER: the same under racecheck; pairs of accesses that bench/races.py cannot explain are failures.
find_races() {
  check timeout 200 compute-sanitizer --tool racecheck --print-limit 10000 \
    "${binaries}/gpu_tests" --gtest_brief=1 --gtest_filter="$1" | python3 bench/races.py
}

# Every test; then those that reach every kernel, in few cases, under compute-sanitizer.
checks() {
  export HEADRACE_GPU_CASES=${HEADRACE_GPU_CASES:-40}
  check "${binaries}/gpu_tests" --gtest_brief=1
  export HEADRACE_GPU_CASES=6
  local tool
  local mha='MhaPaths*:Spaces/GpuBitMask.HasTheBits*:Formats/*pages_of_3'
  local mqa='TopkMqa.EqualsTheOracle:TopkMqa.EndsOf*:Trials/GpuUnionList.Holds*group_4:*SharedSelection*stages'
  local indexer='GpuSelect.Random*:GpuSelectEdge.*:GpuIndexCache.*:Formats/GpuAppend.*'
  for tool in memcheck initcheck synccheck; do
    sanitize "${tool}" "${mha}"
    sanitize "${tool}" "${mqa}"
    sanitize "${tool}" 'Formats/MqaSm90.*'
    sanitize "${tool}" "${indexer}"
    sanitize "${tool}" 'Configs/CudaLayers.*'
  done
  sanitize memcheck 'ServingLoop.Twenty*'
  find_races "${mha}"
  find_races "${mqa}"
  find_races "${indexer}"
  find_races 'Configs/CudaLayers.*'
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

peers() {
  check python3 -W ignore bench/peers.py "${revision[@]}" "${peer_versions[@]}" --json "${out}/${card}-peers.json"
}

failed=0
for part in "${parts[@]}"; do
  file=${out}/${card}-${part}.txt
  case ${part} in
    checks) { header && checks; } >"${file}" ;;
    bench)
      file=${out}/${card}-gpu_bench.txt
      { header tests/gpu/bench && check "${binaries}/gpu_bench"; } >"${file}"
      ;;
    command-line) { header && command_line; } >"${file}" ;;
    peers) { header bench && peers; } >"${file}" ;;
  esac
  echo "${part}: ${SECONDS} s"
  ! grep -H '^failed' "${file}" || failed=1
done
exit "${failed}"
