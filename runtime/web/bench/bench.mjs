/**
 * edgelm, transformers.js, wllama and the Python package, side by side in one run:
 *
 *     npm ci --ignore-scripts
 *     node bench.mjs [--pages] [--node] [--python PYTHON] [--threads 1,2] [--rounds 3]
 *         [--gguf FILE.gguf] [--hub FOLDER] FILE.onnx ...
 *
 * FOLDER holds a model as transformers.js wants it: config.json, tokenizer.json, onnx/model_quantized.onnx and
 * onnx/model_q4.onnx. `--pages` measures in headless Chromium, `--node` in Node. CPU time of all processes of the browser,
 * of Node or of Python, since other work on a machine disturbs it less than a clock. Subjects take turns, round by round;
 * each figure is the median of its rounds. All are given the same token ids (wllama the same text).
 */
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { load } from "../dist/node.mjs";
import { serve } from "../test/server.mjs";
import { chromiumPath, root } from "../test/support.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    pages: { type: "boolean" }, node: { type: "boolean" }, python: { type: "string" }, gguf: { type: "string" }, hub: { type: "string" },
    threads: { type: "string", default: "1" }, rounds: { type: "string", default: "3" },
  },
});
const rounds = Number(values.rounds), files = positionals.map((file) => path.resolve(file));
const modules = path.join(import.meta.dirname, "node_modules"), textFile = path.join(root, "..", "..", "tests", "benchmarks", "data", "text.txt");
const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
// Prompts of so many tokens from a place of the text, and new tokens.
const RUNS = { warm: [300, 16, 2], one: [0, 32, 1], many: [0, 33, 33], short: [40, 64, 1], long: [0, 504, 1] };

// How each begins, and what it does with a prompt: in a page, in Node, or both.
const START = {
  edgelm: `import { load } from "EDGELM";
    const lm = await load("FILE", { threads: THREADS, ...ANEW });
    let ids;
    const run = async (at, prompt, count) => lm.generate((ids ??= await lm.tokenizer.encode(TEXT)).slice(at, at + prompt), { maxNewTokens: count, bannedTokens: lm.info.generation.end_ids, lookup: 0 });`,
  transformers: `import { AutoModelForCausalLM, AutoTokenizer, Tensor, env } from "TRANSFORMERS";
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "HUB", useBrowserCache: false });
    if (env.backends.onnx.wasm) Object.assign(env.backends.onnx.wasm, { numThreads: THREADS, ...PATHS });
    const model = await AutoModelForCausalLM.from_pretrained("NAME", { dtype: "DTYPE", device: "DEVICE", session_options: { intraOpNumThreads: THREADS } });
    const tokenizer = await AutoTokenizer.from_pretrained("NAME");
    let ids;
    const run = (at, prompt, count) => {
      ids ??= [...tokenizer(TEXT).input_ids.data];
      const input_ids = new Tensor("int64", BigInt64Array.from(ids.slice(at, at + prompt)), [1, prompt]);
      const attention_mask = new Tensor("int64", new BigInt64Array(prompt).fill(1n), [1, prompt]);
      return model.generate({ input_ids, attention_mask, max_new_tokens: count, min_new_tokens: count, do_sample: false });
    };`,
  wllama: `import { Wllama } from "/wllama/index.js";
    const wllama = new Wllama({ default: "/wllama/wasm/wllama.wasm" }, { suppressNativeLog: true });
    await wllama.loadModel([await (await fetch("FILE")).blob()], { n_ctx: 1024, n_threads: THREADS, n_gpu_layers: 0 });
    const run = (at, prompt, count) => wllama.createCompletion({ prompt: PROMPTS[at + " " + prompt], max_tokens: count, temperature: 0, cache_prompt: false });`,
};

const folder = fs.mkdtempSync("/tmp/edgelm-bench-");
fs.copyFileSync(textFile, path.join(folder, "text.txt"));
const code = (kind, names) => Object.entries(names).reduce((text, [name, value]) => text.replaceAll(name, value), START[kind]);

