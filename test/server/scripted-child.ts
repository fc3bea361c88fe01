/** The engine process of the tests: the real host around the scripted engine. */
import { hostEngine } from "../../src/server/engine-host.ts";
import { UserError } from "../../src/util/errors.ts";
import { ScriptedEngine, type ScriptedOptions } from "./scripted-engine.ts";

hostEngine((options, { sink, progress }) => {
  const { fail, ...scripted } = options as ScriptedOptions & { fail?: string };
  progress(0.5, "reading the script");
  if (fail !== undefined) throw new UserError(fail);
  return new ScriptedEngine(scripted, sink);
});
