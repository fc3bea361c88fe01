/** What the HTTP side counts itself: requests by outcome, tokens delivered, times seen by clients. */

/** Upper bounds in seconds, as Prometheus histograms want them. */
const TIME_BOUNDS_S = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];
const N_RECENT = 256;

export class Histogram {
  readonly bounds: readonly number[];
  readonly counts: number[];
  sum = 0;
  n = 0;

  constructor(bounds: readonly number[] = TIME_BOUNDS_S) {
    this.bounds = bounds;
    this.counts = bounds.map(() => 0);
  }

  add(value: number): void {
    this.sum += value;
    this.n++;
    const at = this.bounds.findIndex((bound) => value <= bound);
    if (at >= 0) this.counts[at] = (this.counts[at] as number) + 1;
  }
}

export type Outcome = "ok" | "rejected" | "failed" | "disconnected" | "slow_client";

export class ServerStats {
  readonly outcomes: Record<Outcome, number> = { ok: 0, rejected: 0, failed: 0, disconnected: 0, slow_client: 0 };
  readonly ttftS = new Histogram();
  readonly durationS = new Histogram();
  readonly tpotS = new Histogram([0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1]);
  /** TTFT in milliseconds of the last requests, oldest first. */
  readonly recentTtftMs: number[] = [];
  nTokensDelivered = 0;
  nActive = 0;

  firstToken(ttftMs: number): void {
    this.ttftS.add(ttftMs / 1000);
    this.recentTtftMs.push(ttftMs);
    if (this.recentTtftMs.length > N_RECENT) this.recentTtftMs.shift();
  }
}
