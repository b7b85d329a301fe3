// Drives KafkaJS: `node driver.js '{"mode": "produce", …}'`. The contract is that of all drivers (tests/clients/harness.py).
// And @platformatic/kafka, as a producer.
//
// KafkaJS sends what one send() call is given as one request per broker and keeps no order between calls that were not
// awaited (its own doing, also without a gateway). So a call carries `batch_records` records for each partition, and
// options.in_flight calls are under way at once: 1 unless a test wants to see otherwise.
'use strict'

const fs = require('fs')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')
const platformatic = require('@platformatic/kafka')
const packages = { kafkajs: 'kafkajs', platformatic: '@platformatic/kafka' }

const defaults = {
  client_id: '', topics: [], partitions: 1, replication: 1, count: 0, record_bytes: 0, keys: false, acks: null,
  idempotence: null, compression: '', batch_records: 0, rate: 0, transactional_id: '', transaction_size: 20,
  abort_every: 0, group: '', isolation: 'read_uncommitted', settle_s: 0.5, timeout_s: 60, options: {},
}
const now = () => performance.now() / 1000
const sleep = seconds => new Promise(resolve => setTimeout(resolve, Math.max(0, seconds) * 1000))

function connect(config) {
  const { in_flight, retries, ...options } = config.options
  if (retries !== undefined) options.retry = { retries }
  if (config.client_id) options.clientId = config.client_id
  const logCreator = () => ({ namespace, label, log }) => process.stderr.write(`${label} ${namespace} ${log.message}\n`)
  return new Kafka({ brokers: config.bootstrap.split(','), logLevel: logLevel.WARN, logCreator, ...options })
}

function value(config, i) {
  const text = `${config.client}:${config.run}:${i}`
  return config.record_bytes > text.length ? `${text}|`.padEnd(config.record_bytes, 'x') : text
}

function target(config, i) {
  const slot = i % (config.topics.length * config.partitions)
  return [config.topics[Math.floor(slot / config.partitions)], slot % config.partitions]
}

// KafkaJS wraps an error in the one that ended the retries: the name that says most is the innermost protocol error.
function nameOf(error) {
  for (const each of error.errors || []) return nameOf(each) // of @platformatic/kafka: what its attempts met
  if (error.apiId) return error.apiId
  for (let e = error; e; e = e.cause) if (e.type) return e.type
  return error.name || 'Error'
}

class Ledger {
  constructor(config) {
    this.start = now()
    this.deadline = this.start + config.timeout_s
    this.outcome = new Array(config.count).fill(null)
    this.lost = new Set()
    this.timeline = []
    this.events = {}
    this.transactions = { committed: 0, aborted: 0, failed: 0 }
    this.firstError = ''
  }

  left() { return Math.max(0, this.deadline - now()) }

  acknowledge(i) {
    this.outcome[i] = 'ok'
    const second = Math.floor(now() - this.start)
    while (this.timeline.length <= second) this.timeline.push(0)
    this.timeline[second]++
  }

  fail(i, error) {
    this.outcome[i] = nameOf(error)
    this.firstError = this.firstError || String(error.message)
  }

  event(name) { this.events[name] = (this.events[name] || 0) + 1 }

  result() {
    const indices = test => this.outcome.flatMap((outcome, i) => (test(outcome, i) ? [i] : []))
    const failed = indices(outcome => outcome !== null && outcome !== 'ok')
    const errors = {}
    for (const i of failed) errors[this.outcome[i]] = (errors[this.outcome[i]] || 0) + 1
    return {
      sent: this.outcome.length,
      acknowledged: indices((outcome, i) => outcome === 'ok' && !this.lost.has(i)).length,
      errors,
      failed,
      unresolved: indices(outcome => outcome === null),
      aborted: indices((outcome, i) => outcome === 'ok' && this.lost.has(i)),
      timeline: this.timeline,
      first_error: this.firstError,
      throttle: { count: null, max_ms: null },
      events: this.events,
      transactions: this.transactions,
      elapsed_s: now() - this.start,
    }
  }
}

