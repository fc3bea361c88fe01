/**
 * One progress line on stderr: label, done of total, rate, time left. Redraws at most ten times a second on a
 * terminal; elsewhere prints nothing, except with FORETOKEN_PROGRESS=plain: one line every five seconds.
 */
import { formatDuration } from "./format.ts";

export interface Progress {
  /** Sets the absolute amount done; `note` replaces the text after the figures. */
  update(done: number, note?: string): void;
  setTotal(total: number): void;
  end(note?: string): void;
}

export interface ProgressOptions {
  readonly total?: number;
  readonly format?: (amount: number) => string;
  readonly stream?: NodeJS.WriteStream;
}

const silent: Progress = { update: () => {}, setTotal: () => {}, end: () => {} };

export function createProgress(label: string, options: ProgressOptions = {}): Progress {
  const stream = options.stream ?? process.stderr;
  const plain = !stream.isTTY;
  if (plain && process.env["FORETOKEN_PROGRESS"] !== "plain") return silent;
  const format = options.format ?? String;
  const startMs = performance.now();
  let total = options.total;
  let lastMs = -Infinity;
  const draw = (done: number, note: string): void => {
    const elapsedMs = performance.now() - startMs;
    const rate = done / (elapsedMs / 1000);
    let line = `${label}  ${format(done)}`;
    if (total !== undefined) line += ` of ${format(total)} (${total > 0 ? Math.floor((100 * done) / total) : 100}%)`;
    if (elapsedMs > 500 && rate > 0) {
      line += `  ${format(Math.round(rate))}/s`;
      if (total !== undefined && done < total) line += `  ${formatDuration(((total - done) / rate) * 1000)} left`;
    }
    if (note !== "") line += `  ${note}`;
    stream.write(plain ? `${line}\n` : `\r\x1b[2K${line.slice(0, (stream.columns ?? 120) - 1)}`);
  };
  return {
    update(done, note = "") {
      const now = performance.now();
      if (now - lastMs < (plain ? 5000 : 100)) return;
      lastMs = now;
      draw(done, note);
    },
    setTotal(value) {
      total = value;
    },
    end(note) {
      if (!plain) stream.write("\r\x1b[2K");
      if (note !== undefined) stream.write(`${note}\n`);
    },
  };
}
