// franz-go: idempotent unless told otherwise, one goroutine per broker, admin calls as raw requests where an API of its own
// is to be exercised (DescribeCluster).
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// franzThrottle is the library's hook for throttle times in answers.
type franzThrottle struct{ book *ledger }

func (h franzThrottle) OnBrokerThrottle(_ kgo.BrokerMetadata, interval time.Duration, _ bool) {
	h.book.throttled(float64(interval.Milliseconds()))
}

func franzBase(c *config) []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(strings.Split(c.Bootstrap, ",")...)}
	if c.ClientID != "" {
		opts = append(opts, kgo.ClientID(c.ClientID))
	}
	if trusted := c.tls(); trusted != nil {
		opts = append(opts, kgo.DialTLSConfig(trusted))
	}
	if ms, ok := c.Options["metadata_min_age_ms"].(float64); ok {
		opts = append(opts, kgo.MetadataMinAge(time.Duration(ms)*time.Millisecond))
	}
	if ms, ok := c.Options["request_timeout_overhead_ms"].(float64); ok {
		opts = append(opts, kgo.RequestTimeoutOverhead(time.Duration(ms)*time.Millisecond))
	}
	return opts
}

func franzProducer(c *config, book *ledger) []kgo.Opt {
	opts := append(franzBase(c), kgo.WithHooks(franzThrottle{book}))
	if !c.Keys {
		opts = append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	if size := c.batchBytes(); size > 0 {
		opts = append(opts, kgo.ProducerBatchMaxBytes(int32(max(512, size))), kgo.ProducerLinger(0))
	}
	if c.Acks != nil {
		acks := map[int16]kgo.Acks{0: kgo.NoAck(), 1: kgo.LeaderAck(), -1: kgo.AllISRAcks()}[*c.Acks]
		opts = append(opts, kgo.RequiredAcks(acks))
	}
	if (c.Acks != nil && *c.Acks != -1) || (c.Idempotence != nil && !*c.Idempotence) {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	if c.TransactionalID != "" {
		opts = append(opts, kgo.TransactionalID(c.TransactionalID))
	}
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	if codec, ok := codecs[c.Compression]; ok {
		opts = append(opts, kgo.ProducerBatchCompression(codec))
	}
	return opts
}

func franzProduce(c *config) map[string]any {
	book := newLedger(c.Count)
	client, err := kgo.NewClient(franzProducer(c, book)...)
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	book.start = time.Now()
	if c.TransactionalID == "" {
		franzSend(ctx, c, client, book, 0, c.Count)
		client.Flush(ctx)
	} else {
		franzTransactions(ctx, c, client, book)
	}
	result := book.result() // before Close, which fails what is still buffered
	closeWithin(3*time.Second, client.Close)
	return result
}

func franzSend(ctx context.Context, c *config, client *kgo.Client, book *ledger, from, to int) {
	for i := from; i < to && ctx.Err() == nil; i++ {
		c.pace(book.start, i)
		topic, partition := c.target(i)
		record := &kgo.Record{Topic: topic, Partition: partition, Value: c.value(i)}
		if c.Keys {
			record.Key = fmt.Appendf(nil, "%d", i)
		}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) { book.resolve(i, err) })
	}
}

func franzTransactions(ctx context.Context, c *config, client *kgo.Client, book *ledger) {
	for n, from := 1, 0; from < c.Count && ctx.Err() == nil; n, from = n+1, from+c.TransactionSize {
		to := min(from+c.TransactionSize, c.Count)
		if err := client.BeginTransaction(); err != nil {
			book.event("begin: " + nameOf(err))
			book.commits["failed"]++
			continue
		}
		franzSend(ctx, c, client, book, from, to)
		commit, outcome := kgo.TryCommit, "committed"
		if err := client.Flush(ctx); err != nil || (c.AbortEvery > 0 && n%c.AbortEvery == 0) || failedIn(book, from, to) {
			commit, outcome = kgo.TryAbort, "aborted"
		}
		if err := client.EndTransaction(ctx, commit); err != nil {
			book.event("end: " + nameOf(err))
			outcome = "failed"
		}
		book.commits[outcome]++
		if outcome != "committed" {
			book.lose(from, to)
		}
	}
}

func failedIn(book *ledger, from, to int) bool {
	book.Lock()
	defer book.Unlock()
	for _, outcome := range book.outcome[from:to] {
		if outcome != "ok" {
			return true
		}
	}
	return false
}

func franzConsume(c *config) map[string]any {
	seen := newReading(c)
	isolation := kgo.ReadUncommitted()
	if c.Isolation == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(append(franzBase(c), kgo.ConsumerGroup(c.Group), kgo.ConsumeTopics(c.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(isolation))...)
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	events := map[string]int{}
	var settle sync.Once
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachError(func(_ string, _ int32, err error) {
			if ctx.Err() == nil {
				events[nameOf(err)]++
			}
		})
		fetches.EachRecord(func(r *kgo.Record) { seen.take(r.Topic, r.Partition, r.Value) })
		if seen.count() >= c.Count {
			settle.Do(func() { time.AfterFunc(time.Duration(c.SettleS*float64(time.Second)), cancel) })
		}
	}
	result := seen.result()
	last, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := client.CommitUncommittedOffsets(last); err != nil {
		events["commit: "+nameOf(err)]++
	}
	closeWithin(5*time.Second, client.Close)
	result["events"] = events
	return result
}

func franzAdmin(c *config) map[string]any {
	client, err := kgo.NewClient(franzBase(c)...)
	check(err)
	defer client.Close()
	admin := kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout())
	defer cancel()
	topic, retention := c.Topics[0], "3600123"
	_, err = admin.CreateTopic(ctx, c.Partitions, c.Replication, map[string]*string{"retention.ms": &retention}, topic)
	check(err)
	result := map[string]any{}
	result["listed"] = eventually(ctx, func() bool {
		topics, err := admin.ListTopics(ctx, topic)
		check(err)
		result["partitions"] = len(topics[topic].Partitions)
		return topics.Has(topic) && len(topics[topic].Partitions) == int(c.Partitions)
	})
	eventually(ctx, func() bool {
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		check(err)
		for _, entry := range configs[0].Configs {
			if entry.Key == "retention.ms" {
				result["retention_ms"] = entry.MaybeValue()
			}
		}
		return !errors.Is(configs[0].Err, kerr.UnknownTopicOrPartition)
	})
	request := kmsg.NewPtrDescribeClusterRequest()
	cluster, err := request.RequestWith(ctx, client)
	check(err)
	brokers := []map[string]any{}
	for _, b := range cluster.Brokers {
		brokers = append(brokers, map[string]any{"id": b.NodeID, "host": b.Host, "port": b.Port})
	}
	result["cluster_id"], result["controller"], result["brokers"] = cluster.ClusterID, cluster.ControllerID, brokers
	_, err = admin.DeleteTopic(ctx, topic)
	check(err)
	result["deleted"] = eventually(ctx, func() bool {
		topics, err := admin.ListTopics(ctx)
		check(err)
		return !topics.Has(topic)
	})
	return result
}

// eventually asks until it is so: a broker hears of new and deleted topics a moment after the controller has answered,
// and the broker that is asked next may hear of them later than the one that listed them.
func eventually(ctx context.Context, so func() bool) bool {
	for range 100 {
		if so() {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

func closeWithin(limit time.Duration, stop func()) {
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
