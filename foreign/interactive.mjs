// Servers that ask, report, log and tell of changes, used through the gateway by the TypeScript SDKs.
//
// The order says which generation of the SDK and which era. `server-everything` is reached over stdio, HTTP+SSE and
// streamable HTTP; it speaks the legacy era only, so a modern client meets parked calls. The Python server is there in
// both eras. What is expected here was seen from the servers without a gateway in between.

import assert from 'node:assert/strict';
import { check, finish, job } from './clients/checks.mjs';
import { text } from './gateway.mjs';

const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
const ABILITIES = 'io.modelcontextprotocol/clientCapabilities';
const URL_REQUIRED = -32042;
// How many processes of a server its clients have at the most, unless it is configured.
const PROCESSES = 8;
/** All three of the one server have it, so that clients see it by server. */
const resource = (server) => `bridgehead+${server}:demo://resource/dynamic/text/1`;

/** What the client answers, and everything that it was asked or told. */
const CAPABILITIES = { sampling: {}, elicitation: { form: {}, url: {} }, roots: { listChanged: true } };
const ROOTS = [{ uri: `file:///${job.client}`, name: `of ${job.client}` }];
const asked = [];
const told = { updated: [], lines: [] };
const handlers = {
  'elicitation/create': ({ params }) => {
    asked.push(params);
    return params.mode === 'url' ? { action: 'accept' } : { action: 'accept', content: { name: 'Ada', integer: 7 } };
  },
  'sampling/createMessage': ({ params }) => {
    asked.push(params);
    const said = params.messages[0].content.text;
    return { model: 'parrot', role: 'assistant', content: { type: 'text', text: `heard: ${said}` } };
  },
  'roots/list': () => ({ roots: ROOTS }),
};
const notes = {
  'notifications/resources/updated': ({ params }) => told.updated.push(params.uri),
  'notifications/message': ({ params }) => told.lines.push(params),
};

const SDKS = { v1: first, v2: second };
const client = await SDKS[job.sdk]();
for (const { name, kind } of job.servers) {
  const call = (tool, args = {}, options = {}) => client.call({ name: `${name}__${tool}`, arguments: args }, options);
  for (const [what, body] of Object.entries(kind === 'python' ? python(call) : everything(name, call))) {
    asked.length = 0;
    await check(name, what, body);
  }
}
await check('', 'close', () => client.close());
finish();

function everything(name, call) {
  const checks = {
    elicitation: async () => {
      const answer = text(await call('trigger-elicitation-request'));
      assert.match(answer, /- Name: Ada\n- Favorite Integer: 7/);
      // Every field of the form, in the server's order.
      const fields = Object.keys(asked[0].requestedSchema.properties);
      assert.deepEqual([fields.length, fields[0], fields.at(-1)], [13, 'name', 'legacyTitledEnum']);
    },
    sampling: async () => {
      const answer = text(await call('trigger-sampling-request', { prompt: 'Grüße', maxTokens: 5 }));
      assert.match(answer, /heard: Resource trigger-sampling-request context: Grüße/);
      assert.deepEqual([asked[0].maxTokens, asked[0].temperature], [5, 0.7]);
    },
    url: async () => {
      const url = 'https://example.invalid/go';
      const answer = text(await call('trigger-url-elicitation', { url, message: 'go there' }));
      assert.match(answer, /User completed the URL elicitation flow/);
      assert.deepEqual([asked[0].mode, asked[0].url, asked[0].message], ['url', url, 'go there']);
    },
    // A server remembers the visit in the process that it was asked in; where other clients need that one, the next call
    // has another, and the client is sent there again.
    'url error': async () => {
      const visiting = async (ask, left = PROCESSES) =>
        ask().catch((error) => {
          if (error.code === URL_REQUIRED && left > 0) return visiting(ask, left - 1);
          throw error;
        });
      const given = { url: `https://example.invalid/${job.client}`, errorPath: true };
      if (job.era === 'legacy') {
        // The revision has an error that says where to go; the client goes, and calls again.
        const error = await call('trigger-url-elicitation', given).then(assert.fail, (error) => error);
        assert.equal(error.code, URL_REQUIRED);
        assert.equal(error.data.elicitations[0].url, 'https://modelcontextprotocol.io');
      }
      const answer = text(await visiting(() => call('trigger-url-elicitation', given)));
      assert.match(answer, /User completed the URL elicitation flow/);
      // A modern client is asked both by the one call that it made.
      const before = job.era === 'legacy' ? [] : ['https://modelcontextprotocol.io'];
      assert.deepEqual(asked.map(({ url }) => url), [...before, given.url]);
    },
    roots: async () => assert.match(text(await call('get-roots-list', {}, { abilities: { roots: {} } })), new RegExp(`file:///${job.client}\\b`)),
    progress: async () => {
      const seen = [];
      const onprogress = ({ progress, total }) => seen.push([progress, total]);
      await call('trigger-long-running-operation', { duration: 0.3, steps: 3 }, { onprogress });
      // The last report comes right before the answer, and this SDK may lose it then, gateway or not.
      assert.deepEqual(seen.slice(0, 2), [[1, 3], [2, 3]]);
    },
    annotations: async () => {
      const { content } = await call('get-annotated-message', { messageType: 'error', includeImage: true });
      assert.deepEqual(content[0].annotations, { priority: 1, audience: ['user', 'assistant'] });
      assert.deepEqual(content[1].annotations, { priority: 0.5, audience: ['user'] });
    },
    subscription: async () => {
      const follow = await client.follow(resource(name));
      // What a session switches on is for that session only, and the subscription is in the one that all share.
      const shared = (tool) => call(tool, {}, { abilities: {} });
      await toggled(shared, 'toggle-subscriber-updates', () => until(() => told.updated.includes(resource(name))));
      await follow.leave();
    },
    logging: async () => {
      await client.wantLines();
      told.lines.length = 0;
      const here = () => told.lines.some(({ data }) => /message/.test(data));
      await toggled(call, 'toggle-simulated-logging', () => until(here));
      assert.ok(told.lines.some(({ logger }) => logger.startsWith(name)));
    },
  };
  // Over HTTP such a line belongs to no request, and modern clients are told only what does.
  if (job.era === 'modern' && name !== 'near') delete checks.logging;
  return checks;
}

