/**
 * Server-sent events, the part of the WHATWG specification that OpenAI-compatible servers use: `data` fields, comments,
 * LF or CRLF line ends, events cut anywhere by the network. UTF-8 is decoded per line, so a cut character is never seen.
 */
const LF = 10;
const CR = 13;

export class SseParser {
  readonly #onData: (data: string) => void;
  #rest: Buffer[] = [];
  #data: string[] = [];

  /** `onData` gets the data of each event, lines joined by "\n". */
  constructor(onData: (data: string) => void) {
    this.#onData = onData;
  }

  push(bytes: Buffer): void {
    let start = 0;
    for (let end = bytes.indexOf(LF); end >= 0; end = bytes.indexOf(LF, start)) {
      this.#line(this.#takeLine(bytes.subarray(start, end)));
      start = end + 1;
    }
    if (start < bytes.length) this.#rest.push(Buffer.from(bytes.subarray(start)));
  }

  /** End of stream: an event without its blank line still counts, as every OpenAI client takes it. */
  end(): void {
    if (this.#rest.length > 0) this.#line(this.#takeLine(Buffer.alloc(0)));
    this.#dispatch();
  }

  #takeLine(last: Buffer): string {
    const line = this.#rest.length === 0 ? last : Buffer.concat([...this.#rest, last]);
    this.#rest = [];
    return line.toString("utf8", 0, line.at(-1) === CR ? line.length - 1 : line.length);
  }

  #line(line: string): void {
    if (line === "") this.#dispatch();
    else if (line.startsWith("data:")) this.#data.push(line.charCodeAt(5) === 32 ? line.slice(6) : line.slice(5));
  }

  #dispatch(): void {
    if (this.#data.length === 0) return;
    const data = this.#data.length === 1 ? (this.#data[0] as string) : this.#data.join("\n");
    this.#data = [];
    this.#onData(data);
  }
}
