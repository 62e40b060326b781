# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries, through DLPack's capsules."""

import ctypes

from ._library import Error, HrTensor

_CUDA = 2
_NEWEST = (1, 0)

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p


def _export(tensor):
    """The tensor's capsule. A stream of -1 asks for no synchronisation: the call is queued on the caller's stream."""
    on_cuda = tensor.__dlpack_device__()[0] == _CUDA
    arguments = {"stream": -1} if on_cuda else {}
    try:
        return tensor.__dlpack__(max_version=_NEWEST, **arguments)
    except TypeError:  # a producer older than DLPack 1.0
        return tensor.__dlpack__(**arguments)


class Borrowed:
    """Capsules of the tensors of one call. They are read, not consumed, and give the tensors back when they go."""

    def __init__(self):
        self._capsules = []

    def __call__(self, name, tensor):
        """The tensor for the library; None is none."""
        if tensor is None:
            return HrTensor(None, 0)
        if not hasattr(tensor, "__dlpack__"):
            raise Error(name, "a tensor with __dlpack__", type(tensor).__name__)
        try:
            capsule = _export(tensor)
        except (BufferError, ValueError, RuntimeError) as reason:
            raise Error(name, "a tensor that DLPack can lend", str(reason)) from reason
        self._capsules.append(capsule)
        versioned = _is_valid(capsule, b"dltensor_versioned")
        return HrTensor(_get_pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor"), versioned)

    def each(self, **tensors):
        """Several, under their names: a call's fields."""
        return {name: self(name, tensor) for name, tensor in tensors.items()}
