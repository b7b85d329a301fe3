// Drives franz-go, sarama and kafka-go through whatever address it is given: `driver '{"client": "franz-go", "mode": "produce", …}'`.
//
// The contract is that of all drivers (tests/clients/harness.py): one JSON object as the argument, one JSON object as the
// last line of stdout, everything else on stderr. It judges nothing: it tells what the library told the application
// (acknowledged, failed by which name) and what it read in which order. Who is right is decided by reading the broker.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
)

type config struct {
	Client          string         `json:"client"`
	Mode            string         `json:"mode"`
	Bootstrap       string         `json:"bootstrap"`
	ClientID        string         `json:"client_id"`
	Run             string         `json:"run"`
	Topics          []string       `json:"topics"`
	Partitions      int32          `json:"partitions"`
	Replication     int16          `json:"replication"`
	Count           int            `json:"count"`
	RecordBytes     int            `json:"record_bytes"`
	Keys            bool           `json:"keys"`
	Acks            *int16         `json:"acks"`
	Idempotence     *bool          `json:"idempotence"`
	Compression     string         `json:"compression"`
	BatchRecords    int            `json:"batch_records"`
	Rate            float64        `json:"rate"`
	TransactionalID string         `json:"transactional_id"`
	TransactionSize int            `json:"transaction_size"`
	AbortEvery      int            `json:"abort_every"`
	Group           string         `json:"group"`
	Isolation       string         `json:"isolation"`
	SettleS         float64        `json:"settle_s"`
	TimeoutS        float64        `json:"timeout_s"`
	Options         map[string]any `json:"options"`
}

func (c *config) value(i int) []byte {
	text := fmt.Sprintf("%s:%s:%d", c.Client, c.Run, i)
	if c.RecordBytes > len(text) {
		text += "|" + strings.Repeat("x", c.RecordBytes-len(text)-1)
	}
	return []byte(text)
}

// tls is that of options.ca, the path of the CAs to be trusted; nil: plain TCP.
func (c *config) tls() *tls.Config {
	path, ok := c.Options["ca"].(string)
	if !ok {
		return nil
	}
	text, err := os.ReadFile(path)
	check(err)
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		panic("no certificate in " + path)
	}
	return &tls.Config{RootCAs: authorities}
}

// target says where record i goes: round robin over every partition of every topic.
func (c *config) target(i int) (string, int32) {
	slot := int32(i) % (int32(len(c.Topics)) * c.Partitions)
	return c.Topics[slot/c.Partitions], slot % c.Partitions
}

// batchBytes is the batch size that holds about BatchRecords records; 0 leaves the library's default.
func (c *config) batchBytes() int {
	if c.BatchRecords == 0 {
		return 0
	}
	return 80 + c.BatchRecords*(len(c.value(c.Count))+20)
}

// pace waits until record i is due.
func (c *config) pace(start time.Time, i int) {
	if c.Rate > 0 {
		time.Sleep(time.Until(start.Add(time.Duration(float64(i) / c.Rate * float64(time.Second)))))
	}
}

func (c *config) timeout() time.Duration { return time.Duration(c.TimeoutS * float64(time.Second)) }

// ledger holds what the library said about each record; libraries call back from goroutines of their own.
type ledger struct {
	sync.Mutex
	start    time.Time
	outcome  []string // "" nothing yet, "ok", else the error's name
	aborted  map[int]bool
	timeline []int
	message  string
	throttle []float64
	events   map[string]int
	commits  map[string]int
}

func newLedger(count int) *ledger {
	return &ledger{start: time.Now(), outcome: make([]string, count), aborted: map[int]bool{},
		events: map[string]int{}, commits: map[string]int{"committed": 0, "aborted": 0, "failed": 0}}
}

func (l *ledger) resolve(i int, err error) {
	l.Lock()
	defer l.Unlock()
	if err != nil {
		l.outcome[i] = nameOf(err)
		if l.message == "" {
			l.message = err.Error()
		}
		return
	}
	l.outcome[i] = "ok"
	second := int(time.Since(l.start).Seconds())
	for len(l.timeline) <= second {
		l.timeline = append(l.timeline, 0)
	}
	l.timeline[second]++
}

func (l *ledger) throttled(ms float64) {
	l.Lock()
	defer l.Unlock()
	l.throttle = append(l.throttle, ms)
}

func (l *ledger) event(name string) {
	l.Lock()
	defer l.Unlock()
	l.events[name]++
}

// pending is how many of records [from, to) have no outcome yet.
func (l *ledger) pending(from, to int) int {
	l.Lock()
	defer l.Unlock()
	n := 0
	for _, o := range l.outcome[from:to] {
		if o == "" {
			n++
		}
	}
	return n
}

