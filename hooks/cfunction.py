"""Call C functions of the running process by name.

It uses `_ctypes` and not `ctypes`: the package costs 3 ms at start, its C part 0.3 ms, and a
hook has about 4 ms altogether. Should a Python lack these private names, the package takes
their place and nothing but the time changes.
"""

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Function(Protocol):
        """A C function that returns an int."""

        def __call__(self, *arguments: Any) -> int: ...


try:
    import _ctypes as c
    from _ctypes import addressof, get_errno

    class _Char(c._SimpleCData):  # type: ignore[type-arg]
        _type_ = "c"

    class _Function(c.CFuncPtr):
        # No result type: then it is a C int, and no class for it needs making.
        _flags_ = c.FUNCFLAG_CDECL | c.FUNCFLAG_USE_ERRNO

    _process: int = c.dlopen(None, 0)  # type: ignore[arg-type]

    def function(name: str) -> "Function":
        """The C function `name`; ints are passed as C ints, bytes as pointers."""
        found: Any = _Function(c.dlsym(_process, name))
        return found  # type: ignore[no-any-return]

    def buffer(size: int) -> "Any":
        """Zeroed memory of `size` bytes that the kernel may write to; `.raw` is its content."""
        return type("Buffer", (c.Array,), {"_type_": _Char, "_length_": size})()

except (ImportError, AttributeError):  # pragma: no cover - a Python without these private names
    import ctypes
    from ctypes import addressof, get_errno

    _dll = ctypes.CDLL(None, use_errno=True)

    def function(name: str) -> "Function":
        """The C function `name`; ints are passed as C ints, bytes as pointers."""
        return getattr(_dll, name)  # type: ignore[no-any-return]

    def buffer(size: int) -> "Any":
        """Zeroed memory of `size` bytes that the kernel may write to; `.raw` is its content."""
        return ctypes.create_string_buffer(size)


__all__ = ["addressof", "buffer", "function", "get_errno"]
