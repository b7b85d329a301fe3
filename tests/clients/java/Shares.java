// A member of a share group (KIP-932), of kafka-clients 4.2 and newer.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.function.DoubleSupplier;
import java.util.function.Function;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

final class Shares {
    private static final long PATIENCE_MS = 1500; // no record for this long, once all have come: nothing is left

    private final Properties settings;
    private final String group;
    private final List<String> topics;
    private final int releaseEvery;

    Shares(Properties settings, String group, List<String> topics, int releaseEvery) {
        this.settings = settings;
        this.group = group;
        this.topics = topics;
        this.releaseEvery = releaseEvery;
    }

    /** Accepts every record, but first releases each `releaseEvery`-th, so that it is delivered once more. */
    Map<String, Object> consume(int count, DoubleSupplier left, Function<String, Optional<Integer>> number)
        throws Exception {
        fromTheStart();
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        Map<String, List<Integer>> deliveries = new TreeMap<>();
        Map<String, Integer> events = new TreeMap<>();
        List<Long> times = new ArrayList<>();
        int strangers = 0;
        int accepted = 0;
        long last = System.currentTimeMillis();
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            if (error != null) {
                events.merge(error.getClass().getSimpleName(), 1, Integer::sum);
            }
        });
        consumer.subscribe(topics);
        while (left.getAsDouble() > 0 && (accepted < count || System.currentTimeMillis() < last + PATIENCE_MS)) {
            try {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    last = System.currentTimeMillis();
                    Optional<Integer> found = number.apply(record.value());
                    strangers += found.isEmpty() ? 1 : 0;
                    int i = found.orElse(0);
                    int delivery = record.deliveryCount().orElse((short) 1);
                    boolean release = releaseEvery > 0 && i % releaseEvery == 0 && delivery == 1;
                    consumer.acknowledge(record, release ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    accepted += release ? 0 : 1;
                    times.add(last);
                    deliveries.computeIfAbsent(String.valueOf(delivery), at -> new ArrayList<>()).add(i);
                }
            } catch (KafkaException error) {
                events.merge(error.getClass().getSimpleName(), 1, Integer::sum);
            }
        }
        Map<String, Object> result = new HashMap<>();
        result.put("deliveries", deliveries);
        result.put("strangers", strangers);
        result.put("events", events);
        result.put("times_ms", times);
        result.put("metrics", metrics(consumer));
        consumer.commitSync(); // all before went with the requests for more
        consumer.close(Duration.ofSeconds(5));
        return result;
    }

    /** A share group begins at the end of a partition unless its configuration says otherwise. */
    private void fromTheStart() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp set =
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(settings)) {
            admin.incrementalAlterConfigs(Map.of(resource, Set.of(set))).all().get(10, TimeUnit.SECONDS);
        }
    }

    private static Map<String, Double> metrics(KafkaShareConsumer<String, String> consumer) {
        Map<String, Double> found = new TreeMap<>();
        consumer.metrics().forEach((name, metric) -> {
            if (name.name().startsWith("fetch-throttle-time") && metric.metricValue() instanceof Double) {
                double value = (Double) metric.metricValue();
                found.put(name.name(), Double.isNaN(value) ? 0 : value);
            }
        });
        return found;
    }
}
