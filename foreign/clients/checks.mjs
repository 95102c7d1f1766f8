// The checks that every JavaScript client makes, whatever SDK it is built on.
//
// A driver gives `run` a way to connect; this module decides what is asked for and what the answer must be, and
// prints one line of JSON per check: {"upstream", "check", "ok", "detail"}. Starting the gateway for HTTP, the mock
// servers behind it and the table of outcomes belong to `cargo xtask foreign`.

import assert from 'node:assert/strict';

/** What the mock servers behind the gateway offer; `xtask/src/foreign/clients.rs` makes them. */
const TOOLS = ['echo', 'slow', 'hang', 'fail', 'refuse', 'cancelled', 'grow'];
const UPSTREAMS = ['old', 'new'];
const REVISIONS = { legacy: '2025-11-25', modern: '2026-07-28' };
const PATIENCE_MS = 60000;
/** Both SDKs signal a stdio server that is still there two seconds after its input was closed. */
const POLITE_CLOSE_MS = 1900;

/** The order of the driver's caller: which transport, which era, where the gateway is. */
export const job = JSON.parse(process.argv[2]);

let failed = false;

/** Runs one check, which has so many milliseconds, and prints its outcome. */
export async function check(upstream, name, body, patience = PATIENCE_MS) {
  let line = { upstream, check: name, ok: true };
  try {
    const detail = await withPatience(body(), patience);
    if (detail) line.detail = String(detail);
  } catch (error) {
    failed = true;
    line = { ...line, ok: false, detail: String(error?.stack ?? error) };
  }
  console.log(JSON.stringify(line));
  return line.ok;
}

/**
 * All checks against one gateway. `connect` gives
 * {version, list(), call(name, args, {onprogress, signal}), code(error), data(error), close()}; `connect` calls what it
 * is given whenever the client is told that the list of tools has changed.
 */
export async function run(connect) {
  if (job.cold) return cold(connect);
  let client;
  const changes = { seen: 0 };
  const connected = await check('', 'connect', async () => {
    client = await connect(() => (changes.seen += 1));
    assert.equal(client.version, REVISIONS[job.era]);
    return client.version;
  });
  if (connected) {
    await check('', 'list', () => list(client));
    for (const upstream of UPSTREAMS) {
      const call = (tool, args = {}, options = {}) => client.call(`${upstream}__${tool}`, args, options);
      await check(upstream, 'call', () => echo(call));
      await check(upstream, 'parallel', () => parallel(call));
      await check(upstream, 'progress', () => progress(call));
      await check(upstream, 'cancel', () => cancel(call));
      await check(upstream, 'tool error', () => toolError(call));
      await check(upstream, 'server error', () => serverError(client, call));
      await check(upstream, 'arguments', () => wrongArguments(call));
      await check(upstream, 'unknown tool', () => unknownTool(client, call));
      await check(upstream, 'change', () => change(client, call, upstream, changes));
    }
    await check('', 'close', () => close(client));
  }
  finish();
}

/** Instead of everything else: one list right after the connection, as of a client that never asks again, and a call. */
async function cold(connect) {
  const { start, servers, within_ms } = job.cold;
  const started = Date.now();
  let client;
  await check('', start, async () => {
    client = await connect(() => {});
    const tools = await client.list();
    const took = Date.now() - started;
    for (const [server, expected] of Object.entries(servers)) {
      const own = tools.filter((tool) => tool.name.startsWith(`${server}__`)).length;
      assert.equal(own, expected, `tools of ${server} after ${took} ms`);
    }
    assert.ok(took < within_ms, `it took ${took} ms`);
    return `${tools.length} tools after ${took} ms`;
  });
  if (client) {
    await check('', `${start}: call`, async () => {
      const thought = { thought: 'slowly', thoughtNumber: 1, totalThoughts: 1, nextThoughtNeeded: false };
      const result = await client.call('slow__sequentialthinking', thought);
      assert.ok(!result.isError, JSON.stringify(result));
    });
    await check('', `${start}: close`, () => close(client));
  }
  finish();
}

