# What the names in in_flight.py are in C, where it is compiled (setup.py).

cimport cython

from protocol.rewriting cimport stream

cdef int _PRODUCE, _SASL, _LOCAL, _NOTHING


@cython.final
@cython.freelist(256)
cdef class PendingResponse:
    cdef PendingResponse next_response
    cdef tuple entry
    cdef long long correlation, index, size, messages, producer, sequence, trailing
    cdef int kind, version, epoch
    cdef bytes topic
    cdef object charged_limits, stamp


@cython.final
cdef class InFlightRequests:
    cdef PendingResponse oldest, _last
    cdef readonly list outgoing
    cdef public bint is_reading_blocked
    cdef readonly stream.EndpointHider stream_walker
    cdef Py_ssize_t _count
    cdef object _account

    @cython.locals(owed=PendingResponse)
    cpdef append(self, tuple entry)

    @cython.locals(owed=PendingResponse)
    cpdef append_produce(
        self, long long correlation, int version, bytes topic, long long index, long long size, long long messages,
        long long producer, int epoch, long long sequence, long long trailing, object charged, object stamp,
    )

    @cython.locals(last=PendingResponse)
    cdef _append_pending(self, PendingResponse owed)

    @cython.locals(owed=PendingResponse)
    cpdef drop_oldest(self)

    cpdef begin_streaming(self, int key, int version, long long size)

    @cython.locals(walker=stream.EndpointHider, stop=cython.Py_ssize_t)
    cpdef Py_ssize_t stream_bytes(self, object buf, Py_ssize_t pos, Py_ssize_t end, object ledger) except -1

    cpdef bint charge_partitions(self, object parts) except -1

    cpdef release_partitions(self, object parts)

    @cython.locals(owed=PendingResponse)
    cdef bint _has_sasl(self) except -1


cdef tuple _entry_of(PendingResponse owed)
