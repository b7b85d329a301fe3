# What the names in in_flight.py are in C, where it is compiled (setup.py).

cimport cython

from protocol cimport stream

cdef int _PRODUCE, _SASL, _LOCAL, _NOTHING


@cython.final
@cython.freelist(256)
cdef class Owed:
    cdef Owed behind
    cdef tuple entry
    cdef long long correlation, index, size, messages, producer, sequence, trailing
    cdef int kind, version, epoch
    cdef bytes topic
    cdef object charged, stamp


@cython.final
cdef class InFlight:
    cdef Owed oldest, _last
    cdef readonly list out
    cdef public bint is_waiting
    cdef readonly stream.EndpointHider walker
    cdef Py_ssize_t _count
    cdef object _account

    @cython.locals(owed=Owed)
    cpdef append(self, tuple entry)

    @cython.locals(owed=Owed)
    cpdef note(
        self, long long correlation, int version, bytes topic, long long index, long long size, long long messages,
        long long producer, int epoch, long long sequence, long long trailing, object charged, object stamp,
    )

    @cython.locals(last=Owed)
    cdef _add(self, Owed owed)

    @cython.locals(owed=Owed)
    cpdef drop(self)

    cpdef begin(self, int key, int version, long long size)

    @cython.locals(walker=stream.EndpointHider, stop=cython.Py_ssize_t)
    cpdef Py_ssize_t pass_on(self, object buf, Py_ssize_t pos, Py_ssize_t end, object ledger) except -1

    cpdef bint keep(self, object parts) except -1

    cpdef forget(self, object parts)

    @cython.locals(owed=Owed)
    cdef bint _has_sasl(self) except -1


cdef tuple _entry(Owed owed)
