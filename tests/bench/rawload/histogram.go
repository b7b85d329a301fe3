// Latencies in buckets of about 3 % width: bounded memory whatever the number of requests, and cheap to add to.

package main

import "math/bits"

const subBuckets = 32 // per power of two

type histogram struct {
	counts [64 * subBuckets]int64
	total  int64
}

func (h *histogram) add(nanoseconds int64) {
	h.counts[bucketOf(uint64(max(nanoseconds, 1)))]++
	h.total++
}

func bucketOf(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - 6 // the leading one and five bits behind it name the bucket
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

func lowerBound(bucket int) int64 {
	if bucket < subBuckets {
		return int64(bucket)
	}
	shift := bucket/subBuckets - 1
	return int64(bucket%subBuckets+subBuckets) << shift
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
}

// quantile is in nanoseconds, the lower end of its bucket; 0 when nothing was added.
func (h *histogram) quantile(q float64) int64 {
	rank := int64(q * float64(h.total-1))
	for i, n := range h.counts {
		if rank < n {
			return lowerBound(i)
		}
		rank -= n
	}
	return 0
}
