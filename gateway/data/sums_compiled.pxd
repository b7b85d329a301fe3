# What the names in sums.py are in C, where it is compiled (setup.py).

cimport cython

from protocol cimport layouts

cdef int _PART, _RESULT


@cython.locals(
    sums=list, numbers=cython.p_longlong, topic=bytes, first=cython.Py_ssize_t, stop=cython.Py_ssize_t,
    at=cython.Py_ssize_t, size=cython.longlong, messages=cython.longlong,
)
cpdef list by_topic(object parts)

@cython.locals(
    count=cython.Py_ssize_t, numbers=cython.p_longlong, results=cython.p_longlong, producers=cython.bint,
    in_order=cython.bint, part=cython.Py_ssize_t, result=cython.Py_ssize_t,
)
cpdef object offsets(object parts, object answered)

@cython.locals(
    topics=dict, of_topic=dict, results=cython.p_longlong, numbers=cython.p_longlong, found=cython.p_longlong,
    topic=bytes, first=cython.Py_ssize_t, stop=cython.Py_ssize_t, place=cython.Py_ssize_t, other=cython.Py_ssize_t,
)
cdef object _in_another_order(object parts, object answered)
