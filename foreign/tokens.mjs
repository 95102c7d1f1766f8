// Tokens of every kind from a real issuer (oauth2-mock-server), shown to the gateway as raw requests.
//
// The issuer is started only now, after the gateway: the gateway has to get its keys later. Each check comes from a
// loopback address of its own, because the gateway counts unknown credentials by address.

import assert from 'node:assert/strict';
import { createHmac, createPublicKey } from 'node:crypto';
import http from 'node:http';
import { OAuth2Server } from 'oauth2-mock-server';
import { check, finish, job } from './clients/checks.mjs';

const issuer = new OAuth2Server();
const [first, second] = [await issuer.issuer.keys.generate('RS256'), await issuer.issuer.keys.generate('ES256')];
const fetched = [];
const handler = issuer.service.requestHandler;
const server = http.createServer((request, response) => {
  fetched.push(request.url);
  handler(request, response);
});

let host = 10;

/** Lists tools with these headers, from an address that no check has used; answers status, challenge and body. */
function list(headers, from = `127.0.0.${(host += 1)}`, path = '') {
  const meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 'tokens', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list', params: { _meta: meta } });
  const usual = {
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    'mcp-protocol-version': '2026-07-28',
    'mcp-method': 'tools/list',
  };
  return new Promise((resolve, reject) => {
    const options = { method: 'POST', localAddress: from, agent: false, headers: { ...usual, ...headers } };
    const request = http.request(job.url + path, options, (answer) => {
      let text = '';
      answer.on('data', (part) => (text += part));
      answer.on('end', () =>
        resolve({ status: answer.statusCode, challenge: answer.headers['www-authenticate'], after: answer.headers['retry-after'], text }),
      );
    });
    request.on('error', reject);
    request.end(body);
  });
}

const bearer = (token) => ({ authorization: `Bearer ${token}` });
const token = (change = () => {}, kid = first.kid) =>
  issuer.issuer.buildToken({
    kid,
    scopesOrTransform: (header, payload) => {
      Object.assign(payload, { aud: job.url, sub: 'alice', scope: 'tools:read' });
      change(payload, header);
    },
  });

/** The token with another header or payload, and the signature it had. */
function forged(text, header, payload) {
  const [head, body, signature] = text.split('.');
  const changed = (part, change) =>
    Buffer.from(JSON.stringify({ ...JSON.parse(Buffer.from(part, 'base64url')), ...change })).toString('base64url');
  return [changed(head, header), changed(body, payload), signature].join('.');
}

