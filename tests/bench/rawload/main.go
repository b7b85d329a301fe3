// rawload: a raw Produce load, and a null broker to send it to.
//
//	rawload -null 127.0.0.1:9092                  a broker that answers and keeps nothing
//	rawload -addr 127.0.0.1:9092 -c 64 -n 200000  requests against a broker's address (no metadata is followed)
//
// The result is one line of JSON. With -hold the tool stops twice and says so on stdout: after connecting and warming up
// ("warm"), and after the result, with all connections still open; a line on stdin lets it go on. So whoever measures a
// proxy's CPU sees the requests alone, without connects, warm-up and closes.

package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

type result struct {
	State      string           `json:"state"`
	Requests   int64            `json:"requests"`
	Bytes      int64            `json:"bytes"` // on the wire, requests only
	Seconds    float64          `json:"seconds"`
	PerSecond  float64          `json:"requests_per_s"`
	FrameBytes int              `json:"frame_bytes"`
	BatchBytes int              `json:"batch_bytes"` // of all partitions: what a broker would append
	Failed     int64            `json:"failed"`
	Errors     map[string]int64 `json:"errors"` // partitions by error code
	P50        float64          `json:"p50_ms"`
	P99        float64          `json:"p99_ms"`
	P999       float64          `json:"p999_ms"`
	Cipher     string           `json:"cipher,omitempty"` // of the first connection, with TLS
}

func main() {
	null := flag.String("null", "", "run a null broker on this `address` (and advertise it)")
	nullSecure := flag.String("null-tls", "", "null broker: listen on this `address` too, with TLS")
	keystore := flag.String("pem", "", "null broker: `file` with key and certificate")
	topics := flag.String("topics", "load", "null broker: topics that it lists, comma-separated")
	address := flag.String("addr", "127.0.0.1:9092", "where to send the load")
	connections := flag.Int("c", 4, "connections")
	depth := flag.Int("d", 5, "requests in flight per connection")
	size := flag.Int("size", 215, "`bytes` of a request on the wire, its size prefix included")
	records := flag.Int("r", 1, "records per batch")
	partitions := flag.Int("p", 1, "partitions per request (null broker: per topic)")
	version := flag.Int("v", 9, "Produce version, 3 to 13")
	topic := flag.String("topic", "load", "topic")
	producer := flag.Int64("pid", -1, "first producer `id` of idempotent producers, one per connection; -1: none")
	txn := flag.String("txn", "", "transactional `id`, with -pid: as in a transaction")
	compress := flag.Bool("gzip", false, "records compressed by gzip")
	count := flag.Int64("n", 0, "exact number of requests (0: by time)")
	lasting := flag.Duration("t", 5*time.Second, "how long, when there is no -n")
	warm := flag.Duration("warm", 0, "how long to warm up before")
	rate := flag.Float64("rate", 0, "requests/s in all (0: as fast as answers come)")
	stopAtError := flag.Bool("stop-at-error", false, "end at the first answer with an error")
	progress := flag.Duration("progress", 0, "print the counts so far at this interval")
	secure := flag.Bool("tls", false, "send over TLS; the certificate is not checked")
	hold := flag.Bool("hold", false, "wait for a line on stdin after the warm-up and after the result")
	flag.Parse()
	if *null != "" {
		if *nullSecure != "" {
			go func() { fatal(serveNull(*nullSecure, *topics, *partitions, *keystore)) }()
		}
		fatal(serveNull(*null, *topics, *partitions, ""))
	}
	if *version < minProduce || *version > maxProduce {
		fatal(fmt.Errorf("Produce v%d is not spoken, only v%d-v%d", *version, minProduce, maxProduce))
	}
	l := &load{
		address: *address, connections: *connections, depth: *depth, rate: *rate, stopAtError: *stopAtError,
		secure: *secure,
		shape: shape{
			version: int16(*version), topic: *topic, partitions: *partitions, records: *records, bytes: *size,
			acks: 1, producerID: *producer, txn: *txn, gzip: *compress,
		},
	}
	fatal(l.connect())
	if *warm > 0 {
		fatal(l.run(newPhase(0, *warm)))
		l.forget()
	}
	wait := func() {}
	if *hold {
		input := bufio.NewReader(os.Stdin)
		wait = func() {
			if _, err := input.ReadString('\n'); err != nil {
				os.Exit(1) // whoever measures is gone
			}
		}
		emit(result{State: "warm", Errors: map[string]int64{}})
	}
	wait()
	p := newPhase(*count, *lasting)
	stopOnSignal(p)
	report(p, *progress)
	begun := time.Now()
	fatal(l.run(p))
	emit(l.result(p, time.Since(begun).Seconds()))
	wait()
}

func (l *load) result(p *phase, seconds float64) result {
	var latency histogram
	errors := map[string]int64{}
	for _, c := range l.all {
		latency.merge(&c.latency)
		for code, n := range c.errors {
			errors[strconv.Itoa(int(code))] += n
		}
	}
	n := p.requests.Load()
	first := l.all[0].request
	milliseconds := func(q float64) float64 { return float64(latency.quantile(q)) / 1e6 }
	return result{
		State: "done", Requests: n, Bytes: n * int64(len(first.frame)), Seconds: seconds, PerSecond: float64(n) / seconds,
		FrameBytes: len(first.frame), BatchBytes: first.length * len(first.batches),
		Failed: p.failed.Load(), Errors: errors,
		P50: milliseconds(.5), P99: milliseconds(.99), P999: milliseconds(.999),
		Cipher: l.cipher(),
	}
}

func stopOnSignal(p *phase) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { <-signals; p.stop.Store(true) }()
}

func report(p *phase, every time.Duration) {
	if every <= 0 {
		return
	}
	go func() {
		for range time.Tick(every) {
			emit(result{State: "running", Requests: p.requests.Load(), Failed: p.failed.Load(), Errors: map[string]int64{}})
		}
	}()
}

func emit(r result) {
	line, _ := json.Marshal(r)
	os.Stdout.Write(append(line, '\n'))
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "rawload:", err)
		os.Exit(1)
	}
}
