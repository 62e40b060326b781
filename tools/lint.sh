#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `make lint`: checks the layout of every C++ file with clang-format, then runs clang-tidy over every source.
# Version 14 of both: other versions format and warn differently.
#   tools/lint.sh                 fails where a tool is missing
#   tools/lint.sh --if-installed  for `make test`: says so and goes on; clang-tidy leaves out the tests, to save time
#   tools/lint.sh --fix-format    formats the files in place, nothing else
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/options.sh
take_option '--if-installed --fix-format' "$@"

mkdir -p build/lint
readonly option=${1:-}

# Prints the name under which version 14 of a tool is installed, or fails.
tool_14() {
  local name
  for name in "$1-14" "$1"; do
    if command -v "${name}" >/dev/null && "${name}" --version | grep -qE 'version 14\.'; then
      echo "${name}"
      return
    fi
  done
  return 1
}

# What to do without a tool: end with an error, unless asked to skip.
without() {
  if [[ ${option} == --if-installed ]]; then
    echo "lint: $1 14 is not installed: skipped (tools/setup.sh --lint installs it)"
  else
    echo "lint: $1 14 is not installed (tools/setup.sh --lint installs it)" >&2
    exit 1
  fi
}

# files PATTERN FOLDER...
files() { find "${@:2}" \( -path ./build -o -path './.?*' \) -prune -o -type f -name "$1" -print0 | sort -z; }

format() { { files '*.h' .; files '*.cpp' .; files '*.cu' .; files '*.cuh' .; } | xargs -0 "$1" "${@:2}"; }

# tidy TOOL FOLDER...: every source below, in parallel. The flags there are g++'s, and so is omp.h: clang has none
# without the OpenMP package of its own, and does not know g++'s attribute of two words.
tidy() {
  cmake --preset release >build/lint/cmake.log
  ln -sf "$(g++ -print-file-name=include/omp.h)" build/lint/omp.h
  # Without the count of what clang-tidy suppressed in system headers.
  files '*.cpp' "${@:2}" | xargs -0 -n 1 -P "$(nproc)" "$1" --quiet -p build/release \
    --extra-arg=-isystem"${PWD}/build/lint" --extra-arg='-D__malloc__(free)=__malloc__' 2> >(grep -v 'warnings\? generated' >&2)
}

# verdict NAME COMMAND...: a failure is remembered, so that one run shows the findings of every check.
failed=0
verdict() {
  if "${@:2}"; then
    echo "lint: $1: well"
  else
    echo "lint: $1: findings above"
    failed=1
  fi
}

if clang_format=$(tool_14 clang-format); then
  if [[ ${option} == --fix-format ]]; then
    format "${clang_format}" -i
    exit
  fi
  verdict 'format' format "${clang_format}" --dry-run --Werror
else
  without clang-format
fi

if clang_tidy=$(tool_14 clang-tidy); then
  folders=(.)
  if [[ ${option} == --if-installed ]]; then
    folders=(src apps)
  fi
  verdict 'clang-tidy' tidy "${clang_tidy}" "${folders[@]}"
else
  without clang-tidy
fi
exit "${failed}"
