/** Log lines on stderr: one JSON object a line, or short text on a terminal. Never secrets, never prompts. */
export type LogLevel = "debug" | "info" | "warn" | "error";

const order: Record<LogLevel, number> = { debug: 0, info: 1, warn: 2, error: 3 };

export interface Logger {
  debug(message: string, fields?: Record<string, unknown>): void;
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
}

export function createLogger(options: { level?: LogLevel; json?: boolean; write?: (line: string) => void } = {}): Logger {
  const least = order[options.level ?? "info"];
  const json = options.json ?? !process.stderr.isTTY;
  const write = options.write ?? ((line: string) => void process.stderr.write(line));
  const log = (level: LogLevel) => (message: string, fields: Record<string, unknown> = {}) => {
    if (order[level] < least) return;
    const time = new Date().toISOString();
    if (json) write(`${JSON.stringify({ time, level, message, ...fields })}\n`);
    else {
      const rest = Object.entries(fields).map(([k, v]) => `${k}=${typeof v === "string" ? v : JSON.stringify(v)}`);
      write(`${time.slice(11, 19)} ${level.padEnd(5)} ${[message, ...rest].join("  ")}\n`);
    }
  };
  return { debug: log("debug"), info: log("info"), warn: log("warn"), error: log("error") };
}

export const silentLogger: Logger = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
