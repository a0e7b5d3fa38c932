// What moves in a job, from a position that survives us, with the plain NATS client:
//   npm install @nats-io/transport-node@3 @nats-io/jetstream@3
//   node subscribe.mjs 127.0.0.1:4222 JOB POSITION
// On a secured bus POSITION is the subscriber's name; its key is in TRAINMOVER_NATS_NKEY, and the
// authority's certificate in TRAINMOVER_NATS_CA where the bus encrypts.
import { readFileSync } from "node:fs";
import { connect, nkeyAuthenticator } from "@nats-io/transport-node";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";

const [servers, job, position] = process.argv.slice(2);
const { TRAINMOVER_NATS_NKEY: key, TRAINMOVER_NATS_CA: ca } = process.env;
const connection = await connect({
  servers,
  inboxPrefix: `_INBOX.subscriber-${position}`,
  authenticator: key && nkeyAuthenticator(new TextEncoder().encode(readFileSync(key, "utf8").trim())),
  tls: ca ? { caFile: ca } : undefined,
});

const name = `facts:${job}:${position}`;
const manager = await jetstreamManager(connection, { checkAPI: false });
await manager.consumers.add("TM_EVENTS", {
  name,
  durable_name: name,
  ack_policy: AckPolicy.Explicit,
  filter_subject: `tm.v1.${job}.migration.*`,
});
const facts = await jetstream(connection, { checkAPI: false }).consumers.get("TM_EVENTS", name);
for await (const fact of await facts.consume({ max_messages: 10 })) {
  console.log(fact.headers?.get("ce-time"), fact.headers?.get("ce-type"), fact.string());
  fact.ack();
}
