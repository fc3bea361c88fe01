/** Which server a verb talks to: an address and a model name. Shared by bench and probe. */
import * as z from "zod";

export const target = {
  baseUrl: z.string().default("http://127.0.0.1:8080").meta({ description: "address of the server, with or without /v1", placeholder: "U" }),
  model: z.string().meta({ description: "model name the server lists", placeholder: "M" }),
  apiKey: z.string().optional().meta({ description: "sent as bearer token", placeholder: "KEY", env: "FORETOKEN_API_KEY" }),
};
