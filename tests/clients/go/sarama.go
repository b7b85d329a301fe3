// sarama: protocol versions as new as it speaks (options.kafka_version "default" leaves its own choice), one async producer.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
)

func saramaBase(c *config) *sarama.Config {
	s := sarama.NewConfig()
	s.Admin.Timeout = 30 * time.Second
	sarama.Logger = log.New(os.Stderr, "[sarama] ", log.LstdFlags)
	if c.ClientID != "" {
		s.ClientID = c.ClientID
	}
	if c.Options["kafka_version"] != "default" {
		s.Version = sarama.MaxVersion
	}
	if trusted := c.tls(); trusted != nil {
		s.Net.TLS.Enable, s.Net.TLS.Config = true, trusted
	}
	if n, ok := c.Options["retry_max"].(float64); ok {
		s.Producer.Retry.Max = int(n)
	}
	if ms, ok := c.Options["retry_backoff_ms"].(float64); ok {
		s.Producer.Retry.Backoff = time.Duration(ms) * time.Millisecond
	}
	if ms, ok := c.Options["read_timeout_ms"].(float64); ok {
		s.Net.ReadTimeout = time.Duration(ms) * time.Millisecond
	}
	return s
}

func saramaProducer(c *config) *sarama.Config {
	s := saramaBase(c)
	s.Producer.Return.Successes, s.Producer.Return.Errors = true, true
	if !c.Keys {
		s.Producer.Partitioner = sarama.NewManualPartitioner
	}
	if c.BatchRecords > 0 {
		s.Producer.Flush.MaxMessages = c.BatchRecords
	}
	if c.Acks != nil {
		s.Producer.RequiredAcks = sarama.RequiredAcks(*c.Acks)
	}
	if c.TransactionalID != "" || (c.Idempotence != nil && *c.Idempotence) {
		s.Producer.Idempotent, s.Net.MaxOpenRequests, s.Producer.RequiredAcks = true, 1, sarama.WaitForAll
	}
	s.Producer.Transaction.ID = c.TransactionalID
	codecs := map[string]sarama.CompressionCodec{"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}
	if codec, ok := codecs[c.Compression]; ok {
		s.Producer.Compression = codec
	}
	return s
}

func saramaProduce(c *config) map[string]any {
	s := saramaProducer(c)
	producer, err := sarama.NewAsyncProducer(strings.Split(c.Bootstrap, ","), s)
	check(err)
	book := newLedger(c.Count)
	go func() {
		for message := range producer.Successes() {
			book.resolve(message.Metadata.(int), nil)
		}
	}()
	go func() {
		for failure := range producer.Errors() {
			book.resolve(failure.Msg.Metadata.(int), failure.Err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	if c.TransactionalID == "" {
		saramaSend(ctx, c, producer, book, 0, c.Count)
		saramaAwait(ctx, book, 0, c.Count)
	} else {
		saramaTransactions(ctx, c, producer, book)
	}
	result := book.result()
	result["throttle"] = saramaThrottle(s.MetricRegistry)
	closeWithin(3*time.Second, producer.AsyncClose)
	return result
}

func saramaSend(ctx context.Context, c *config, producer sarama.AsyncProducer, book *ledger, from, to int) {
	for i := from; i < to; i++ {
		c.pace(book.start, i)
		topic, partition := c.target(i)
		message := &sarama.ProducerMessage{Topic: topic, Partition: partition, Metadata: i, Value: sarama.ByteEncoder(c.value(i))}
		if c.Keys {
			message.Key = sarama.StringEncoder(fmt.Sprint(i))
		}
		select {
		case producer.Input() <- message:
		case <-ctx.Done():
			return
		}
	}
}

func saramaAwait(ctx context.Context, book *ledger, from, to int) {
	for book.pending(from, to) > 0 && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

func saramaTransactions(ctx context.Context, c *config, producer sarama.AsyncProducer, book *ledger) {
	for n, from := 1, 0; from < c.Count && ctx.Err() == nil; n, from = n+1, from+c.TransactionSize {
		to := min(from+c.TransactionSize, c.Count)
		if err := producer.BeginTxn(); err != nil {
			book.event("begin: " + nameOf(err))
			book.commits["failed"]++
			continue
		}
		saramaSend(ctx, c, producer, book, from, to)
		saramaAwait(ctx, book, from, to)
		end, outcome := producer.CommitTxn, "committed"
		if (c.AbortEvery > 0 && n%c.AbortEvery == 0) || failedIn(book, from, to) {
			end, outcome = producer.AbortTxn, "aborted"
		}
		if err := end(); err != nil {
			book.event("end: " + nameOf(err))
			outcome = "failed"
			if producer.TxnStatus()&sarama.ProducerTxnFlagAbortableError != 0 {
				_ = producer.AbortTxn()
			}
		}
		book.commits[outcome]++
		if outcome != "committed" {
			book.lose(from, to)
		}
	}
}

// saramaThrottle reads the library's histograms: it tells throttle times nowhere else.
func saramaThrottle(registry metrics.Registry) map[string]any {
	count, longest := int64(0), 0.0
	registry.Each(func(name string, metric any) {
		if histogram, ok := metric.(metrics.Histogram); ok && strings.HasPrefix(name, "throttle-time") {
			if strings.Contains(name, "for-broker") {
				count, longest = count+histogram.Count(), max(longest, float64(histogram.Max()))
			}
		}
	})
	return map[string]any{"count": count, "max_ms": longest}
}

type saramaHandler struct{ seen *reading }

func (saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.seen.take(message.Topic, message.Partition, message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func saramaConsume(c *config) map[string]any {
	s := saramaBase(c)
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Return.Errors = true
	if c.Isolation == "read_committed" {
		s.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	group, err := sarama.NewConsumerGroup(strings.Split(c.Bootstrap, ","), c.Group, s)
	check(err)
	seen, events := newReading(c), newLedger(0)
	go func() {
		for err := range group.Errors() {
			events.event(nameOf(err))
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, c.Topics, saramaHandler{seen}); err != nil {
				events.event(nameOf(err))
				time.Sleep(200 * time.Millisecond)
			}
		}
	})
	for seen.count() < c.Count && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Duration(c.SettleS * float64(time.Second)))
	result := seen.result()
	cancel()
	closeWithin(5*time.Second, running.Wait)
	closeWithin(5*time.Second, func() { _ = group.Close() })
	result["events"] = events.result()["events"]
	return result
}

func saramaAdmin(c *config) map[string]any {
	admin, err := sarama.NewClusterAdmin(strings.Split(c.Bootstrap, ","), saramaBase(c))
	check(err)
	defer admin.Close()
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	topic, retention := c.Topics[0], "3600123"
	check(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: c.Partitions, ReplicationFactor: c.Replication,
		ConfigEntries: map[string]*string{"retention.ms": &retention}}, false))
	result := map[string]any{}
	result["listed"] = eventually(ctx, func() bool {
		topics, err := admin.ListTopics()
		check(err)
		result["partitions"] = topics[topic].NumPartitions
		return topics[topic].NumPartitions == c.Partitions
	})
	var entries []sarama.ConfigEntry
	eventually(ctx, func() bool {
		entries, err = admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		return !errors.Is(err, sarama.ErrUnknownTopicOrPartition)
	})
	check(err)
	for _, entry := range entries {
		if entry.Name == "retention.ms" {
			result["retention_ms"] = entry.Value
		}
	}
	found, controller, err := admin.DescribeCluster()
	check(err)
	brokers := []map[string]any{}
	for _, b := range found {
		host, text, err := net.SplitHostPort(b.Addr())
		check(err)
		port, err := strconv.Atoi(text)
		check(err)
		brokers = append(brokers, map[string]any{"id": b.ID(), "host": host, "port": port})
	}
	result["controller"], result["brokers"] = controller, brokers
	check(admin.DeleteTopic(topic))
	result["deleted"] = eventually(ctx, func() bool {
		topics, err := admin.ListTopics()
		check(err)
		_, there := topics[topic]
		return !there
	})
	return result
}
