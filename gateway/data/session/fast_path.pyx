# The usual requests and answers of one connection, by the run: Produce requests whose topics are known here and within
# their limits, and answers that say that all their partitions are in the log; Fetch requests, where the shortcut takes
# them and no limit concerns them; and answers that stream through. They decide what the gateway costs. Only the
# compiled gateway has this module.
#
# Whatever else there is to a request or an answer, these stop before it, and the caller looks at it step by step
# (requests.py, responses.py), as it looks at all of them where this is missing. So they refuse nothing, know no error and
# make no answer.

cimport cython
from cpython.array cimport array
from libc.math cimport INFINITY

from gateway.data.pending.in_flight cimport InFlightRequests, PendingResponse
from policies.meters.meter cimport RateMeter
from protocol cimport fields
from protocol.produce cimport produce_fast
from protocol.fields cimport Bytes
from protocol.produce.produce_fast cimport PART, RESULT, PartitionArray, Single

from gateway.channel import API_REQUESTS
from gateway.data.pending import in_flight
from gateway.data.pending import pending
from policies.decision import NO_LIMITS, spend_credit
from protocol import api, framing

cdef int PASS = pending.PASS, STREAM = pending.STREAM, PRODUCE = pending.PRODUCE
cdef int FETCH_KEY = api.FETCH, TOPIC_IDS = api.PRODUCE_TOPIC_IDS
cdef int MIN_REQUEST = framing.MIN_REQUEST_BYTES
cdef Py_ssize_t MAX_PENDING = in_flight.MAX_PENDING
cdef str FETCHES = f"{API_REQUESTS}{FETCH_KEY}"  # the counter of Fetch requests

cdef array NO_OFFSETS = array("q")


# --- requests ---------------------------------------------------------------------------------------------------------


