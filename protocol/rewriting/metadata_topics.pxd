# What the names in metadata_topics.py are in C, where it is compiled (setup.py). A view checks each index, and is of
# any buffer: large answers are in memory maps.

cimport cython

cdef int _ID, _MAX_LOOKAHEAD


@cython.locals(
    data="const unsigned char[::1]", last=cython.Py_ssize_t, count=cython.Py_ssize_t, size=cython.Py_ssize_t,
    name=cython.Py_ssize_t, after=cython.Py_ssize_t, replicas=cython.Py_ssize_t, in_sync=cython.Py_ssize_t,
    offline=cython.Py_ssize_t, topic_id=bytes, learned=dict,
)
cpdef tuple read_new_ids(object buf, Py_ssize_t pos, Py_ssize_t end, dict known)

cdef Py_ssize_t _skip_partition(object buf, Py_ssize_t pos, Py_ssize_t end) except -1
