# What the names in ledger.py are in C, where it is compiled (setup.py).

cdef class Ledger:
    cdef public long long epoch, size, requests
    cdef public dict counts
    cdef public object latencies
    cdef public Py_ssize_t max_names
    cdef dict _rows
    cdef set _clients, _topics