function subjects() {
  const found = [], hub = values.hub && path.resolve(values.hub), name = hub && path.basename(hub);
  for (const threads of values.threads.split(",").map(Number)) {
    for (const file of files) {
      const title = `edgelm ${path.basename(file)}, ${threads}`;
      if (values.pages) found.push({ title: `Chromium, ${title}`, measure: inPage, code: code("edgelm", { EDGELM: "/dist/edgelm.js", FILE: `/files${file}`, THREADS: threads, ANEW: "{ cache: false }" }) });
      if (values.node) found.push({ title: `Node, ${title}`, measure: inNode, code: code("edgelm", { EDGELM: path.join(root, "dist", "node.mjs"), FILE: file, THREADS: threads, ANEW: "{}" }) });
      if (values.python) found.push({ title: `Python, ${title}`, measure: inPython, file, threads });
    }
    for (const dtype of hub ? ["q8", "q4"] : []) {
      const shared = { THREADS: threads, NAME: name, DTYPE: dtype }, title = `transformers.js ${dtype}, ${threads}`;
      if (values.pages) found.push({ title: `Chromium, ${title}`, measure: inPage, code: code("transformers", { TRANSFORMERS: "/transformers/transformers.min.js", HUB: `/files${path.dirname(hub)}/`, PATHS: '{ wasmPaths: "/ort/" }', DEVICE: "wasm", ...shared }) });
      if (values.node) found.push({ title: `Node, ${title}`, measure: inNode, code: code("transformers", { TRANSFORMERS: path.join(modules, "@huggingface", "transformers", "dist", "transformers.node.mjs"), HUB: path.dirname(hub) + "/", PATHS: "{}", DEVICE: "cpu", ...shared }) });
    }
    if (values.gguf && values.pages) found.push({ title: `Chromium, wllama ${path.basename(values.gguf)}, ${threads}`, measure: inPage, code: code("wllama", { PROMPTS: JSON.stringify(prompts), FILE: `/files${path.resolve(values.gguf)}`, THREADS: threads }) });
  }
  return found;
}

/** The prompts as text, by their place and length; the first model's tokens. */
async function promptTexts() {
  const lm = await load(files[0]), ids = await lm.tokenizer.encode(fs.readFileSync(textFile, "utf8")), found = {};
  for (const [at, prompt] of Object.values(RUNS)) found[`${at} ${prompt}`] = await lm.tokenizer.decode(ids.slice(at, at + prompt));
  await lm.close();
  return found;
}

const prompts = values.gguf ? await promptTexts() : {};
const server = await serve({
  "/dist/": path.join(root, "dist"), "/wllama/": path.join(modules, "@wllama", "wllama", "esm"), "/ort/": path.join(modules, "onnxruntime-web", "dist"),
  "/transformers/": path.join(modules, "@huggingface", "transformers", "dist"), "/files/": "/", "/": folder,
});
server.behaviour.isolated = true;
const all = subjects(), figures = all.map(() => []);
for (let round = 0; round < rounds; round++) {
  if (round) show(round); // should what follows be cut off
  for (const [i, subject] of all.entries()) {
    try {
      figures[i].push(await subject.measure(subject));
    } catch (error) {
      console.error(subject.title, error.message.split("\n").slice(0, 3).join(" "));
    }
  }
}
await server.close();
fs.rmSync(folder, { recursive: true });
show(rounds);

function show(count) {
  console.log(`${count} rounds, CPU ms (of the clock: ms): a token, prompts of 64 and of 504 tokens, open; peak MB`);
  for (const [i, { title }] of all.entries()) {
    if (!figures[i].length) continue;
    const at = (what) => median(figures[i].map((figure) => figure[what]));
    console.log(`${title}: ${["step", "short", "long", "open"].map((what) => `${at(what).toPrecision(3)} (${at(what + "Wall").toPrecision(3)})`).join(", ")}; ${at("peak").toFixed(0)}`);
  }
}

