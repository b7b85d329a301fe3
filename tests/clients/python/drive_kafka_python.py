# kafka-python.

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from tests.clients.python.common import Config, Ledger, Reading, eventually, main


def base(config: Config) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": config.bootstrap}
    return settings | ({"client_id": config.client_id} if config.client_id else {})


def settings_of(config: Config) -> dict[str, Any]:
    settings = base(config)
    if config.batch_records:
        settings["batch_size"] = config.batch_bytes()
    if config.acks is not None:
        settings["acks"] = "all" if config.acks == -1 else config.acks
        if config.acks != -1:
            settings["enable_idempotence"] = False
    if config.idempotence is not None:
        settings["enable_idempotence"] = config.idempotence
    if config.transactional_id:
        settings["transactional_id"] = config.transactional_id
    if config.compression and config.compression != "none":
        settings["compression_type"] = config.compression
    return settings | config.options


def send(config: Config, ledger: Ledger, producer: KafkaProducer, first: int, end: int) -> None:
    for i in range(first, end):
        if (wait := ledger.due(i)) > 0:
            time.sleep(wait)
        if not ledger.left():
            return
        topic, partition = config.target(i)
        where = {"key": str(i).encode()} if config.keys else {"partition": partition}
        try:
            future = producer.send(topic, config.value(i), **where)
        except KafkaError as error:
            ledger.fail(i, type(error).__name__, str(error))
            continue
        future.add_callback(lambda _, i=i: ledger.acknowledge(i))
        future.add_errback(lambda error, i=i: ledger.fail(i, type(error).__name__, str(error)))


def flush(ledger: Ledger, producer: KafkaProducer) -> None:
    try:
        producer.flush(ledger.left())
    except KafkaError as error:
        ledger.events.update([f"flush: {type(error).__name__}"])


def produce(config: Config) -> dict[str, Any]:
    ledger = Ledger(config)
    producer = KafkaProducer(**settings_of(config))

    def work() -> None:
        if config.transactional_id:
            transact(config, ledger, producer)
        else:
            send(config, ledger, producer, 0, config.count)
            flush(ledger, producer)

    ledger.by_the_deadline(work)
    result = ledger.result()
    longest = [
        value
        for group in producer.metrics().values()
        for name, value in group.items()
        if name == "produce-throttle-time-max" and value == value and value != float("-inf")
    ]
    result["throttle"]["max_ms"] = max(longest, default=0)
    producer.close(3)
    return result


def transact(config: Config, ledger: Ledger, producer: KafkaProducer) -> None:
    producer.init_transactions()
    for first, end, commit in config.transactions():
        outcome = "aborted"
        try:
            producer.begin_transaction()
            send(config, ledger, producer, first, end)
            flush(ledger, producer)
            if commit and ledger.all_ok(first, end):
                producer.commit_transaction()
                outcome = "committed"
            else:
                producer.abort_transaction()
        except KafkaError as error:
            ledger.events.update([f"transaction: {type(error).__name__}"])
            outcome = "failed"
        ledger.end_transaction(first, end, outcome)


def consume(config: Config) -> dict[str, Any]:
    reading = Reading(config)
    consumer = KafkaConsumer(
        *config.topics,
        **base(config),
        group_id=config.group,
        auto_offset_reset="earliest",
        isolation_level=config.isolation,
        **config.options,
    )
    while not reading.done():
        # One poll lasts until the first records come. kafka-python (3.0.12) usually joins its group before it knows the
        # topic's partitions, and again 100 ms later. If a poll times out in the second join, the next may not wait for
        # it (`need_rejoin` is False as soon as the leader has assigned), and nobody takes up the answer to SyncGroup:
        # the consumer never has a partition.
        wait_ms = 100 if reading.distinct else 1000 * reading.left()
        try:
            polled = consumer.poll(wait_ms)
        except KafkaError as error:
            reading.events.update([type(error).__name__])
            continue
        for where, records in polled.items():
            for record in records:
                reading.take(where.topic, where.partition, record.value)
    if not consumer.assignment():
        reading.events.update(["no partition assigned"])
    result = reading.result()
    consumer.close()
    return result


def admin(config: Config) -> dict[str, Any]:
    client = KafkaAdminClient(**base(config))
    topic = config.topics[0]
    options = {
        "num_partitions": config.partitions,
        "replication_factor": config.replication,
        "configs": {"retention.ms": "3600123"},
    }
    client.create_topics({topic: options})
    listed = eventually(lambda: topic in client.list_topics())
    described: dict[str, Any] = {}
    configs: dict[str, Any] = {}

    def known() -> bool:
        """Another broker than the one that listed the topic may not know it yet."""
        with suppress(UnknownTopicOrPartitionError):
            described.update(client.describe_topics([topic])[0])
            configs.update(client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        return bool(described.get("partitions")) and "retention.ms" in configs.get("topic", {}).get(topic, {})

    eventually(known)
    cluster = client.describe_cluster()
    node_id = "broker_id" if "broker_id" in cluster["brokers"][0] else "node_id"  # DescribeCluster's name, Metadata's
    client.delete_topics([topic])
    return {
        "listed": listed,
        "partitions": len(described["partitions"]),
        "retention_ms": configs["topic"][topic]["retention.ms"]["value"],
        "cluster_id": cluster["cluster_id"],
        "controller": cluster["controller_id"],
        "brokers": [{"id": b[node_id], "host": b["host"], "port": b["port"]} for b in cluster["brokers"]],
        "deleted": eventually(lambda: topic not in client.list_topics()),
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(kafka.__version__, {"produce": produce, "consume": consume, "admin": admin})
