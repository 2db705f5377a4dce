# cython: language_level=3, boundscheck=False, wraparound=False
"""The loops over each record of an append, compiled.

`join_records` is explained in envelope.py, `encode` and `has_zero_sector` in checksums/entries.py.
They have their functions in Python, which give the same, and which take over where this was not
built.

CRC32 is isal's: its function is found in the library that the package `isal` brings. Large appends
are made by threads: these loops let go of the interpreter meanwhile, which the event loop needs.
"""

from cpython cimport array
from cpython.ref cimport PyObject
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT32_MAX, uint32_t, uint64_t
from libc.string cimport memcpy

from array import array
from os import fsencode

from isal import isal_zlib

cdef extern from "<dlfcn.h>":
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW

ctypedef uint32_t (*Crc32)(uint32_t begun, const unsigned char* data, uint64_t size) noexcept nogil

cdef extern from "Python.h":
    PyObject** Items "PySequence_Fast_ITEMS"(tuple items)
    bint PyBytes_CheckExact(PyObject* item) nogil
    const char* BytesData "PyBytes_AS_STRING"(PyObject* item) nogil
    Py_ssize_t BytesSize "PyBytes_GET_SIZE"(PyObject* item) nogil

# From this size on the interpreter is let go of. To get it back may take longer than a small append.
cdef Py_ssize_t _LARGE_BYTES = 1 << 20
cdef Py_ssize_t _LARGE_COUNT = 4096
# As in checksums/entries.py.
cdef Py_ssize_t _MAX_RECORDS = 1024
cdef Py_ssize_t _MAX_BYTES = 64 * 1024
cdef Py_ssize_t _IDENTITY_BYTES = 14
cdef Py_ssize_t _SECTOR_BYTES = 512
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


# What all messages of one part begin with; the rest of each id, and each body. The caller's tuples
# hold these objects.
cdef struct Part:
    const char* head
    Py_ssize_t head_size
    PyObject** tails
    PyObject** bodies
    Py_ssize_t count


cdef Py_ssize_t _measure(const Part* part, const Part* end, unsigned int* sizes) noexcept nogil:
    """Note the size of each record; return that of all, -1 if a part of one is not bytes, and -2 if
    one is too large for its prefix.

    The first look at a message that came a while ago waits for the memory.
    """
    cdef Py_ssize_t index, record, size = 0
    while part < end:
        for index in range(part.count):
            if not PyBytes_CheckExact(part.tails[index]):
                return -1
            if not PyBytes_CheckExact(part.bodies[index]):
                return -1
            record = part.head_size + BytesSize(part.tails[index]) + BytesSize(part.bodies[index])
            if record > INT32_MAX:
                return -2
            sizes[index] = 4 + record
            size += 4 + record
        sizes += part.count
        part += 1
    return size


cdef void _copy(
    unsigned char* place, const Part* part, const Part* end, const unsigned int* sizes
) noexcept nogil:
    cdef Py_ssize_t index, size
    while part < end:
        for index in range(part.count):
            place = _store(place, sizes[index] - 4)
            memcpy(place, part.head, part.head_size)
            place += part.head_size
            size = BytesSize(part.tails[index])
            memcpy(place, BytesData(part.tails[index]), size)
            place += size
            size = BytesSize(part.bodies[index])
            memcpy(place, BytesData(part.bodies[index]), size)
            place += size
        sizes += part.count
        part += 1


cdef class _Parts:
    """What is to be joined; the tuples in it are the caller's."""

    cdef Part* begin
    cdef Part* end
    cdef Py_ssize_t count

    def __cinit__(self, list parts not None):
        cdef Py_ssize_t start
        cdef bytes head
        cdef tuple tails, bodies
        cdef Part* part = <Part*> PyMem_Malloc(max(len(parts), 1) * sizeof(Part))
        if part is NULL:
            raise MemoryError
        self.begin = self.end = part
        for head, tails, start, bodies in parts:
            if head is None:
                raise TypeError("heads, tails and bodies are bytes")
            if tails is None or bodies is None or not 0 <= start <= len(tails) - len(bodies):
                raise ValueError("as many tails as bodies are needed")
            part.head, part.head_size = PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head)
            part.tails = Items(tails) + start
            part.bodies = Items(bodies)
            part.count = len(bodies)
            self.count += part.count
            part += 1
        self.end = part

    def __dealloc__(self):
        PyMem_Free(self.begin)


cdef int _check(Py_ssize_t size) except -1:
    if size == -1:
        raise TypeError("heads, tails and bodies are bytes")
    if size < 0:
        raise ValueError("a message is too large for a record")
    return 0


def join_records(list parts not None):
    cdef _Parts found = _Parts(parts)
    cdef array.array lengths = array.clone(_numbers, found.count, zero=False)
    cdef unsigned int* sizes = lengths.data.as_uints
    cdef bint is_large = found.count >= _LARGE_COUNT
    cdef Py_ssize_t size
    if is_large:
        with nogil:
            size = _measure(found.begin, found.end, sizes)
    else:
        size = _measure(found.begin, found.end, sizes)
    _check(size)
    cdef bytes records = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char* place = <unsigned char*> PyBytes_AS_STRING(records)
    if is_large or size >= _LARGE_BYTES:
        with nogil:
            _copy(place, found.begin, found.end, sizes)
    else:
        _copy(place, found.begin, found.end, sizes)
    return records, lengths


def join_records_into(list parts not None, unsigned char[::1] room not None):
    cdef _Parts found = _Parts(parts)
    cdef array.array lengths = array.clone(_numbers, found.count, zero=False)
    cdef unsigned int* sizes = lengths.data.as_uints
    cdef Py_ssize_t size
    with nogil:
        size = _measure(found.begin, found.end, sizes)
        if size == room.shape[0] and size:
            _copy(&room[0], found.begin, found.end, sizes)
    _check(size)
    if size != room.shape[0]:
        raise ValueError("the room is not of the size of the records")
    return lengths


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


def has_zero_sector(const unsigned char[::1] data not None):
    cdef Py_ssize_t size = data.shape[0]
    cdef bint found
    if size < _SECTOR_BYTES:
        return False
    if size < _LARGE_BYTES:
        return _find_zeros(&data[0], size)
    with nogil:
        found = _find_zeros(&data[0], size)
    return found


cdef bint _find_zeros(const unsigned char* data, Py_ssize_t size) noexcept nogil:
    """Tell whether a whole sector of bytes is 0, wherever it begins."""
    cdef Py_ssize_t position = _SECTOR_BYTES - 1, start, stop
    while position < size:
        # Every run of so many zeros covers one of these positions.
        if data[position]:
            position += _SECTOR_BYTES
            continue
        start = position
        while start > 0 and not data[start - 1] and position - start < _SECTOR_BYTES:
            start -= 1
        stop = position + 1
        while stop < size and not data[stop] and stop - start < _SECTOR_BYTES:
            stop += 1
        if stop - start >= _SECTOR_BYTES:
            return True
        position += _SECTOR_BYTES
    return False
