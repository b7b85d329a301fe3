# aiokafka.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from tests.clients.python.common import Config, Ledger, Reading, main


def base(config: Config) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": config.bootstrap}
    return settings | ({"client_id": config.client_id} if config.client_id else {})


def options_of(config: Config) -> dict[str, Any]:
    """`ssl_cafile`: as kafka-python has it; aiokafka wants a context."""
    options = dict(config.options)
    if "ssl_cafile" in options:
        options["ssl_context"] = create_ssl_context(cafile=options.pop("ssl_cafile"))
    return options


def settings_of(config: Config) -> dict[str, Any]:
    settings = base(config)
    if config.batch_records:
        settings["max_batch_size"] = config.batch_bytes()
    if config.acks is not None:
        settings["acks"] = "all" if config.acks == -1 else config.acks
    if config.idempotence is not None:
        settings["enable_idempotence"] = config.idempotence
    if config.transactional_id:
        settings["transactional_id"] = config.transactional_id
    if config.compression and config.compression != "none":
        settings["compression_type"] = config.compression
    return settings | options_of(config)


async def send(config: Config, ledger: Ledger, producer: AIOKafkaProducer, first: int, end: int) -> None:
    """Send in order and wait for every outcome, but not beyond the deadline."""
    waiting = set()

    def settle(i: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is None:
            ledger.acknowledge(i)
        else:
            ledger.fail(i, type(error).__name__, str(error))

    for i in range(first, end):
        if (wait := ledger.due(i)) > 0:
            await asyncio.sleep(wait)
        topic, partition = config.target(i)
        where = {"key": str(i).encode()} if config.keys else {"partition": partition}
        try:
            future = await asyncio.wait_for(producer.send(topic, config.value(i), **where), ledger.left() or 0.001)
        except KafkaError as error:
            ledger.fail(i, type(error).__name__, str(error))
            continue
        except TimeoutError:
            return
        future.add_done_callback(lambda future, i=i: settle(i, future))
        waiting.add(future)
    if waiting:
        await asyncio.wait(waiting, timeout=ledger.left())


async def produce(config: Config) -> dict[str, Any]:
    ledger = Ledger(config)
    producer = AIOKafkaProducer(**settings_of(config))
    await producer.start()
    if config.transactional_id:
        await transact(config, ledger, producer)
    else:
        await send(config, ledger, producer, 0, config.count)
        if ledger.left():  # acks=0 is "acknowledged" once queued, and main() ends the process: let it leave the socket
            await asyncio.wait_for(producer.stop(), ledger.left())
    return ledger.result()


async def transact(config: Config, ledger: Ledger, producer: AIOKafkaProducer) -> None:
    for first, end, commit in config.transactions():
        outcome = "aborted"
        try:
            await producer.begin_transaction()
            await send(config, ledger, producer, first, end)
            if commit and ledger.all_ok(first, end):
                await producer.commit_transaction()
                outcome = "committed"
            else:
                await producer.abort_transaction()
        except KafkaError as error:
            ledger.events.update([f"transaction: {type(error).__name__}"])
            outcome = "failed"
        ledger.end_transaction(first, end, outcome)


async def consume(config: Config) -> dict[str, Any]:
    reading = Reading(config)
    consumer = AIOKafkaConsumer(
        *config.topics,
        **base(config),
        group_id=config.group,
        auto_offset_reset="earliest",
        isolation_level=config.isolation,
        **options_of(config),
    )
    await consumer.start()
    while not reading.done():
        try:
            polled = await consumer.getmany(timeout_ms=100)
        except KafkaError as error:
            reading.events.update([type(error).__name__])
            continue
        for where, records in polled.items():
            for record in records:
                reading.take(where.topic, where.partition, record.value)
    result = reading.result()
    await consumer.stop()
    return result


async def admin(config: Config) -> dict[str, Any]:
    client = AIOKafkaAdminClient(**base(config))
    await client.start()
    topic = config.topics[0]
    new = NewTopic(topic, config.partitions, config.replication, topic_configs={"retention.ms": "3600123"})
    created = await client.create_topics([new])
    assert not any(row[1] for row in created.topic_errors), created

    async def listed(wanted: bool) -> bool:
        for _ in range(100):
            if (topic in await client.list_topics()) == wanted:
                return True
            await asyncio.sleep(0.1)
        return False

    seen = await listed(True)
    entries: dict[str, Any] = {}
    for _ in range(100):  # another broker than the one that listed the topic may not know it yet
        described = await client.describe_topics([topic])
        configs = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries.update((entry[0], entry[1]) for resource in configs[0].resources for entry in resource[4])
        if entries and described[0]["partitions"]:
            break
        await asyncio.sleep(0.1)
    cluster = await client.describe_cluster()
    await client.delete_topics([topic])
    return {
        "listed": seen,
        "partitions": len(described[0]["partitions"]),
        "retention_ms": entries["retention.ms"],
        "cluster_id": cluster.get("cluster_id"),
        "controller": cluster["controller_id"],
        "brokers": [{"id": b["node_id"], "host": b["host"], "port": b["port"]} for b in cluster["brokers"]],
        "deleted": await listed(False),
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    table = {"produce": produce, "consume": consume, "admin": admin}

    def runner(mode: Callable[[Config], Coroutine[Any, Any, dict[str, Any]]]) -> Callable[[Config], dict[str, Any]]:
        return lambda config: asyncio.run(mode(config))

    main(aiokafka.__version__, {name: runner(mode) for name, mode in table.items()})
