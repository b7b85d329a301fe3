# What the names in ledger.py are in C, where it is compiled (setup.py).

cdef class UsageLedger:
    cdef public long long epoch, size_bytes, request_count
    cdef public dict counts
    cdef public object latencies
    cdef public Py_ssize_t max_names
    cdef dict _rows
    cdef set _clients, _topics
