// Calls every foreign server behind one gateway, as a client of one era.
//
// The servers are started by the gateway; `cargo xtask foreign` writes its configuration and says where everything is.
// What is expected here was seen from the servers without a gateway in between.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { check, finish, job } from './clients/checks.mjs';
import { able, connect, prefixed, ready, text } from './gateway.mjs';

/** Each server's tools in its own order, and what proves that a call went there and back. */
const SERVERS = {
  everything: {
    tools: `echo get-annotated-message get-env get-resource-links get-resource-reference get-structured-content get-sum
      get-tiny-image gzip-file-as-resource toggle-simulated-logging toggle-subscriber-updates
      trigger-long-running-operation get-roots-list trigger-elicitation-request trigger-url-elicitation
      trigger-sampling-request`,
    calls: async (call) => {
      assert.equal(text(await call('echo', { message: 'across' })), 'Echo: across');
      const weather = await call('get-structured-content', { location: 'Chicago' });
      assert.equal(typeof weather.structuredContent.temperature, 'number');
      const image = await call('get-tiny-image', {});
      assert.ok(image.content.some((block) => block.type === 'image' && block.mimeType === 'image/png'));
      const seen = [];
      const onprogress = (report) => seen.push(report.progress);
      await call('trigger-long-running-operation', { duration: 0.3, steps: 3 }, { onprogress });
      // The last report comes right before the answer, and this SDK may lose it then, gateway or not.
      assert.deepEqual(seen.slice(0, 2), [1, 2]);
    },
    wrong: ['echo', { message: 5 }],
  },
  files: {
    tools: `read_file read_text_file read_media_file read_multiple_files write_file edit_file create_directory
      list_directory list_directory_with_sizes directory_tree move_file search_files get_file_info
      list_allowed_directories`,
    calls: async (call) => {
      const path = `${job.folder}/note-${job.era}.txt`;
      const content = 'first line\nsecond line with "quotes" and ünïcode\n';
      assert.match(text(await call('write_file', { path, content })), /Successfully wrote/);
      assert.equal(text(await call('read_text_file', { path })), content);
      assert.match(text(await call('list_directory', { path: job.folder })), new RegExp(`note-${job.era}\\.txt`));
      const outside = await call('read_text_file', { path: '/etc/hostname' });
      assert.equal(outside.isError, true);
      assert.match(text(outside), /outside allowed directories/);
    },
    wrong: ['read_text_file', {}],
  },
  memory: {
    tools: `create_entities create_relations add_observations delete_entities delete_observations delete_relations
      read_graph search_nodes open_nodes`,
    calls: async (call) => {
      const name = `Ada of the ${job.era} era`;
      const entities = [{ name, entityType: 'person', observations: ['writes notes'] }];
      await call('create_entities', { entities });
      const graph = (await call('read_graph', {})).structuredContent;
      assert.ok(graph.entities.some((entity) => entity.name === name));
    },
    wrong: ['create_entities', { entities: 'Ada' }],
  },
  thinking: {
    tools: 'sequentialthinking',
    calls: async (call) => {
      const thought = { thought: 'enough', nextThoughtNeeded: false, thoughtNumber: 1, totalThoughts: 1 };
      assert.equal((await call('sequentialthinking', thought)).structuredContent.totalThoughts, 1);
    },
    wrong: ['sequentialthinking', { thought: 'without a number' }],
  },
  code: {
    tools: 'run-code',
    calls: async (call) => {
      const code = 'console.log(6 * 7)';
      assert.match(text(await call('run-code', { code, languageId: 'javascript' })), /42/);
    },
    wrong: ['run-code', { languageId: 'javascript' }],
  },
  commands: {
    tools: 'run_command',
    calls: async (call) => {
      assert.match(text(await call('run_command', { command: 'echo across' })), /across/);
    },
    wrong: ['run_command', {}],
  },
  time: {
    tools: 'get_current_time convert_time',
    calls: async (call) => {
      const given = { source_timezone: 'Asia/Kolkata', time: '12:00', target_timezone: 'Asia/Tokyo' };
      assert.equal((await call('convert_time', given)).structuredContent.time_difference, '+3.5h');
      const nowhere = await call('get_current_time', { timezone: 'Nowhere/Land' });
      assert.equal(nowhere.isError, true);
    },
    wrong: ['convert_time', { time: 12 }],
  },
  git: {
    tools: `git_status git_diff_unstaged git_diff_staged git_diff git_commit git_add git_reset git_log
      git_create_branch git_checkout git_show git_branch`,
    calls: async (call) => {
      const repo_path = job.repository;
      assert.match(text(await call('git_log', { repo_path, max_count: 1 })), /the first commit/);
      assert.match(text(await call('git_status', { repo_path })), /nothing to commit/);
    },
    wrong: ['git_log', { repo_path: 7 }],
  },
  browser: {
    tools: `browser_close browser_resize browser_console_messages browser_handle_dialog browser_emulate_media
      browser_evaluate browser_file_upload browser_drop browser_find browser_fill_form browser_press_key browser_type
      browser_navigate browser_navigate_back browser_network_requests browser_network_request browser_run_code_unsafe
      browser_take_screenshot browser_snapshot browser_click browser_drag browser_hover browser_select_option
      browser_tabs browser_wait_for`,
    calls: async (call) => {
      // Its configuration names a browser that does not exist, so that the answer is the same everywhere.
      const result = await call('browser_navigate', { url: 'about:blank' });
      assert.equal(result.isError, true);
      assert.match(text(result), /no\/such\/browser/);
    },
    wrong: ['browser_navigate', { url: 7 }],
  },
  database: {
    tools: 'execute_sql search_objects',
    calls: async (call) => {
      const sql = 'select count(*) as total from employee';
      assert.equal(JSON.parse(text(await call('execute_sql', { sql }))).data.statements[0].rows[0].total, 1000);
      const wrong = await call('execute_sql', { sql: 'selec' });
      assert.equal(wrong.isError, true);
      assert.match(text(wrong), /syntax error/);
    },
    wrong: ['execute_sql', { sql: 7 }],
  },
  sqlite: {
    tools: 'read_query write_query create_table list_tables describe_table append_insight',
    calls: async (call) => {
      const table = `${job.era}_${job.transport}_note`;
      await call('create_table', { query: `create table ${table} (id integer, words text)` });
      await call('write_query', { query: `insert into ${table} values (1, 'ünïcode')` });
      assert.match(text(await call('read_query', { query: `select words from ${table}` })), /ünïcode/);
      assert.match(text(await call('read_query', { query: `drop table ${table}` })), /Only SELECT/);
    },
    wrong: ['read_query', { query: 7 }],
  },
  fetch: {
    tools: 'fetch',
    calls: async (call) => {
      // Plain text: for HTML the server installs packages from npm on its first call.
      const page = createServer((_, reply) => {
        reply.setHeader('content-type', 'text/plain');
        reply.end('seen through the gateway');
      });
      await new Promise((resolve) => page.listen(0, '127.0.0.1', resolve));
      const url = `http://127.0.0.1:${page.address().port}/`;
      try {
        assert.match(text(await call('fetch', { url })), /seen through the gateway/);
      } finally {
        page.closeAllConnections();
        await new Promise((resolve) => page.close(resolve));
      }
      const gone = await call('fetch', { url });
      assert.equal(gone.isError, true);
    },
    wrong: ['fetch', { url: 7 }],
  },
};

