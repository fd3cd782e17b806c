"""Reads a pickle that may be hostile: numbers, texts, lists and dicts come out of it, and nothing
in it is called.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

MAX_BYTES = 64 << 20
# fmt: off
_PLAIN = {
    "PROTO", "STOP", "MARK", "POP", "POP_MARK", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST",
    "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}
# fmt: on
"""The operations that only build plain values. All others are refused: they name, call or allocate
something.
"""


def load_plain(data: bytes) -> Any:
    """The value in a pickle of plain values. ValueError for any other, and for one that is damaged."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name not in _PLAIN:
                raise ValueError(f"it uses {operation.name}, which dumps do not need")
            if operation.name == "LONG_BINPUT" and int(argument or 0) > len(data):
                raise ValueError("it asks for more memory than it can need")
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        MemoryError,
    ) as error:
        raise ValueError(f"it is no pickle: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """The second lock: it would refuse every class and function."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Refuses."""
        raise ValueError(f"it names {module_name}.{global_name}")
