/**
 * How late this process itself was. A client that is busy stamps arrivals late, and its delay looks like the server's
 * (llm-d's load generator fell into this). A timer that should fire every 5 ms tells; above the limit the run is tainted.
 */
import { quantile } from "../util/stats.ts";

export interface ClientHealth {
  readonly lagP50Ms: number;
  readonly lagP99Ms: number;
  readonly lagMaxMs: number;
  /** CPU seconds of this process per second of the run; 1 is a whole core. */
  readonly cpuShare: number;
  /** Set when the client may have distorted the times. */
  readonly warning: string | undefined;
}

const periodMs = 5;
export const lagLimitMs = 20;

export function watchClient(): () => ClientHealth {
  const lags: number[] = [];
  const startMs = performance.now();
  const startCpu = process.cpuUsage();
  let dueMs = startMs + periodMs;
  let timer = setTimeout(tick, periodMs);
  function tick(): void {
    const nowMs = performance.now();
    lags.push(Math.max(0, nowMs - dueMs));
    dueMs = nowMs + periodMs;
    timer = setTimeout(tick, periodMs);
  }
  return () => {
    clearTimeout(timer);
    const { user, system } = process.cpuUsage(startCpu);
    return clientHealth(lags, (user + system) / 1000 / Math.max(1, performance.now() - startMs));
  };
}

export function clientHealth(lags: readonly number[], cpuShare: number): ClientHealth {
  const at = (q: number): number => (lags.length === 0 ? 0 : Math.round(quantile(lags, q) * 100) / 100);
  const lagP99Ms = at(0.99);
  return {
    lagP50Ms: at(0.5),
    lagP99Ms,
    lagMaxMs: at(1),
    cpuShare: Math.round(cpuShare * 1000) / 1000,
    warning: lagP99Ms > lagLimitMs ? `the client's event loop was ${lagP99Ms} ms late (p99, limit ${lagLimitMs} ms): latencies are not the server's alone; use fewer streams or a less busy machine` : undefined,
  };
}
