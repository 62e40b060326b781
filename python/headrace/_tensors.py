# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries: by DLPack's C exchange interface where their type has it, else through capsules."""

import ctypes
import functools

from ._library import Error, HrDlTensor, HrTensor, library, locked

_CUDA = 2
_NEWEST = (1, 0)
_CAPSULE, _VERSIONED_CAPSULE = 0, 1

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p


@functools.lru_cache(maxsize=64)
def exchange_of(kind):
    """The address of a type's C exchange interface; None where it has none, or another than the library knows."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    name = b"dlpack_exchange_api"
    address = _get_pointer(capsule, name) if _is_valid(capsule, name) else None
    return address if address and library.hr_dl_knows_exchange(address) else None


def shared_exchange(tensors):
    """The exchange interface of all tensors of a call, None aside; None where they have none, or not the same."""
    kinds = {*map(type, tensors)}
    kinds.discard(type(None))
    exchanges = {exchange_of(kind) for kind in kinds}
    return exchanges.pop() if len(exchanges) == 1 else None


def addresses(objects):
    """Python's objects as the library takes them; None is none."""
    return (ctypes.c_void_p * len(objects))(*[None if x is None else id(x) for x in objects])


def work_stream(exchange, ordinal):
    """The stream in which the owner of an exchange interface works on a CUDA device, as a number."""
    stream = ctypes.c_int64()
    locked.hr_dl_work_stream(exchange, ordinal, stream)
    return stream.value


def _export(tensor):
    """The tensor's capsule. A stream of -1 asks for no synchronisation: the call is queued on the caller's stream."""
    on_cuda = tensor.__dlpack_device__()[0] == _CUDA
    arguments = {"stream": -1} if on_cuda else {}
    try:
        return tensor.__dlpack__(max_version=_NEWEST, **arguments)
    except TypeError:  # a producer older than DLPack 1.0
        return tensor.__dlpack__(**arguments)


class Borrowed:
    """Tensors of one call. They are read, not consumed, and free again when this goes."""

    def __init__(self):
        self._lent = []

    def fill(self, call, tensors):
        """Describes {name: tensor} in a call, whose first fields are these, in this order."""
        exchange = shared_exchange(tensors.values())
        if exchange is None:
            for name, tensor in tensors.items():
                setattr(call, name, self(name, tensor))
            return
        count = len(tensors)
        objects = addresses(tensors.values())
        lent = (HrDlTensor * count)()
        self._lent.append((lent, tensors))
        refused = locked.hr_dl_lend(exchange, objects, count, lent, ctypes.addressof(call))
        if refused >= 0:  # and the owner raised nothing itself
            raise Error(list(tensors)[refused], "a tensor that DLPack can lend", "a refusal of its library")

    def __call__(self, name, tensor):
        """The tensor for the library; None is none."""
        if tensor is None:
            return HrTensor(None, _CAPSULE)
        if not hasattr(tensor, "__dlpack__"):
            raise Error(name, "a tensor with __dlpack__", type(tensor).__name__)
        try:
            capsule = _export(tensor)
        except (BufferError, ValueError, RuntimeError) as reason:
            raise Error(name, "a tensor that DLPack can lend", str(reason)) from reason
        self._lent.append(capsule)
        if _is_valid(capsule, b"dltensor_versioned"):
            return HrTensor(_get_pointer(capsule, b"dltensor_versioned"), _VERSIONED_CAPSULE)
        return HrTensor(_get_pointer(capsule, b"dltensor"), _CAPSULE)

    def each(self, **tensors):
        """Several, under their names: a call's fields."""
        return {name: self(name, tensor) for name, tensor in tensors.items()}