function python(call) {
  return {
    elicitation: async () => {
      assert.equal(text(await call('introduce')), 'Hello Ada');
      assert.equal(asked[0].message, 'What is your name?');
    },
    sampling: async () => assert.equal(text(await call('consult', { question: 'why?' })), 'heard: why?'),
    roots: async () => assert.equal(text(await call('places', {}, { abilities: { roots: {} } })), `file:///${job.client}`),
    progress: async () => {
      const seen = [];
      const onprogress = ({ progress, message }) => seen.push([progress, message]);
      assert.equal(text(await call('count', { steps: 3 }, { onprogress })), 'counted');
      assert.deepEqual(seen.slice(0, 2), [[1, 'step 1'], [2, 'step 2']]);
    },
  };
}

/** Switches something on, however it stood, waits for what comes of it, and switches it off. */
async function toggled(call, tool, body) {
  if (!/^Started/.test(text(await call(tool)))) await call(tool);
  try {
    await body();
  } finally {
    await call(tool);
  }
}

async function until(holds) {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 10));
}

/** The TypeScript SDK of the first generation: legacy only. */
async function first() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
  const types = await import('@modelcontextprotocol/sdk/types.js');
  const sdk = new Client({ name: 'interactive-v1', version: '1' }, { capabilities: CAPABILITIES });
  sdk.setRequestHandler(types.ElicitRequestSchema, handlers['elicitation/create']);
  sdk.setRequestHandler(types.CreateMessageRequestSchema, handlers['sampling/createMessage']);
  sdk.setRequestHandler(types.ListRootsRequestSchema, handlers['roots/list']);
  sdk.setNotificationHandler(types.ResourceUpdatedNotificationSchema, notes['notifications/resources/updated']);
  sdk.setNotificationHandler(types.LoggingMessageNotificationSchema, notes['notifications/message']);
  await check('', 'connect', () => sdk.connect(transport(StdioClientTransport, StreamableHTTPClientTransport)));
  return {
    call: (params, options) => sdk.callTool(params, undefined, options),
    ...legacy(sdk),
    close: () => sdk.close(),
  };
}

/** That of the second, in either era. */
async function second() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
  const mode = job.era === 'modern' ? { pin: '2026-07-28' } : 'legacy';
  const options = { capabilities: CAPABILITIES, versionNegotiation: { mode } };
  const sdk = new Client({ name: 'interactive-v2', version: '1' }, options);
  for (const [method, answer] of Object.entries(handlers)) sdk.setRequestHandler(method, answer);
  for (const [method, take] of Object.entries(notes)) sdk.setNotificationHandler(method, take);
  await check('', 'connect', () => sdk.connect(transport(StdioClientTransport, StreamableHTTPClientTransport)));
  if (job.era === 'legacy') {
    return { call: (params, options) => sdk.callTool(params, options), ...legacy(sdk), close: () => sdk.close() };
  }
  // Who has roots has a server that asks for them for one call only. Each request says by itself what it has.
  const { roots, ...rootless } = CAPABILITIES;
  let meta = { [ABILITIES]: rootless };
  return {
    call: (params, { abilities, ...options }) =>
      sdk.callTool({ ...params, _meta: abilities ? { ...meta, [ABILITIES]: abilities } : meta }, options),
    follow: async (uri) => {
      const listening = await sdk.listen({ resourceSubscriptions: [uri] });
      assert.deepEqual(listening.honoredFilter.resourceSubscriptions, [uri]);
      return { leave: () => listening.close() };
    },
    wantLines: async () => (meta = { ...meta, [LOG_LEVEL]: 'debug' }),
    close: () => sdk.close(),
  };
}

function legacy(sdk) {
  return {
    follow: async (uri) => {
      await sdk.subscribeResource({ uri });
      return { leave: () => sdk.unsubscribeResource({ uri }) };
    },
    wantLines: () => sdk.setLoggingLevel('debug'),
  };
}

function transport(Stdio, Http) {
  return job.transport === 'stdio'
    ? new Stdio({ command: job.command, args: job.args, env: job.env })
    : new Http(new URL(job.url));
}
