# SPDX-License-Identifier: Apache-2.0
"""Which versions of the peers are measured. Needs nothing but Python."""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import pathlib

#: The peers that are modules of their own, by module.
MODULES = {
    "flash_attn": "flash_attn 2",
    "flash_attn_interface": "flash_attn 3",
    "flashinfer": "flashinfer",
    "flash_mla": "flash_mla",
    "triton_sparse_mla_prefill": "triton",
}


def version_of(module):
    """The package that brings a module and its version; for a module of no package the hash of its file, which tells
    two versions apart; None where there is no such module."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    packages = importlib.metadata.packages_distributions().get(module, ())
    if packages:
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(packages)))
    file = pathlib.Path(found.origin or "")
    if file.is_file():
        return f"{file.name}, sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    return "unknown"


def text_of_cudnn(number):
    """91900 is 9.19.0; None is no cuDNN."""
    return number and f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def parse_given(text):
    """MODULE=VERSION, for a module that no installed package brings, such as one taken out of another's wheel."""
    module, equals, version = text.partition("=")
    if module not in MODULES or not equals or not version.strip():
        raise argparse.ArgumentTypeError(f"expected MODULE=VERSION, with a MODULE of {', '.join(MODULES)}")
    return module, version.strip()


def versions(given):
    """{peer: version} of the peers that are here; `given`, {module: version}, goes before what is found."""
    found = {peer: given.get(module) or version_of(module) for module, peer in MODULES.items()}
    return {peer: version for peer, version in found.items() if version}
