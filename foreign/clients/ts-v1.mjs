// The TypeScript SDK, first generation: legacy era only.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { job, run } from './checks.mjs';

await run(async (changed) => {
  const transport =
    job.transport === 'stdio'
      ? new StdioClientTransport({ command: job.command, args: job.args, env: job.env })
      : new StreamableHTTPClientTransport(new URL(job.url));
  // The revision is not kept by the client of this generation; it tells the transport.
  let version;
  const tellTransport = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (negotiated) => {
    version = negotiated;
    tellTransport?.(negotiated);
  };
  const client = new Client({ name: 'foreign-ts-v1', version: '1' });
  client.setNotificationHandler(ToolListChangedNotificationSchema, changed);
  await client.connect(transport);
  return {
    version,
    list: async () => (await client.listTools()).tools,
    call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    code: (error) => error.code,
    data: (error) => error.data,
    close: async () => {
      if (job.transport === 'http') await transport.terminateSession();
      await client.close();
    },
  };
});
