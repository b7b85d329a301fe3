// Drives kafka-clients: `java -cp … Driver '{"mode": "produce", …}'`. The contract is that of all drivers
// (tests/clients/harness.py).
//
// Compiled once against the newest kafka-clients and run with older ones too, so it calls nothing that 2.1 lacks; what
// only new ones have is in a class of its own (Shares). Jackson comes with the broker's jars.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.DescribeTopicsResult;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final JsonNode config;
    private final long start = System.nanoTime();
    private final double timeout;
    private final List<String> topics = new ArrayList<>();
    private final int partitions;
    private final int count;
    private final String run;

    private Driver(JsonNode config) {
        this.config = config;
        timeout = config.path("timeout_s").asDouble(60);
        config.path("topics").forEach(name -> topics.add(name.asText()));
        partitions = config.path("partitions").asInt(1);
        count = config.path("count").asInt(0);
        run = config.path("run").asText("run");
    }

    public static void main(String[] args) throws Exception {
        JsonNode config = JSON.readTree(args[0]);
        Driver driver = new Driver(config);
        Thread watchdog = new Thread(() -> {
            try {
                Thread.sleep((long) ((driver.timeout + 15) * 1000));
                Runtime.getRuntime().halt(3);
            } catch (InterruptedException done) {
                Thread.currentThread().interrupt();
            }
        });
        watchdog.setDaemon(true);
        watchdog.start();
        Map<String, Object> result;
        int code = 0;
        try {
            result = driver.mode(config.path("mode").asText()).call();
        } catch (Exception error) {
            error.printStackTrace();
            result = new HashMap<>(Map.of("error", nameOf(error), "first_error", String.valueOf(error.getMessage())));
            code = 1;
        }
        result.put("client", config.path("client").asText());
        result.put("version", AppInfoParser.getVersion());
        System.out.println(JSON.writeValueAsString(result));
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }

    private Callable<Map<String, Object>> mode(String name) {
        switch (name) {
            case "produce":
                return this::produce;
            case "consume":
                return this::consume;
            case "admin":
                return this::admin;
            case "share":
                return this::share;
            default:
                throw new IllegalArgumentException("no such mode: " + name);
        }
    }

    private double elapsed() {
        return (System.nanoTime() - start) / 1e9;
    }

    private double left() {
        return Math.max(0, timeout - elapsed());
    }

    private Properties base() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", config.path("bootstrap").asText());
        if (!config.path("client_id").asText("").isEmpty()) {
            settings.put("client.id", config.path("client_id").asText());
        }
        return settings;
    }

    private void options(Properties settings) {
        JsonNode given = config.path("options");
        given.fieldNames().forEachRemaining(name -> settings.put(name, given.get(name).asText()));
    }

    private String value(int i) {
        String text = config.path("client").asText() + ":" + run + ":" + i;
        int padding = config.path("record_bytes").asInt(0) - text.length() - 1;
        return padding >= 0 ? text + "|" + "x".repeat(padding) : text;
    }

    private static String nameOf(Throwable error) {
        Throwable inner = error instanceof ExecutionException && error.getCause() != null ? error.getCause() : error;
        return inner.getClass().getSimpleName();
    }

    // --- produce ---------------------------------------------------------------------------------------------------

    private String[] outcome;
    private final List<Integer> timeline = new ArrayList<>();
    private final Map<String, Integer> events = new TreeMap<>();
    private final Map<String, Integer> transactions = new TreeMap<>(Map.of("committed", 0, "aborted", 0, "failed", 0));
    private final Set<Integer> lost = new HashSet<>();
    private String firstError = "";

    private Properties producerSettings() {
        Properties settings = base();
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        int records = config.path("batch_records").asInt(0);
        if (records > 0) {
            settings.put("batch.size", String.valueOf(80 + records * (value(count).length() + 20)));
            settings.put("linger.ms", "0");
        }
        if (config.path("acks").isInt()) {
            settings.put("acks", config.path("acks").asText());
        }
        if (config.path("idempotence").isBoolean()) {
            settings.put("enable.idempotence", config.path("idempotence").asText());
        }
        if (!config.path("compression").asText("").isEmpty()) {
            settings.put("compression.type", config.path("compression").asText());
        }
        if (!config.path("transactional_id").asText("").isEmpty()) {
            settings.put("transactional.id", config.path("transactional_id").asText());
        }
        options(settings);
        return settings;
    }

    private Map<String, Object> produce() throws Exception {
        outcome = new String[count];
        KafkaProducer<String, String> producer = new KafkaProducer<>(producerSettings());
        boolean plain = config.path("transactional_id").asText("").isEmpty();
        byTheDeadline(plain ? () -> send(producer, 0, count) : () -> transact(producer));
        if (plain) {
            await(0, count);
        }
        Map<String, Object> result = report();
        result.put("throttle", throttle(producer));
        result.put("connections_closed", largest(producer, "connection-close-total"));
        closeQuietly(() -> close(producer));
        return result;
    }

    private interface Step {
        void run() throws InterruptedException;
    }

    /** send() and commitTransaction() may block for max.block.ms: what there is to tell is told at the deadline. */
    private void byTheDeadline(Step step) throws Exception {
        Exception[] failure = new Exception[1];
        Thread thread = new Thread(() -> {
            try {
                step.run();
            } catch (Exception error) {
                failure[0] = error;
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join((long) (left() * 1000) + 1);
        if (!thread.isAlive() && failure[0] != null) {
            throw failure[0];
        }
    }

    private void send(KafkaProducer<String, String> producer, int from, int to) throws InterruptedException {
        double rate = config.path("rate").asDouble(0);
        boolean keys = config.path("keys").asBoolean(false);
        for (int i = from; i < to && left() > 0; i++) {
            double wait = rate > 0 ? i / rate - elapsed() : 0;
            if (wait > 0) {
                Thread.sleep((long) (wait * 1000));
            }
            int slot = i % (topics.size() * partitions);
            String topic = topics.get(slot / partitions);
            ProducerRecord<String, String> record = keys
                ? new ProducerRecord<>(topic, String.valueOf(i), value(i))
                : new ProducerRecord<>(topic, slot % partitions, null, value(i));
            final int index = i;
            try {
                producer.send(record, (metadata, error) -> resolve(index, error));
            } catch (KafkaException error) {
                resolve(index, error);
            }
        }
    }

    private synchronized void resolve(int i, Exception error) {
        if (error != null) {
            outcome[i] = nameOf(error);
            firstError = firstError.isEmpty() ? String.valueOf(error.getMessage()) : firstError;
        } else {
            outcome[i] = "ok";
            int second = (int) elapsed();
            while (timeline.size() <= second) {
                timeline.add(0);
            }
            timeline.set(second, timeline.get(second) + 1);
        }
        notifyAll();
    }

    /** Wait for outcomes rather than flush(), which knows no deadline. */
    private synchronized void await(int from, int to) throws InterruptedException {
        int at = from;
        while (at < to && left() > 0) {
            if (outcome[at] != null) {
                at++;
            } else {
                wait((long) Math.min(1000, left() * 1000 + 1));
            }
        }
    }

    private void transact(KafkaProducer<String, String> producer) throws InterruptedException {
        producer.initTransactions();
        int size = config.path("transaction_size").asInt(20);
        int abortEvery = config.path("abort_every").asInt(0);
        for (int n = 1, from = 0; from < count && left() > 0; n++, from += size) {
            int to = Math.min(from + size, count);
            String end = "aborted";
            try {
                producer.beginTransaction();
                send(producer, from, to);
                await(from, to);
                if (allOk(from, to) && !(abortEvery > 0 && n % abortEvery == 0)) {
                    producer.commitTransaction();
                    end = "committed";
                } else {
                    producer.abortTransaction();
                }
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
                events.merge("transaction: " + nameOf(fatal), 1, Integer::sum);
                lose(from, count, "failed");
                return;
            } catch (KafkaException error) {
                events.merge("transaction: " + nameOf(error), 1, Integer::sum);
                end = "failed";
                closeQuietly(producer::abortTransaction);
            }
            lose(from, to, end);
        }
    }

    private synchronized boolean allOk(int from, int to) {
        for (int i = from; i < to; i++) {
            if (!"ok".equals(outcome[i])) {
                return false;
            }
        }
        return true;
    }

    private synchronized void lose(int from, int to, String end) {
        transactions.merge(end, 1, Integer::sum);
        for (int i = from; i < to && !end.equals("committed"); i++) {
            lost.add(i);
        }
    }

    private static void close(KafkaProducer<String, String> producer) {
        try {
            producer.close(Duration.ofSeconds(3));
        } catch (NoSuchMethodError before22) {
            producer.close(); // of what it is told here nothing is under way any more
        }
    }

    private static void closeQuietly(Runnable step) {
        try {
            step.run();
        } catch (KafkaException error) {
            System.err.println("while closing: " + error);
        }
    }

    private Map<String, Object> throttle(KafkaProducer<String, String> producer) {
        Map<String, Object> throttle = new HashMap<>();
        throttle.put("count", null);
        throttle.put("max_ms", Math.max(0, largest(producer, "produce-throttle-time-max")));
        return throttle;
    }

    /** The largest value that the producer has under that name, of its nodes and of itself; 0 without any. */
    private static double largest(KafkaProducer<String, String> producer, String name) {
        return producer.metrics().values().stream()
            .filter(metric -> metric.metricName().name().equals(name))
            .map(metric -> metric.metricValue())
            .filter(value -> value instanceof Double && !((Double) value).isNaN())
            .mapToDouble(value -> (Double) value).max().orElse(0);
    }

    private synchronized Map<String, Object> report() {
        Map<String, Integer> errors = new TreeMap<>();
        List<Integer> failed = new ArrayList<>();
        List<Integer> unresolved = new ArrayList<>();
        List<Integer> aborted = new ArrayList<>();
        int acknowledged = 0;
        for (int i = 0; i < count; i++) {
            if (outcome[i] == null) {
                unresolved.add(i);
            } else if (!outcome[i].equals("ok")) {
                failed.add(i);
                errors.merge(outcome[i], 1, Integer::sum);
            } else if (lost.contains(i)) {
                aborted.add(i);
            } else {
                acknowledged++;
            }
        }
        Map<String, Object> result = new HashMap<>();
        result.put("sent", count);
        result.put("acknowledged", acknowledged);
        result.put("errors", errors);
        result.put("failed", failed);
        result.put("unresolved", unresolved);
        result.put("aborted", aborted);
        result.put("timeline", new ArrayList<>(timeline));
        result.put("first_error", firstError);
        result.put("events", events);
        result.put("transactions", transactions);
        result.put("elapsed_s", elapsed());
        return result;
    }

    // --- consume ---------------------------------------------------------------------------------------------------

    @SuppressWarnings("deprecation") // close(Duration): its successor is not in 3.x
    private Map<String, Object> consume() {
        Properties settings = base();
        settings.put("group.id", config.path("group").asText());
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", config.path("isolation").asText("read_uncommitted"));
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        options(settings);
        Map<String, List<Integer>> seen = new TreeMap<>();
        Set<Integer> distinct = new HashSet<>();
        int strangers = 0;
        double first = 0;
        double end = timeout;
        double settle = config.path("settle_s").asDouble(0.5);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(topics);
        while (elapsed() < end) {
            try {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    Optional<Integer> number = number(record.value());
                    if (number.isEmpty()) {
                        strangers++;
                        continue;
                    }
                    first = distinct.isEmpty() ? elapsed() : first;
                    seen.computeIfAbsent(record.topic() + "/" + record.partition(), at -> new ArrayList<>()).add(number.get());
                    if (distinct.add(number.get()) && distinct.size() == count) {
                        end = Math.min(end, elapsed() + settle);
                    }
                }
            } catch (KafkaException error) {
                events.merge(nameOf(error), 1, Integer::sum);
            }
        }
        Map<String, Object> result = new HashMap<>();
        result.put("partitions", seen);
        result.put("strangers", strangers);
        result.put("first_s", first);
        result.put("events", events);
        result.put("elapsed_s", elapsed());
        closeQuietly(() -> consumer.close(Duration.ofSeconds(5)));
        return result;
    }

    // --- share -----------------------------------------------------------------------------------------------------

    private Map<String, Object> share() throws Exception {
        Properties settings = base();
        options(settings);
        Shares shares = new Shares(settings, config.path("group").asText(), topics, config.path("release_every").asInt(0));
        Map<String, Object> result = shares.consume(count, this::left, this::number);
        result.put("elapsed_s", elapsed());
        return result;
    }

    private Optional<Integer> number(String value) {
        String text = value.split("\\|", 2)[0];
        String prefix = ":" + run + ":";
        int at = text.indexOf(prefix);
        try {
            return at < 0 ? Optional.empty() : Optional.of(Integer.valueOf(text.substring(at + prefix.length())));
        } catch (NumberFormatException stranger) {
            return Optional.empty();
        }
    }

    // --- admin -----------------------------------------------------------------------------------------------------

    private Map<String, Object> admin() throws Exception {
        Map<String, Object> result = new HashMap<>();
        String topic = topics.get(0);
        try (AdminClient client = AdminClient.create(base())) {
            short replicas = (short) config.path("replication").asInt(1);
            NewTopic created = new NewTopic(topic, partitions, replicas).configs(Map.of("retention.ms", "3600123"));
            client.createTopics(Set.of(created)).all().get(10, TimeUnit.SECONDS);
            result.put("listed", eventually(() -> client.listTopics().names().get(10, TimeUnit.SECONDS).contains(topic)));
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            eventually(() -> { // another broker than the one that listed the topic may not know it yet
                try {
                    result.put("partitions", described(client, topic).partitions().size());
                    result.put("retention_ms", client.describeConfigs(Set.of(resource)).all().get(10, TimeUnit.SECONDS)
                        .get(resource).get("retention.ms").value());
                } catch (ExecutionException error) {
                    if (!(error.getCause() instanceof UnknownTopicOrPartitionException)) {
                        throw error;
                    }
                }
                return result.containsKey("retention_ms");
            });
            var cluster = client.describeCluster();
            result.put("cluster_id", cluster.clusterId().get(10, TimeUnit.SECONDS));
            result.put("controller", cluster.controller().get(10, TimeUnit.SECONDS).id());
            List<Map<String, Object>> brokers = new ArrayList<>();
            for (Node node : cluster.nodes().get(10, TimeUnit.SECONDS)) {
                brokers.add(Map.of("id", node.id(), "host", node.host(), "port", node.port()));
            }
            result.put("brokers", brokers);
            client.deleteTopics(Set.of(topic)).all().get(10, TimeUnit.SECONDS);
            result.put("deleted", eventually(() -> !client.listTopics().names().get(10, TimeUnit.SECONDS).contains(topic)));
        }
        return result;
    }

    /** `all` is gone in 4.0, its successor came with 3.1. */
    private static TopicDescription described(AdminClient client, String topic) throws Exception {
        DescribeTopicsResult answer = client.describeTopics(Set.of(topic));
        String all = "allTopicNames";
        for (Method method : DescribeTopicsResult.class.getMethods()) {
            all = method.getName().equals("all") && method.getParameterCount() == 0 ? "all" : all;
        }
        Object future = DescribeTopicsResult.class.getMethod(all).invoke(answer);
        return (TopicDescription) ((Map<?, ?>) ((KafkaFuture<?>) future).get(10, TimeUnit.SECONDS)).get(topic);
    }

    /** A broker hears of new and deleted topics a moment after the controller has answered. */
    private static boolean eventually(Callable<Boolean> so) throws Exception {
        for (int n = 0; n < 100; n++) {
            if (so.call()) {
                return true;
            }
            Thread.sleep(100);
        }
        return false;
    }
}
