// Walks the first hour of somebody who has a client's file and has just installed the npm package: import, connect, list, call, a
// second client, disconnect.
//
// `cargo xtask foreign` installs the package into an empty home, puts the client's file there, and says where everything is.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { check, finish, job } from './clients/checks.mjs';
import { ready, text } from './gateway.mjs';

const environment = { PATH: process.env.PATH, HOME: job.home, [job.mark.name]: job.mark.value };
const original = readFileSync(job.file);

/** Runs the installed program as the user would; its output, if it ends well. */
function run(...args) {
  const ended = spawnSync(job.bridgehead, args, { cwd: job.home, env: environment, encoding: 'utf8', timeout: 120_000 });
  assert.equal(ended.status, 0, `bridgehead ${args.join(' ')}: ${ended.status}\n${ended.stdout}${ended.stderr}`);
  return ended.stdout;
}

/** A client that starts what its file says, as the owner of that file does. */
async function start(name, mode) {
  const entry = JSON.parse(readFileSync(job.file, 'utf8')).mcpServers.bridgehead;
  assert.ok(entry, 'the file has no entry for bridgehead');
  const env = { ...environment, ...entry.env };
  const client = new Client({ name, version: '1' }, { versionNegotiation: { mode } });
  await client.connect(new StdioClientTransport({ command: entry.command, args: entry.args, env, stderr: 'inherit' }));
  return client;
}

/** The processes of the servers that carry this hour's mark, by the file that each of them runs. */
function children() {
  const mark = `${job.mark.name}=${job.mark.value}`;
  const read = (path) => {
    try {
      return readFileSync(path, 'utf8').split('\0');
    } catch {
      return [];
    }
  };
  const marked = readdirSync('/proc').filter((id) => /^\d+$/.test(id) && read(`/proc/${id}/environ`).includes(mark));
  const runs = (file) => marked.filter((id) => /\bnode/.test(read(`/proc/${id}/cmdline`)[0] ?? '') && read(`/proc/${id}/cmdline`).includes(file));
  return job.servers.map(({ file }) => runs(file).length);
}

await check('', 'import', async () => {
  run('import', '--from', 'claude-desktop', '--yes');
  const written = readFileSync(job.config, 'utf8');
  assert.ok(written.startsWith(job.begins), 'what stood in the configuration is still there');
  for (const { name } of job.servers) assert.match(written, new RegExp(`^\\[servers\\.${name}\\]`, 'm'));
  assert.ok(!written.includes(job.secret), 'the secret is not in the configuration');
  const files = readdirSync(dirname(job.config)).map((name) => join(dirname(job.config), name));
  const secrets = files.filter((file) => readFileSync(file, 'utf8').includes(job.secret));
  assert.equal(secrets.length, 1, 'the secret is in one file');
  assert.equal(statSync(secrets[0]).mode & 0o777, 0o600, 'which only its owner can read');
});
await check('', 'connect', async () => run('connect', 'claude-desktop'));
const clients = [];
await check('', 'list', async () => {
  clients.push(await start('first', 'auto'));
  const tools = await ready(clients[0], job.servers.map(({ name }) => name));
  for (const { name } of job.servers) assert.ok(tools.some((tool) => tool.name.startsWith(`${name}__`)), name);
  return `${tools.length} tools`;
});
const echo = async (client) => text(await client.callTool({ name: 'everything__echo', arguments: { message: 'hour' } }));
await check('', 'call', async () => assert.equal(await echo(clients[0]), 'Echo: hour'));
await check('', 'second client', async () => {
  clients.push(await start('second', 'legacy'));
  assert.equal(await echo(clients[1]), 'Echo: hour');
  assert.deepEqual(children(), job.servers.map(() => 1), 'both clients share one process of each server');
});
await check('', 'disconnect', async () => {
  for (const client of clients) await client.close();
  run('disconnect', 'claude-desktop');
  assert.ok(readFileSync(job.file).equals(original), 'the file is what it was, byte for byte');
  assert.ok(existsSync(job.config), 'the imported servers stay');
});
finish();
