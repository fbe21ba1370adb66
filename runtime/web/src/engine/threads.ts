/** Further threads of the kernels: workers that share the memory and wait for a part of each product. */
import type { Heap, OpenKernels } from "./kernels.js";

/** What a helping worker runs: it is sent the module, the memory and its number, and stays in the kernel. */
const HELPER = `onmessage = async ({ data: { module, memory, index } }) => {
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  postMessage("ready");
  exports.help(index, 0);
  close();
};`;
const NODE_HELPER = `const { parentPort } = require("node:worker_threads");
parentPort.once("message", async ({ module, memory, index }) => {
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  parentPort.postMessage("ready");
  exports.help(index, 0);
  process.exit();
});`;

export interface Helpers {
  /** End the threads. */
  dismiss(): void;
}

/** Start `threads` - 1 workers, before any kernel runs. */
export async function startHelpers({ kernels, module }: OpenKernels, heap: Heap, threads: number): Promise<Helpers> {
  await Promise.all(Array.from({ length: threads - 1 }, (_, i) => startHelper({ module, memory: heap.memory, index: i + 1 })));
  kernels.setThreads(threads);
  return { dismiss: () => kernels.dismiss() };
}

async function startHelper(message: object): Promise<void> {
  if (typeof Worker === "undefined") {
    const { Worker: NodeWorker } = await import("node:worker_threads");
    const worker = new NodeWorker(NODE_HELPER, { eval: true });
    worker.unref();
    return new Promise((ready, failed) => {
      worker.once("message", () => ready());
      worker.once("error", failed);
      worker.postMessage(message);
    });
  }
  const url = URL.createObjectURL(new Blob([HELPER], { type: "text/javascript" }));
  const worker = new Worker(url);
  return new Promise((ready, failed) => {
    worker.onmessage = () => {
      URL.revokeObjectURL(url);
      ready();
    };
    worker.onerror = failed;
    worker.postMessage(message);
  });
}
