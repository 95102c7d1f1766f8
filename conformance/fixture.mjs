// A second conformance fixture, on the TypeScript SDK: the same tools, prompts and resources as `crates/fixture` has on
// the Rust SDK, so that the gateway is judged with servers of two makers.
//
//   node fixture.mjs --stdio|--http [--era=both|legacy|modern]
//
// Over HTTP it takes a free port of loopback and prints its address as the only line. What a tool asks its client it
// asks in the manner of 2026-07-28; for older clients the SDK makes requests of it during the call.

import { createHmac, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { Readable } from 'node:stream';
import {
  createMcpHandler, inputRequired, isLegacyRequest, ProtocolError, ResourceNotFoundError, Server,
  WebStandardStreamableHTTPServerTransport,
} from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';

const era = process.argv.find((given) => given.startsWith('--era='))?.slice(6) ?? 'both';
const stdio = process.argv.includes('--stdio');
const INVALID_PARAMS = -32602;
const CAPABILITIES = 'io.modelcontextprotocol/clientCapabilities';
const HEADER_MISMATCH = -32020;
const MISSING_CAPABILITY = -32021;
const STEP_MS = 50;
const PICTURE =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const SOUND = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=';

// What all connections of the process have in common: whether the entries that come and go are there, and who is told.
const present = { tools: false, prompts: false };
const listeners = new Set();

/* What is listed. The first tool takes no arguments, because the suite calls it that way. */

const OBJECT = { type: 'object', properties: {} };
const plain = (name, description, inputSchema = OBJECT) => ({ name, description, inputSchema });
const withString = (name, description, property) =>
  plain(name, description, { type: 'object', properties: { [property]: { type: 'string' } }, required: [property] });

const TOOLS = [
  plain('test_simple_text', 'Answers with one line of text'),
  plain('test_image_content', 'Answers with a picture'),
  plain('test_audio_content', 'Answers with a sound'),
  plain('test_embedded_resource', 'Answers with an embedded resource'),
  plain('test_multiple_content_types', 'Answers with text, a picture and a resource'),
  plain('test_error_handling', 'Fails, as a tool fails'),
  plain('test_tool_with_progress', 'Reports progress three times'),
  plain('test_tool_with_logging', 'Logs three messages'),
  plain('test_logging_tool', 'Logs, if the caller wants to hear of it'),
  plain('test_reconnection', 'Closes its own stream before it answers'),
  withString('test_sampling', "Asks the client's model", 'prompt'),
  withString('test_elicitation', 'Asks the user for a name and an address', 'message'),
  plain('test_elicitation_sep1034_defaults', 'Asks the user with values filled in'),
  plain('test_elicitation_sep1330_enums', 'Asks the user to choose in five ways'),
  plain('test_missing_capability', 'Needs a client that can sample'),
  plain('test_streaming_elicitation', 'Asks the user while its answer is a stream'),
  plain('test_trigger_tool_change', 'Adds a tool to the list, or takes it away again'),
  plain('test_trigger_prompt_change', 'Adds a prompt to the list, or takes it away again'),
  plain('test_input_required_result_elicitation', 'Asks the user for a name'),
  plain('test_input_required_result_sampling', "Asks the client's model for a capital"),
  plain('test_input_required_result_list_roots', 'Asks the client for its roots'),
  plain('test_input_required_result_request_state', 'Asks the user and keeps a state'),
  plain('test_input_required_result_multiple_inputs', 'Asks for three things at once'),
  plain('test_input_required_result_multi_round', 'Asks twice, one after the other'),
  plain('test_input_required_result_tampered_state', 'Asks and refuses a state that is not its own'),
  plain('test_input_required_result_capabilities', 'Asks for whatever the client can answer'),
  plain('test_mirrored_header', 'Takes a value that is repeated in a header', {
    type: 'object',
    properties: { region: { type: 'string', 'x-mcp-header': 'Region' } },
    required: ['region'],
  }),
  plain('json_schema_2020_12_tool', 'Has an input schema with the keywords of JSON Schema 2020-12', {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    $defs: {
      address: {
        $anchor: 'addressDef',
        type: 'object',
        properties: { street: { type: 'string' }, city: { type: 'string' } },
      },
    },
    properties: {
      name: { type: 'string' },
      address: { $ref: '#/$defs/address' },
      contactMethod: { type: 'string', enum: ['phone', 'email'] },
      phone: { type: 'string' },
      email: { type: 'string' },
    },
    allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
    if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
    then: { required: ['phone'] },
    else: { required: ['email'] },
    additionalProperties: false,
  }),
];
const CHANGING_TOOL = plain('test_changing_tool', 'Comes and goes');

const argument = (name, description) => ({ name, description, required: true });
const PROMPTS = [
  { name: 'test_simple_prompt', description: 'One fixed message' },
  {
    name: 'test_prompt_with_arguments',
    description: 'A message made from two arguments',
    arguments: [argument('arg1', 'The first'), argument('arg2', 'The second')],
  },
  {
    name: 'test_prompt_with_embedded_resource',
    description: 'A message that carries a resource',
    arguments: [argument('resourceUri', "The resource's URI")],
  },
  { name: 'test_prompt_with_image', description: 'A message that carries a picture' },
  { name: 'test_input_required_result_prompt', description: 'Asks the user before it answers' },
];
const CHANGING_PROMPT = { name: 'test_changing_prompt', description: 'Comes and goes' };

const RESOURCES = [
  { uri: 'test://static-text', name: 'Text', description: 'A fixed text', mimeType: 'text/plain' },
  { uri: 'test://static-binary', name: 'Picture', description: 'A fixed picture', mimeType: 'image/png' },
  { uri: 'test://watched-resource', name: 'Watched', description: 'Can be subscribed to', mimeType: 'text/plain' },
];
const TEMPLATES = [
  {
    uriTemplate: 'test://template/{id}/data',
    name: 'Data by id',
    description: 'A record for every id',
    mimeType: 'application/json',
  },
];

/* What is said. */

const text = (words) => ({ content: [{ type: 'text', text: words }] });
const picture = { type: 'image', data: PICTURE, mimeType: 'image/png' };
const embedded = (uri, mimeType, words) => ({ type: 'resource', resource: { uri, mimeType, text: words } });
const pause = () => new Promise((resolve) => setTimeout(resolve, STEP_MS));

const form = (message, properties, required = Object.keys(properties)) =>
  inputRequired.elicit({ message, requestedSchema: { type: 'object', properties, required } });
const name = (message) => form(message, { name: { type: 'string' } });
const sampling = (prompt, maxTokens) =>
  inputRequired.createMessage({ messages: [{ role: 'user', content: { type: 'text', text: prompt } }], maxTokens });
const roots = () => inputRequired.listRoots();
const titled = (noun) =>
  ['First', 'Second', 'Third'].map((which, at) => ({ const: `value${at + 1}`, title: `${which} ${noun}` }));

const CAPABILITY = {
  'elicitation/create': 'elicitation',
  'sampling/createMessage': 'sampling',
  'roots/list': 'roots',
};
/** The member without which an answer is none. */
const MEMBER = { 'elicitation/create': 'action', 'sampling/createMessage': 'content', 'roots/list': 'roots' };

/** Refuses a client that cannot be asked this. */
function demand(client, questions) {
  for (const { method } of Object.values(questions)) {
    const capability = CAPABILITY[method];
    if (client.capabilities[capability]) continue;
    const words = `the client did not declare \`${capability}\``;
    if (!client.modern) throw new ProtocolError(INVALID_PARAMS, words);
    throw new ProtocolError(MISSING_CAPABILITY, words, { requiredCapabilities: { [capability]: {} } });
  }
}

/** Parts questions into answers and what is still to be asked; answers to other questions are ignored. */
function answered(client, questions) {
  const [answers, missing] = [{}, {}];
  for (const [key, question] of Object.entries(questions)) {
    const answer = client.responses[key];
    if (answer === undefined) missing[key] = question;
    else if (answer?.[MEMBER[question.method]] === undefined) {
      throw new ProtocolError(INVALID_PARAMS, `inputResponses.${key} does not answer its question`);
    } else answers[key] = answer;
  }
  return { answers, missing: Object.keys(missing).length > 0 ? missing : undefined };
}

/** Asks without keeping anything: the answers alone are enough to go on. */
function ask(client, questions, go_on) {
  demand(client, questions);
  const { answers, missing } = answered(client, questions);
  return missing ? inputRequired({ inputRequests: missing }) : go_on(answers);
}

/** Asks round after round, and has the client carry what was answered before. */
function askInRounds(client, subject, rounds, go_on) {
  const state = client.state === undefined ? { round: 0, answers: {} } : unseal(subject, client.state);
  const questions = rounds[state.round];
  demand(client, questions);
  const pending = (round, answers, inputRequests) =>
    inputRequired({ inputRequests, requestState: seal({ subject, round, answers }) });
  if (client.state === undefined) return pending(0, {}, questions);
  const { answers, missing } = answered(client, questions);
  if (missing) return pending(state.round, state.answers, missing);
  const all = { ...state.answers, ...answers };
  return state.round + 1 < rounds.length ? pending(state.round + 1, all, rounds[state.round + 1]) : go_on(all);
}

// Known to everyone who reads this: the fixture keeps no secrets.
const sign = (body) => createHmac('sha256', 'conformance fixture').update(body).digest('base64url');

function seal(state) {
  const body = Buffer.from(JSON.stringify(state)).toString('base64url');
  return `${body}.${sign(body)}`;
}

function unseal(subject, sealed) {
  const [body, signature] = String(sealed).split('.');
  const state = signature === sign(body) ? JSON.parse(Buffer.from(body, 'base64url').toString()) : undefined;
  if (state?.subject !== subject) throw new ProtocolError(INVALID_PARAMS, 'invalid or expired requestState');
  return state;
}

/* What each tool does. */

const given = (answer, field) => answer?.content?.[field] ?? 'nobody';
const chosen = ({ form }) => text(`Elicitation completed: action=${form.action}, content=${JSON.stringify(form.content)}`);

async function logs(client) {
  for (const message of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
    await client.log('info', message);
    await pause();
  }
  return text('Three messages were logged.');
}

const CALLS = {
  test_simple_text: () => text('This is a simple text response for testing.'),
  test_image_content: () => ({ content: [picture] }),
  test_audio_content: () => ({ content: [{ type: 'audio', data: SOUND, mimeType: 'audio/wav' }] }),
  test_embedded_resource: () => ({
    content: [embedded('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')],
  }),
  test_multiple_content_types: () => ({
    content: [
      { type: 'text', text: 'Multiple content types test:' },
      picture,
      embedded('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
    ],
  }),
  test_error_handling: () => ({ ...text('This tool intentionally returns an error for testing'), isError: true }),
  test_tool_with_progress: async (_, client) => {
    for (const progress of [0, 50, 100]) {
      await client.progress({ progress, total: 100 });
      await pause();
    }
    return text('Progress was reported three times.');
  },
  test_tool_with_logging: (_, client) => logs(client),
  test_logging_tool: (_, client) => logs(client),
  test_reconnection: async (_, client) => {
    client.closeStream();
    await pause();
    return text('The answer came after the stream was closed.');
  },
  test_sampling: ({ prompt }, client) =>
    ask(client, { sampling: sampling(prompt, 100) }, ({ sampling }) =>
      text(`LLM response: ${JSON.stringify(sampling.content)}`)),
  test_elicitation: ({ message }, client) => {
    const username = { type: 'string', description: "User's response" };
    const email = { type: 'string', description: "User's email address" };
    return ask(client, { elicitation: form(message, { username, email }) }, ({ elicitation }) =>
      text(`User response: ${JSON.stringify(elicitation)}`));
  },
  test_elicitation_sep1034_defaults: (_, client) => {
    const fields = {
      name: { type: 'string', default: 'John Doe' },
      age: { type: 'integer', default: 30 },
      score: { type: 'number', default: 95.5 },
      status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
      verified: { type: 'boolean', default: true },
    };
    return ask(client, { form: form('Please look at these values', fields, []) }, chosen);
  },
  test_elicitation_sep1330_enums: (_, client) => {
    const options = ['option1', 'option2', 'option3'];
    const fields = {
      untitledSingle: { type: 'string', enum: options },
      titledSingle: { type: 'string', oneOf: titled('Option') },
      legacyEnum: {
        type: 'string',
        enum: ['opt1', 'opt2', 'opt3'],
        enumNames: ['Option One', 'Option Two', 'Option Three'],
      },
      untitledMulti: { type: 'array', items: { type: 'string', enum: options } },
      titledMulti: { type: 'array', items: { anyOf: titled('Choice') } },
    };
    return ask(client, { form: form('Please look at these values', fields, []) }, chosen);
  },
  test_missing_capability: (_, client) =>
    ask(client, { sampling: sampling('Are you there?', 10) }, () => text('The client can sample.')),
  test_streaming_elicitation: (_, client) => greet(client),
  test_input_required_result_elicitation: (_, client) => greet(client),
  test_input_required_result_sampling: (_, client) =>
    ask(client, { capital_question: sampling('What is the capital of France?', 100) }, (answers) =>
      text(`The model says: ${JSON.stringify(answers.capital_question.content)}`)),
  test_input_required_result_list_roots: (_, client) =>
    ask(client, { client_roots: roots() }, (answers) =>
      text(`The client's roots: ${JSON.stringify(answers.client_roots.roots)}`)),
  test_input_required_result_request_state: (_, client) => confirm(client, 'request_state'),
  test_input_required_result_tampered_state: (_, client) => confirm(client, 'tampered_state'),
  test_input_required_result_multiple_inputs: (_, client) => {
    const questions = {
      user_name: name('What is your name?'),
      greeting: sampling('Generate a greeting', 50),
      client_roots: roots(),
    };
    return askInRounds(client, 'multiple_inputs', [questions], (answers) =>
      text(`${Object.keys(answers).length} answers from ${given(answers.user_name, 'name')}`));
  },
  test_input_required_result_multi_round: (_, client) => {
    const color = form('Step 2: What is your favorite color?', { color: { type: 'string' } });
    const rounds = [{ step1: name('Step 1: What is your name?') }, { step2: color }];
    return askInRounds(client, 'multi_round', rounds, ({ step1, step2 }) =>
      text(`${given(step1, 'name')} likes ${given(step2, 'color')}`));
  },
  test_input_required_result_capabilities: (_, client) => {
    const all = {
      user_name: name('What is your name?'),
      greeting: sampling('Generate a greeting', 50),
      client_roots: roots(),
    };
    const able = Object.entries(all).filter(([, { method }]) => client.capabilities[CAPABILITY[method]]);
    return ask(client, Object.fromEntries(able), (answers) => text(`${Object.keys(answers).length} answers`));
  },
  test_trigger_tool_change: (_, client) => change(client, 'tools'),
  test_trigger_prompt_change: (_, client) => change(client, 'prompts'),
  test_mirrored_header: ({ region }) => text(`The region is ${region}.`),
  json_schema_2020_12_tool: (args) => text(`Given: ${JSON.stringify(args)}`),
  test_changing_tool: () => text('This tool does nothing.'),
};

function greet(client) {
  return ask(client, { user_name: name('What is your name?') }, ({ user_name }) =>
    text(`Hello, ${given(user_name, 'name')}!`));
}

function confirm(client, subject) {
  const question = form('Please confirm', { ok: { type: 'boolean' } });
  return askInRounds(client, subject, [{ confirm: question }], () => text('state-ok'));
}

function change(client, list) {
  present[list] = !present[list];
  client.changed(list);
  return text(`The list of ${list} has changed.`);
}

/** The refusal of a call whose headers do not repeat the argument that they are to repeat. */
function unmirrored({ id, method, params }, headers) {
  if (method !== 'tools/call' || params?.name !== 'test_mirrored_header') return undefined;
  const region = params.arguments?.region ?? undefined;
  const sent = headers.get('mcp-param-region');
  const encoded = /^=\?base64\?(.*)\?=$/.exec(sent ?? '')?.[1];
  const bytes = encoded === undefined ? undefined : Buffer.from(encoded, 'base64');
  const isSound = bytes === undefined || bytes.toString('base64') === encoded;
  const value = bytes === undefined ? sent?.trim() : bytes.toString();
  if (isSound && value === region) return undefined;
  const error = { code: HEADER_MISMATCH, message: '`Mcp-Param-Region` differs from the body' };
  return Response.json({ jsonrpc: '2.0', id, error }, { status: 400 });
}

/* Prompts and resources. */

const message = (content) => ({ role: 'user', content });
const words = (text) => message({ type: 'text', text });

function prompt(called, args, client) {
  const argument = (name) => {
    if (typeof args[name] === 'string') return args[name];
    throw new ProtocolError(INVALID_PARAMS, `argument \`${name}\` is missing`);
  };
  switch (called) {
    case 'test_simple_prompt':
    case 'test_changing_prompt':
      return { messages: [words('This is a simple prompt for testing.')] };
    case 'test_prompt_with_arguments':
      return {
        messages: [words(`Prompt with arguments: arg1='${argument('arg1')}', arg2='${argument('arg2')}'`)],
      };
    case 'test_prompt_with_embedded_resource':
      return {
        messages: [
          message(embedded(argument('resourceUri'), 'text/plain', 'Embedded resource content for testing.')),
          words('Please process the embedded resource above.'),
        ],
      };
    case 'test_prompt_with_image':
      return { messages: [message(picture), words('Please analyze the image above.')] };
    case 'test_input_required_result_prompt': {
      const question = form('What context should the prompt use?', { context: { type: 'string' } });
      return ask(client, { user_context: question }, ({ user_context }) => ({
        messages: [words(`Context: ${given(user_context, 'context')}`)],
      }));
    }
    default:
      throw new ProtocolError(INVALID_PARAMS, `unknown prompt \`${called}\``);
  }
}

function contents(uri) {
  const id = /^test:\/\/template\/(.*)\/data$/.exec(uri)?.[1];
  if (id !== undefined) {
    const record = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
    return { uri, mimeType: 'application/json', text: record };
  }
  switch (uri) {
    case 'test://static-text':
      return { uri, mimeType: 'text/plain', text: 'This is the content of the static text resource.' };
    case 'test://static-binary':
      return { uri, mimeType: 'image/png', blob: PICTURE };
    case 'test://watched-resource':
      return { uri, mimeType: 'text/plain', text: 'Watched.' };
    default:
      throw new ResourceNotFoundError(uri);
  }
}

/* The server. */

/** What a handler sees of the client that it works for. */
function clientOf(server, context, request, isModern) {
  const { mcpReq, http } = context;
  return {
    modern: isModern,
    // A modern client says with every request what it can do.
    capabilities: (isModern ? mcpReq.envelope?.[CAPABILITIES] : server.getClientCapabilities()) ?? {},
    responses: mcpReq.inputResponses ?? {},
    state: request.params.requestState ?? mcpReq.requestState?.(),
    log: (level, data) => mcpReq.log(level, data),
    progress: async (report) => {
      const progressToken = mcpReq._meta?.progressToken;
      if (progressToken === undefined) return;
      await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, ...report } });
    },
    closeStream: () => http?.closeSSE?.(),
    changed: (list) => listeners.forEach((told) => told(list)),
  };
}

