import type { Target } from "./client.ts";

/** One thing that a server must do. `needs` says for which servers it can be checked. */
export interface Case {
  readonly name: string;
  readonly needs: Target["kind"];
  run(target: Target): Promise<void>;
}

const rank: Record<Target["kind"], number> = { any: 0, foretoken: 1, scripted: 2 };

export function applies(test: Case, target: Pick<Target, "kind">): boolean {
  return rank[target.kind] >= rank[test.needs];
}

/** For every server of this API. */
export const anyCase = (name: string, run: Case["run"]): Case => ({ name, needs: "any", run });
/** For this project's server: its codes, its further fields. */
export const ownCase = (name: string, run: Case["run"]): Case => ({ name, needs: "foretoken", run });
/** For the scripted engine, whose text is known in advance. */
export const scriptedCase = (name: string, run: Case["run"]): Case => ({ name, needs: "scripted", run });
