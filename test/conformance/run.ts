/**
 * The suite against a server that is running: npm run conformance -- --base-url http://127.0.0.1:8080 [--model M] [--api-key K]
 * Prints a line a case and exits 1 when one fails. Cases about this project's further fields are left out elsewhere.
 */
import { parseArgs } from "node:util";
import { applies } from "./case.ts";
import type { Target } from "./client.ts";
import { suite } from "./suite.ts";

const { values } = parseArgs({
  options: { "base-url": { type: "string" }, model: { type: "string" }, "api-key": { type: "string" }, kind: { type: "string" }, only: { type: "string" } },
});
if (values["base-url"] === undefined) {
  console.error("conformance: --base-url is needed, as in http://127.0.0.1:8080");
  process.exit(2);
}

const target = await describeTarget(values["base-url"].replace(/\/(v1\/?)?$/, ""), values["api-key"]);
console.log(`${target.baseUrl}, model ${target.model}: ${target.kind === "any" ? "a server of this API" : `a ${target.kind} server`}`);
let nFailed = 0;
let nRun = 0;
for (const entry of suite) {
  if (!applies(entry, target) || (values.only !== undefined && !entry.name.includes(values.only))) continue;
  nRun++;
  try {
    await entry.run(target);
    console.log(`ok    ${entry.name}`);
  } catch (error) {
    nFailed++;
    console.log(`FAIL  ${entry.name}\n      ${(error instanceof Error ? error.message : String(error)).split("\n").join("\n      ")}`);
  }
}
console.log(`${nRun - nFailed} of ${nRun} passed`);
process.exit(nFailed === 0 ? 0 : 1);

async function describeTarget(baseUrl: string, apiKey: string | undefined): Promise<Target> {
  const headers: Record<string, string> = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
  const get = async (path: string): Promise<{ data?: { id?: string }[]; build_info?: string; library?: string }> => {
    const response = await fetch(baseUrl + path, { headers });
    return response.ok ? ((await response.json()) as object) : {};
  };
  const [models, props] = await Promise.all([get("/v1/models"), get("/props")]);
  const isOwn = props.build_info?.startsWith("foretoken-") ?? false;
  const kind = values.kind ?? (!isOwn ? "any" : props.library === "scripted" ? "scripted" : "foretoken");
  return { baseUrl, model: values.model ?? models.data?.[0]?.id ?? "", kind: kind as Target["kind"], ...(apiKey === undefined ? {} : { apiKey }) };
}
