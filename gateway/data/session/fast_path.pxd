# What other compiled modules use of fast_path.pyx.

cimport cython

from gateway.data.pending.in_flight cimport InFlightRequests
from gateway.data.shared.ledger cimport UsageLedger
from policies.idempotence.duplicates cimport AcknowledgedBatches
from policies.meters.meter cimport RateMeter
from protocol.produce.produce_fast cimport PartitionArray


@cython.final
cdef class ForwardingTerms:
    cdef readonly InFlightRequests in_flight
    cdef dict by_name, by_id
    cdef object awaits_repeats, find_credit
    cdef bint must_ask_limits
    cdef RateMeter total
    cdef UsageLedger ledger
    cdef long long sample_mask, max_request_bytes, max_fetch_bytes
    cdef Py_ssize_t max_partitions
    cdef bytes client_id
    cdef tuple fetch_responses

    cpdef (Py_ssize_t, Py_ssize_t) admit_requests(
        self, object buf, Py_ssize_t pos, Py_ssize_t end, object now, object arrived, bint asks
    ) except *

    cdef bint _append_fetch(self, long long length, int version, long long correlation) except -1

    cdef bint _admit_partitioned(
        self, object buf, Py_ssize_t start, Py_ssize_t end, int version, long long correlation, object now,
        object arrived, bint asks,
    ) except -1

    cdef int _charge_topic(
        self, RateMeter meter, object limits, long long size, long long messages, long long whole_size, object now
    ) except -1

    cdef object _charge_topics(self, PartitionArray parts, dict meters, Py_ssize_t whole_size, object now)


@cython.final
cdef class ResponseCounters:
    cdef readonly InFlightRequests in_flight
    cdef dict accepted_rows
    cdef AcknowledgedBatches acknowledged
    cdef object name_of, count_repeats, count_with_duplicates, node_id
    cdef readonly UsageLedger ledger

    cpdef Py_ssize_t count_responses(self, object buf, Py_ssize_t pos, Py_ssize_t end, object now, bint asks) except -1

    cdef bint _count_partitioned(
        self, object buf, Py_ssize_t start, Py_ssize_t end, object now, tuple entry
    ) except -1
