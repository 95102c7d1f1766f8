// Calls foreign servers that the gateway reaches by their address, as a client of one era.
//
// `cargo xtask foreign` starts them and writes the gateway's configuration: each server twice, once with its `type`
// and once without, where the gateway has to find out what is spoken there. What is expected here was seen from the
// servers without a gateway in between.

import assert from 'node:assert/strict';
import { SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { check, finish, job } from './clients/checks.mjs';
import { able, connect, prefixed, ready, text } from './gateway.mjs';

async function everything(call) {
  assert.equal(text(await call('echo', { message: 'Grüße, 世界' })), 'Echo: Grüße, 世界');
  const weather = await call('get-structured-content', { location: 'Chicago' });
  assert.equal(typeof weather.structuredContent.temperature, 'number');
  const seen = [];
  const onprogress = (report) => seen.push(report.progress);
  await call('trigger-long-running-operation', { duration: 0.3, steps: 3 }, { onprogress });
  // The last report comes right before the answer, and this SDK may lose it then, gateway or not.
  assert.deepEqual(seen.slice(0, 2), [1, 2]);
}

/** A tool to call many times at once, its arguments and its answer by number. */
const ECHO = ['echo', (number) => ({ message: `${number}` }), (number) => `Echo: ${number}`];
const SIMPLE = 'This is a simple text response for testing.';

/** What each server speaks, what proves that a call went there and back, and what does not fit its schema. */
const KINDS = {
  sse: { speaks: ['sse', '2025-11-25'], calls: everything, many: ECHO, wrong: ['echo', { message: 5 }] },
  streamable: { speaks: ['http', '2025-11-25'], calls: everything, many: ECHO, wrong: ['echo', { message: 5 }] },
  python: {
    speaks: ['http', '2026-07-28'],
    calls: async (call) => {
      assert.equal(text(await call('echo', { message: 'Grüße, 世界' })), 'Echo: Grüße, 世界');
      assert.deepEqual((await call('add', { a: 2, b: 40 })).structuredContent, { sum: 42 });
      assert.equal(text(await call('count', { steps: 3 }, { onprogress: () => {} })), 'counted');
      const failed = await call('fail', {});
      assert.equal(failed.isError, true);
      assert.match(text(failed), /not today/);
    },
    many: ECHO,
    wrong: ['add', { a: 'two' }],
  },
  rmcp: {
    speaks: ['http', '2026-07-28'],
    calls: async (call) => {
      assert.equal(text(await call('test_simple_text', {})), SIMPLE);
      const image = await call('test_image_content', {});
      assert.ok(image.content.some((block) => block.type === 'image'));
      assert.equal((await call('test_error_handling', {})).isError, true);
      assert.notEqual((await call('test_tool_with_progress', {}, { onprogress: () => {} })).isError, true);
    },
    many: ['test_simple_text', () => ({}), () => SIMPLE],
    wrong: ['json_schema_2020_12_tool', { name: 7 }],
  },
};

const names = job.servers.map(({ name }) => name);
const client = await connect();
const listed = await ready(client, names);
const { upstreams } = (await client.callTool({ name: 'server_health', arguments: {} })).structuredContent.data;
const direct = Object.fromEntries(await Promise.all(job.direct.map(listDirectly)));
for (const { name, kind } of job.servers) {
  const { speaks, calls, many, wrong } = KINDS[kind];
  const call = (tool, args, options) => client.callTool({ name: `${name}__${tool}`, arguments: args }, options);
  await check(name, 'found', async () => {
    const { transport, revision } = upstreams.find((upstream) => upstream.name === name);
    assert.deepEqual([transport, revision], speaks);
    return `${transport}, ${revision}`;
  });
  await check(name, 'as direct', async () => {
    const tools = listed.filter((tool) => tool.name.startsWith(`${name}__`));
    assert.deepEqual(tools, prefixed(name, direct[kind]));
    return `${tools.length} tools`;
  });
  await check(name, 'call', () => calls(call));
  await check(name, 'parallel', async () => {
    const [tool, args, answer] = many;
    const numbers = [...Array(20).keys()];
    const answers = await Promise.all(numbers.map(async (number) => text(await call(tool, args(number)))));
    assert.deepEqual(answers, numbers.map(answer));
  });
  await check(name, 'arguments', async () => {
    const result = await call(...wrong);
    assert.equal(result.isError, true);
    assert.equal(JSON.parse(text(result)).error.code, 'INVALID_PARAMS');
  });
}
await check('', 'close', () => client.close());
finish();

/** What a server lists when nothing stands between it and the client. */
async function listDirectly({ kind, url }) {
  const alone = able({ mode: 'auto' });
  const Transport = kind === 'sse' ? SSEClientTransport : StreamableHTTPClientTransport;
  await alone.connect(new Transport(new URL(url)));
  const { tools } = await alone.listTools();
  await alone.close();
  return [kind, tools];
}