async function refused(name, offered, expected = 'invalid_token') {
  await check('', name, async () => {
    const answer = await list(bearer(await offered()));
    assert.equal(answer.status, 401, answer.text);
    assert.match(answer.challenge, new RegExp(`error="${expected}"`));
    assert.match(answer.challenge, /resource_metadata="/);
  });
}

async function accepted(name, offered) {
  await check('', name, async () => {
    const answer = await list(bearer(await offered()));
    assert.equal(answer.status, 200, `${answer.challenge} ${answer.text}`);
    assert.deepEqual(JSON.parse(answer.text).result.tools.map((tool) => tool.name), job.tools);
  });
}

await check('', 'issuer down', async () => {
  issuer.issuer.url = job.issuer;
  const answer = await list(bearer(await token()));
  assert.ok([401, 503].includes(answer.status), answer.text);
});
await new Promise((resolve) => server.listen(new URL(job.issuer).port, '127.0.0.1', resolve));
await check('', 'issuer back', async () => {
  const deadline = Date.now() + 45_000;
  for (;;) {
    const answer = await list(bearer(await token()));
    if (answer.status === 200) return;
    assert.ok(Date.now() < deadline, `${answer.status} ${answer.text}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
});
await check('', 'no credentials', async () => {
  const answer = await list({});
  assert.equal(answer.status, 401);
  assert.match(answer.challenge, /^Bearer resource_metadata="[^"]+\/\.well-known\/oauth-protected-resource\/mcp"/);
  assert.match(answer.challenge, /scope="[^"]*tools:read/);
  assert.doesNotMatch(answer.challenge, /error=/);
});
await accepted('RS256', () => token());
await accepted('ES256', () => token(() => {}, second.kid));
await accepted('one of several audiences', () => token((payload) => (payload.aud = ['other', job.url])));
const now = () => Math.floor(Date.now() / 1000);
await refused('expired', () => token((payload) => (payload.exp = now() - 60)));
await refused('not yet valid', () => token((payload) => (payload.nbf = now() + 600)));
await refused('expiry as text', () => token((payload) => (payload.exp = `${now() + 600}`)));
await refused('other issuer', () => token((payload) => (payload.iss = 'http://127.0.0.1:1')));
await refused('other audience', () => token((payload) => (payload.aud = 'https://other.example/mcp')));
await refused('no audience', () => token((payload) => delete payload.aud));
await refused('no subject', () => token((payload) => delete payload.sub));
await refused('an id token', () => token((payload) => (payload.nonce = 'n')));
await refused('changed payload', async () => forged(await token(), {}, { sub: 'root' }));
await refused('no algorithm', async () => {
  const [head, body] = forged(await token(), { alg: 'none' }, {}).split('.');
  return `${head}.${body}.`;
});
await refused('public key as secret', async () => {
  const { kty, n, e } = issuer.issuer.keys.toJSON().find((key) => key.kid === first.kid);
  const pem = createPublicKey({ key: { kty, n, e }, format: 'jwk' }).export({ type: 'spki', format: 'pem' });
  const [head, body] = forged(await token(), { alg: 'HS256' }, {}).split('.');
  return `${head}.${body}.${createHmac('sha256', pem).update(`${head}.${body}`).digest('base64url')}`;
});
await refused('key of another kind', async () => forged(await token(), { kid: second.kid }, {}));
await refused('too long', () => token((payload) => (payload.filler = 'x'.repeat(16_384))));
await check('', 'token in the query', async () => {
  const answer = await list({}, undefined, `?access_token=${await token()}`);
  assert.equal(answer.status, 401);
  assert.doesNotMatch(answer.challenge, /error=/);
});
await check('', 'two headers', async () => {
  const good = `Bearer ${await token()}`;
  assert.equal((await list({ authorization: [good, good] })).status, 401);
});
await check('', 'forged key ids', async () => {
  const good = await token();
  const before = fetched.filter((url) => url.includes('jwks')).length;
  for (let number = 0; number < 1000; number += 1) {
    // Nine from each address, so that the limit by address is not what protects the issuer.
    const from = `127.0.1.${1 + Math.floor(number / 9)}`;
    const answer = await list(bearer(forged(good, { kid: `forged-${number}` }, {})), from);
    assert.equal(answer.status, 401, `${number}: ${answer.text}`);
  }
  const after = fetched.filter((url) => url.includes('jwks')).length;
  assert.ok(after - before <= 32, `${after - before} fetches`);
  return `${after - before} fetches`;
});
await check('', 'too many from one address', async () => {
  const from = '127.0.2.1';
  const tried = [];
  for (let number = 0; number < 12; number += 1) {
    tried.push((await list(bearer(`nonsense-${number}`), from)).status);
  }
  assert.deepEqual(tried.slice(-1), [429], `${tried}`);
  assert.ok(tried.indexOf(429) >= 10, `${tried}`);
  const known = await list(bearer(await token()), '127.0.2.2');
  assert.equal(known.status, 200, 'other addresses are served');
});
await check('', 'rotated keys', async () => {
  const { kid } = await issuer.issuer.keys.generate('RS256');
  const deadline = Date.now() + 45_000;
  for (;;) {
    const answer = await list(bearer(await token(() => {}, kid)));
    if (answer.status === 200) return;
    assert.ok(Date.now() < deadline, `${answer.status} ${answer.text}`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
});
server.close();
finish();
