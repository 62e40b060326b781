#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Says STALE for every file of bench/results that was measured on other sources than the tree's, or by other code: results
# of the GPU carry the git ids of the folders they depend on. Never fails: old numbers are no fault of the code, but must
# be known.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/options.sh
take_option '' "$@"

if ! git rev-parse --verify --quiet HEAD >/dev/null; then
  echo "results: not checked, this is no git checkout"
  exit 0
fi
# The id of a folder; of bench/, that of the list of its own files, as in bench/revision.py.
id_of() {
  if [[ $1 == bench ]]; then
    git ls-tree HEAD bench/ | grep ' blob ' | git hash-object --stdin
  else
    git rev-parse "HEAD:$1"
  fi
}

for file in bench/results/*; do
  [[ -e ${file} ]] || continue
  # Lines such as "src/attention": "0123abcd...".
  ids=$(sed -nE 's=^ *"((src|tests|bench)[a-z/]*)": "([0-9a-f]{40}(\+changes)?)",?$=\1 \3=p' "${file}")
  while read -r folder measured; do
    [[ -n ${folder} ]] || continue
    now=$(id_of "${folder}" 2>/dev/null) || now='no such folder'
    if [[ ${measured} != "${now}" ]]; then
      echo "STALE ${file}: measured on ${folder} ${measured:0:10}, the tree has ${now:0:10}"
    fi
  done <<<"${ids}"
  # What measured must be known too, for it defines the numbers.
  case ${file} in
    *-gpu_bench.txt) folder=tests/gpu/bench ;;
    *-peers.*) folder=bench ;;
    *) continue ;;
  esac
  grep -q "^${folder} " <<<"${ids}" || echo "STALE ${file}: does not say by which ${folder} it was measured"
done
