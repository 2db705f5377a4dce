// What test_client_libraries asks of every library, with nsqjs (node).

const crypto = require('crypto')
const fs = require('fs')
const {Reader, Writer} = require('nsqjs')

const TIMEOUT_MS = 20000
const task = JSON.parse(fs.readFileSync(0))
const [host, port] = task.address.split(':')
const options = {heartbeatInterval: 5}
if (task.ca_file) Object.assign(options, {tls: true, tlsVerification: true, ca: fs.readFileSync(task.ca_file)})
if (task.compression) options[task.compression] = true
if (task.secret) options.authSecret = task.secret

const once = (emitter, event) => new Promise(resolve => emitter.once(event, resolve))

const publish = (writer, verb, ...parameters) =>
  new Promise((resolve, reject) =>
    writer[verb](task.topic, ...parameters, error => (error ? reject(error) : resolve('OK')))
  )

async function main() {
  const writer = new Writer(host, Number(port), options)
  writer.on('error', fail)
  writer.connect()
  await once(writer, Writer.READY)
  const replies = [
    await publish(writer, 'publish', 'one'),
    await publish(writer, 'publish', ['two', 'three']),
    await publish(writer, 'publish', task.big),
  ]

  const received = []
  const readerOptions = {...options, nsqdTCPAddresses: [task.address], maxInFlight: 5}
  const reader = new Reader(task.topic, 'ch', readerOptions)
  reader.on('error', fail)
  const later = new Promise(resolve =>
    reader.on(Reader.MESSAGE, message => {
      const text = message.body.toString()
      const shown = text.length > 100 ? crypto.createHash('sha256').update(text).digest('hex') : text
      received.push([shown, message.attempts])
      if (text === 'one' && message.attempts === 1) {
        message.touch()
        message.requeue(0, false)
      } else {
        message.finish()
      }
      if (text === 'later') resolve(Date.now())
    })
  )
  reader.connect()
  await once(reader, Reader.NSQD_CONNECTED)
  const started = Date.now()
  replies.push(await publish(writer, 'deferPublish', ['later'], task.delay_ms))
  const later_s = ((await later) - started) / 1000
  await new Promise(resolve => setTimeout(resolve, 100)) // for the FIN to be sent
  process.stdout.write(JSON.stringify({replies, received, later_s}), () => process.exit(0))
}

function fail(error) {
  console.error(error)
  process.exit(1)
}

setTimeout(() => fail(new Error('timeout')), TIMEOUT_MS)
main().catch(fail)
