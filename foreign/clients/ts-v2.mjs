// The TypeScript SDK, second generation, in either era.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { job, run } from './checks.mjs';

await run(async (changed) => {
  const transport =
    job.transport === 'stdio'
      ? new StdioClientTransport({ command: job.command, args: job.args, env: job.env })
      : new StreamableHTTPClientTransport(new URL(job.url));
  // `auto` must find the modern era by itself; that is what an application will use.
  const mode = job.era === 'modern' ? 'auto' : 'legacy';
  const client = new Client(
    { name: 'foreign-ts-v2', version: '1' },
    { versionNegotiation: { mode }, listChanged: { tools: { onChanged: changed } } },
  );
  await client.connect(transport);
  return {
    version: client.getNegotiatedProtocolVersion(),
    list: async () => (await client.listTools()).tools,
    call: (name, args, options) => client.callTool({ name, arguments: args }, options),
    code: (error) => error.code,
    data: (error) => error.data,
    close: async () => {
      if (job.transport === 'http' && job.era === 'legacy') await transport.terminateSession();
      await client.close();
    },
  };
});