@cython.final
cdef class ForwardingTerms:
    """On which requests of one connection pass as they are, and where they are noted."""

    # in_flight: the answers that are owed.
    # by_name, by_id: the meters of the topics that were looked up. total: that of their broker.
    # awaits_repeats: of ProduceAccounts. find_credit: of ProduceGate.
    # sample_mask: see gateway/data/shared/latencies.py.
    # client_id: of the connection; a request under another one does not pass.
    # must_ask_limits: of ProduceGate; where it is false, credit is asked for only beyond what a topic's meter has free.
    # max_request_bytes, max_partitions: of a Produce request.
    # fetch_responses: for each version of Fetch the kind of its answer, pending.PASS or STREAM. No other one passes.
    # max_fetch_bytes: of a Fetch request.

    def __init__(self, InFlightRequests in_flight, dict by_name, dict by_id, RateMeter total, awaits, credit, ledger):
        self.in_flight = in_flight
        self.by_name = by_name
        self.by_id = by_id
        self.total = total
        self.awaits_repeats = awaits
        self.find_credit = credit
        self.ledger = ledger
        self.fetch_responses = ()

    def update_terms(self, mask, bytes client_id, bint asks_always, max_bytes, most):
        """They are these from here on. No Fetch request passes: the request before it may hold it up."""
        self.sample_mask, self.client_id, self.max_request_bytes, self.max_partitions = mask, client_id, max_bytes, most
        self.must_ask_limits = asks_always
        self.fetch_responses = ()

    def update_fetch_terms(self, tuple owed, most):
        """These pass as well."""
        self.fetch_responses, self.max_fetch_bytes = owed, most

    cpdef (Py_ssize_t, Py_ssize_t) admit_requests(
        self, object buf, Py_ssize_t pos, Py_ssize_t end, object now, object arrived, bint asks
    ) except *:
        """Charge and note the requests from `pos` on that pass as they are; the position of the first other one, and
        the number of these.

        `arrived`: since when they are here. `asks`: the checksums of some may be needed, see ProduceAccounts; the
        caller looks at these.
        """
        cdef InFlightRequests flight = self.in_flight
        cdef Py_ssize_t passed = 0, stop
        cdef long long size = 0, messages = 0, whole_size = 0, length, correlation
        cdef int key, version, last_version = -1
        cdef double free = 0.0, max_size = INFINITY, max_messages = INFINITY, max_whole_size = INFINITY
        cdef Bytes frame
        cdef Single one
        cdef bytes last = b""  # the topic of the last requests …
        cdef RateMeter meter = None  # … whose sizes and messages are added to its meter when another one comes …
        cdef object limits = None  # … and charged to these limits, which have credit for them; None: to none
        try:
            while end - pos > 12:
                frame = fields.within(buf, pos, end - pos)
                length, key, version = fields.int32_at(frame), fields.int16_at(frame + 4), fields.int16_at(frame + 6)
                correlation = fields.int32_at(frame + 8)
                stop = pos + 4 + length
                if key:
                    if key != FETCH_KEY or stop > end or not self._append_fetch(length, version, correlation):
                        break
                    passed += 1
                    pos = stop
                    continue
                if not MIN_REQUEST <= length <= self.max_request_bytes or stop > end or len(flight) >= MAX_PENDING:
                    break
                if not produce_fast.read_single(frame + 4, frame + 4 + length, &one):
                    if meter is not None:
                        self._charge_topic(meter, limits, size, messages, whole_size, now)
                        meter, last_version = None, -1
                        size = messages = whole_size = 0
                    if not self._admit_partitioned(buf, pos + 4, stop, version, correlation, now, arrived, asks):
                        break
                    passed += 1
                    pos = stop
                    if flight.is_reading_blocked:
                        break
                    continue
                if not one.acks or not fields.is_name(one.client_id, self.client_id):
                    break
                if version != last_version or not fields.is_name(one.topic, last):
                    if meter is not None:
                        self._charge_topic(meter, limits, size, messages, whole_size, now)
                        size = messages = whole_size = 0
                    topic = fields.name(one.topic)
                    meter = (self.by_name if version < TOPIC_IDS else self.by_id).get(topic)
                    if meter is None:
                        break
                    last, last_version, free = topic, version, meter.ask_at - meter.uncounted
                    if self.must_ask_limits or free <= 0:
                        found = self.find_credit(meter, now)
                        if found is None:
                            break
                        (limits, max_size, max_messages, max_whole_size), free = found
                    elif limits is not None:
                        limits, max_size, max_messages, max_whole_size = None, INFINITY, INFINITY, INFINITY
                if asks and self.awaits_repeats([produce_fast.single_part(last, &one)], version):
                    break
                if (
                    size >= free or size + one.batch.size > max_size or messages + one.batch.messages > max_messages
                    or whole_size + length > max_whole_size
                ):
                    break
                flight.append_produce(
                    correlation, version, last, one.index, one.batch.size, one.batch.messages, one.batch.producer,
                    one.batch.epoch, one.batch.sequence, one.batch.trailing, limits,
                    None if correlation & self.sample_mask else (arrived, now, self.sample_mask + 1),
                )
                size += one.batch.size
                messages += one.batch.messages
                whole_size += length
                passed += 1
                pos = stop
        finally:
            if meter is not None:
                self._charge_topic(meter, limits, size, messages, whole_size, now)
        return pos, passed

    cdef bint _append_fetch(self, long long length, int version, long long correlation) except -1:
        # A Fetch request of so many bytes; False: it has to be looked at.
        if not MIN_REQUEST <= length <= self.max_fetch_bytes or not 0 <= version < len(self.fetch_responses):
            return False
        if len(self.in_flight) >= MAX_PENDING:
            return False
        if self.fetch_responses[version] == PASS:
            self.in_flight.append((correlation, PASS))
        else:
            self.in_flight.append((correlation, STREAM, version, FETCH_KEY))
        self.ledger.count_event(FETCHES)
        return True

    cdef bint _admit_partitioned(
        self, object buf, Py_ssize_t start, Py_ssize_t end, int version, long long correlation, object now,
        object arrived, bint asks,
    ) except -1:
        # A request of several partitions; False: it has to be looked at, nothing was charged.
        cdef tuple read = produce_fast.read_request(buf, start, end, self.max_partitions)
        if read is None:
            return False
        _, acks, client_id, _, parts = read
        if not acks or client_id != self.client_id or not isinstance(parts, PartitionArray):
            return False
        if asks and self.awaits_repeats(parts, version):
            return False
        meters = self.by_name if version < TOPIC_IDS else self.by_id
        charged = self._charge_topics(parts, meters, end - start, now)
        if charged is None:
            return False
        self.in_flight.charge_partitions(parts)
        stamp = None if correlation & self.sample_mask else (arrived, now, self.sample_mask + 1)
        self.in_flight.append((correlation, PRODUCE, version, parts, None, 0, charged, stamp))
        return True

    cdef int _charge_topic(
        self, RateMeter meter, object limits, long long size, long long messages, long long whole_size, object now
    ) except -1:
        # Requests to one topic, of so many bytes in batches and in all. `limits` None: none was asked.
        if limits is None:
            meter.messages += messages
        elif whole_size:
            spend_credit(limits, size, messages, whole_size, now)
            if limits.group is None:
                meter.messages += messages
            else:
                meter.counted_in_group += size  # not for the group to find once more
        meter.uncounted += size
        self.total.uncounted += size
        return 0

    cdef object _charge_topics(self, PartitionArray parts, dict meters, Py_ssize_t whole_size, object now):
        # Charge for a request of several partitions, of so many bytes; the limits that were asked, NO_LIMITS if none
        # was. None: nothing was charged, since some topic has to be looked at.
        cdef long long size = 0, messages = 0
        cdef double free, max_size, max_messages, max_whole_size
        cdef RateMeter meter
        cdef list charges = [], sums = sums_by_topic(parts)
        shared = None  # the limits of all that is free
        charged = None
        for _, of_topic, messages_of_topic in sums:
            size += of_topic
            messages += messages_of_topic
        for topic, of_topic, messages_of_topic in sums:
            meter = meters.get(topic)
            if meter is None:
                return None
            free = meter.ask_at - meter.uncounted
            if free > 0 and not self.must_ask_limits:
                limits = NO_LIMITS
            elif free > 0 and shared is not None and not meter.by_principal:
                limits = shared
            else:
                found = self.find_credit(meter, now)
                if found is None:
                    return None
                (limits, max_size, max_messages, max_whole_size), left = found
                # Several topics may be under the same limits, so each has to have credit for all of the request.
                if left <= 0 or size > max_size or messages > max_messages or whole_size > max_whole_size:
                    return None
                if free > 0 and not meter.by_principal:
                    shared = limits
            if charged is None:
                charged = limits
            elif limits is not charged and limits[:3] != charged[:3]:  # what is given back goes by the request
                return None
            charges.append((meter, limits, of_topic, messages_of_topic))
        if charged is not NO_LIMITS:
            spend_credit(charged._replace(threshold=None), size, messages, whole_size, now)
        for meter, limits, of_topic, messages_of_topic in charges:
            if limits is not NO_LIMITS and limits.threshold is not None:
                limits.threshold.charge_request(of_topic, messages_of_topic, now)
            if limits is not NO_LIMITS and limits.group is not None:
                meter.counted_in_group += of_topic  # not for the group to find once more
            else:
                meter.messages += messages_of_topic
            meter.uncounted += of_topic
        self.total.uncounted += size
        return charged


