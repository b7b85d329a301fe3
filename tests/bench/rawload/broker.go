// A broker that keeps nothing: it answers ApiVersions, Metadata and Produce and drops the records, so that beside a proxy
// it costs little CPU, and the same for every proxy. It is node 1 of a cluster of one.
//
// Produce requests are read as a stream: records are thrown away piece by piece, never held whole. Offsets rise as a
// real broker's do, because whoever stands in front may compare them.

package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
)

const nodeID = 1

type nullBroker struct {
	host       string
	port       int32
	topics     []string // what a Metadata request for all topics lists; any other topic exists as well
	partitions int
	offset     atomic.Int64
}

// serveNull serves until its listener fails. keystore: a PEM file with key and certificate, for TLS; "": plain TCP.
func serveNull(address, topics string, partitions int, keystore string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if keystore != "" {
		pair, err := tls.LoadX509KeyPair(keystore, keystore)
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}})
	}
	host, portText, _ := net.SplitHostPort(listener.Addr().String())
	port, _ := strconv.Atoi(portText)
	b := &nullBroker{host: host, port: int32(port), topics: strings.Split(topics, ","), partitions: partitions}
	for {
		socket, err := listener.Accept()
		if err != nil {
			return err
		}
		go b.serve(socket)
	}
}

func (b *nullBroker) serve(socket net.Conn) {
	defer socket.Close()
	p := &peer{
		broker: b,
		input:  bufio.NewReaderSize(socket, 1<<16),
		output: bufio.NewWriterSize(socket, 1<<16),
	}
	for {
		if err := p.answer(); err != nil {
			if err != io.EOF {
				log.Printf("null broker: %v: %v", socket.RemoteAddr(), err)
			}
			return
		}
		if p.input.Buffered() == 0 {
			if err := p.output.Flush(); err != nil {
				return
			}
		}
	}
}

// peer is one connection; `left` counts what is still unread of the frame at hand.
type peer struct {
	broker  *nullBroker
	input   *bufio.Reader
	output  *bufio.Writer
	left    int
	err     error // sticky: of the reads of one frame
	scratch []byte
	reply   writer
}

func (p *peer) answer() error {
	prefix, err := p.input.Peek(4)
	if err != nil {
		return io.EOF
	}
	p.left, p.err = int(int32(binary.BigEndian.Uint32(prefix))), nil
	_, _ = p.input.Discard(4)
	key, version, correlation := p.i16(), p.i16(), p.i32()
	p.skip(int(max(p.i16(), 0))) // client id
	w := &p.reply
	w.b = w.b[:0]
	w.i32(0)
	w.i32(correlation)
	owed := true
	switch {
	case key == keyProduce && version >= minProduce && version <= maxProduce:
		owed = p.produce(version)
	case key == keyMetadata && version >= 0 && version <= maxMetadata:
		p.metadata(version)
	case key == keyApiVersions:
		p.apiVersions(version)
	default:
		return fmt.Errorf("API %d v%d is not served", key, version)
	}
	if p.err != nil {
		return fmt.Errorf("API %d v%d: %w", key, version, p.err)
	}
	if p.left != 0 {
		return fmt.Errorf("API %d v%d: %d bytes behind the request", key, version, p.left)
	}
	if owed {
		_, err = p.output.Write(w.frame())
	}
	return err
}

// --- the frame as a stream --------------------------------------------------------------------------------------------

func (p *peer) take(n int) []byte {
	if p.err == nil && (n < 0 || n > p.left) {
		p.err = errShort
	}
	if p.err != nil {
		return zeros[:min(max(n, 0), len(zeros))]
	}
	p.left -= n
	if cap(p.scratch) < n {
		p.scratch = make([]byte, n)
	}
	_, p.err = io.ReadFull(p.input, p.scratch[:n])
	return p.scratch[:n]
}

func (p *peer) skip(n int) {
	if p.err == nil && (n < 0 || n > p.left) {
		p.err = errShort
	}
	if p.err == nil {
		p.left -= n
		_, p.err = p.input.Discard(n)
	}
}

func (p *peer) i16() int16 { return int16(binary.BigEndian.Uint16(p.take(2))) }
func (p *peer) i32() int32 { return int32(binary.BigEndian.Uint32(p.take(4))) }

func (p *peer) uvarint() int {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		b := p.take(1)[0]
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	return int(v)
}

func (p *peer) count(flexible bool) int {
	if flexible {
		return p.uvarint() - 1
	}
	return int(p.i32())
}

func (p *peer) length(flexible bool) int {
	if flexible {
		return p.uvarint() - 1
	}
	return int(p.i16())
}

func (p *peer) str(flexible bool) string { return string(p.take(max(p.length(flexible), 0))) }

func (p *peer) tags(flexible bool) {
	if !flexible {
		return
	}
	for n := p.uvarint(); n > 0 && p.err == nil; n-- {
		p.uvarint()
		p.skip(p.uvarint())
	}
}

// --- answers ----------------------------------------------------------------------------------------------------------

