// The load: connections that keep `depth` Produce requests in flight and check every answer.
//
// One goroutine per connection: it writes a request for every answer it reads, each in a write of its own as real clients
// do. So the depth is exact, and there is no hand-over between goroutines to pay for. A latency runs from just before the
// write to when the answer has been read; with large requests it therefore includes writes made meanwhile.

package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const answerLimit = 1 << 20 // nothing that we ask for has a longer answer

type load struct {
	address     string
	shape       shape
	connections int
	depth       int
	rate        float64 // requests/s over all connections, 0: as fast as answers come
	stopAtError bool
	secure      bool // over TLS

	all []*connection
}

// phase is one stretch of work: what is still to be sent, and what came of it. `left` < 0 is "until the deadline".
type phase struct {
	left     atomic.Int64
	limited  bool
	deadline time.Time
	stop     atomic.Bool
	requests atomic.Int64 // answered
	failed   atomic.Int64 // partitions answered with an error
}

type connection struct {
	socket   net.Conn
	input    *bufio.Reader
	request  *request
	shape    shape
	next     int32 // correlation id of the next request
	sequence int32
	starts   []int64 // of the requests in flight, a ring
	answer   []byte
	latency  histogram
	errors   map[int16]int64
	shift    float64 // of an interval, at a rate: connections don't send in step
}

func newPhase(count int64, lasting time.Duration) *phase {
	p := &phase{limited: count > 0, deadline: time.Now().Add(lasting)}
	p.left.Store(count)
	return p
}

func (p *phase) takes() bool {
	if p.stop.Load() {
		return false
	}
	if p.limited {
		return p.left.Add(-1) >= 0
	}
	return time.Now().Before(p.deadline)
}

func (l *load) connect() error {
	for i := 0; i < l.connections; i++ {
		c, err := l.open(i)
		if err != nil {
			return err
		}
		l.all = append(l.all, c)
	}
	return nil
}

func (l *load) open(index int) (*connection, error) {
	socket, err := l.dial()
	if err != nil {
		return nil, err
	}
	c := &connection{
		socket: socket, input: bufio.NewReaderSize(socket, 1<<16), shape: l.shape,
		starts: make([]int64, l.depth), errors: map[int16]int64{},
	}
	if err := c.greet(); err != nil {
		return nil, fmt.Errorf("greeting %s: %w", l.address, err)
	}
	if c.shape.producerID >= 0 {
		c.shape.producerID += int64(index) // sequences are per producer, so each connection is one
	}
	c.request, err = c.shape.build()
	return c, err
}

func (l *load) dial() (net.Conn, error) {
	if l.secure {
		return tls.Dial("tcp", l.address, &tls.Config{InsecureSkipVerify: true}) // what is measured is not who it is
	}
	return net.Dial("tcp", l.address)
}

func (l *load) cipher() string {
	if socket, isSecure := l.all[0].socket.(*tls.Conn); isSecure {
		return tls.CipherSuiteName(socket.ConnectionState().CipherSuite)
	}
	return ""
}

// greet says who we are, as clients do, and learns the topic's id where the version needs it.
func (c *connection) greet() error {
	answer, err := c.ask(apiVersionsRequest())
	if err != nil {
		return err
	}
	low, high, err := readOfferedProduce(answer)
	if err != nil {
		return err
	}
	if v := c.shape.version; v < low || v > high {
		return fmt.Errorf("Produce v%d is not offered, only v%d-v%d", v, low, high)
	}
	if c.shape.version < 13 {
		return nil
	}
	if answer, err = c.ask(metadataRequest(c.shape.topic)); err != nil {
		return err
	}
	c.shape.topicID, err = readTopicID(answer)
	return err
}

func (c *connection) ask(frame []byte) ([]byte, error) {
	if _, err := c.socket.Write(frame); err != nil {
		return nil, err
	}
	return c.read()
}

func (c *connection) read() ([]byte, error) {
	prefix, err := c.input.Peek(4)
	if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(prefix)
	if size < 4 || size > answerLimit {
		return nil, fmt.Errorf("an answer claims %d bytes", size)
	}
	_, _ = c.input.Discard(4)
	if int(size) > cap(c.answer) {
		c.answer = make([]byte, size)
	}
	answer := c.answer[:size]
	_, err = io.ReadFull(c.input, answer)
	return answer, err
}

func (l *load) run(p *phase) error {
	var group sync.WaitGroup
	failures := make(chan error, len(l.all))
	for i, c := range l.all {
		c.shift = float64(i) / float64(len(l.all))
		group.Add(1)
		go func(c *connection) {
			defer group.Done()
			if err := l.work(c, p); err != nil {
				p.stop.Store(true)
				failures <- err
			}
		}(c)
	}
	group.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func (l *load) work(c *connection, p *phase) error {
	flying := 0
	for begun := time.Now(); flying < l.depth && p.takes(); flying++ {
		l.pace(begun, float64(flying)+c.shift)
		if err := c.send(); err != nil {
			return err
		}
	}
	begun, sent := time.Now(), 0
	for flying > 0 {
		failed, err := c.receive(flying)
		if l.stopAtError && p.stop.Load() {
			return nil
		}
		if err != nil {
			return err
		}
		flying--
		p.requests.Add(1)
		if failed > 0 {
			p.failed.Add(int64(failed))
			if l.stopAtError {
				l.abandon(p)
				return nil
			}
		}
		if p.takes() {
			sent++
			l.pace(begun, float64(sent))
			if err := c.send(); err != nil {
				if l.stopAtError && p.stop.Load() {
					return nil
				}
				return err
			}
			flying++
		}
	}
	return nil
}

// abandon ends a phase without its answers in flight: whoever rejects may hold them back for many seconds.
func (l *load) abandon(p *phase) {
	p.stop.Store(true)
	for _, c := range l.all {
		_ = c.socket.SetDeadline(time.Now())
	}
}

func (l *load) pace(begun time.Time, sent float64) {
	if l.rate > 0 {
		each := float64(l.connections) / l.rate
		time.Sleep(time.Until(begun.Add(time.Duration(sent * each * float64(time.Second)))))
	}
}

func (c *connection) send() error {
	c.request.stamp(c.next, c.shape.producerID >= 0, c.sequence)
	c.starts[int(c.next)%len(c.starts)] = time.Now().UnixNano()
	c.next = (c.next + 1) & (1<<31 - 1)
	c.sequence = int32((int64(c.sequence) + int64(c.shape.records)) & (1<<31 - 1))
	_, err := c.socket.Write(c.request.frame)
	return err
}

func (c *connection) receive(flying int) (failed int, err error) {
	answer, err := c.read()
	if err != nil {
		return 0, fmt.Errorf("connection lost with %d requests unanswered: %w", flying, err)
	}
	expected := (c.next - int32(flying)) & (1<<31 - 1)
	if got := int32(binary.BigEndian.Uint32(answer)); got != expected {
		return 0, fmt.Errorf("answer %d came where %d was due", got, expected)
	}
	partitions, err := readProduced(answer, c.shape.version, func(code int16) {
		if code != 0 {
			c.errors[code]++
			failed++
		}
	})
	if err == nil && partitions != c.shape.partitions {
		err = errors.New("an answer has not the partitions of its request")
	}
	c.latency.add(time.Now().UnixNano() - c.starts[int(expected)%len(c.starts)])
	return failed, err
}

func (l *load) forget() { // what the warm-up measured
	for _, c := range l.all {
		c.latency = histogram{}
		c.errors = map[int16]int64{}
	}
}
