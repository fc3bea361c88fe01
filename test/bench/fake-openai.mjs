// A whole program that speaks enough of OpenAI's API to be swept: answers at once, two tokens a chunk, draft counters.
// node fake-openai.mjs --port N [--exit-code C] [--die-after N] [--model NAME] [--chunk-ms MS]
// With --chunk-ms the chunks of a stream come MS apart: a load of many streams for the client (bench -c 512).
import http from "node:http";

const flag = (name, otherwise) => (process.argv.includes(`--${name}`) ? process.argv[process.argv.indexOf(`--${name}`) + 1] : otherwise);
if (flag("exit-code") !== undefined) {
  console.error("the model file is not there");
  process.exit(Number(flag("exit-code")));
}
const dieAfter = Number(flag("die-after", "1e9"));
const chunkMs = Number(flag("chunk-ms", "0"));
const model = flag("model", "fake");
let nRequests = 0;
const drafts = { n: 0, accepted: 0 };

function metrics() {
  return [
    `fake:spec_decode_num_drafts_total ${drafts.n}`,
    `fake:spec_decode_num_draft_tokens_total ${drafts.n}`,
    `fake:spec_decode_num_accepted_tokens_total ${drafts.accepted}`,
    `fake:spec_decode_num_accepted_tokens_per_pos_total{position="0"} ${drafts.accepted}`,
  ].join("\n");
}

function answer(body, res) {
  nRequests++;
  if (nRequests > dieAfter) process.exit(3);
  const n = body.max_tokens;
  const text = body.messages === undefined ? " a + b" : "def add(a, b):\n    return a + b";
  const nChunks = Math.ceil(n / 2);
  drafts.n += nChunks;
  drafts.accepted += n - nChunks;
  const usage = { prompt_tokens: 7, completion_tokens: n };
  if (!body.stream) {
    res.end(JSON.stringify({ choices: [{ text, message: { content: text }, finish_reason: "stop" }], usage }));
    return;
  }
  res.writeHead(200, { "content-type": "text/event-stream" });
  if (chunkMs > 0) {
    let nSent = 0;
    const timer = setInterval(() => {
      res.write(`data: ${JSON.stringify({ choices: [{ text: "xy", delta: { content: "xy" }, finish_reason: null }] })}\n\n`);
      if (++nSent < nChunks) return;
      clearInterval(timer);
      res.end(`data: ${JSON.stringify({ choices: [{ text: "", delta: {}, finish_reason: "length" }], usage })}\n\ndata: [DONE]\n\n`);
    }, chunkMs);
    return;
  }
  for (let i = 0; i < nChunks; i++) res.write(`data: ${JSON.stringify({ choices: [{ text: "xy", delta: { content: "xy" }, finish_reason: null }] })}\n\n`);
  res.end(`data: ${JSON.stringify({ choices: [{ text: "", delta: {}, finish_reason: "length" }], usage })}\n\ndata: [DONE]\n\n`);
}

http
  .createServer((req, res) => {
    const pieces = [];
    req.on("data", (b) => pieces.push(b));
    req.on("end", () => {
      if (req.method === "POST") answer(JSON.parse(Buffer.concat(pieces).toString()), res);
      else if (req.url === "/metrics") res.end(metrics());
      else if (req.url === "/v1/models") res.end(JSON.stringify({ data: [{ id: model }] }));
      else if (req.url === "/props") res.end(JSON.stringify({ device: "no device", build_info: "fake 1" }));
      else res.end("{}");
    });
  })
  .listen(Number(flag("port")), "127.0.0.1");
