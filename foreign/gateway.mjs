// The client with which servers are called through the gateway: the TypeScript SDK of the second generation, which
// speaks both eras.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { check, job } from './clients/checks.mjs';

const READY_MS = 60_000;

/** A client of the order's era, connected as the order says. */
export async function connect() {
  const mode = job.era === 'modern' ? { pin: '2026-07-28' } : 'legacy';
  const transport =
    job.transport === 'stdio'
      ? new StdioClientTransport({ command: job.command, args: job.args, env: job.env })
      : new StreamableHTTPClientTransport(new URL(job.url));
  const connected = new Client({ name: 'foreign-servers', version: '1' }, { versionNegotiation: { mode } });
  // What the servers have is told when they have come up, and here a dozen of them start at once.
  await check('', 'connect', () => connected.connect(transport), READY_MS);
  return connected;
}

/** A client to ask a server directly, which can do what the gateway says of its clients: some servers list more then. */
export function able(versionNegotiation) {
  const capabilities = { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} };
  return new Client({ name: 'foreign-servers', version: '1' }, { capabilities, versionNegotiation });
}

/** All tools, once every one of the servers has come up or has had its time. */
export async function ready(client, servers) {
  const deadline = Date.now() + READY_MS;
  for (;;) {
    const { tools } = await client.listTools(undefined, { cacheMode: 'bypass' });
    const up = servers.filter((server) => tools.some((tool) => tool.name.startsWith(`${server}__`)));
    if (up.length === servers.length || Date.now() > deadline) return tools;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** A server's tools as a client of the order's era is to see them, given what the server lists by itself. */
export function prefixed(server, tools) {
  // Tasks of 2025-11-25 are not relayed: a tool that is nothing else is left out, and of others it is not said.
  const listed = tools.filter((tool) => tool.execution?.taskSupport !== 'required');
  return listed.map(({ execution, ...tool }) => ({ ...tool, name: `${server}__${tool.name}` }));
}

export function text(result) {
  return result.content.map((block) => block.text ?? '').join('');
}