func (p *peer) produce(version int16) (owed bool) {
	flexible := version >= flexibleProduce
	w := &p.reply
	w.flexible = flexible
	p.tags(flexible)
	w.tags()
	p.skip(max(p.length(flexible), 0)) // transactional id
	acks := p.i16()
	p.i32()
	topics := p.count(flexible)
	w.size(topics)
	for ; topics > 0 && p.err == nil; topics-- {
		if version >= 13 {
			w.b = append(w.b, p.take(16)...)
		} else {
			w.size16(p.take(max(p.length(flexible), 0)))
		}
		partitions := p.count(flexible)
		w.size(partitions)
		for ; partitions > 0 && p.err == nil; partitions-- {
			w.i32(p.i32())
			w.i16(0)
			w.i64(p.records(flexible))
			w.i64(-1)
			if version >= 5 {
				w.i64(0)
			}
			if version >= 8 {
				w.size(0)
				w.null()
			}
			p.tags(flexible)
			w.tags()
		}
		p.tags(flexible)
		w.tags()
	}
	p.tags(flexible)
	w.i32(0)
	w.tags()
	return acks != 0
}

func (w *writer) size16(s []byte) { // a string that is still bytes
	if w.flexible {
		w.size(len(s))
	} else {
		w.i16(int16(len(s)))
	}
	w.b = append(w.b, s...)
}

// records throws a batch away and gives the offset at which it would have been appended.
func (p *peer) records(flexible bool) int64 {
	n := p.count(flexible)
	messages := int64(0)
	if n >= batchOverhead {
		head := p.take(batchOverhead)
		messages = int64(binary.BigEndian.Uint32(head[batchRecordCount:]))
		n -= batchOverhead
	}
	p.skip(max(n, 0))
	return p.broker.offset.Add(messages) - messages
}

func (p *peer) apiVersions(version int16) {
	w := &p.reply
	code := int16(0)
	if version > maxApiVersions { // KIP-511: error 35 in a v0 body
		version, code = 0, errorUnsupportedVersion
	}
	p.skip(p.left) // who the client is
	w.flexible = version >= flexibleApiVersions
	w.i16(code)
	w.size(3)
	for _, api := range [][3]int16{
		{keyProduce, minProduce, maxProduce}, {keyMetadata, 0, maxMetadata}, {keyApiVersions, 0, maxApiVersions},
	} {
		w.i16(api[0])
		w.i16(api[1])
		w.i16(api[2])
		w.tags()
	}
	if version >= 1 {
		w.i32(0)
	}
	w.tags()
}

func (p *peer) metadata(version int16) {
	flexible := version >= flexibleMetadata
	p.tags(flexible)
	names := p.wanted(version)
	p.skip(p.left) // flags that change nothing here
	w := &p.reply
	w.flexible = flexible
	w.tags()
	if version >= 3 {
		w.i32(0)
	}
	w.size(1)
	w.i32(nodeID)
	w.str(p.broker.host)
	w.i32(p.broker.port)
	if version >= 1 {
		w.null() // rack
	}
	w.tags()
	if version >= 2 {
		w.str("null-broker")
	}
	if version >= 1 {
		w.i32(nodeID) // controller
	}
	w.size(len(names))
	for _, name := range names {
		p.topic(version, name)
	}
	if version >= 8 && version <= 10 {
		w.i32(-1 << 31)
	}
	w.tags()
}

func (p *peer) wanted(version int16) []string {
	flexible := version >= flexibleMetadata
	n := p.count(flexible)
	if n < 0 || n == 0 && version == 0 {
		return p.broker.topics
	}
	names := []string{}
	for ; n > 0 && p.err == nil; n-- {
		var id [16]byte
		if version >= 10 {
			copy(id[:], p.take(16))
		}
		name := p.str(flexible)
		if name == "" {
			name = topicOf(id)
		}
		names = append(names, name)
		p.tags(flexible)
	}
	return names
}

// A topic's id is its name, cut or filled to 16 bytes: so an id can be turned back without keeping anything.
func idOf(topic string) (id [16]byte) { copy(id[:], topic); return }

func topicOf(id [16]byte) string { return strings.TrimRight(string(id[:]), "\x00") }

func (p *peer) topic(version int16, name string) {
	w := &p.reply
	w.i16(0)
	w.str(name)
	if version >= 10 {
		id := idOf(name)
		w.b = append(w.b, id[:]...)
	}
	if version >= 1 {
		w.i8(0) // not internal
	}
	w.size(p.broker.partitions)
	for i := 0; i < p.broker.partitions; i++ {
		w.i16(0)
		w.i32(int32(i))
		w.i32(nodeID)
		if version >= 7 {
			w.i32(0) // leader epoch
		}
		w.size(1)
		w.i32(nodeID)
		w.size(1)
		w.i32(nodeID)
		if version >= 5 {
			w.size(0) // offline replicas
		}
		w.tags()
	}
	if version >= 8 {
		w.i32(-1 << 31)
	}
	w.tags()
}
