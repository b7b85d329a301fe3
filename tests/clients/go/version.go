// What was really linked, for the table of results.
package main

import "runtime/debug"

var modules = map[string]string{"franz-go": "github.com/twmb/franz-go", "sarama": "github.com/IBM/sarama",
	"kafka-go": "github.com/segmentio/kafka-go"}

func versionOf(client string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if module.Path == modules[client] {
			return module.Version
		}
	}
	return "unknown"
}