const wanted = Object.entries(SERVERS).filter(([server]) => !job.only || job.only.includes(server));
const client = await connect();
const listed = await ready(client, wanted.map(([server]) => server));
const direct = job.direct ? await listDirectly() : {};
for (const [server, expected] of wanted) {
  const call = (tool, args, options) => client.callTool({ name: `${server}__${tool}`, arguments: args }, options);
  await check(server, 'list', async () => {
    const names = expected.tools.split(/\s+/).map((tool) => `${server}__${tool}`);
    const names_listed = listed.map((tool) => tool.name).filter((name) => name.startsWith(`${server}__`));
    assert.deepEqual(names_listed, names);
    return `${names.length} tools`;
  });
  if (direct[server]) {
    await check(server, 'as direct', async () => {
      const tools = listed.filter((tool) => tool.name.startsWith(`${server}__`));
      assert.deepEqual(tools, prefixed(server, direct[server]));
    });
  }
  if (job.only_list) continue;
  await check(server, 'call', () => expected.calls(call));
  await check(server, 'arguments', async () => {
    const [tool, args] = expected.wrong;
    const result = await call(tool, args);
    assert.equal(result.isError, true);
    assert.equal(JSON.parse(text(result)).error.code, 'INVALID_PARAMS');
  });
}
await check('', 'close', () => client.close());
finish();

/**
 * What each server lists when nothing stands between it and the client. Twelve interpreters take their time, so the
 * answers are kept for the next era.
 */
async function listDirectly() {
  const { servers, answers } = job.direct;
  if (!existsSync(answers)) {
    const list = async ([server, { command, args, env, cwd }]) => {
      const alone = able({ mode: 'auto' });
      await alone.connect(new StdioClientTransport({ command, args, env, cwd, stderr: 'ignore' }));
      const { tools } = await alone.listTools();
      await alone.close();
      return [server, tools];
    };
    const listed = await Promise.all(Object.entries(JSON.parse(readFileSync(servers, 'utf8')).mcpServers).map(list));
    writeFileSync(answers, JSON.stringify(Object.fromEntries(listed)));
  }
  return JSON.parse(readFileSync(answers, 'utf8'));
}
