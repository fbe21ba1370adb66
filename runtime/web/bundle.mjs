/** Bundles `src/` into `dist/`: one build for pages, two for Node, and types. */
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { build } from "esbuild";
import { minify } from "terser";

const root = import.meta.dirname, dist = path.join(root, "dist"), src = path.join(root, "src");

/** Names of private members that nothing else in the sources is called: short ones serve as well. */
function privateNames() {
  const files = fs.readdirSync(src, { recursive: true }).filter((name) => name.endsWith(".ts") && !name.includes(".generated."));
  const code = files.map((name) => fs.readFileSync(path.join(src, name), "utf8").replace(/\/\*[^]*?\*\/|\/\/.*/g, "")).join("\n");
  const declared = /private (?:async |readonly |get |\*)*(\w+)/g, names = new Set([...code.matchAll(declared)].map(([, name]) => name));
  const uses = code.replace(declared, "").matchAll(/(this\.)?\b(\w+)/g);
  for (const [, own, name] of uses) if (!own) names.delete(name);
  return new RegExp(`^(${[...names].join("|")})$`);
}

const common = { bundle: true, minify: true, target: "es2022", mangleProps: privateNames(), legalComments: "none", logLevel: "warning" };
const entry = (name) => [path.join(src, name)];

// What runs in a page's worker comes inside of what runs in the page, as text.
await build({ ...common, entryPoints: entry("worker/core.ts"), outfile: path.join(dist, "worker.js"), format: "esm", external: ["node:*"] });
const { code: core } = await minify(fs.readFileSync(path.join(dist, "worker.js"), "utf8"), { module: true, ecma: 2022, compress: { passes: 3 } });
fs.writeFileSync(path.join(dist, "worker.js"), core);
fs.writeFileSync(path.join(src, "worker", "core.generated.ts"), `// Made by bundle.mjs from core.ts.\nexport const CORE = ${JSON.stringify(core)};\n`);

const page = { ...common, entryPoints: entry("browser.ts"), format: "esm" };
await build({ ...page, outdir: dist, splitting: true, chunkNames: "[name]" });
await build({ ...page, outfile: path.join(dist, "edgelm.js") });
const node = { ...common, entryPoints: entry("node.ts"), platform: "node" };
await build({ ...node, outfile: path.join(dist, "node.mjs"), format: "esm" });
await build({ ...node, outfile: path.join(dist, "node.cjs"), format: "cjs" });
await build({ ...common, entryPoints: entry("testing.ts"), outfile: path.join(dist, "test.mjs"), format: "esm", platform: "node" });

// Types once for each kind of module, since one kind may not be imported as the other.
execFileSync(process.execPath, [path.join(root, "node_modules", "typescript", "bin", "tsc"), "--project", root, "--stripInternal"], { stdio: "inherit" });
const types = path.join(dist, "types"), typesCjs = path.join(dist, "types-cjs");
fs.rmSync(typesCjs, { recursive: true, force: true });
fs.cpSync(types, typesCjs, { recursive: true });
fs.writeFileSync(path.join(typesCjs, "package.json"), '{ "type": "commonjs" }\n');

fs.copyFileSync(path.join(root, "..", "..", "LICENSE"), path.join(root, "LICENSE"));
fs.writeFileSync(path.join(dist, "THIRD-PARTY.txt"), "The builds contain @huggingface/jinja (https://github.com/huggingface/huggingface.js), Copyright (c) 2023 Hugging Face, under the same MIT licence.\n");