/** Ends the driver, also when something that failed still holds on to it. */
export function finish() {
  process.exit(failed ? 1 : 0);
}

async function list(client) {
  const tools = await client.list();
  const names = tools.map((tool) => tool.name).filter((name) => name.includes('__'));
  assert.deepEqual(names, UPSTREAMS.flatMap((upstream) => TOOLS.map((tool) => `${upstream}__${tool}`)));
  const schema = tools.find((tool) => tool.name === 'new__echo').inputSchema;
  assert.deepEqual(schema.required, ['text']);
  return `${tools.length} tools`;
}

async function echo(call) {
  const given = { text: 'Grüße, 世界 🦀', nested: { list: [1, 2.5, null, true], empty: {} } };
  const result = await call('echo', given);
  assert.ok(!result.isError);
  assert.deepEqual(JSON.parse(result.content[0].text), given);
  assert.deepEqual(result.structuredContent, given);
}

async function parallel(call) {
  const texts = Array.from({ length: 20 }, (_, index) => `call ${index}`);
  const results = await Promise.all(texts.map((text) => call('echo', { text })));
  assert.deepEqual(results.map((result) => result.structuredContent.text), texts);
}

async function progress(call) {
  const seen = [];
  const result = await call('slow', {}, { onprogress: (report) => seen.push(report) });
  // A copy, so that nothing that comes after the answer can still count.
  const before = [...seen];
  assert.equal(result.content[0].text, 'done');
  assert.deepEqual(before.map((report) => report.progress), [1, 2, 3]);
  assert.deepEqual(before.map((report) => report.total), [3, 3, 3]);
  assert.equal(before[0].message, 'step 1');
}

async function cancel(call) {
  const count = async () => (await call('cancelled')).structuredContent.cancelled.length;
  const before = await count();
  const controller = new AbortController();
  const call_that_hangs = call('hang', {}, { signal: controller.signal, onprogress: () => controller.abort('enough') });
  await assert.rejects(call_that_hangs);
  await until(async () => (await count()) === before + 1, 'the server was not told of the cancellation');
}

async function toolError(call) {
  const result = await call('fail');
  assert.equal(result.isError, true);
  assert.equal(result.content[0].text, 'the tool failed');
}

async function serverError(client, call) {
  const error = await rejection(call('refuse'));
  assert.equal(client.code(error), 1234);
  assert.match(error.message, /not today/);
  assert.deepEqual(client.data(error), { reason: 'a rule of the server' });
}

async function wrongArguments(call) {
  const result = await call('echo', { text: 7 });
  assert.equal(result.isError, true);
  const { error } = JSON.parse(result.content[0].text);
  assert.equal(error.code, 'INVALID_PARAMS');
  assert.equal(error.details.issues[0].path, '/text');
}

async function unknownTool(client, call) {
  const error = await rejection(call('nothing'));
  assert.equal(client.code(error), -32602);
  assert.match(error.message, /nothing/);
}

async function change(client, call, upstream, changes) {
  const before = changes.seen;
  await call('grow');
  await until(() => changes.seen > before, 'the client was not told of the change');
  const names = async () => (await client.list()).map((tool) => tool.name);
  await until(async () => (await names()).includes(`${upstream}__grown`), 'the new tool is not listed');
}

async function close(client) {
  const started = Date.now();
  await client.close();
  const took = Date.now() - started;
  if (job.transport === 'stdio') assert.ok(took < POLITE_CLOSE_MS, `the gateway had to be signalled (${took} ms)`);
  return `${took} ms`;
}

async function until(holds, complaint) {
  const deadline = Date.now() + PATIENCE_MS - 1000;
  while (!(await holds())) {
    assert.ok(Date.now() < deadline, complaint);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function rejection(promise) {
  const result = await promise.then(
    (value) => ({ value }),
    (error) => ({ error }),
  );
  assert.ok(result.error, `an answer where an error was due: ${JSON.stringify(result.value)}`);
  return result.error;
}

function withPatience(promise, patience) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no outcome within ${patience} ms`)), patience);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
