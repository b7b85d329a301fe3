// segmentio/kafka-go: only as a producer; one Writer, which has one request under way for each partition.
package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

func kafkaGoProduce(c *config) map[string]any {
	book := newLedger(c.Count)
	var under sync.WaitGroup // a record each
	writer := &kafka.Writer{
		Addr:      kafka.TCP(strings.Split(c.Bootstrap, ",")...),
		Transport: &kafka.Transport{ClientID: c.ClientID, TLS: c.tls()},
		Balancer:  kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return m.WriterData.(place).partition }),
		Async:     true,
		Completion: func(messages []kafka.Message, err error) {
			for _, message := range messages {
				book.resolve(message.WriterData.(place).record, err)
				under.Done()
			}
		},
		RequiredAcks: kafka.RequireAll,
	}
	if c.Acks != nil {
		writer.RequiredAcks = kafka.RequiredAcks(*c.Acks)
	}
	if c.BatchRecords > 0 {
		writer.BatchSize = c.BatchRecords
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	book.start = time.Now()
	for i := 0; i < c.Count && ctx.Err() == nil; i++ {
		c.pace(book.start, i)
		topic, partition := c.target(i)
		under.Add(1)
		message := kafka.Message{Topic: topic, Value: c.value(i), WriterData: place{i, int(partition)}}
		if err := writer.WriteMessages(ctx, message); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			book.resolve(i, err)
			under.Done()
		}
	}
	done := make(chan struct{})
	go func() { under.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	result := book.result()
	closeWithin(3*time.Second, func() { _ = writer.Close() })
	return result
}

// place is where a message belongs, and which record it is.
type place struct{ record, partition int }