# --- answers ----------------------------------------------------------------------------------------------------------


@cython.final
cdef class ResponseCounters:
    """What the answers of one connection are noted in."""

    # in_flight: the answers that are owed.
    # accepted_rows: by topic. acknowledged: what was acknowledged before.
    # name_of: resolve_name of ConnectionTopics. count_repeats, count_with_duplicates: of ProduceAccounts.
    # ledger, node_id: where those that are measured are noted, and of which broker.

    def __init__(
        self, InFlightRequests in_flight, dict rows, acknowledged, name_of, count_repeats, count_some, ledger, node_id
    ):
        self.in_flight = in_flight
        self.accepted_rows = rows
        self.acknowledged = acknowledged
        self.name_of = name_of
        self.count_repeats = count_repeats
        self.count_with_duplicates = count_some
        self.ledger = ledger
        self.node_id = node_id

    cpdef Py_ssize_t count_responses(self, object buf, Py_ssize_t pos, Py_ssize_t end, object now, bint asks) except -1:
        """Count the answers from `pos` on that need nothing but that, and pass what is here of those that stream
        through; the position of the first other one, of the one before which the gateway's own answer is due, or of
        bytes that have to come again with more behind them (EndpointHider.feed). `asks`: `count_repeats` has to
        be told of each.
        """
        cdef InFlightRequests flight = self.in_flight
        cdef PendingResponse owed
        cdef Py_ssize_t stop
        cdef long long size = 0, messages = 0, requests = 0, length, offset
        cdef Bytes frame
        cdef bytes name, last = b""  # the topic of the last answers …
        cdef list counts = None  # … whose sums are added to its row when another one comes
        if flight.stream_walker is not None:
            pos = flight.stream_bytes(buf, pos, end, self.ledger)
            if flight.stream_walker is not None:
                return pos
        try:
            while end - pos >= 8:
                owed = flight.oldest
                if owed is None:
                    break
                frame = fields.within(buf, pos, 8)
                length = fields.int32_at(frame)
                stop = pos + 4 + length
                if length < 4 or owed.correlation != fields.int32_at(frame + 4):
                    break
                if owed.kind == PASS or owed.kind == STREAM:
                    if owed.kind == PASS:
                        flight.begin_streaming(-1, 0, length)
                    else:
                        flight.begin_streaming(owed.entry[3], owed.entry[2], length)
                    pos = flight.stream_bytes(buf, pos + 4, end, self.ledger)
                    if flight.stream_walker is not None:
                        break
                    continue
                if stop > end or owed.kind != PRODUCE:
                    break
                if owed.entry is not None:
                    if asks or not self._count_partitioned(buf, pos + 4, stop, now, owed.entry):
                        break
                    flight.drop_oldest()
                    pos = stop
                    continue
                offset = produce_fast.read_written_offset(buf, pos + 4, stop, owed.version, owed.topic, owed.index)
                if offset < 0 or owed.trailing:
                    break
                name = owed.topic if owed.version < TOPIC_IDS else self.name_of(owed.topic, owed.version)
                if counts is None or name != last:
                    if counts is not None:
                        _add_counts(counts, size, messages, requests)
                        size = messages = requests = 0
                    counts, last = self.accepted_rows.get(name), name
                    if counts is None:
                        break
                if owed.producer >= 0 and self.acknowledged.record_batch(
                    owed.producer, owed.epoch, name, owed.index, owed.sequence, offset
                ):
                    break  # one that was seen is seen again where it is looked at
                size += owed.size
                messages += owed.messages
                requests += 1
                if asks:
                    self.count_repeats(counts, flight.oldest_entry()[3][0], name)
                if owed.stamp is not None:
                    self.ledger.latencies.record_response(owed.stamp, self.node_id, now)
                flight.drop_oldest()
                pos = stop
        finally:
            if counts is not None:
                _add_counts(counts, size, messages, requests)
        return pos

    cdef bint _count_partitioned(
        self, object buf, Py_ssize_t start, Py_ssize_t end, object now, tuple entry
    ) except -1:
        # The answer to a request that has an entry: of several partitions, all of which were written. False: it has to
        # be looked at, nothing was counted.
        cdef int version
        cdef list counts, topics
        _, _, version, parts, rejected, throttle_ms, charged, stamp = entry
        if rejected or throttle_ms or not isinstance(parts, PartitionArray):
            return False
        found = written_offsets(parts, produce_fast.read_response(buf, start, end, version))
        if found is None:
            return False
        topics = (<PartitionArray>parts).topics
        if version >= TOPIC_IDS:
            topics = [(self.name_of(topic, version), first, last) for topic, first, last in topics]
        met = set()
        for topic, _, _ in topics:
            counts = self.accepted_rows.get(topic)
            if counts is None or id(counts) in met:  # a request counts once in a row, which several topics may share
                return False
            met.add(id(counts))
        again = self.acknowledged.record_batches(topics, (<PartitionArray>parts).numbers, found) if len(found) else None
        if again:
            self.count_with_duplicates(parts, topics, again, charged)
        else:
            for place, (_, size, messages) in enumerate(sums_by_topic(parts)):
                _add_counts(self.accepted_rows[topics[place][0]], size, messages, 1)
        self.in_flight.release_partitions(parts)
        if stamp is not None:
            self.ledger.latencies.record_response(stamp, self.node_id, now)
        return True


