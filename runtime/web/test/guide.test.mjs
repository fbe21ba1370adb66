/** Every example of README.md runs. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { serve } from "./server.mjs";
import { bundled, chromiumPath, root } from "./support.mjs";

const examples = [...fs.readFileSync(path.join(root, "README.md"), "utf8").matchAll(/^```(js|html)( \w+)?\n([\s\S]*?)^```$/gm)];
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "edgelm-guide-"));
after(() => fs.rmSync(folder, { recursive: true }));
fs.mkdirSync(path.join(folder, "node_modules"));
fs.symlinkSync(root, path.join(folder, "node_modules", "edgelm"));
fs.symlinkSync(path.join(root, "node_modules", "hono"), path.join(folder, "node_modules", "hono"));
fs.copyFileSync(bundled, path.join(folder, "model.onnx"));
fs.copyFileSync(path.join(root, "dist", "edgelm.js"), path.join(folder, "edgelm.js"));
const plain = examples.filter(([, language, kind]) => language === "js" && !kind), one = (kind) => examples.find(([, language, name]) => language === kind || name === ` ${kind}`)[3];

test("there are examples of every kind", () => assert.ok(plain.length >= 3 && one("html") && one("worker") && one("server")));

plain.forEach(([, , , code], i) =>
  test(`example ${i + 1}`, () => {
    fs.writeFileSync(path.join(folder, `${i}.mjs`), code);
    assert.ok(execFileSync(process.execPath, [`${i}.mjs`], { cwd: folder, encoding: "utf8", timeout: 120_000 }).length > 10);
  }));

test("the page and the worker", async () => {
  fs.writeFileSync(path.join(folder, "index.html"), one("html"));
  fs.writeFileSync(path.join(folder, "worker.js"), one("worker"));
  const server = await serve({ "/": folder }), browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage();
    await page.goto(`${server.url}/index.html`);
    await page.waitForFunction(() => document.title === "done");
    assert.ok((await page.textContent("output")).length > 20);
    const text = await page.evaluate(() => new Promise((resolve) => {
      const worker = new Worker("worker.js", { type: "module" });
      let text = "";
      worker.onmessage = ({ data }) => (data === "ready" ? worker.postMessage("import ") : data === null ? resolve(text) : (text += data));
    }));
    assert.ok(text.length > 5);
  } finally {
    await browser.close();
    await server.close();
  }
});

test("the web view", async () => {
  fs.writeFileSync(path.join(folder, "server.mjs"), one("server"));
  const before = process.cwd();
  process.chdir(folder);
  const { app } = await import(pathToFileURL(path.join(folder, "server.mjs")).href).finally(() => process.chdir(before));
  const ask = (body) => app.request("/complete", { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
  const response = await ask({ prompt: "import ", maxNewTokens: 10 });
  assert.equal(response.status, 200);
  assert.ok((await response.text()).length > 5);
  const refused = await ask({ prompt: "import ", maxNewTokens: -1 });
  assert.equal(refused.status, 400);
  assert.match((await refused.json()).error, /maxNewTokens is -1/);
});
