/**
 * One progress line on stderr: label, done of total, rate, time left. Redraws at most ten times a second on a terminal.
 * Elsewhere, in a log file, a line every half minute of work that takes so long; with FORETOKEN_PROGRESS=plain one every
 * five seconds, with FORETOKEN_PROGRESS=off (and --quiet) none.
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
  const wish = process.env["FORETOKEN_PROGRESS"];
  if (wish === "off") return silent;
  const everyMs = plain ? (wish === "plain" ? 5000 : 30_000) : 100;
  const format = options.format ?? String;
  const startMs = performance.now();
  let total = options.total;
  // The first line of a log comes when the work has shown to be long.
  let lastMs = plain && wish !== "plain" ? startMs : -Infinity;
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
      if (now - lastMs < everyMs) return;
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
