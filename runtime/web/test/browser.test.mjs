/** The package in a real Chromium: worker, streaming, cache, isolation, damage, memory. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, afterEach, before, test } from "node:test";
import { chromium } from "playwright-core";
import { load } from "../dist/node.mjs";
import { bundled, chromiumPath, data, expectations, fixtures, root } from "./support.mjs";
import { serve } from "./server.mjs";

const PAGE = `<!doctype html><title>test</title><script type="module">
import * as edgelm from "/dist/edgelm.js";
window.edgelm = edgelm; window.ready = true;
</script>`;
const files = fs.mkdtempSync(path.join(os.tmpdir(), "edgelm-"));
let server, browser, context, page;

before(async () => {
  fs.writeFileSync(path.join(files, "page.html"), PAGE);
  fs.copyFileSync(bundled, path.join(files, "python.onnx"));
  const bytes = fs.readFileSync(bundled), damaged = Buffer.from(bytes);
  damaged[2_000_000] ^= 0xff;
  fs.writeFileSync(path.join(files, "damaged.onnx"), damaged);
  fs.writeFileSync(path.join(files, "truncated.onnx"), bytes.subarray(0, 3_000_000));
  server = await serve({ "/dist/": path.join(root, "dist"), "/models/": fixtures, "/data/": data, "/": files });
  browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
  context = await browser.newContext();
  page = await open();
});

after(async () => {
  await browser?.close();
  await server?.close();
  fs.rmSync(files, { recursive: true });
});

afterEach(() => Object.assign(server.behaviour, { isolated: false, ranges: true, head: true, breakAfter: Infinity, down: false }));

async function open(within = context) {
  const made = await within.newPage();
  made.on("pageerror", (error) => console.log("page error:", error.message));
  await made.goto(`${server.url}/page.html`);
  await made.waitForFunction(() => window.ready);
  return made;
}

test("loads with progress, streams and stays responsive", async () => {
  const seen = await page.evaluate(async () => {
    const stages = new Set(), pieces = [];
    let last = 0, ticks = 0;
    const lm = await edgelm.load("/python.onnx", { onProgress: ({ stage, loaded, total }) => { stages.add(stage); last = loaded / total; } });
    const timer = setInterval(() => ticks++, 4);
    for await (const piece of lm.stream("def main(", { maxNewTokens: 200 })) pieces.push(piece.text);
    clearInterval(timer);
    const { text } = await lm.generate("def main(", { maxNewTokens: 200 });
    await lm.close();
    return { stages: [...stages], last, ticks, pieces, text };
  });
  assert.deepEqual(seen.stages, ["download", "open"]);
  assert.ok(seen.last > 0.9 && seen.ticks > 10 && seen.pieces.length > 20, JSON.stringify(seen));
  assert.equal(seen.pieces.join(""), seen.text);
  const lm = await load(bundled);
  assert.equal((await lm.generate("def main(", { maxNewTokens: 200 })).text, seen.text, "as in Node");
  await lm.close();
});

test("verify, score, chat, embed and choices answer from the worker", async () => {
  const seen = await page.evaluate(async () => {
    const [lm, tiny, chat] = await Promise.all(["/python.onnx", "/models/tiny.onnx", "/models/chat.onnx"].map((url) => edgelm.load(url)));
    const found = {
      report: await lm.verify(), score: (await lm.score("import os\n")).perplexity, vector: (await tiny.embed("the")).length,
      chat: (await chat.chat([{ role: "user", content: "Hi" }])).tokenIds.length, choice: (await tiny.generate("a", { choices: ["yes", "no"] })).text,
      processed: (await tiny.generate("a", { maxNewTokens: 3, processor: (ids, logits) => { logits.fill(-Infinity); logits[104] = 0; return logits; } })).text,
      error: await lm.generate("a", { temperature: -1 }).catch((e) => [e.name, e.problem, e instanceof edgelm.OptionError]),
      ids: await lm.tokenizer.encode("def"),
    };
    await Promise.all([lm, tiny, chat].map((m) => m.close()));
    found.closed = await lm.generate("a").catch((e) => e.name);
    return found;
  });
  assert.ok(seen.report.prompts >= 5 && seen.score > 1 && seen.vector === 16 && seen.chat > 0);
  assert.ok(["yes", "no"].includes(seen.choice));
  assert.equal(seen.processed, "hhh");
  assert.deepEqual(seen.error, ["OptionError", "temperature is -1", true]);
  assert.equal(seen.closed, "ClosedError");
});

test("a generation and a load can be stopped", async () => {
  const seen = await page.evaluate(async () => {
    const lm = await edgelm.load("/python.onnx"), abort = new AbortController();
    let last, count = 0;
    for await (const piece of lm.stream("x = ", { maxNewTokens: 100000, signal: abort.signal })) { last = piece; if (++count === 5) abort.abort(); }
    for await (const piece of lm.stream("x = ", { maxNewTokens: 100000 })) if (piece) break;
    const after = await lm.generate("x = ", { maxNewTokens: 3 });
    await lm.close();
    const load = new AbortController(), loading = edgelm.load("/python.onnx", { signal: load.signal, cache: false });
    load.abort();
    return { reason: last.finishReason, count, after: after.tokenIds.length, error: await loading.catch((e) => e.name) };
  });
  assert.equal(seen.reason, "cancelled");
  assert.ok(seen.count < 200);
  assert.deepEqual([seen.after, seen.error], [3, "AbortError"]);
});

test("a second visit needs no network", async () => {
  const again = await open();
  server.behaviour.down = true;
  const text = await again.evaluate(async () => {
    const lm = await edgelm.load("/python.onnx"), { text } = await lm.generate("import ", { maxNewTokens: 8 });
    await lm.close();
    return text;
  });
  const failed = await again.evaluate(() => edgelm.load("/elsewhere.onnx").catch((e) => e.name));
  server.behaviour.down = false;
  await again.close();
  assert.ok(text.length > 3);
  assert.equal(failed, "DownloadError");
});

test("a sidecar is kept too", async () => {
  const again = await open();
  const load = () => again.evaluate(async () => {
    const lm = await edgelm.load("/data/beside/m.onnx", { sidecar: "/data/beside/m.onnx.data" }), { prompts } = await lm.verify();
    await lm.close();
    return prompts;
  });
  assert.ok((await load()) > 0);
  server.behaviour.down = true;
  assert.ok((await load()) > 0);
  await again.close();
});

test("logits are those of Node bit for bit, whatever instructions each has", async () => {
  const cases = expectations().logits.map(({ model, ids }) => [path.basename(model), fs.existsSync(path.join(data, path.basename(model))) ? data : fixtures, ids]);
  for (const [name, folder, ids] of cases) {
    const lm = await load(path.join(folder, name)), own = await lm.logits(ids);
    await lm.close();
    const there = await page.evaluate(async ([url, ids]) => {
      const lm = await edgelm.load(url, { cache: false, worker: false }), rows = await lm.logits(ids);
      await lm.close();
      return rows.map((row) => [...new Int32Array(row.buffer)].join());
    }, [`/${folder === data ? "data" : "models"}/${name}`, ids]);
    assert.deepEqual(there, own.map((row) => [...new Int32Array(row.buffer)].join()), name);
  }
});

test("a broken download goes on where it broke, and one without ranges begins anew", async () => {
  const fresh = await browser.newContext(), there = await open(fresh);
  server.log.length = 0;
  server.behaviour.breakAfter = 2_000_000;
  const load = (cache) => there.evaluate(async (cache) => {
    const lm = await edgelm.load("/python.onnx", { cache }), report = await lm.verify();
    await lm.close();
    return report.tokens;
  }, cache);
  assert.ok((await load(true)) > 0);
  const ranges = server.log.filter((line) => line.includes("python.onnx bytes=")).map((line) => Number(line.split("bytes=")[1].split("-")[0]));
  assert.deepEqual(ranges.slice(1, 4), [0, 2_000_000, 4_000_000], "each goes on where the last broke");
  server.behaviour.breakAfter = Infinity;
  server.log.length = 0;
  assert.ok((await load(true)) > 0);
  assert.equal(server.log.filter((line) => line.startsWith("GET /python.onnx")).length, 1, "only the digest is fetched");
  server.behaviour.ranges = server.behaviour.head = false;
  assert.ok((await load(false)) > 0);
  server.behaviour.ranges = server.behaviour.head = true;
  await fresh.close();
});

test("damaged, truncated and missing files are refused by name", async () => {
  // In a browser that knows the undamaged file by the same digest, that one would be used.
  const fresh = await browser.newContext(), there = await open(fresh);
  const refused = (url, options = {}) => there.evaluate(([url, options]) => edgelm.load(url, options).then(async (lm) => {
    const error = await lm.verify().catch((e) => [e.name, e.message]);
    await lm.close();
    return error;
  }, (e) => [e.name, e.message]), [url, options]);
  for (const cache of [true, false]) {
    const [name, message] = await refused("/damaged.onnx", { cache });
    assert.match(name, /ModelFileError|VerificationError/);
    assert.match(message, /damaged.*graph|changed after its export: the graph|gives other logits than at its export/);
    assert.match((await refused("/truncated.onnx", { cache })).join(), /ModelFileError,truncated.onnx is cut off/);
  }
  assert.match((await refused("/nothing.onnx")).join(), /DownloadError,.*404/);
  assert.match((await refused("/models/foreign.onnx")).join(), /ModelFileError,foreign.onnx is an ONNX model without/);
  assert.match((await refused("/python.onnx", { digest: "0".repeat(64) })).join(), /ModelFileError,python.onnx has the digest/);
  await fresh.close();
});

test("two models at once, bytes and Blobs, with and without a worker", async () => {
  const texts = await page.evaluate(async () => {
    const bytes = await (await fetch("/python.onnx")).arrayBuffer();
    const models = await Promise.all([edgelm.load(bytes), edgelm.load(new Blob([bytes])), edgelm.load("/python.onnx", { worker: false }), edgelm.load("/python.onnx", { workerUrl: "/dist/worker.js" })]);
    const made = await Promise.all(models.map((lm) => lm.generate("class A", { maxNewTokens: 20, seed: 1, temperature: 1 })));
    await Promise.all(models.map((lm) => lm.close()));
    return made.map(({ text }) => text);
  });
  assert.equal(new Set(texts).size, 1);
});

test("threads need isolation, and say so", async () => {
  const message = await page.evaluate(() => edgelm.load("/python.onnx", { threads: 2 }).catch((e) => e.message));
  assert.match(message, /not cross-origin isolated; serve it with Cross-Origin-Opener-Policy/);
  server.behaviour.isolated = true;
  const isolated = await open();
  const [one, two] = await isolated.evaluate(async () => {
    const texts = [];
    for (const threads of [1, 2]) {
      const lm = await edgelm.load("/python.onnx", { threads });
      texts.push((await lm.generate("def f(x):", { maxNewTokens: 40 })).text, (await lm.verify()).tokens);
      await lm.close();
    }
    return [texts.slice(0, 2), texts.slice(2)];
  });
  server.behaviour.isolated = false;
  await isolated.close();
  assert.deepEqual(one, two);
});

test("a page closed in the middle leaves nothing broken", async () => {
  const fresh = await browser.newContext(), going = await open(fresh);
  server.behaviour.breakAfter = 1_000_000;
  await going.evaluate(() => void edgelm.load("/python.onnx"));
  await new Promise((resolve) => setTimeout(resolve, 300));
  await going.close();
  server.behaviour.breakAfter = Infinity;
  const writing = await open(fresh);
  await writing.evaluate(async () => {
    const lm = await edgelm.load("/python.onnx");
    await new Promise((started) => void lm.generate("a", { maxNewTokens: 100000, onToken: started }));
  });
  await writing.close();
  const next = await open(fresh);
  assert.ok((await next.evaluate(async () => {
    const lm = await edgelm.load("/python.onnx"), report = await lm.verify();
    await lm.close();
    return report.tokens;
  })) > 0);
  await fresh.close();
});

test("memory is given back by fifty loads and closes", async () => {
  const fresh = await open();
  const cdp = await browser.newBrowserCDPSession();
  const resident = async () => {
    const { processInfo } = await cdp.send("SystemInfo.getProcessInfo");
    return processInfo.filter(({ type }) => type === "renderer").reduce((sum, { id }) => sum + residentBytes(id), 0);
  };
  const rounds = (count) => fresh.evaluate(async (count) => {
    for (let i = 0; i < count; i++) {
      const lm = await edgelm.load("/python.onnx");
      await lm.generate("x", { maxNewTokens: 2 });
      await lm.close();
    }
  }, count);
  await rounds(10);
  const before = await resident();
  await rounds(40);
  const grown = ((await resident()) - before) / 1e6;
  await fresh.close();
  assert.ok(grown < 100, `${grown} MB more after 40 loads`);
});

function residentBytes(pid) {
  try {
    return Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0) * 1024;
  } catch {
    return 0; // it has ended
  }
}
