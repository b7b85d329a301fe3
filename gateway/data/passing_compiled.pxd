# What the names in passing.py are in C, where it is compiled (setup.py). `layouts`, `usual` and `sums` are in C as well
# then.

cimport cython

from gateway.data cimport sums_compiled as sums
from policies cimport duplicates_compiled as duplicates
from policies.limits.meter_compiled cimport Meter
from protocol cimport layouts
from protocol cimport usual_compiled as usual

cdef int _PRODUCE, _TOPIC_IDS, _MIN_REQUEST, _MAX_PENDING

@cython.locals(
    by_name=dict, by_id=dict, meters=dict, passed=cython.Py_ssize_t,
    length=cython.longlong, key=cython.int, version=cython.int, correlation=cython.longlong, stop=cython.Py_ssize_t,
    skimmed=tuple, acks=cython.int, part=tuple, is_full=cython.bint, size=cython.longlong, messages=cython.longlong,
    topic=bytes, last=bytes, last_version=cython.int, room=cython.double,
)
cpdef (Py_ssize_t, Py_ssize_t) requests(
    object buf, Py_ssize_t pos, Py_ssize_t end, object now, object arrived, long long mask, object client_id,
    object quota, object awaits, long long max_bytes, Py_ssize_t most, tuple charged
) except *

cdef int _charge(Meter meter, Meter total, long long size, long long messages) except -1

@cython.locals(size=cython.longlong, charges=list, topic=bytes, bytes_=object, messages=object)
cdef bint _take_all(object parts, dict meters, object total, object quota, object now) except -1

@cython.locals(
    rows=dict, length=cython.longlong, correlation=cython.longlong, stop=cython.Py_ssize_t, entry=tuple,
    version=cython.int, topic=bytes, offset=cython.longlong, name=bytes, last=bytes, counts=list,
    acknowledged=duplicates.Acknowledged,
    all_bytes=cython.longlong, all_messages=cython.longlong, requests_=cython.longlong,
)
cpdef Py_ssize_t answers(object buf, Py_ssize_t pos, Py_ssize_t end, object now, object repeats, tuple counted) except -1

cdef int _count(list counts, long long size, long long messages, long long requests_) except -1

@cython.locals(
    rows=dict, acknowledged=duplicates.Acknowledged, topics=list, met=set, topic=bytes, again=list, counts=list,
    place=cython.Py_ssize_t,
)
cdef bint _count_all(object parts, object answered, int version, object charged, tuple counted) except -1
