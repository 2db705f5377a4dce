# cython: language_level=3, boundscheck=False, wraparound=False
"""The loops over each record of an append, compiled.

`join_records` is explained in envelope.py and `encode` in checksums/entries.py. Both have their
functions in Python, which give the same bytes, and which take over where this was not built.

CRC32 is isal's: its function is found in the library that the package `isal` brings. Large appends
are made by threads: these loops let go of the interpreter meanwhile, which the event loop needs.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from array import array
from os import fsencode

from isal import isal_zlib

cdef extern from "<dlfcn.h>":
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW

ctypedef uint32_t (*Crc32)(uint32_t begun, const unsigned char* data, uint64_t size) noexcept nogil

# From this size on the interpreter is let go of. To get it back may take longer than a small append.
cdef Py_ssize_t _LARGE_BYTES = 1 << 20
# As in checksums/entries.py.
cdef Py_ssize_t _MAX_RECORDS = 1024
cdef Py_ssize_t _MAX_BYTES = 64 * 1024
cdef Py_ssize_t _IDENTITY_BYTES = 14
cdef Py_ssize_t _HEAD_BYTES = 28

cdef array.array _numbers = array("I")


cdef Crc32 _find_crc32() except NULL:
    cdef void* library = dlopen(fsencode(isal_zlib.__file__), RTLD_NOW)
    cdef void* function = NULL if library is NULL else dlsym(library, b"crc32_gzip_refl")
    if function is NULL:
        raise ImportError("isal does not show its function crc32_gzip_refl")
    return <Crc32> function


cdef Crc32 _crc32 = _find_crc32()


cdef inline unsigned char* _store(unsigned char* place, uint32_t number) noexcept nogil:
    place[0] = number >> 24
    place[1] = number >> 16
    place[2] = number >> 8
    place[3] = number
    return place + 4


# --- records


cdef struct Message:
    const char* head
    const char* tail
    const char* body
    Py_ssize_t head_size
    Py_ssize_t tail_size
    Py_ssize_t body_size


cdef void _copy(
    unsigned char* place, const Message* messages, Py_ssize_t count, unsigned int* sizes
) noexcept nogil:
    cdef Py_ssize_t index
    cdef const Message* message
    for index in range(count):
        message = &messages[index]
        sizes[index] = 4 + message.head_size + message.tail_size + message.body_size
        place = _store(place, sizes[index] - 4)
        memcpy(place, message.head, message.head_size)
        place += message.head_size
        memcpy(place, message.tail, message.tail_size)
        place += message.tail_size
        memcpy(place, message.body, message.body_size)
        place += message.body_size


def join_records(list parts not None):
    cdef Py_ssize_t count = 0, size = 0, index
    cdef bytes head, tail, body, records
    cdef list tails
    cdef tuple bodies
    cdef unsigned char* place
    for _, tails, bodies in parts:
        if tails is None or bodies is None or len(tails) != len(bodies):
            raise ValueError("as many tails as bodies are needed")
        count += len(bodies)
    cdef array.array sizes = array.clone(_numbers, count, zero=False)
    cdef Message* messages = <Message*> PyMem_Malloc(max(count, 1) * sizeof(Message))
    if messages is NULL:
        raise MemoryError
    cdef Message* message = messages
    try:
        for head, tails, bodies in parts:
            for index in range(len(bodies)):
                tail, body = tails[index], bodies[index]
                if head is None or tail is None or body is None:
                    raise TypeError("heads, tails and bodies are bytes")
                message.head, message.head_size = PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head)
                message.tail, message.tail_size = PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail)
                message.body, message.body_size = PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
                size += 4 + message.head_size + message.tail_size + message.body_size
                message += 1
        records = PyBytes_FromStringAndSize(NULL, size)
        place = <unsigned char*> PyBytes_AS_STRING(records)
        if size < _LARGE_BYTES:
            _copy(place, messages, count, sizes.data.as_uints)
        else:
            with nogil:
                _copy(place, messages, count, sizes.data.as_uints)
        return records, sizes
    finally:
        PyMem_Free(messages)


# --- their checksums


cdef Py_ssize_t _count_fitting(const unsigned int* sizes, Py_ssize_t count) noexcept nogil:
    """Return how many records from the first on one entry is about."""
    cdef Py_ssize_t used = sizes[0], index = 1
    while index < min(count, _MAX_RECORDS) and used + sizes[index] <= _MAX_BYTES:
        used += sizes[index]
        index += 1
    return index


cdef unsigned char* _encode_entry(
    unsigned char* place,
    uint32_t seed,
    uint64_t start,
    const unsigned char* data,
    const unsigned int* sizes,
    Py_ssize_t count,
) noexcept nogil:
    cdef Py_ssize_t size = 0, index
    cdef unsigned char* entry = place
    cdef uint32_t identity
    for index in range(count):
        size += sizes[index]
    identity = _crc32(0, data, min(size, _IDENTITY_BYTES))
    memcpy(place, b"DQC1", 4)
    place = _store(place + 4, count << 16)
    place = _store(place, start >> 32)
    place = _store(place, start)
    place = _store(place, size)
    place = _store(place, identity)
    if size > _IDENTITY_BYTES:
        place = _store(place, _crc32(identity, data + _IDENTITY_BYTES, size - _IDENTITY_BYTES))
    else:
        place = _store(place, identity)
    if count > 1:
        for index in range(count):
            place = _store(place, sizes[index])
        for index in range(count):
            place = _store(place, _crc32(0, data, sizes[index]))
            data += sizes[index]
    return _store(place, _crc32(seed, entry, place - entry))


cdef void _encode_all(
    unsigned char* place,
    uint32_t seed,
    uint64_t start,
    const unsigned char* data,
    const unsigned int* sizes,
    Py_ssize_t count,
) noexcept nogil:
    cdef Py_ssize_t fitting, index
    while count:
        fitting = _count_fitting(sizes, count)
        place = _encode_entry(place, seed, start, data, sizes, fitting)
        for index in range(fitting):
            start += sizes[index]
            data += sizes[index]
        sizes += fitting
        count -= fitting


def encode(uint32_t seed, uint64_t start, const unsigned char[::1] data not None, lengths not None):
    cdef array.array numbers = lengths if type(lengths) is array else array("I", lengths)
    cdef Py_ssize_t count = len(numbers), size = 0, used = 0, fitting, index
    if numbers.typecode != "I":
        raise TypeError("the lengths are unsigned numbers")
    cdef unsigned int* sizes = numbers.data.as_uints
    index = 0
    while index < count:
        fitting = _count_fitting(sizes + index, count - index)
        size += _HEAD_BYTES + 4 + (8 * fitting if fitting > 1 else 0)
        index += fitting
    for index in range(count):
        if not sizes[index]:
            raise ValueError("a record has its prefix at least")
        used += sizes[index]
    if used != data.shape[0]:
        raise ValueError("the lengths do not add up to the data")
    cdef bytes entries = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char* place = <unsigned char*> PyBytes_AS_STRING(entries)
    if not count:
        return entries
    if used < _LARGE_BYTES:
        _encode_all(place, seed, start, &data[0], sizes, count)
    else:
        with nogil:
            _encode_all(place, seed, start, &data[0], sizes, count)
    return entries
