# What other compiled modules use of fast_path.pyx.

cimport cython

from gateway.data.pending.in_flight cimport InFlight
from gateway.data.shared.ledger cimport Ledger
from policies.idempotence.duplicates cimport Acknowledged
from policies.limits.meter cimport Meter
from protocol.produce_fast cimport Partitions


@cython.final
cdef class Terms:
    cdef readonly InFlight in_flight
    cdef dict by_name, by_id
    cdef object awaits, credit
    cdef bint asks_always
    cdef Meter total
    cdef Ledger ledger
    cdef long long mask, max_bytes, fetch_bytes
    cdef Py_ssize_t most
    cdef bytes client_id
    cdef tuple fetches

    cpdef (Py_ssize_t, Py_ssize_t) pass_requests(
        self, object buf, Py_ssize_t pos, Py_ssize_t end, object now, object arrived, bint asks
    ) except *

    cdef bint _note_fetch(self, long long length, int version, long long correlation) except -1

    cdef bint _note_several(
        self, object buf, Py_ssize_t start, Py_ssize_t end, int version, long long correlation, object now,
        object arrived, bint asks,
    ) except -1

    cdef int _charge(
        self, Meter meter, object limits, long long size, long long messages, long long whole_size, object now
    ) except -1

    cdef object _charge_all(self, Partitions parts, dict meters, Py_ssize_t whole_size, object now)


@cython.final
cdef class Counted:
    cdef readonly InFlight in_flight
    cdef dict rows
    cdef Acknowledged acknowledged
    cdef object name_of, count_repeats, count_some, node_id
    cdef readonly Ledger ledger

    cpdef Py_ssize_t pass_answers(self, object buf, Py_ssize_t pos, Py_ssize_t end, object now, bint asks) except -1

    cdef bint _count_several(
        self, object buf, Py_ssize_t start, Py_ssize_t end, object now, tuple entry
    ) except -1
