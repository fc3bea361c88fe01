/** The suite on the scripted engine, through the real process border, without drafts and with up to three accepted a step. */
import { afterAll, beforeAll, describe, test } from "vitest";
import { scriptedModel, startScriptedServer, type ScriptedServer } from "../server/scripted-server.ts";
import type { Target } from "./client.ts";
import { suite } from "./suite.ts";

describe.each([0, 3])("K = %i", (nMax) => {
  let server: ScriptedServer;
  let target: Target;
  beforeAll(async () => {
    server = await startScriptedServer({ engine: { nMax } });
    target = { baseUrl: server.url, model: scriptedModel, kind: "scripted" };
  });
  afterAll(async () => server.close());

  for (const entry of suite) test(entry.name, async () => entry.run(target));
});
