/** The packed package in empty projects: ES modules, CommonJS, TypeScript, a bundler. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { chromium } from "playwright-core";
import { build } from "vite";
import { serve } from "./server.mjs";
import { bundled, chromiumPath, root } from "./support.mjs";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "edgelm-package-"));
const run = (command, args, cwd) => execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: 120_000 });
const write = (name, text) => {
  fs.mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
  fs.writeFileSync(path.join(folder, name), text);
};
const USE = `const lm = await load(${JSON.stringify(bundled)});
const { text } = await lm.generate("import ", { maxNewTokens: 5 });
console.log(JSON.stringify(text));
await lm.close();`;
let expected;

before(() => {
  run("npm", ["pack", "--ignore-scripts", "--pack-destination", folder], root);
  const [tarball] = fs.readdirSync(folder).filter((name) => name.endsWith(".tgz"));
  write("package.json", '{ "private": true }');
  run("npm", ["install", "--offline", "--no-audit", "--no-fund", `./${tarball}`], folder);
  write("module.mjs", `import { load } from "edgelm";\n${USE}`);
  expected = run(process.execPath, ["module.mjs"], folder);
});
after(() => fs.rmSync(folder, { recursive: true }));

test("it brings what it needs and nothing else", () => {
  const names = fs.readdirSync(path.join(folder, "node_modules")).filter((name) => !name.startsWith("."));
  assert.deepEqual(names, ["edgelm"]);
  // What a page loads: the entry and what it begins with. Jinja and onnxruntime's decoder are loaded when they are asked for.
  const dist = path.join(folder, "node_modules", "edgelm", "dist"), entry = fs.readFileSync(path.join(dist, "browser.js"), "utf8");
  const parts = [entry, ...[...entry.matchAll(/from"\.\/([\w.]+)"/g)].map(([, name]) => fs.readFileSync(path.join(dist, name)))];
  const size = parts.reduce((sum, bytes) => sum + gzipSync(bytes, { level: 9 }).length, 0);
  assert.ok(size < 40_000, `${size} bytes`);
});

test("ES modules", () => assert.ok(JSON.parse(expected).length > 2));

test("CommonJS", () => {
  write("common.cjs", `const { load } = require("edgelm");\n(async () => {\n${USE}\n})();`);
  assert.equal(run(process.execPath, ["common.cjs"], folder), expected);
});

test("TypeScript, strict, as both kinds of module and for pages", () => {
  const typed = `import { load, type Generation, type LanguageModel } from "edgelm";
export async function write(lm: LanguageModel): Promise<string> {
  const one: Generation = await lm.generate("a", { maxNewTokens: 3, topK: 5 });
  const many: Generation[] = await lm.generate("a", { n: 2 });
  for await (const piece of lm.stream("a")) console.log(piece.text satisfies string);
  // @ts-expect-error: not an option
  await lm.generate("a", { nonsense: 1 });
  return one.text + many.length;
}
export const open = (): Promise<LanguageModel> => load("model.onnx", { threads: 2 });
`;
  write("esm/package.json", '{ "type": "module" }');
  write("esm/use.ts", typed);
  write("cjs/package.json", '{ "type": "commonjs" }');
  write("cjs/use.ts", typed);
  const tsc = path.join(root, "node_modules", "typescript", "bin", "tsc"), strict = ["--strict", "--noEmit", "--target", "es2022", "--lib", "es2023,dom,dom.asynciterable", "--types", ""];
  for (const args of [["--module", "nodenext", "esm/use.ts"], ["--module", "nodenext", "cjs/use.ts"], ["--module", "esnext", "--moduleResolution", "bundler", "esm/use.ts"]]) {
    try {
      run(process.execPath, [tsc, ...strict, ...args], folder);
    } catch (error) {
      assert.fail(`${args.join(" ")}\n${error.stdout}`);
    }
  }
});

test("vite", async () => {
  write("site/index.html", '<!doctype html><script type="module" src="./main.js"></script>');
  write("site/main.js", 'import { load } from "edgelm";\nconst lm = await load("/python.onnx");\ndocument.title = JSON.stringify((await lm.generate("import ", { maxNewTokens: 5 })).text);');
  await build({ root: path.join(folder, "site"), logLevel: "error", build: { target: "es2022" } });
  fs.copyFileSync(bundled, path.join(folder, "site", "dist", "python.onnx"));
  const server = await serve({ "/": path.join(folder, "site", "dist") }), browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage();
    await page.goto(`${server.url}/index.html`);
    await page.waitForFunction(() => document.title);
    assert.equal(await page.title(), expected.trim());
  } finally {
    await browser.close();
    await server.close();
  }
});
