# What the names in meter.py are in C, where it is compiled (setup.py). Amounts may be fractions, so they are objects.


cdef class RateMeter:
    cdef public object rate, started, uncounted


cdef class FleetMeter(RateMeter):
    cdef public object fading_rate, peer_rate
