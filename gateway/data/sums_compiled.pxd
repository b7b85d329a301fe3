# What the names in sums.py are in C, where it is compiled (setup.py).

cimport cython


@cython.locals(
    sums=list, topic=bytes, size=cython.longlong, messages=cython.longlong, part=tuple
)
cpdef list by_topic(list parts)

@cython.locals(found=list, producers=cython.bint, place=cython.Py_ssize_t, part=tuple, result=tuple)
cpdef list offsets(list parts, list answered)

@cython.locals(topics=dict, topic=bytes, of_topic=dict, result=tuple, found=list, part=tuple)
cdef list _in_another_order(list parts, list answered)
