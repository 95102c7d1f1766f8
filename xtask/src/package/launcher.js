#!/usr/bin/env node
// Starts the program from the package for this platform and behaves as it does: the same streams, signals and exit code.
"use strict";

const { spawn } = require("node:child_process");
const { readFileSync } = require("node:fs");
const { constants } = require("node:os");
const { optionalDependencies } = require("../package.json");

const FORWARDED = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR2"];

function fail(lines) {
  process.stderr.write(lines.map((line) => `${line}\n`).join(""));
  process.exit(1);
}

function program() {
  const platform = `${process.platform}-${process.arch}`;
  const name = `@bridgehead/${platform}`;
  try {
    return require.resolve(`${name}/bin/bridgehead`);
  } catch {
    if (process.platform === "win32") {
      fail([
        "error: bridgehead does not run on Windows itself",
        "hint: install it in WSL, the Windows Subsystem for Linux, where the package for Linux works",
      ]);
    }
    if (!(name in optionalDependencies)) {
      const known = Object.keys(optionalDependencies).map((each) => each.split("/")[1]);
      fail([
        `error: there is no package of bridgehead for ${platform}, only for ${known.join(", ")}`,
        "hint: build the program from its sources with `cargo install bridgehead-cli`",
      ]);
    }
    fail([
      `error: the package ${name}, which contains the program, is not installed`,
      "hint: install bridgehead again, with optional dependencies (without `--omit=optional`)",
    ]);
  }
}

// Whether this process is in the group that the terminal sends its signals to. Then the program gets Ctrl-C from the terminal;
// sent once more, it would count as the second one, which ends the program without finishing its work.
function terminalSignalsTheProgram() {
  try {
    // The fields after the name, which is in parentheses and may contain blanks: state, parent, group, session, terminal, and
    // the group in the terminal's foreground.
    const stat = readFileSync("/proc/self/stat", "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return fields[2] === fields[5];
  } catch {
    return false;
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: "inherit" });

child.on("error", (error) => {
  fail([`error: bridgehead could not be started: ${error.message}`]);
});

for (const signal of FORWARDED) {
  process.on(signal, () => {
    const fromKeyboard = signal === "SIGINT" || signal === "SIGQUIT";
    if (!(fromKeyboard && terminalSignalsTheProgram())) {
      child.kill(signal);
    }
  });
}

child.on("exit", (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  // End by the same signal, so that whoever waits sees how the program ended.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  process.exitCode = 128 + constants.signals[signal];
});
