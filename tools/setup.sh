#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the build needs and the machine lacks, through apt-get. Silent where nothing is missing.
#   tools/setup.sh          what `make run` and `make test` need
#   tools/setup.sh --lint   also clang-format-14 and clang-tidy-14, which `make lint` needs
#   tools/setup.sh --fuzz   also clang with libFuzzer, which `make fuzz` needs
#   tools/setup.sh --python also a Python with numpy, without which the Python package is not tested
set -euo pipefail

readonly usage='usage: tools/setup.sh [--lint | --fuzz | --python]
Installs what the build and the tests need and the machine lacks, through apt-get.
  tools/setup.sh           what `make run` and `make test` need
  tools/setup.sh --lint    also clang-format-14 and clang-tidy-14
  tools/setup.sh --fuzz    also clang with libFuzzer
  tools/setup.sh --python  also a Python with numpy'
if (($# > 1)); then
  echo "setup: expected at most one of --lint, --fuzz and --python, got $*" >&2
  exit 2
fi
if (($# == 1)); then
  case $1 in
    --lint | --fuzz | --python) ;;
    -h | --help)
      echo "${usage}"
      exit 0
      ;;
    *)
      echo "setup: expected --lint, --fuzz, --python or nothing, got \"$1\"" >&2
      exit 2
      ;;
  esac
fi

# A header stands for its package: what counts is that the compiler finds it, wherever it was installed.
# OpenCL is not used here, but the CMake configuration of Debian 12's oneDNN asks for it.
readonly headers=(
  'fmt/core.h             libfmt-dev'
  'nlohmann/json.hpp      nlohmann-json3-dev'
  'CLI/CLI.hpp            libcli11-dev'
  'hwy/highway.h          libhwy-dev'
  'oneapi/dnnl/dnnl.hpp   libdnnl-dev'
  'CL/cl.h                ocl-icd-opencl-dev'
  'gtest/gtest.h          libgtest-dev'
  'rapidcheck.h           librapidcheck-dev'
)

# libFuzzer and the sanitizers of clang. Releases before Debian 12 have them in clang's own packages.
readonly fuzzer_runtime=libclang-rt-dev

# Prints the package of every header that the compiler does not find; of every one where there is no compiler.
missing_libraries() {
  local header package
  for entry in "${headers[@]}"; do
    read -r header package <<<"${entry}"
    printf '#if !__has_include(<%s>)\nmissing %s\n#endif\n' "${header}" "${package}"
  done | if command -v g++ >/dev/null; then g++ -std=c++20 -E -P -x c++ -; else cat; fi | sed -n 's/^missing //p'
}

has_numpy() {
  local python
  for python in python3 /usr/bin/python3; do
    if "${python}" -c 'import numpy' 2>/dev/null; then return; fi
  done
  return 1
}

missing_packages() {
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v g++ >/dev/null || echo g++
  missing_libraries
  if [[ ${1:-} == --lint ]]; then
    command -v clang-format-14 >/dev/null || echo clang-format-14
    command -v clang-tidy-14 >/dev/null || echo clang-tidy-14
  fi
  if [[ ${1:-} == --fuzz ]] && ! "$(dirname "$0")/fuzz.sh" --find-clang >/dev/null; then
    echo clang
    echo "${fuzzer_runtime}"
  fi
  if [[ ${1:-} == --python ]] && ! has_numpy; then
    echo python3-numpy
  fi
}

# cmake's version as a number, 322 for 3.22.
cmake_version() { cmake --version | sed -nE 's/^cmake version ([0-9]+)\.([0-9]+).*/\1 \2/p' | awk '{ print $1 * 100 + $2 }'; }

check_versions() {
  if (($(cmake_version) < 322)); then
    echo "setup: cmake is too old: expected 3.22 or later, got $(cmake --version | head -1)" >&2
    exit 1
  fi
  if (($(g++ -dumpversion | cut -d. -f1) < 11)); then
    echo "setup: g++ is too old for C++20: expected 11 or later, got $(g++ -dumpfullversion)" >&2
    exit 1
  fi
}

readonly wanted=${1:-}
mapfile -t packages < <(missing_packages "${wanted}")
if ((${#packages[@]} == 0)); then
  check_versions
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null || { ((EUID != 0)) && ! command -v sudo >/dev/null; }; then
  echo "setup: these packages are missing and cannot be installed from here (that takes apt-get, and root or sudo):" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

echo "setup: installing ${packages[*]}"
readonly apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)

# Drops the package that this release does not know, once the lists are there to tell.
known() {
  local package
  for package in "$@"; do
    if [[ ${package} != "${fuzzer_runtime}" ]] || apt-cache show "${package}" >/dev/null 2>&1; then
      echo "${package}"
    fi
  done
}

if ! { "${apt[@]}" update && mapfile -t packages < <(known "${packages[@]}") &&
  "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; }; then
  echo "setup: apt-get could not install: ${packages[*]}" >&2
  exit 1
fi

mapfile -t packages < <(missing_packages "${wanted}")
if ((${#packages[@]} != 0)); then
  echo "setup: still missing after the installation: ${packages[*]}" >&2
  exit 1
fi
check_versions
