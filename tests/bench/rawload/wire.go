// The little of Kafka's wire that a load needs: Produce, ApiVersions and Metadata, written and read by hand, so that the
// tool has no dependencies, builds offline, and costs as little CPU as it can beside what it measures.
// It knows nothing of sockets. Sources: Kafka's message schemas (ProduceRequest.json and so on) and KIP-482.

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
)

const (
	keyProduce     = 0
	keyMetadata    = 3
	keyApiVersions = 18

	minProduce, maxProduce = 3, 13 // what both ends of this tool speak
	maxMetadata            = 12
	maxApiVersions         = 4

	flexibleProduce     = 9
	flexibleMetadata    = 9
	flexibleApiVersions = 3

	batchOverhead    = 61 // a v2 record batch before its first record
	batchCRC         = 17 // offsets into a record batch
	batchAttributes  = 21
	batchProducerID  = 43
	batchBaseSeq     = 53
	batchRecordCount = 57

	codecGzip              = 1 // attributes of a record batch
	attributeTransactional = 1 << 4

	errorUnsupportedVersion = 35
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
var errShort = errors.New("an answer is shorter than its fields")

// --- writing ----------------------------------------------------------------------------------------------------------

type writer struct {
	b        []byte
	flexible bool
}

func (w *writer) i8(v int8)   { w.b = append(w.b, byte(v)) }
func (w *writer) i16(v int16) { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *writer) i32(v int32) { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) i64(v int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }

// size writes what stands before n elements of an array, or n bytes of a compact string or bytes.
func (w *writer) size(n int) {
	if w.flexible {
		w.b = binary.AppendUvarint(w.b, uint64(n+1))
	} else {
		w.i32(int32(n))
	}
}

func (w *writer) str(s string) {
	if w.flexible {
		w.size(len(s))
	} else {
		w.i16(int16(len(s)))
	}
	w.b = append(w.b, s...)
}

func (w *writer) null() {
	if w.flexible {
		w.b = append(w.b, 0)
	} else {
		w.i16(-1)
	}
}

func (w *writer) tags() {
	if w.flexible {
		w.b = append(w.b, 0)
	}
}

func (w *writer) requestHeader(key, version int16, client string) {
	w.i32(0) // the size, patched by frame()
	w.i16(key)
	w.i16(version)
	w.i32(0) // the correlation id, patched before each send
	w.i16(int16(len(client)))
	w.b = append(w.b, client...) // never compact, also where the header is flexible
	w.tags()
}

func (w *writer) frame() []byte {
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

// --- reading ----------------------------------------------------------------------------------------------------------

type reader struct {
	b        []byte
	flexible bool
	short    bool // sticky: everything read after the end is zero
}

var zeros [16]byte

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.short, r.b = true, nil
		if n < 0 || n > len(zeros) {
			return nil
		}
		return zeros[:n]
	}
	t := r.b[:n]
	r.b = r.b[n:]
	return t
}

func (r *reader) i8() int8   { return int8(r.take(1)[0]) }
func (r *reader) i16() int16 { return int16(binary.BigEndian.Uint16(r.take(2))) }
func (r *reader) i32() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }
func (r *reader) i64() int64 { return int64(binary.BigEndian.Uint64(r.take(8))) }

func (r *reader) uvarint() int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > 1<<31 {
		r.short, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *reader) count() int { // of an array, -1 for null
	if r.flexible {
		return r.uvarint() - 1
	}
	return int(r.i32())
}

func (r *reader) str() []byte { // nil for null
	var n int
	if r.flexible {
		n = r.uvarint() - 1
	} else {
		n = int(r.i16())
	}
	if n < 0 {
		return nil
	}
	return r.take(n)
}

func (r *reader) tags() {
	if !r.flexible {
		return
	}
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		r.uvarint()
		r.take(r.uvarint())
	}
}

// --- requests ---------------------------------------------------------------------------------------------------------

// shape is what one Produce request of a load looks like.
type shape struct {
	version    int16
	topic      string
	topicID    [16]byte
	partitions int
	records    int // per batch
	bytes      int // of the whole frame, its size prefix included
	acks       int16
	producerID int64  // -1: not idempotent
	txn        string // transactional id; "": in no transaction
	gzip       bool
}

// request is a Produce frame built once; only its correlation id, and for an idempotent producer its sequences, change.
type request struct {
	frame   []byte
	batches []int // where each partition's batch starts
	length  int   // of a batch
}

// build makes a frame of exactly s.bytes. Record values fill it; what the steps of the varints leave over goes to the
// client id.
func (s shape) build() (*request, error) {
	const client = "rawload"
	low, high := 0, s.bytes
	for low < high { // the largest value that still fits
		middle := (low + high + 1) / 2
		if len(s.with(middle, client).frame) <= s.bytes {
			low = middle
		} else {
			high = middle - 1
		}
	}
	r := s.with(low, client)
	rest := s.bytes - len(r.frame)
	if rest < 0 {
		return nil, fmt.Errorf("a request of this shape has at least %d bytes", len(r.frame))
	}
	if rest > 0 {
		r = s.with(low, client+strings.Repeat("-", rest))
	}
	return r, nil
}

func (s shape) with(value int, client string) *request {
	w := &writer{flexible: s.version >= flexibleProduce}
	w.requestHeader(keyProduce, s.version, client)
	if s.txn != "" {
		w.str(s.txn)
	} else {
		w.null()
	}
	w.i16(s.acks)
	w.i32(30_000)
	w.size(1)
	if s.version >= 13 {
		w.b = append(w.b, s.topicID[:]...)
	} else {
		w.str(s.topic)
	}
	w.size(s.partitions)
	batch := s.recordBatch(value)
	r := &request{length: len(batch)}
	for i := 0; i < s.partitions; i++ {
		w.i32(int32(i))
		w.size(len(batch))
		r.batches = append(r.batches, len(w.b))
		w.b = append(w.b, batch...)
		w.tags()
	}
	w.tags() // the topic's
	w.tags() // the request's
	r.frame = w.frame()
	return r
}