cdef int _add_counts(list counts, long long size, long long messages, long long requests) except -1:
    counts[0] += size
    counts[1] += messages
    counts[2] += requests
    return 0


# --- the partitions of a request together -----------------------------------------------------------------------------


cpdef list sums_by_topic(PartitionArray parts):
    """(topic, bytes, messages) of each topic, in the order of the request; one whose partitions don't stand together is
    there more than once.
    """
    cdef long long *row
    cdef long long size, messages
    cdef Py_ssize_t first, stop, place
    cdef list sums = []
    for topic, first, stop in parts.topics:
        size = messages = 0
        for place in range(first, stop):
            row = parts.numbers.data.as_longlongs + PART * place
            size += row[1]
            messages += row[2]
        sums.append((topic, size, messages))
    return sums


cpdef array written_offsets(object parts, object answered):
    """The base offset of each of these partitions, if the broker has written them all as they were sent; none at all
    where no partition has a producer id to recognise it by later.

    None: there is an error, or bytes behind a batch, or the answer is for other partitions; or either is no
    PartitionArray.
    """
    if not isinstance(parts, PartitionArray) or not isinstance(answered, PartitionArray):
        return None
    cdef PartitionArray sent = parts, said = answered
    cdef long long *row = sent.numbers.data.as_longlongs
    cdef long long *result = said.numbers.data.as_longlongs
    cdef bint has_producers = False, is_in_order = sent.topics == said.topics
    if sent.width != PART or said.width != RESULT or sent.count != said.count:
        return None
    for _ in range(sent.count):
        if result[1] or row[6]:
            return None
        has_producers |= row[3] >= 0
        is_in_order &= result[0] == row[0]
        row += PART
        result += RESULT
    if is_in_order:
        return said.numbers[RESULT - 1 : said.count * RESULT : RESULT] if has_producers else NO_OFFSETS
    found = _reordered_offsets(sent, said)
    return found if has_producers or found is None else NO_OFFSETS


cdef array _reordered_offsets(PartitionArray sent, PartitionArray said):
    # Brokers answer in the order of a hash table of theirs.
    cdef dict topics = {}, places
    cdef Py_ssize_t first, stop, place, other
    cdef long long *results = said.numbers.data.as_longlongs
    cdef long long *numbers = sent.numbers.data.as_longlongs
    cdef array found = said.numbers[: sent.count]
    for topic, first, stop in said.topics:
        places = topics.setdefault(topic, {})  # index -> place in the answer
        for place in range(first, stop):
            places[results[RESULT * place]] = place
    for topic, first, stop in sent.topics:
        places = topics.get(topic)
        if places is None:
            return None
        for place in range(first, stop):
            other = places.get(numbers[PART * place], -1)
            if other < 0:
                return None
            found.data.as_longlongs[place] = results[RESULT * other + 2]
    return found
