# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by the scripts of this folder, in the folder above: what is not an option of theirs must not start their work.

# The comment at a script's top.
usage() {
  local line
  while IFS= read -r line && [[ ${line} == '#'* ]]; do
    case ${line} in
      '#!'* | '# SPDX'* | '#') ;;
      *) echo "${line#\# }" ;;
    esac
  done <"tools/${0##*/}"
}

# take_option "OPTION..." ARGUMENT...: ends the script unless there is no argument, or one that is among the options.
# --help prints the usage.
take_option() {
  local options=$1 name=${0##*/} option
  shift
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage
    exit 0
  fi
  if (($# == 0)); then return; fi
  if (($# == 1)); then
    for option in ${options}; do
      if [[ $1 == "${option}" ]]; then return; fi
    done
  fi
  echo "${name%.sh}: expected ${options:+one of ${options}, or }no argument, got \"$*\"; see tools/${name} --help" >&2
  exit 2
}
