/**
 * Builds `dist/`: kernels to WebAssembly, inlined as base64; bundles; types. `--kernels`: the first only. `--page`: also
 * the copy in edgelm/web_page, which `edgelm web` writes into pages.
 */
import fs from "node:fs";
import path from "node:path";
import asc from "assemblyscript/asc";
import { deflateSync } from "fflate";

const root = import.meta.dirname;
const at = (...parts) => path.join(root, ...parts);

/** Compile `kernels/`; with relaxed SIMD, or without. */
async function compiled(features) {
  const wasm = at("dist", "kernels.wasm");
  const { error, stderr } = await asc.main([
    at("kernels", "index.ts"), "--outFile", wasm, "-O3", "--noAssert", "--runtime", "stub", "--use", "abort=",
    "--enable", features, "--sharedMemory", "--importMemory", "--initialMemory", "1", "--maximumMemory", "65536",
  ]);
  if (error) throw new Error(`the kernels do not compile: ${error.message}\n${stderr}`);
  return fs.readFileSync(wasm);
}

/** Write the kernels as a module that exports base64. */
async function buildKernels() {
  fs.rmSync(at("dist"), { recursive: true, force: true });
  fs.mkdirSync(at("dist"));
  const plain = await compiled("simd,threads,bulk-memory"), relaxed = await compiled("simd,threads,bulk-memory,relaxed-simd");
  // Compressed first, and together, since base64 hides what repeats itself. (By fflate: zlib's bytes differ from version to version.)
  const base64 = Buffer.from(deflateSync(Buffer.concat([plain, relaxed]), { level: 9 })).toString("base64");
  fs.writeFileSync(
    at("src", "engine", "kernels.generated.ts"),
    `// Made by build.mjs from kernels/: two modules, the first of PLAIN bytes.\nexport const PLAIN = ${plain.length};\nexport const KERNELS = "${base64}";\n`,
  );
}

await buildKernels();
const worker = at("src", "worker", "core.generated.ts"); // the compiler of types wants to see it
if (!fs.existsSync(worker)) fs.writeFileSync(worker, 'export const CORE = "";\n');
if (!process.argv.includes("--kernels")) await import("./bundle.mjs");
if (process.argv.includes("--page")) fs.copyFileSync(at("dist", "edgelm.js"), at("..", "..", "edgelm", "web_page", "edgelm.js"));
