# What the names in meter.py are in C, where it is compiled (setup.py). Amounts may be fractions, so they are objects.


cdef class Meter:
    cdef public object rate, started, uncounted


cdef class FleetMeter(Meter):
    cdef public object fading, others