// One send call for records [from, to), every record's outcome in the ledger. Never rejects.
async function sendCall(config, ledger, producer, from, to) {
  const byTopic = new Map()
  for (let i = from; i < to; i++) {
    const [topic, partition] = target(config, i)
    if (!byTopic.has(topic)) byTopic.set(topic, [])
    byTopic.get(topic).push(config.keys ? { key: `${i}`, value: value(config, i) } : { partition, value: value(config, i) })
  }
  const request = { topicMessages: [...byTopic].map(([topic, messages]) => ({ topic, messages })) }
  if (config.acks !== null) request.acks = config.acks
  if (config.compression === 'gzip') request.compression = CompressionTypes.GZIP
  try {
    await producer.sendBatch(request)
    for (let i = from; i < to; i++) ledger.acknowledge(i)
  } catch (error) {
    for (let i = from; i < to; i++) ledger.fail(i, error)
  }
}

async function send(config, ledger, producer, from, to) {
  const size = Math.max(1, config.batch_records) * config.partitions * config.topics.length
  const running = new Set()
  for (let at = from; at < to && ledger.left() > 0; at += size) {
    if (config.rate) await sleep(ledger.start + at / config.rate - now())
    const call = sendCall(config, ledger, producer, at, Math.min(at + size, to)).then(() => running.delete(call))
    running.add(call)
    if (running.size >= (config.options.in_flight || 1)) await Promise.race([...running, sleep(ledger.left())])
  }
  await Promise.race([Promise.all(running), sleep(ledger.left())])
}

// @platformatic/kafka in the shape of a KafkaJS producer.
function platformaticProducer(config, settings) {
  const { in_flight, ...options } = config.options
  const producer = new platformatic.Producer({
    clientId: config.client_id || 'driver',
    bootstrapBrokers: config.bootstrap.split(','),
    serializers: platformatic.stringSerializers,
    ...settings,
    ...options,
  })
  return {
    events: {},
    on() {},
    connect: async () => {},
    disconnect: () => producer.close(true),
    sendBatch: ({ topicMessages, acks }) => producer.send({
      messages: topicMessages.flatMap(({ topic, messages }) => messages.map(message => ({ topic, ...message }))),
      ...(acks === undefined ? {} : { acks }),
    }),
  }
}

async function produce(config) {
  const settings = {}
  if (config.idempotence !== null) settings.idempotent = config.idempotence
  if (config.transactional_id) {
    Object.assign(settings, { transactionalId: config.transactional_id, idempotent: true, maxInFlightRequests: 1 })
  }
  const make = config.client === 'platformatic' ? platformaticProducer : (...args) => connect(...args).producer(settings)
  const producer = make(config, settings)
  await producer.connect()
  const ledger = new Ledger(config)
  producer.on(producer.events.REQUEST_TIMEOUT, () => ledger.event('REQUEST_TIMEOUT'))
  if (config.transactional_id) await transact(config, ledger, producer)
  else await send(config, ledger, producer, 0, config.count)
  const result = ledger.result()
  await Promise.race([producer.disconnect(), sleep(3)])
  return result
}

// The first record of a transaction goes alone. Until the one before is over, the coordinator answers
// CONCURRENT_TRANSACTIONS; a call for several brokers then sends the parts of it whose answers it still waits for a
// second time, as new records, also without a gateway.
async function transact(config, ledger, producer) {
  for (let n = 1, from = 0; from < config.count && ledger.left() > 0; n++, from += config.transaction_size) {
    const to = Math.min(from + config.transaction_size, config.count)
    let outcome = 'aborted'
    try {
      const transaction = await producer.transaction()
      await send(config, ledger, transaction, from, Math.min(from + 1, to))
      await send(config, ledger, transaction, from + 1, to)
      const whole = ledger.outcome.slice(from, to).every(o => o === 'ok')
      if (whole && !(config.abort_every && n % config.abort_every === 0)) {
        await transaction.commit()
        outcome = 'committed'
      } else {
        await transaction.abort()
      }
    } catch (error) {
      ledger.event(`transaction: ${nameOf(error)}`)
      outcome = 'failed'
    }
    ledger.transactions[outcome]++
    if (outcome !== 'committed') for (let i = from; i < to; i++) ledger.lost.add(i)
  }
}

