import type { Case } from "./case.ts";
import { chatCases } from "./chat.cases.ts";
import { completionCases } from "./completions.cases.ts";
import { httpCases } from "./http.cases.ts";

export const suite: readonly Case[] = [...httpCases, ...completionCases, ...chatCases];