// lose marks records of an aborted transaction: acknowledged one by one, and yet not to be read.
func (l *ledger) lose(from, to int) {
	l.Lock()
	defer l.Unlock()
	for i := from; i < to; i++ {
		l.aborted[i] = true
	}
}

func (l *ledger) result() map[string]any {
	l.Lock()
	defer l.Unlock()
	errs, failed, unresolved, aborted, acknowledged := map[string]int{}, []int{}, []int{}, []int{}, 0
	for i, o := range l.outcome {
		switch {
		case o == "ok" && l.aborted[i]:
			aborted = append(aborted, i)
		case o == "ok":
			acknowledged++
		case o == "":
			unresolved = append(unresolved, i)
		default:
			errs[o]++
			failed = append(failed, i)
		}
	}
	throttle := map[string]any{"count": len(l.throttle), "max_ms": 0.0}
	for _, ms := range l.throttle {
		throttle["max_ms"] = max(throttle["max_ms"].(float64), ms)
	}
	return map[string]any{"sent": len(l.outcome), "acknowledged": acknowledged, "errors": errs, "failed": failed,
		"unresolved": unresolved, "aborted": aborted, "timeline": l.timeline, "first_error": l.message,
		"throttle": throttle, "events": l.events, "transactions": l.commits, "elapsed_s": time.Since(l.start).Seconds()}
}

// reading collects what a consumer saw, in the order it saw it.
type reading struct {
	sync.Mutex
	prefix     string
	start      time.Time
	partitions map[string][]int
	distinct   map[int]bool
	strangers  int
	firstS     float64
}

func newReading(c *config) *reading {
	return &reading{prefix: ":" + c.Run + ":", start: time.Now(), partitions: map[string][]int{}, distinct: map[int]bool{}}
}

func (r *reading) take(topic string, partition int32, value []byte) {
	r.Lock()
	defer r.Unlock()
	text, _, _ := strings.Cut(string(value), "|")
	_, number, found := strings.Cut(text, r.prefix)
	i, err := strconv.Atoi(number)
	if !found || err != nil {
		r.strangers++
		return
	}
	if len(r.distinct) == 0 {
		r.firstS = time.Since(r.start).Seconds()
	}
	name := fmt.Sprintf("%s/%d", topic, partition)
	r.partitions[name] = append(r.partitions[name], i)
	r.distinct[i] = true
}

func (r *reading) count() int {
	r.Lock()
	defer r.Unlock()
	return len(r.distinct)
}

func (r *reading) result() map[string]any {
	r.Lock()
	defer r.Unlock()
	return map[string]any{"partitions": r.partitions, "strangers": r.strangers, "first_s": r.firstS,
		"elapsed_s": time.Since(r.start).Seconds()}
}

// nameOf gives Kafka's name for Kafka's errors, and the library's words for its own.
func nameOf(err error) string {
	var kafka *kerr.Error
	if errors.As(err, &kafka) {
		return kafka.Message
	}
	var code sarama.KError
	if errors.As(err, &code) {
		if known, ok := kerr.ErrorForCode(int16(code)).(*kerr.Error); ok {
			return known.Message
		}
		return fmt.Sprintf("CODE_%d", int16(code))
	}
	text := err.Error()
	return text[:min(len(text), 80)]
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	answer(map[string]any{"error": nameOf(err), "first_error": err.Error()})
	os.Exit(1)
}

func answer(result map[string]any) {
	line, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: driver CONFIG-JSON")
		os.Exit(2)
	}
	c := &config{Partitions: 1, Replication: 1, TimeoutS: 60, SettleS: 0.5, TransactionSize: 20}
	check(json.Unmarshal([]byte(os.Args[1]), c))
	time.AfterFunc(c.timeout()+15*time.Second, func() {
		fmt.Fprintln(os.Stderr, "the driver's own deadline has passed")
		os.Exit(3)
	})
	table := map[string]func(*config) map[string]any{
		"franz-go/produce": franzProduce, "franz-go/consume": franzConsume, "franz-go/admin": franzAdmin,
		"sarama/produce": saramaProduce, "sarama/consume": saramaConsume, "sarama/admin": saramaAdmin,
		"kafka-go/produce": kafkaGoProduce,
	}
	run, ok := table[c.Client+"/"+c.Mode]
	if !ok {
		fail(fmt.Errorf("no such client or mode: %s/%s", c.Client, c.Mode))
	}
	result := run(c)
	result["client"], result["version"] = c.Client, versionOf(c.Client)
	answer(result)
}
