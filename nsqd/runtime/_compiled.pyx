# cython: language_level=3
"""What memory.py does without the interpreter: ask the kernel for pages, ahead of their use."""

cdef extern from "<unistd.h>" nogil:
    void* sbrk(Py_ssize_t size)
    int usleep(unsigned int time_us)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* start, size_t size, int advice)

# From Linux 5.14 on; the headers may be older.
cdef int MADV_POPULATE_WRITE = 23
cdef size_t PAGE_BYTES = 4096


def find_heap_end():
    return <size_t> sbrk(0)


def populate_heap(size_t start, *, size_t step_bytes, unsigned int nap_us, unsigned int max_naps):
    cdef size_t done = start & ~(PAGE_BYTES - 1), end
    cdef size_t populated = 0
    cdef unsigned int naps = 0
    with nogil:
        while naps <= max_naps:
            end = <size_t> sbrk(0) & ~(PAGE_BYTES - 1)
            if end <= done:
                done = end  # a heap that has become smaller
                naps += 1
                usleep(nap_us)
                continue
            naps = 0
            end = min(end, done + step_bytes)
            if madvise(<void*> done, end - done, MADV_POPULATE_WRITE):
                break
            populated += end - done
            done = end
    return populated
