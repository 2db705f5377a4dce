# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop over messages of different sizes, compiled.

`read_sized` is explained in command_parser.py, which has the same in Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcmp


cdef inline int32_t _load(const unsigned char* place) noexcept:
    return <int32_t> (
        <uint32_t> place[0] << 24 | <uint32_t> place[1] << 16 | place[2] << 8 | place[3]
    )


def read_sized(
    bytes data not None,
    Py_ssize_t position,
    Py_ssize_t end,
    *,
    bytes line not None,
    Py_ssize_t max_count,
    Py_ssize_t max_size,
):
    cdef const unsigned char* start = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef Py_ssize_t line_size = PyBytes_GET_SIZE(line), body, size
    cdef list bodies = []
    if position < 0:
        raise ValueError("positions count from the first byte")
    end = min(end, PyBytes_GET_SIZE(data))
    while len(bodies) < max_count and position <= end:
        body = position + line_size + 4
        if body > end or memcmp(start + position, PyBytes_AS_STRING(line), line_size):
            break
        size = _load(start + body - 4)
        if not 0 < size <= max_size or size > end - body:
            break
        position = body + size
        bodies.append(PyBytes_FromStringAndSize(<const char*> start + body, size))
    return bodies, position
