/** Entry of the child process of `worker.ts`. SIGTERM and SIGINT end the work at the next whole piece. */
import { serveChild } from "../llama/child.ts";
import { UserError } from "../util/errors.ts";
import { capture } from "./capture.ts";
import { evaluateHead } from "./evaluate.ts";
import { exportHead } from "./export.ts";
import { selfTest } from "./self-test.ts";
import { train } from "./trainer.ts";
import type { WorkRequest, WorkResults } from "./worker.ts";

const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => stop.abort(new UserError(`stopped by ${signal}`)));

/** Notes a second, so that a fast loop does not flood its parent. */
function sparsely(note: (text: string) => void): (value: unknown) => void {
  let lastMs = 0;
  return (value) => {
    const now = performance.now();
    if (now - lastMs < 100) return;
    lastMs = now;
    note(JSON.stringify(value));
  };
}

serveChild<WorkRequest, WorkResults[keyof WorkResults]>(async (request, note) => {
  const { signal } = stop;
  const progress = sparsely(note);
  switch (request.kind) {
    case "capture":
      return await capture({ ...request.options, signal, onProgress: progress });
    case "train":
      await train(request.options, { onEvent: (event) => note(JSON.stringify(event)), isStopped: () => signal.aborted });
      return null;
    case "evaluate":
      return await evaluateHead({ ...request.options, signal, onProgress: (nDone, nTotal) => progress([nDone, nTotal]) });
    case "self-test":
      return selfTest(request.options);
    case "export":
      return await exportHead(request.options);
    default:
      return request satisfies never;
  }
});
