#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `make fuzz`: builds the targets of fuzz/ with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer and
# runs them side by side on what fuzz/corpus holds, 60 seconds each in continuous integration, 5 elsewhere.
#   tools/fuzz.sh                 fails where clang or its libFuzzer is missing
#   tools/fuzz.sh --if-installed  for `make test`: says so and goes on; in continuous integration it fails all the same
#   tools/fuzz.sh --merge         takes what earlier runs found into fuzz/corpus: 100 inputs a target at most
#   tools/fuzz.sh --find-clang    prints the clang++ it would take
# HEADRACE_FUZZ_SECONDS=N runs every target for N seconds, HEADRACE_FUZZ_BUILD=FOLDER builds somewhere else.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/options.sh
readonly targets=(config safetensors spec index)
if [[ ${1:-} == --run-target ]]; then  # what the script asks of itself
  if (($# != 2)) || [[ " ${targets[*]} " != *" $2 "* ]]; then
    echo "fuzz: --run-target: expected one of ${targets[*]}, got \"${*:2}\"" >&2
    exit 2
  fi
else
  take_option '--if-installed --merge --find-clang' "$@"
fi
export UBSAN_OPTIONS=print_stacktrace=1

readonly option=${1:-}
readonly build=${HEADRACE_FUZZ_BUILD:-build/fuzz}
readonly seconds=${HEADRACE_FUZZ_SECONDS:-$([[ -n ${CI:-} ]] && echo 60 || echo 5)}
readonly corpus_files=100
# An input that takes longer than 10 seconds or more than 2 GiB is a finding, like one that crashes. The entropic
# schedule's bookkeeping takes more time than the targets do.
readonly flags=(-timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=2048 -max_len=4096 -entropic=0)

# Prints the first clang++ that links a libFuzzer program; each distribution has the runtime in another package.
find_clang() {
  local name probe
  probe=$(mktemp -d)
  trap 'rm -rf "${probe}"' RETURN
  echo '#include <string>
        extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, unsigned long size) {
          return std::string(data, data + size).empty() ? 0 : 0;
        }' >"${probe}/probe.cpp"
  for name in clang++ clang++-{21..14}; do
    if command -v "${name}" >/dev/null &&
      "${name}" -std=c++20 -fsanitize=fuzzer,address,undefined "${probe}/probe.cpp" -o "${probe}/probe" 2>"${probe}/log"; then
      command -v "${name}"
      return
    fi
  done
  return 1
}

# run_target NAME: what it finds beside the corpus goes to the build folder, and so does an input that fails.
run_target() {
  local name=$1 dictionary=()
  if [[ -f fuzz/dictionaries/${name}.dict ]]; then
    dictionary=(-dict="fuzz/dictionaries/${name}.dict")
  fi
  mkdir -p "${build}/corpus/${name}" "${build}/artifacts"
  if ! "${build}/fuzz/${name}_fuzz" "${flags[@]}" "${dictionary[@]}" -max_total_time="${seconds}" -print_final_stats=1 \
    -artifact_prefix="${build}/artifacts/${name}-" "${build}/corpus/${name}" "fuzz/corpus/${name}" \
    >"${build}/${name}.log" 2>&1; then
    tail -n 60 "${build}/${name}.log" >&2
    echo "fuzz: ${name}: FAILED, see above and ${build}/${name}.log; the input:" \
      "$(sed -nE 's/.*Test unit written to (.*)/\1/p' "${build}/${name}.log")" >&2
    return 1
  fi
  printf 'fuzz: %-12s %9d runs in %d s, %d edges, nothing found\n' "${name}" \
    "$(sed -nE 's/^stat::number_of_executed_units: +([0-9]+)/\1/p' "${build}/${name}.log")" "${seconds}" \
    "$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "${build}/${name}.log" | tail -1)"
}

# merge_target NAME: libFuzzer picks inputs until they reach every edge that any of them reaches, then until they reach
# each as often, always the one that adds most, and writes them in this order: the first ones do nearly all.
merge_target() {
  local name=$1 merged=${build}/merged/$1 corpus=fuzz/corpus/$1 counters
  rm -rf "${merged}"
  mkdir -p "${merged}" "${build}/corpus/${name}"
  for counters in 0 1; do
    "${build}/fuzz/${name}_fuzz" "${flags[@]}" -set_cover_merge=1 -use_counters="${counters}" "${merged}" "${corpus}" \
      "${build}/corpus/${name}" >"${build}/${name}-merge.log" 2>&1
  done
  find "${corpus}" -type f ! -name 'found-*' -delete  # what once failed stays, whatever it reaches
  find "${merged}" -type f -printf '%T@ %p\n' | sort -n | sed -n "1,${corpus_files}p" | cut -d' ' -f2- |
    xargs -I FILE cp FILE "${corpus}/"
  printf 'fuzz: %-12s %d inputs, %d bytes\n' "${name}" "$(find "${corpus}" -type f | wc -l)" \
    "$(cat "${corpus}"/* | wc -c)"
}

case ${option} in
--find-clang)
  find_clang
  exit
  ;;
--run-target)
  run_target "$2"
  exit
  ;;
esac

if ! clang=$(find_clang); then
  readonly missing='fuzz: no clang++ with libFuzzer is installed'
  if [[ ${option} == --if-installed && -z ${CI:-} ]]; then
    echo "${missing}: skipped (tools/setup.sh --fuzz installs it)"
    exit
  fi
  echo "${missing} (tools/setup.sh --fuzz installs it)" >&2
  exit 1
fi

cmake --preset fuzz -B "${build}" -DCMAKE_CXX_COMPILER="${clang}" ${CI:+-DHEADRACE_WERROR=ON}
cmake --build "${build}" --target fuzzers --parallel "$(nproc)"

if [[ ${option} == --merge ]]; then
  for name in "${targets[@]}"; do
    merge_target "${name}"
  done
  exit
fi

failed=0
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I NAME tools/fuzz.sh --run-target NAME || failed=1
exit "${failed}"
