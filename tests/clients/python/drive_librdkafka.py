# librdkafka through confluent-kafka.

from __future__ import annotations

from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.clients.python.common import Config, Ledger, Reading, eventually, main


def base(config: Config) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap.servers": config.bootstrap}
    return settings | ({"client.id": config.client_id} if config.client_id else {})


def settings_of(config: Config, ledger: Ledger) -> dict[str, Any]:
    settings = base(config)
    settings["throttle_cb"] = lambda event: ledger.throttled(event.throttle_time * 1000)
    settings["error_cb"] = lambda error: ledger.events.update([error.name()])
    if config.batch_records:
        settings |= {"linger.ms": 0, "batch.num.messages": config.batch_records}
    if config.acks is not None:
        settings["acks"] = config.acks
    if config.idempotence is not None:
        settings["enable.idempotence"] = config.idempotence
    if config.transactional_id:
        settings["transactional.id"] = config.transactional_id
    if config.compression:
        settings["compression.type"] = config.compression
    return settings | config.options


def send(config: Config, ledger: Ledger, producer: Producer, first: int, end: int) -> None:
    def settled(i: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            ledger.acknowledge(i)
        else:
            ledger.fail(i, error.name(), error.str())

    for i in range(first, end):
        while (wait := ledger.due(i)) > 0:
            producer.poll(min(wait, 0.1))
        topic, partition = config.target(i)
        where: dict[str, Any] = {"key": str(i).encode()} if config.keys else {"partition": partition}
        settle = partial(settled, i)
        while ledger.left():
            try:
                producer.produce(topic, config.value(i), on_delivery=settle, **where)
                break
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:  # refused at once: a producer that can't go on
                ledger.fail(i, error.args[0].name(), error.args[0].str())
                break
        producer.poll(0)


def produce(config: Config) -> dict[str, Any]:
    ledger = Ledger(config)
    producer = Producer(settings_of(config, ledger))
    if config.transactional_id:
        transact(config, ledger, producer)
    else:
        send(config, ledger, producer, 0, config.count)
        producer.flush(ledger.left())
    result = ledger.result()
    if not result["unresolved"]:  # else it would wait for message.timeout.ms
        producer.close()
    return result


def transact(config: Config, ledger: Ledger, producer: Producer) -> None:
    producer.init_transactions(ledger.left())
    for first, end, commit in config.transactions():
        outcome = "aborted"
        try:
            producer.begin_transaction()
            send(config, ledger, producer, first, end)
            producer.flush(ledger.left())
            if commit and ledger.all_ok(first, end):
                producer.commit_transaction(ledger.left())
                outcome = "committed"
            else:
                producer.abort_transaction(ledger.left())
        except KafkaException as error:
            ledger.events.update([f"transaction: {error.args[0].name()}"])
            outcome = "failed"
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(ledger.left())
        ledger.end_transaction(first, end, outcome)


def consume(config: Config) -> dict[str, Any]:
    reading = Reading(config)
    settings = base(config) | {
        "group.id": config.group,
        "auto.offset.reset": "earliest",
        "isolation.level": config.isolation,
        "error_cb": lambda error: reading.events.update([error.name()]),
    }
    consumer = Consumer(settings | config.options)
    consumer.subscribe(config.topics)
    while not reading.done():
        for message in consumer.consume(500, 0.1):
            take(reading, message)
    result = reading.result()
    consumer.close()
    return result


def take(reading: Reading, message: Message) -> None:
    if (error := message.error()) is not None:
        reading.events.update([error.name()])
    else:
        reading.take(message.topic() or "", message.partition() or 0, message.value())


def admin(config: Config) -> dict[str, Any]:
    client = AdminClient(base(config))
    topic = config.topics[0]
    new = NewTopic(topic, config.partitions, config.replication, config={"retention.ms": "3600123"})
    client.create_topics([new])[topic].result(config.timeout_s)

    def partitions() -> int:
        listed = client.list_topics(timeout=config.timeout_s).topics
        return len(listed[topic].partitions) if topic in listed else 0

    seen = 0

    def known() -> bool:
        nonlocal seen
        seen = partitions()
        return seen == config.partitions

    listed = eventually(known)
    configs: dict[str, Any] = {}

    def described() -> bool:
        """Another broker than the one that listed the topic may not know it yet."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            configs.update(client.describe_configs([resource])[resource].result(config.timeout_s))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        return bool(configs)

    eventually(described)
    cluster = client.describe_cluster().result(config.timeout_s)
    client.delete_topics([topic])[topic].result(config.timeout_s)
    return {
        "listed": listed,
        "partitions": seen,
        "retention_ms": configs["retention.ms"].value,
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller.id,
        "brokers": [{"id": b.id, "host": b.host, "port": b.port} for b in cluster.nodes],
        "deleted": eventually(lambda: partitions() == 0),
    }


if __name__ == "__main__":
    version = f"{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.version()})"
    main(version, {"produce": produce, "consume": consume, "admin": admin})
