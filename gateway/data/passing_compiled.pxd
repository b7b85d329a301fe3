# What the names in passing.py are in C, where it is compiled (setup.py). `layouts`, `usual`, `sums` and `in_flight` are
# in C as well then.

cimport cython

from gateway.data cimport in_flight_compiled as in_flight
from gateway.data cimport ledger_compiled as ledger
from gateway.data cimport sums_compiled as sums
from policies cimport duplicates_compiled as duplicates
from policies.limits.meter_compiled cimport Meter
from protocol cimport layouts
from protocol cimport stream_compiled as stream
from protocol cimport usual_compiled as usual

cdef int _PASS, _STREAM, _PRODUCE, _FETCH_KEY, _TOPIC_IDS, _MIN_REQUEST, _MAX_PENDING
cdef str _FETCHES


@cython.final
cdef class Terms:
    cdef readonly in_flight.InFlight in_flight
    cdef dict by_name, by_id
    cdef object awaits, quota
    cdef Meter total
    cdef readonly Counted counted
    cdef long long mask, max_bytes, fetch_bytes
    cdef Py_ssize_t most
    cdef bytes client_id
    cdef tuple fetches


@cython.final
cdef class Counted:
    cdef readonly in_flight.InFlight in_flight
    cdef dict rows
    cdef duplicates.Acknowledged acknowledged
    cdef object name_of, count_repeats, count_some, node_id
    cdef ledger.Ledger ledger
    cdef readonly stream.EndpointHider walker

    cpdef begin(self, int kind, int key, int version, long long size)


@cython.locals(
    flight=in_flight.InFlight, client_id=bytes, passed=cython.Py_ssize_t, size=cython.longlong,
    messages=cython.longlong, last=bytes, last_version=cython.int, room=cython.double, length=cython.longlong, key=cython.int,
    version=cython.int, correlation=cython.longlong, stop=cython.Py_ssize_t, same=cython.int, acks=cython.int,
    client_at=cython.Py_ssize_t, client_size=cython.Py_ssize_t, topic_at=cython.Py_ssize_t,
    topic_size=cython.Py_ssize_t, index=cython.longlong, bytes_=cython.longlong, records=cython.longlong,
    producer=cython.longlong, epoch=cython.int, sequence=cython.longlong, trailing=cython.longlong, topic=bytes,
)
cpdef (Py_ssize_t, Py_ssize_t) requests(
    object buf, Py_ssize_t pos, Py_ssize_t end, object now, object arrived, bint asks, Terms terms
) except *

cdef bint _take_fetch(long long length, int version, long long correlation, Terms terms) except -1

cdef bint _awaits(
    Terms terms, int version, bytes topic, long long index, long long size, long long messages, long long producer,
    int epoch, long long sequence, long long trailing,
) except -1

@cython.locals(skimmed=tuple, acks=cython.int)
cdef bint _take_several(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, long long correlation, object now, object arrived,
    bint asks, Terms terms,
) except -1

cdef int _charge(Meter meter, Meter total, long long size, long long messages) except -1

@cython.locals(size=cython.longlong, charges=list, topic=bytes, bytes_=object, messages=object)
cdef bint _charge_all(
    object parts, dict meters, object total, object quota, long long length, object now
) except -1

@cython.locals(
    flight=in_flight.InFlight, owed=in_flight.Owed, last=bytes, size=cython.longlong, messages=cython.longlong,
    requests_=cython.longlong, length=cython.longlong, correlation=cython.longlong, stop=cython.Py_ssize_t,
    offset=cython.longlong, name=bytes, counts=list,
)
cpdef Py_ssize_t answers(
    object buf, Py_ssize_t pos, Py_ssize_t end, object now, bint asks, Counted counted
) except -1

@cython.locals(version=cython.int, key=cython.int)
cdef _begin(in_flight.Owed owed, long long size, Counted counted)

@cython.locals(walker=stream.EndpointHider, stop=cython.Py_ssize_t)
cdef Py_ssize_t _pass_on(object buf, Py_ssize_t pos, Py_ssize_t end, Counted counted) except -1

@cython.locals(version=cython.int)
cdef bint _take_all(
    object buf, Py_ssize_t start, Py_ssize_t end, object now, in_flight.Owed owed, Counted counted,
) except -1

cdef int _count(list counts, long long size, long long messages, long long requests_) except -1

@cython.locals(
    rows=dict, topics=list, met=set, topic=bytes, again=list, counts=list, place=cython.Py_ssize_t,
)
cdef bint _count_all(object parts, object answered, int version, object charged, Counted counted) except -1
