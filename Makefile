# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.PHONY: help run test fuzz mutate format lint clean

help:    ## show this list
	@sed -nE 's/^([a-z]+): +## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run:     ## install what is missing, build, verify a recording and prefill a GLM-5.3-Flash layer down every path
	@tools/run.sh

test:    ## install what is missing, build, run the suite, again under ASan and UBSan, then lint
	@tools/test.sh

fuzz:    ## run the libFuzzer targets for a few seconds each (clang)
	@tools/fuzz.sh

mutate:  ## put faults into a copy of the sources, one at a time; the suite must catch each
	@tools/mutate

format:  ## format the C++ files in place (clang-format 14)
	@tools/lint.sh --fix-format

lint:    ## check the format and run clang-tidy (version 14 of both)
	@tools/lint.sh

clean:   ## remove everything that was built
	rm -rf build
