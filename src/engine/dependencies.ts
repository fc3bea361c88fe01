/** What an engine is made of. Clocks, sinks and a drafter may be a test's own. */
import type { Backend } from "./backend.ts";
import type { EngineConfig } from "./config.ts";
import type { CrowdView } from "./crowd.ts";
import type { Drafter } from "./drafters/drafter.ts";
import type { EventSink } from "./loop.ts";
import type { TraceSink } from "./trace.ts";

export interface EngineDependencies {
  readonly backend: Backend;
  readonly config: EngineConfig;
  readonly sink: EventSink;
  readonly clock?: () => number;
  /**
   * What the cost table is measured with; default: `clock`. On a CPU the processor time of this process per thread:
   * beside other work the same step may take three times as long at one moment as at another, which is not its cost.
   */
  readonly costClock?: () => number;
  /** Other groups of slots on the same device: they are told whether this one works, and it is told whether they do. */
  readonly crowd?: CrowdView;
  readonly trace?: TraceSink;
  readonly loadMs?: number;
  readonly loadedBytes?: number;
  /** Used instead of the backend's heads: the oracle, or a test's own. */
  readonly drafter?: Drafter;
  readonly memory?: () => { rssBytes: number; deviceUsedBytes: number | undefined };
}