async function consume(config) {
  const consumer = connect(config).consumer({
    groupId: config.group,
    readUncommitted: config.isolation !== 'read_committed',
  })
  const start = now()
  const partitions = {}
  const distinct = new Set()
  const events = {}
  let strangers = 0
  let first = 0
  let finish
  const finished = new Promise(resolve => { finish = resolve })
  consumer.on(consumer.events.CRASH, event => {
    const name = nameOf(event.payload.error)
    events[name] = (events[name] || 0) + 1
  })
  await consumer.connect()
  await consumer.subscribe({ topics: config.topics, fromBeginning: true })
  const pattern = new RegExp(`:${config.run}:(\\d+)(\\||$)`)
  await consumer.run({
    eachMessage: async ({ topic, partition, message }) => {
      const found = pattern.exec(message.value.subarray(0, 200).toString())
      if (!found) { strangers++; return }
      if (!distinct.size) first = now() - start
      const place = `${topic}/${partition}`
      partitions[place] = partitions[place] || []
      partitions[place].push(Number(found[1]))
      distinct.add(Number(found[1]))
      if (distinct.size === config.count) setTimeout(finish, config.settle_s * 1000)
    },
  })
  await Promise.race([finished, sleep(config.timeout_s)])
  const result = { partitions, strangers, first_s: first, events, elapsed_s: now() - start }
  await Promise.race([consumer.disconnect(), sleep(5)])
  return result
}

async function eventually(so) {
  for (let n = 0; n < 100; n++) {
    if (await so()) return true
    await sleep(0.1)
  }
  return false
}

async function admin(config) {
  const client = connect(config).admin()
  await client.connect()
  const [topic] = config.topics
  await client.createTopics({
    waitForLeaders: false,
    topics: [{
      topic,
      numPartitions: config.partitions,
      replicationFactor: config.replication,
      configEntries: [{ name: 'retention.ms', value: '3600123' }],
    }],
  })
  const listed = await eventually(async () => (await client.listTopics()).includes(topic))
  const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['retention.ms'] }]
  let metadata, configs
  await eventually(async () => { // another broker than the one that listed the topic may not know it yet
    try {
      metadata = await client.fetchTopicMetadata({ topics: [topic] })
      configs = await client.describeConfigs({ resources, includeSynonyms: false })
    } catch (error) {
      if (error.type !== 'UNKNOWN_TOPIC_OR_PARTITION') throw error
    }
    return configs !== undefined
  })
  const cluster = await client.describeCluster()
  await client.deleteTopics({ topics: [topic] })
  const deleted = await eventually(async () => !(await client.listTopics()).includes(topic))
  await client.disconnect()
  return {
    listed,
    partitions: metadata.topics[0].partitions.length,
    retention_ms: configs.resources[0].configEntries[0].configValue,
    cluster_id: cluster.clusterId,
    controller: cluster.controller,
    brokers: cluster.brokers.map(b => ({ id: b.nodeId, host: b.host, port: b.port })),
    deleted,
  }
}

function finish(result, code) {
  const { version } = JSON.parse(fs.readFileSync(`${__dirname}/node_modules/${packages[config.client]}/package.json`))
  process.stdout.write(`${JSON.stringify({ client: config.client, version, ...result })}\n`, () => process.exit(code))
}

const config = { client: 'kafkajs', ...defaults, ...JSON.parse(process.argv[2]) }
setTimeout(() => process.exit(3), (config.timeout_s + 15) * 1000).unref()
const modes = { produce, consume, admin }
modes[config.mode](config).then(
  result => finish(result, 0),
  error => {
    process.stderr.write(`${error.stack}\n`)
    finish({ error: nameOf(error), first_error: String(error.message) }, 1)
  },
)
