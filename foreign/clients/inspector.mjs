// The inspector's command line, in either era: one program run per request.
//
// It shows no progress, cannot cancel and does not stay, so those checks are not made here. It looks a tool up in the list before it
// calls it, so the answer to an unknown tool is its own.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { check, finish, job } from './checks.mjs';

const program = fileURLToPath(import.meta.resolve('@modelcontextprotocol/inspector/clients/launcher/build/index.js'));
const REVISIONS = { legacy: '2025-11-25', modern: '2026-07-28' };
const GAVE_ANSWER = 0;
const TOOL_FAILED = 5;

function inspect(...request) {
  const target = job.transport === 'stdio' ? ['--', job.command, ...job.args] : ['--server-url', job.url, '--transport', 'http'];
  const variables = Object.entries(job.env ?? {}).flatMap(([name, value]) => ['-e', `${name}=${value}`]);
  const era = ['--protocol-era', job.era];
  const given = [program, '--cli', '--quiet', '--format', 'json', ...era, ...variables, '--method', ...request, ...target];
  return new Promise((resolve) => {
    execFile(process.execPath, given, (error, stdout, stderr) => {
      const status = error ? error.code : GAVE_ANSWER;
      resolve({ status, stdout, stderr, ...(stdout ? JSON.parse(stdout) : {}), ...(stderr ? parseError(stderr) : {}) });
    });
  });
}

/** The last line of stderr is the error as JSON; before it may stand what the gateway logs. */
function parseError(stderr) {
  try {
    return JSON.parse(stderr.trim().split('\n').at(-1));
  } catch {
    return {};
  }
}

const call = (name, args) => inspect('tools/call', '--tool-name', name, '--tool-args-json', JSON.stringify(args));

async function perUpstream(upstream) {
  const given = { text: 'Grüße, 世界 🦀', nested: { list: [1, 2.5, null, true], empty: {} } };
  await check(upstream, 'call', async () => {
    const { status, result, stderr } = await call(`${upstream}__echo`, given);
    assert.equal(status, GAVE_ANSWER, stderr);
    assert.deepEqual(result.structuredContent, given);
  });
  await check(upstream, 'tool error', async () => {
    const { status, result, stderr } = await call(`${upstream}__fail`, {});
    assert.equal(status, TOOL_FAILED, stderr);
    assert.equal(result.content[0].text, 'the tool failed');
  });
  await check(upstream, 'server error', async () => {
    const { status, stderr } = await call(`${upstream}__refuse`, {});
    assert.notEqual(status, GAVE_ANSWER);
    assert.match(stderr, /not today/);
  });
  await check(upstream, 'arguments', async () => {
    const { status, result, stderr } = await call(`${upstream}__echo`, { text: 7 });
    assert.equal(status, TOOL_FAILED, stderr);
    assert.equal(JSON.parse(result.content[0].text).error.code, 'INVALID_PARAMS');
  });
}

const ok = await check('', 'connect', async () => {
  const { result, stderr } = await inspect('initialize');
  assert.equal(result?.protocolVersion, REVISIONS[job.era], stderr);
  return result.protocolVersion;
});
if (ok) {
  await check('', 'list', async () => {
    const { result, stderr } = await inspect('tools/list');
    assert.ok(result, stderr);
    const names = result.tools.map((tool) => tool.name).filter((name) => name.includes('__'));
    assert.equal(names.length, 14, names.join(' '));
    return `${result.tools.length} tools`;
  });
  await Promise.all([perUpstream('old'), perUpstream('new')]);
  await check('', 'unknown tool', async () => {
    const { status, error } = await call('old__nothing', {});
    assert.equal(status, TOOL_FAILED);
    assert.equal(error.code, 'tool_not_found');
  });
}
finish();
