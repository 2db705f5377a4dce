# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""The loops over each record of a batch, compiled.

`join_records` is explained in envelope.py and `checksum_records` in checksums/crc.py. Both have
their functions in Python, which give the same bytes, and which take over where this was not built.
CRC32 is isal's: its function is found in the library that the package `isal` brings.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from isal import isal_zlib

cdef extern from "<dlfcn.h>":
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW

ctypedef uint32_t (*Crc32)(uint32_t begun, const unsigned char* data, uint64_t size) noexcept


cdef Crc32 _find_crc32() except NULL:
    cdef void* library = dlopen(isal_zlib.__file__.encode(), RTLD_NOW)
    cdef void* function = NULL if library is NULL else dlsym(library, b"crc32_gzip_refl")
    if function is NULL:
        raise ImportError("isal does not show its function crc32_gzip_refl")
    return <Crc32> function


cdef Crc32 _crc32 = _find_crc32()


cdef inline void _store(unsigned char* place, uint32_t number) noexcept:
    place[0] = number >> 24
    place[1] = number >> 16
    place[2] = number >> 8
    place[3] = number


def join_records(bytes head not None, list tails not None, tuple bodies not None):
    cdef Py_ssize_t count = len(bodies), head_size = PyBytes_GET_SIZE(head), size = 0, index
    cdef bytes tail, body, records
    cdef unsigned char* place
    if len(tails) != count:
        raise ValueError("as many tails as bodies are needed")
    for index in range(count):
        tail, body = tails[index], bodies[index]
        if tail is None or body is None:
            raise TypeError("tails and bodies are bytes")
        size += 4 + head_size + PyBytes_GET_SIZE(tail) + PyBytes_GET_SIZE(body)
    records = PyBytes_FromStringAndSize(NULL, size)
    place = <unsigned char*> PyBytes_AS_STRING(records)
    for index in range(count):
        tail, body = tails[index], bodies[index]
        size = head_size + PyBytes_GET_SIZE(tail) + PyBytes_GET_SIZE(body)
        _store(place, <uint32_t> size)
        place += 4
        memcpy(place, PyBytes_AS_STRING(head), head_size)
        place += head_size
        memcpy(place, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        place += PyBytes_GET_SIZE(tail)
        memcpy(place, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        place += PyBytes_GET_SIZE(body)
    return records


def checksum_records(const unsigned char[::1] data not None, lengths not None):
    cdef Py_ssize_t count = len(lengths), start = 0, size, index
    cdef bytes numbers = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef unsigned char* place = <unsigned char*> PyBytes_AS_STRING(numbers)
    for index in range(count):
        size = lengths[index]
        if not 0 < size <= data.shape[0] - start:
            raise ValueError("the lengths are not those of the records")
        _store(place + 4 * index, <uint32_t> size)
        _store(place + 4 * (count + index), _crc32(0, &data[start], size))
        start += size
    return numbers
