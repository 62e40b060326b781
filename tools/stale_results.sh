#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Says STALE for every file of bench/results that was measured on other sources than the tree's: results of the GPU carry
# the git tree ids of the folders they depend on. Never fails: old numbers are no fault of the code, but must be known.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! git rev-parse --verify --quiet HEAD >/dev/null; then
  echo "results: not checked, this is no git checkout"
  exit 0
fi
for file in bench/results/*; do
  [[ -e ${file} ]] || continue
  # Lines such as "src/attention": "0123abcd...".
  sed -nE 's|^ *"(src/[a-z]+)": "([0-9a-f]{40}(\+changes)?)",?$|\1 \2|p' "${file}" | while read -r folder measured; do
    now=$(git rev-parse "HEAD:${folder}")
    if [[ ${measured} != "${now}" ]]; then
      echo "STALE ${file}: measured on ${folder} ${measured:0:10}, the tree has ${now:0:10}"
    fi
  done
done
