/**
 * edgelm against wllama in headless Chromium, and against the Python package, side by side in one run:
 *
 *     npm ci --ignore-scripts && node bench.mjs --gguf FILE.gguf --python PYTHON FILE.onnx ...
 *
 * CPU time of Chromium's processes (or of Python's), since other work on a machine disturbs it less than a clock. Subjects
 * take turns, round by round; each figure is the median of its rounds. Texts are the first words of the corpus.
 */
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { serve } from "../test/server.mjs";
import { chromiumPath, root } from "../test/support.mjs";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { gguf: { type: "string" }, python: { type: "string" }, rounds: { type: "string", default: "3" } } });
const TEXT = fs.readFileSync(path.join(root, "..", "..", "tests", "benchmarks", "data", "text.txt"), "utf8");
const NEW = 48;
const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

// What a page does: open a model, then a prompt of so many tokens and so many new ones.
const EDGELM = `import { load } from "/dist/edgelm.js";
let lm, ids;
window.start = async (url, threads) => { lm = await load(url, { threads, cache: false }); ids = await lm.tokenizer.encode(await (await fetch("/text")).text()); };
window.run = async (from, prompt, count) => (await lm.generate(ids.slice(from, from + prompt), { maxNewTokens: count, lookup: 0 })).tokenIds.length;
window.ready = true;`;
const WLLAMA = `import { Wllama } from "/wllama/index.js";
const wllama = new Wllama({ default: "/wllama/wasm/wllama.wasm" }, { suppressNativeLog: true });
let words;
window.start = async (url, threads) => {
  await wllama.loadModel([await (await fetch(url)).blob()], { n_ctx: 1024, n_threads: threads, n_gpu_layers: 0 });
  words = (await (await fetch("/text")).text()).split(" ");
};
window.run = async (from, prompt, count) => {
  const { usage } = await wllama.createCompletion({ prompt: words.slice(from, from + Math.round(prompt * 0.75)).join(" "), max_tokens: count, temperature: 0, cache_prompt: false });
  return [usage.prompt_tokens, usage.completion_tokens];
};
window.ready = true;`;
const folder = fs.mkdtempSync("/tmp/edgelm-bench-");
for (const [name, code] of [["edgelm", EDGELM], ["wllama", WLLAMA]]) fs.writeFileSync(path.join(folder, `${name}.html`), `<!doctype html><script type="module">${code}</script>`);
fs.writeFileSync(path.join(folder, "text"), TEXT);

const server = await serve({ "/dist/": path.join(root, "dist"), "/wllama/": path.join(import.meta.dirname, "node_modules", "@wllama", "wllama", "esm"), "/files/": "/", "/": folder });
server.behaviour.isolated = true;
const subjects = positionals.flatMap((file) => [1, 2].map((threads) => ({ name: `edgelm ${path.basename(file)}`, page: "edgelm", file: path.resolve(file), threads })));
if (values.gguf) subjects.push(...[1, 2].map((threads) => ({ name: `wllama ${path.basename(values.gguf)}`, page: "wllama", file: path.resolve(values.gguf), threads })));
const figures = subjects.map(() => ({ open: [], peak: [], step: [], wall: [], 64: [], 512: [] }));

for (let round = 0; round < Number(values.rounds); round++) {
  for (const [i, subject] of subjects.entries()) {
    try {
      await measure(subject, figures[i]);
    } catch (error) {
      console.error(subject.name, subject.threads, error.message.split("\n")[0]);
    }
  }
}
await server.close();
if (values.python) for (const file of positionals) python(path.resolve(file));
for (const [i, { name, threads }] of subjects.entries()) {
  const shown = Object.entries(figures[i]).map(([what, all]) => `${what} ${all.length ? median(all).toFixed(all[0] < 100 ? 1 : 0) : "-"}`);
  console.log(`${name}, ${threads} thread${threads > 1 ? "s" : ""}: ${shown.join(", ")}`);
}

async function measure({ page: kind, file, threads }, into) {
  const browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage(), cdp = await browser.newBrowserCDPSession();
    page.setDefaultTimeout(600_000);
    await page.goto(`${server.url}/${kind}.html`);
    await page.waitForFunction(() => window.ready);
    const cpu = async () => (await cdp.send("SystemInfo.getProcessInfo")).processInfo.reduce((sum, { cpuTime }) => sum + cpuTime * 1000, 0);
    const timed = async (work) => {
      const [before, clock] = [await cpu(), performance.now()], result = await work();
      return { result, ms: (await cpu()) - before, wall: performance.now() - clock };
    };
    into.open.push((await timed(() => page.evaluate(([url, n]) => window.start(url, n), [`/files${file}`, threads]))).ms);
    const run = (...args) => timed(() => page.evaluate((args) => window.run(...args), args));
    await run(700, 16, 2);
    const one = await run(0, 32, 1), many = await run(0, 33, 1 + NEW);
    into.step.push((many.ms - one.ms) / NEW);
    into.wall.push((many.wall - one.wall) / NEW);
    for (const [from, length] of [[40, 64], [120, 512]]) {
      const { result, ms } = await run(from, length, 1);
      into[length].push(Array.isArray(result) ? (ms * length) / result[0] : ms); // by tokens, where words were given
    }
    const { processInfo } = await cdp.send("SystemInfo.getProcessInfo");
    into.peak.push(Math.max(...processInfo.map(({ id }) => peakBytes(id) / 1e6)));
  } finally {
    await browser.close();
  }
}

function peakBytes(pid) {
  try {
    return Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0) * 1024;
  } catch {
    return 0;
  }
}

/** The same in Python, by its own clock of CPU time. */
function python(file) {
  const code = `
import statistics, sys, time, edgelm
start = time.process_time(); lm = edgelm.load(sys.argv[1], threads=1); opened = time.process_time() - start
ids = lm.tokenizer.encode(open(sys.argv[2]).read()); lm.generate(ids[700:716], max_new_tokens=2)
def run(at, prompt, count):
    start = time.process_time(); lm.generate(ids[at:at + prompt], max_new_tokens=count, lookup=0); return 1000 * (time.process_time() - start)
rounds = [((run(0, 33, 49) - run(0, 32, 1)) / 48, run(40, 64, 1), run(120, 512, 1)) for _ in range(int(sys.argv[3]))]
step, short, long = (statistics.median(values) for values in zip(*rounds))
print(f"Python {sys.argv[1].split('/')[-1]}, 1 thread: open {1000 * opened:.0f}, step {step:.1f}, 64 {short:.0f}, 512 {long:.0f}")`;
  console.log(execFileSync(values.python, ["-c", code, file, path.join(folder, "text"), values.rounds], { encoding: "utf8" }).trim());
}
