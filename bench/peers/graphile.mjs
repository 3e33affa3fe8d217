// graphile-worker in batched mode, as its page on performance sets it up: 24 jobs at once, a local queue of 500, and
// completions that are written together.

import { closeSync, constants, openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.BENCH_NODE}/package.json`);
const { Logger } = require("@graphile/logger");
const { makeWorkerUtils, run, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");

const BATCH = 1000;
const BATCHED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const WRITE_EVERY = 10;

const say = (event, facts = {}) => console.log(JSON.stringify({ event, ...facts }));
const now = () => Number(process.hrtime.bigint()) / 1e9;
const logger = new Logger(() => (level, text) => level === "error" && console.error(text));

// A Pool gets its address in parts: the driver does not read a socket's folder from the query of a URL.
const pool = (url, max = 10) => {
  const parts = new URL(url.replace("@/", "@localhost/"));
  const host = parts.searchParams.get("host") ?? parts.hostname;
  return new Pool({
    host,
    port: Number(parts.searchParams.get("port") ?? parts.port ?? 5432),
    user: decodeURIComponent(parts.username),
    database: parts.pathname.slice(1),
    max,
  });
};

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const job = (i) => ({ identifier: "noop", payload: { i } });

async function withUtils(url, use) {
  const pgPool = pool(url);
  const utils = await makeWorkerUtils({ pgPool, logger });
  await use(utils, pgPool);
  await utils.release();
  await pgPool.end();
}

const addMany = (utils, first, count) =>
  utils.addJobs(Array.from({ length: count }, (_, index) => job(first + index)));

const actions = {
  async prepare({ url }) {
    const pgPool = pool(url);
    await runMigrations({ pgPool, logger });
    await pgPool.end();
    say("prepared");
  },

  async enqueue({ url, seconds }) {
    await withUtils(url, async (utils) => {
      let done = 0;
      say("begin");
      for (const until = now() + seconds; now() < until; done++) await utils.addJob("noop", { i: done });
      say("end", { count: done });
    });
  },

  async bulk({ url, count }) {
    await withUtils(url, async (utils, pgPool) => {
      await pgPool.query("select 1");
      say("begin");
      for (let first = 0; first < count; first += BATCH) await addMany(utils, first, Math.min(BATCH, count - first));
      say("end", { count });
    });
  },

  async feed({ url, count, rate, batch, stamps }) {
    const moments = new Float64Array(count);
    await withUtils(url, async (utils, pgPool) => {
      await pgPool.query("select 1");
      say("begin");
      const began = now();
      for (let first = 0; first < count; first += batch) {
        const wait = began + first / rate - now();
        if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait * 1000));
        const size = Math.min(batch, count - first);
        moments.fill(now(), first, first + size);
        if (size === 1) await utils.addJob("noop", { i: first });
        else await addMany(utils, first, size);
      }
      write(stamps, Buffer.from(moments.buffer));
      say("end", { count });
    });
  },

  async work({ url, marks, size, stamps = null }) {
    const counts = new Uint8Array(size);
    const moments = stamps ? new Float64Array(size) : null;
    const pgPool = pool(url, BATCHED.maxPoolSize);
    const save = () => {
      if (moments) write(stamps, Buffer.from(moments.buffer));
      write(marks, Buffer.from(counts.buffer));
    };
    await pgPool.query("select 1");
    say("ready");
    await lines.next();
    const noop = (payload) => {
      if (moments) moments[payload.i] = now();
      counts[payload.i]++;
    };
    const runner = await run({
      pgPool,
      logger,
      noHandleSignals: true,
      taskList: { noop },
      preset: { worker: BATCHED },
    });
    const saving = setInterval(save, WRITE_EVERY);
    await lines.next();
    await runner.stop();
    clearInterval(saving);
    save();
    await pgPool.end();
  },
};

function write(path, bytes) {
  const file = openSync(path, constants.O_RDWR | constants.O_CREAT);
  writeSync(file, bytes, 0, bytes.length, 0);
  closeSync(file);
}

const { value } = await lines.next();
await actions[process.argv[2]](JSON.parse(value));
process.exit(0);
