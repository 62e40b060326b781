#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the pinned headers of CUTLASS and CuTe and prints their folder.
#   tools/fetch_cutlass.sh FOLDER   FOLDER/cutlass-VERSION is made where it is missing
set -euo pipefail

if (($# != 1)) || [[ $1 == -* || -z $1 ]]; then
  echo 'usage: tools/fetch_cutlass.sh FOLDER' >&2
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
  exit 2
fi

readonly version=4.2.0.0
readonly sha256=f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6
readonly folder=$1/cutlass-${version}
readonly include=${folder}/cutlass_library/source/include

if [[ ! -f ${include}/cute/tensor.hpp ]]; then
  mkdir -p "$1"
  work=$(mktemp -d "$1/fetch.XXXXXX")
  trap 'rm -rf "${work}"' EXIT
  echo "nvidia-cutlass==${version} --hash=sha256:${sha256}" >"${work}/requirements.txt"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --disable-pip-version-check \
    --dest "${work}" --requirement "${work}/requirements.txt" >&2
  # The wheel has Python code as well; the headers are all that is wanted.
  python3 - "${work}" <<'PYTHON'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    wheel.extractall(work / "wheel", [name for name in wheel.namelist() if "/source/include/" in name or "/licenses/" in name])
PYTHON
  rm -rf "${folder}"
  mv "${work}/wheel" "${folder}"
fi
echo "${include}"
