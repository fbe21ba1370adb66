/** Bundles `src/` into `dist/`: one build for pages, two for Node, and types. */
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { build } from "esbuild";

const root = import.meta.dirname, dist = path.join(root, "dist"), src = path.join(root, "src");
const common = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };
const entry = (name) => [path.join(src, name)];

// What runs in a page's worker comes inside of what runs in the page, as text.
await build({ ...common, entryPoints: entry("worker/core.ts"), outfile: path.join(dist, "worker.js"), format: "esm", external: ["node:*"] });
const core = fs.readFileSync(path.join(dist, "worker.js"), "utf8");
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