func (s shape) recordBatch(value int) []byte {
	w := &writer{}
	epoch, sequence, attributes := int16(-1), int32(-1), int16(0)
	if s.producerID >= 0 {
		epoch, sequence = 0, 0
	}
	if s.txn != "" {
		attributes |= attributeTransactional
	}
	if s.gzip {
		attributes |= codecGzip
	}
	now := time.Now().UnixMilli()
	w.i64(0)  // base offset
	w.i32(0)  // length, below
	w.i32(-1) // partition leader epoch
	w.i8(2)   // magic
	w.i32(0)  // CRC, below
	w.i16(attributes)
	w.i32(int32(s.records - 1))
	w.i64(now)
	w.i64(now)
	w.i64(s.producerID)
	w.i16(epoch)
	w.i32(sequence)
	w.i32(int32(s.records))
	var records []byte
	for i := 0; i < s.records; i++ {
		records = append(records, record(i, value)...)
	}
	if s.gzip {
		records = gzipped(records)
	}
	w.b = append(w.b, records...)
	binary.BigEndian.PutUint32(w.b[8:], uint32(len(w.b)-12))
	seal(w.b)
	return w.b
}

func record(index, value int) []byte {
	body := []byte{0, 0} // attributes, timestamp delta
	body = binary.AppendVarint(body, int64(index))
	body = binary.AppendVarint(body, -1) // no key
	body = binary.AppendVarint(body, int64(value))
	for i := 0; i < value; i++ {
		body = append(body, byte('a'+i*i/7%26)) // no pattern that compresses to nothing
	}
	body = append(body, 0) // no headers
	return append(binary.AppendVarint(nil, int64(len(body))), body...)
}

func gzipped(records []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(records)
	z.Close()
	return b.Bytes()
}

func seal(batch []byte) {
	binary.BigEndian.PutUint32(batch[batchCRC:], crc32.Checksum(batch[batchAttributes:], castagnoli))
}

// stamp readies the frame for its next send.
func (r *request) stamp(correlation int32, idempotent bool, sequence int32) {
	binary.BigEndian.PutUint32(r.frame[8:], uint32(correlation))
	if !idempotent {
		return
	}
	for _, start := range r.batches {
		batch := r.frame[start : start+r.length]
		binary.BigEndian.PutUint32(batch[batchBaseSeq:], uint32(sequence))
		seal(batch)
	}
}

func apiVersionsRequest() []byte {
	w := &writer{flexible: true}
	w.requestHeader(keyApiVersions, 3, "rawload")
	w.str("rawload")
	w.str("1.0")
	w.tags()
	return w.frame()
}

func metadataRequest(topic string) []byte { // v12, for the topic's id
	w := &writer{flexible: true}
	w.requestHeader(keyMetadata, maxMetadata, "rawload")
	w.size(1)
	w.b = append(w.b, zeros[:]...)
	w.str(topic)
	w.tags()
	w.i8(0) // no topic creation
	w.i8(0)
	w.tags()
	return w.frame()
}

// --- answers ----------------------------------------------------------------------------------------------------------

// readProduced calls each with the error code of every partition of a Produce answer (its size prefix taken off).
func readProduced(answer []byte, version int16, each func(code int16)) (partitions int, err error) {
	r := reader{b: answer, flexible: version >= flexibleProduce}
	r.i32()
	r.tags()
	for topics := r.count(); topics > 0 && !r.short; topics-- {
		if version >= 13 {
			r.take(16)
		} else {
			r.str()
		}
		for n := r.count(); n > 0 && !r.short; n-- {
			r.i32()
			each(r.i16())
			r.i64()
			r.i64()
			if version >= 5 {
				r.i64()
			}
			if version >= 8 {
				for errs := r.count(); errs > 0 && !r.short; errs-- {
					r.i32()
					r.str()
					r.tags()
				}
				r.str()
			}
			r.tags()
			partitions++
		}
		r.tags()
	}
	r.i32() // throttle time
	r.tags()
	if r.short {
		return partitions, errShort
	}
	if len(r.b) != 0 {
		return partitions, fmt.Errorf("%d bytes behind a Produce answer", len(r.b))
	}
	return partitions, nil
}

func readOfferedProduce(answer []byte) (lowest, highest int16, err error) {
	r := reader{b: answer, flexible: true} // the header of this answer never is
	r.i32()
	if code := r.i16(); code != 0 {
		return 0, 0, fmt.Errorf("ApiVersions answered with error %d", code)
	}
	for n := r.count(); n > 0 && !r.short; n-- {
		key, low, high := r.i16(), r.i16(), r.i16()
		r.tags()
		if key == keyProduce {
			return low, high, nil
		}
	}
	return 0, 0, errors.New("ApiVersions offers no Produce")
}

func readTopicID(answer []byte) (id [16]byte, err error) {
	r := reader{b: answer, flexible: true}
	r.i32()
	r.tags()
	r.i32() // throttle time
	for n := r.count(); n > 0 && !r.short; n-- {
		r.i32()
		r.str()
		r.i32()
		r.str()
		r.tags()
	}
	r.str()
	r.i32()
	if r.count() != 1 {
		return id, errors.New("the Metadata answer has not the one topic that was asked for")
	}
	if code := r.i16(); code != 0 {
		return id, fmt.Errorf("Metadata answered with error %d for the topic", code)
	}
	r.str()
	copy(id[:], r.take(16))
	if r.short {
		return id, errShort
	}
	return id, nil
}
