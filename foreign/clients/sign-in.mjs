// Two users sign in at a real authorization server with the TypeScript SDK, and use one gateway at the same time.
//
// The SDK finds the server through the gateway's challenge, registers, and asks for a token; a browser is not needed,
// because the server signs in whoever the link names. Each user must see its own tools and none of the other's.

import assert from 'node:assert/strict';
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';
import { check, finish, job } from './checks.mjs';

const CALLBACK = 'http://127.0.0.1:1/callback';

/** What the SDK asks of an application, kept in memory; `asked` are the scopes of each sign-in. */
class Session {
  asked = [];
  #kept = {};

  constructor(user) {
    this.user = user;
  }

  get redirectUrl() {
    return CALLBACK;
  }

  get clientMetadata() {
    return {
      client_name: `foreign ${this.user}`,
      redirect_uris: [CALLBACK],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      application_type: 'native',
    };
  }

  clientInformation = () => this.#kept.client;
  saveClientInformation = (client) => (this.#kept.client = client);
  tokens = () => this.#kept.tokens;
  saveTokens = (tokens) => (this.#kept.tokens = tokens);
  codeVerifier = () => this.#kept.verifier;
  saveCodeVerifier = (verifier) => (this.#kept.verifier = verifier);

  /** Follows the link as a browser would, with its cookies, and keeps where it leads. */
  async redirectToAuthorization(link) {
    this.asked.push(link.searchParams.get('scope'));
    link.searchParams.set('login_hint', this.user);
    const cookies = new Map();
    let next = link;
    for (let step = 0; step < 10; step += 1) {
      const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
      const answer = await fetch(next, { redirect: 'manual', headers: { cookie } });
      for (const line of answer.headers.getSetCookie()) {
        const [name, value] = line.split(';')[0].split('=');
        cookies.set(name, value);
      }
      assert.ok(answer.headers.has('location'), `${next} answered ${answer.status}: ${await answer.text()}`);
      next = new URL(answer.headers.get('location'), next);
      if (next.href.startsWith(CALLBACK)) {
        this.callback = next.searchParams;
        return;
      }
    }
    throw new Error('the sign-in did not come to its end');
  }
}

async function signIn(user) {
  const session = new Session(user);
  const mode = job.era === 'modern' ? { pin: '2026-07-28' } : 'legacy';
  const client = () => new Client({ name: `foreign-${user}`, version: '1' }, { versionNegotiation: { mode } });
  const transport = () => new StreamableHTTPClientTransport(new URL(job.url), { authProvider: session });
  const first = transport();
  // The first attempt is refused, and leads to the authorization server.
  await assert.rejects(client().connect(first), UnauthorizedError);
  await first.finishAuth(session.callback);
  const connected = client();
  await connected.connect(transport());
  return { client: connected, session };
}

const users = {};
for (const { user } of job.users) {
  await check(user, 'sign in', async () => {
    users[user] = await signIn(user);
    // The SDK adds `offline_access` by itself, because the authorization server lists it.
    assert.deepEqual(users[user].session.asked, [`${job.scope} offline_access`]);
    return users[user].session.asked[0];
  });
}
const names = async ({ client }) => (await client.listTools(undefined, { cacheMode: 'bypass' })).tools.map((tool) => tool.name).sort();
await check('', 'list side by side', async () => {
  const lists = await Promise.all(job.users.map(({ user }) => names(users[user])));
  assert.deepEqual(lists, job.users.map(({ tools }) => [...tools].sort()));
});
for (const { user, tools, others } of job.users) {
  await check(user, 'call', async () => {
    for (const tool of tools) {
      const result = await users[user].client.callTool({ name: tool, arguments: { text: user } });
      assert.deepEqual(result.structuredContent, { text: user });
    }
  });
  await check(user, 'denied as unknown', async () => {
    const failure = async (name) => {
      const error = await users[user].client.callTool({ name, arguments: {} }).then(assert.fail, (error) => error);
      const { correlationId, ...data } = error.data;
      assert.ok(correlationId);
      return JSON.stringify({ code: error.code, message: error.message, data }).replaceAll(name, 'NAME');
    };
    // A name that nobody offers, as long and as unlike the others as the denied one.
    for (const name of others) assert.equal(await failure(name), await failure(name.replace(/[a-z]/g, 'q')));
  });
  await check(user, 'instructions', async () => {
    const instructions = users[user].client.getInstructions() ?? '';
    for (const name of others) assert.ok(!instructions.includes(name), instructions);
  });
}
await check('', 'close', async () => {
  for (const { client } of Object.values(users)) await client.close();
});
finish();