/** Open and run by `timed`, which gives CPU and wall-clock milliseconds; the differences are the figures. */
async function measured(timed, peak) {
  const times = {};
  for (const what of ["open", ...Object.keys(RUNS)]) times[what] = await timed(what);
  const steps = RUNS.many[2] - RUNS.one[2], per = (which) => (times.many[which] - times.one[which]) / steps;
  return {
    step: per(0), stepWall: per(1), short: times.short[0], shortWall: times.short[1], long: times.long[0], longWall: times.long[1],
    open: times.open[0], openWall: times.open[1], peak: await peak(),
  };
}

async function inPage({ code: source }) {
  const begun = `const TEXT = await (await fetch("/text.txt")).text(); window.begin = async () => { BODY; window.run = run; }; window.ready = true;`;
  const [, imports, body] = /^((?:\s*import .*\n)+)([^]*)$/.exec(source);
  fs.writeFileSync(path.join(folder, "page.html"), `<!doctype html><script type="module">${imports}${begun.replace("BODY", () => body)}</script>`);
  const browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage(), cdp = await browser.newBrowserCDPSession();
    page.setDefaultTimeout(280_000);
    page.on("pageerror", (error) => console.error(error.message));
    await page.goto(`${server.url}/page.html`);
    await page.waitForFunction(() => window.ready);
    const processes = async () => (await cdp.send("SystemInfo.getProcessInfo")).processInfo;
    const cpu = async () => (await processes()).reduce((sum, { cpuTime }) => sum + cpuTime * 1000, 0);
    const timed = async (what) => {
      const before = await cpu(), clock = performance.now();
      await page.evaluate(async (args) => void (args ? await window.run(...args) : await window.begin()), RUNS[what] ?? null);
      return [(await cpu()) - before, performance.now() - clock];
    };
    return await measured(timed, async () => Math.max(...(await processes()).map(({ id }) => peakBytes(`/proc/${id}/status`) / 1e6)));
  } finally {
    await browser.close();
  }
}

/** In a process of its own, which answers with all times as JSON. */
async function inNode({ code: source }) {
  const file = path.join(folder, "run.mjs"), [, imports, body] = /^((?:\s*import .*\n)+)([^]*)$/.exec(source);
  fs.writeFileSync(file, `import fs from "node:fs";\n${imports}
    const TEXT = fs.readFileSync(${JSON.stringify(path.join(folder, "text.txt"))}, "utf8"), times = {};
    const now = () => { const { user, system } = process.cpuUsage(); return [(user + system) / 1000, performance.now()]; };
    let start = now();
    const mark = (what) => { const end = now(); times[what] = end.map((value, i) => value - start[i]); start = now(); };
    ${body}; mark("open");
    for (const [what, args] of Object.entries(${JSON.stringify(RUNS)})) { await run(...args); mark(what); }
    console.log("TIMES" + JSON.stringify([times, process.resourceUsage().maxRSS / 1000]));
    process.exit();`);
  const [times, peak] = JSON.parse(execFileSync(process.execPath, [file], { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).split("TIMES")[1]);
  return measured(async (what) => times[what], async () => peak);
}

async function inPython({ file, threads }) {
  const source = `
import json, resource, sys, time
start = time.process_time(), time.perf_counter()
import edgelm
def now(): return time.process_time(), time.perf_counter()
def since(start): return [1000 * (b - a) for a, b in zip(start, now())]
start = now(); lm = edgelm.load(sys.argv[1], threads=int(sys.argv[3])); times = {"open": since(start)}
ids = lm.tokenizer.encode(open(sys.argv[2]).read())
for what, (at, prompt, count) in json.loads(sys.argv[4]).items():
    start = now(); lm.generate(ids[at:at + prompt], max_new_tokens=count, banned_tokens=list(lm.info.end_ids), lookup=0); times[what] = since(start)
print(json.dumps([times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000]))`;
  const [times, peak] = JSON.parse(execFileSync(values.python, ["-c", source, file, path.join(folder, "text.txt"), String(threads), JSON.stringify(RUNS)], { encoding: "utf8" }));
  return measured(async (what) => times[what], async () => peak);
}

function peakBytes(status) {
  try {
    return Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync(status, "utf8"))?.[1] ?? 0) * 1024;
  } catch {
    return 0; // it has ended
  }
}