function create({ era: served }) {
  const capabilities = {
    completions: {},
    logging: {},
    prompts: { listChanged: true },
    resources: { subscribe: true },
    tools: { listChanged: true },
  };
  const server = new Server(
    { name: 'conformance-fixture-typescript', version: '1' },
    { capabilities, instructions: 'A server for conformance runs. Its tools do nothing useful.' },
  );
  const isModern = served === 'modern';
  const client = (context, request) => clientOf(server, context, request, isModern);
  server.setRequestHandler('tools/list', () => ({ tools: [...TOOLS, ...(present.tools ? [CHANGING_TOOL] : [])] }));
  server.setRequestHandler('tools/call', async (request, context) => {
    const call = CALLS[request.params.name];
    if (!call) throw new ProtocolError(INVALID_PARAMS, `unknown tool \`${request.params.name}\``);
    return call(request.params.arguments ?? {}, client(context, request));
  });
  server.setRequestHandler('prompts/list', () => ({
    prompts: [...PROMPTS, ...(present.prompts ? [CHANGING_PROMPT] : [])],
  }));
  server.setRequestHandler('prompts/get', async (request, context) =>
    prompt(request.params.name, request.params.arguments ?? {}, client(context, request)));
  server.setRequestHandler('resources/list', () => ({ resources: RESOURCES }));
  server.setRequestHandler('resources/templates/list', () => ({ resourceTemplates: TEMPLATES }));
  server.setRequestHandler('resources/read', ({ params }) => ({ contents: [contents(params.uri)] }));
  server.setRequestHandler('completion/complete', ({ params }) => {
    const known = ['paris', 'park', 'party', 'test', 'testing'];
    const values = known.filter((word) => word.startsWith(params.argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
  if (!isModern) {
    server.setRequestHandler('resources/subscribe', ({ params }) => (contents(params.uri), {}));
    server.setRequestHandler('resources/unsubscribe', ({ params }) => (contents(params.uri), {}));
  }
  // Over HTTP a modern instance lives for one request, and the handler tells those who listen.
  if (!isModern || stdio) {
    // A client that is gone has no list to refresh.
    const told = (list) => server.notification({ method: `notifications/${list}/list_changed` }).catch(() => {});
    listeners.add(told);
    server.onclose = () => listeners.delete(told);
  }
  return server;
}

if (stdio) {
  if (era === 'modern') serveStdio(create, { legacy: 'reject' });
  else if (era === 'legacy') await legacyOverStdio();
  else serveStdio(create);
} else {
  overHttp();
}

/** A server of before 2026-07-28 does not know the probe: it speaks as its transport does. */
async function legacyOverStdio() {
  const { StdioServerTransport } = await import('@modelcontextprotocol/server/stdio');
  await create({ era: 'legacy' }).connect(new StdioServerTransport());
}

function overHttp() {
  const modern = createMcpHandler(create, { legacy: 'reject' });
  listeners.add((list) => (list === 'tools' ? modern.notify.toolsChanged() : modern.notify.promptsChanged()));
  const sessions = new Map();
  const legacy = async (request) => {
    const known = sessions.get(request.headers.get('mcp-session-id'));
    if (known) return known.handleRequest(request);
    if (request.headers.has('mcp-session-id')) return new Response('no such session', { status: 404 });
    const transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => void sessions.set(id, transport),
      onsessionclosed: (id) => void sessions.delete(id),
      eventStore: events(),
      retryInterval: 500,
    });
    await create({ era: 'legacy' }).connect(transport);
    return transport.handleRequest(request);
  };
  const answer = async (request) => {
    if (era === 'legacy' || (era === 'both' && (await isLegacyRequest(request)))) return legacy(request);
    // Headers that a tool's schema asks for are not looked at by the SDK's server of the lower level.
    const body = await request.clone().json().catch(() => ({}));
    return unmirrored(body ?? {}, request.headers) ?? modern.fetch(request);
  };
  const listening = createServer(async (asked, reply) => {
    const local = new Set([`127.0.0.1:${listening.address().port}`, `localhost:${listening.address().port}`]);
    const origin = asked.headers.origin;
    if (!local.has(asked.headers.host) || (origin && !local.has(origin.replace(/^https?:\/\//, '')))) {
      return reply.writeHead(403).end();
    }
    const gone = new AbortController();
    reply.on('close', () => gone.abort());
    const hasBody = asked.method === 'POST';
    const request = new Request(`http://${asked.headers.host}${asked.url}`, {
      method: asked.method,
      headers: asked.headers,
      body: hasBody ? Readable.toWeb(asked) : undefined,
      duplex: 'half',
      signal: gone.signal,
    });
    const { status, headers, body } = await answer(request);
    reply.writeHead(status, Object.fromEntries(headers));
    reply.flushHeaders();
    if (!body) return reply.end();
    try {
      for await (const chunk of body) reply.write(chunk);
    } catch {
      // The client has gone.
    }
    reply.end();
  });
  listening.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listening.address().port}/mcp`));
}

/** The events of one session, so that a stream can be taken up again. */
function events() {
  const kept = [];
  return {
    storeEvent: async (stream, message) => {
      kept.push({ stream, message });
      return `${stream}_${kept.length}`;
    },
    getStreamIdForEventId: async (id) => id.slice(0, id.lastIndexOf('_')),
    replayEventsAfter: async (last, { send }) => {
      const stream = last.slice(0, last.lastIndexOf('_'));
      const from = Number(last.slice(last.lastIndexOf('_') + 1));
      for (const [at, event] of kept.entries()) {
        if (at >= from && event.stream === stream) await send(`${stream}_${at + 1}`, event.message);
      }
      return stream;
    },
  };
}
