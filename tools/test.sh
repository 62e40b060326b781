#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `make test`: the whole suite in a release build, the same suite under AddressSanitizer and
# UndefinedBehaviorSanitizer, the CUDA kernels where there is nvcc, then, where they are installed, the libFuzzer targets,
# the format check and clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/options.sh
take_option '' "$@"

readonly logs=build/logs
jobs=$(nproc)
steps=()

# step NAME COMMAND...: runs a step, keeps its output in a log, notes its time.
step() {
  local name=$1 begin=${SECONDS}
  shift
  printf '\n== %s: %s\n' "${name}" "$*"
  "$@" 2>&1 | tee "${logs}/${name// /-}.log"
  steps+=("$(printf '%-16s %5d s' "${name}" $((SECONDS - begin)))")
}

# In continuous integration a warning is an error; elsewhere another compiler's new warning should not stop anybody.
build() { cmake --preset "$1" ${CI:+-DHEADRACE_WERROR=ON} && cmake --build --preset "$1" --parallel "${jobs}"; }

# Waiting OpenMP threads sleep instead of spinning, for several test programs share the cores.
suite() { OMP_WAIT_POLICY=passive ctest --preset "$1" --parallel "${jobs}"; }

# "N" from ctest's "100% tests passed, 0 tests failed out of N".
tests_passed() { sed -nE 's/^100% tests passed, 0 tests failed out of ([0-9]+)$/\1/p' "${logs}/$1.log"; }

# The kernels and their test program, then how long nvcc took for each file (ninja notes begin and end in ms).
build_cuda() {
  cmake --preset cuda ${CI:+-DHEADRACE_WERROR=ON} &&
    cmake --build --preset cuda --parallel "${jobs}" --target gpu_tests gpu_bench headrace_python &&
    awk '$4 ~ /\.cu\.o$/ { ms[$4] = $2 - $1 } END { for (f in ms) printf "%7.1f s  %s\n", ms[f] / 1000, f }' \
      build/cuda/.ninja_log | sort -rn
}

mkdir -p "${logs}"
tools/setup.sh ${CI:+--fuzz}

step 'release build' build release
step 'release tests' suite release

# The sanitizers make every case several times slower; the release suite has run the full number of cases.
export HEADRACE_PROPERTY_CASES=${HEADRACE_SANITIZED_PROPERTY_CASES:-150}
export UBSAN_OPTIONS=print_stacktrace=1
step 'asan build' build asan
step 'asan tests' suite asan

# Where there is no GPU the tests on it say that they were skipped.
if ! command -v nvcc >/dev/null; then
  printf '\ncuda build: skipped, there is no nvcc\n'
elif ! tools/fetch_cutlass.sh build/deps; then
  printf '\ncuda build: skipped, the headers of CUTLASS could not be fetched\n'
else
  step 'cuda build' build_cuda
  # ptxas says so, and warns not, where products of a kernel wait for each other for want of registers. It says so once,
  # so the objects go.
  if grep '(C75' "${logs}/cuda-build.log"; then
    rm -rf build/cuda/src
    echo 'test: the compiler serialises wgmma' >&2
    exit 1
  fi
  step 'cuda tests' suite cuda
fi

step 'fuzz' tools/fuzz.sh --if-installed
step 'lint' tools/lint.sh --if-installed
step 'results' tools/stale_results.sh

release=$(tests_passed release-tests)
asan=$(tests_passed asan-tests)
if [[ -z ${release} || -z ${asan} ]]; then
  echo "test: no summary of passed tests in ${logs}" >&2
  exit 1
fi
printf '\n'
printf '%s\n' "${steps[@]}"
printf 'release: %s test programs, asan: %s test programs\n' "${release}" "${asan}"
printf '100%% tests passed, 0 tests failed out of %d\n' $((release + asan))
