# SPDX-License-Identifier: Apache-2.0
"""What people call the choices of an attention, and the numbers that the library knows them by."""

import re

from ._library import Error

PATHS = {"dense_mha": 1, "masked_mha": 2, "topk_mqa": 3}
PATH_NAMES = {number: name for name, number in PATHS.items()}

_SPACES = {"request_position": 1, "cache_slot": 2}
_COMPUTES = {"float32": 1, "fp32": 1, "bfloat16": 2, "bf16": 2}
_FORMATS = {"float32": 1, "fp32": 1, "bf16": 2, "bfloat16": 2, "fp8": 3, "fp8_e4m3": 3, "fp8_ds_mla": 4}
_RULES = {"none": 1, "lightning": 2, "kpool": 3, "opaque": 4}

_NUMBER = "(-?[0-9]+)"
_RULE_FORMS = (
    re.compile("(none|opaque)"),
    re.compile(rf"(lightning|opaque)\({_NUMBER}\)"),
    re.compile(rf"(kpool)\({_NUMBER},{_NUMBER}(,tail)?\)"),
)


def _refuse(argument, expected, text):
    raise Error(argument, expected, f'"{text}"')


def path_number(argument, name):
    number = PATHS.get(name)
    return number or _refuse(argument, "dense_mha, masked_mha or topk_mqa", name)


def space_number(name):
    return _SPACES.get(name) or _refuse("space", "one of request_position, cache_slot", name)


def compute_number(name):
    return _COMPUTES.get(name.lower()) or _refuse("compute", "bfloat16 (or bf16) or float32 (or fp32)", name)


def format_number(name):
    names = "float32 (or fp32), bf16 (or bfloat16), fp8 (or fp8_e4m3) or fp8_ds_mla"
    return _FORMATS.get(name.lower()) or _refuse("cache_format", names, name)


def rule_fields(text):
    """The fields of HrAttention that a rule such as "kpool(2048, 4, tail)" stands for."""
    without_spaces = text.replace(" ", "")
    for form in _RULE_FORMS:
        found = form.fullmatch(without_spaces)
        if found:
            name, topk, pool, tail = (*found.groups(), None, None, None)[:4]
            numbers = {"topk": int(topk or 0), "pool": int(pool or 0)}
            if all(-(2**63) <= n < 2**63 for n in numbers.values()):
                return {"rule": _RULES[name], **numbers, "tail": int(tail is not None)}
    forms = "none, lightning(TOPK), kpool(TOPK, POOL, tail), kpool(TOPK, POOL), opaque or opaque(WIDTH)"
    return _refuse("rule", forms, text)
