import { UserError } from "../util/errors.ts";
import { formatInteger } from "../util/format.ts";

/** A file that breaks its format: where, what was being read, what is wrong with it. */
export class FormatError extends UserError {
  override readonly name: string = "FormatError";
  readonly file: string;
  /** Byte position in the file. */
  readonly offset: number;
  readonly reading: string;

  constructor(file: string, offset: number, reading: string, problem: string) {
    super(`${file}: byte ${formatInteger(offset)}, reading ${reading}: ${problem}`);
    this.file = file;
    this.offset = offset;
    this.reading = reading;
  }
}

export class GgufError extends FormatError {
  override readonly name: string = "GgufError";
}

/** Text of unknown origin, short and on one line, so that an error message stays readable. */
export function quote(text: string, maxLength = 80): string {
  const short = text.length > maxLength ? `${text.slice(0, maxLength)}...` : text;
  return JSON.stringify(short).replaceAll("\u007f", "\\u007f");
}

/** The text with control characters spelled out: a name from a file can neither break a line nor steer a terminal. */
export function printable(text: string): string {
  return Array.from(text, (c) => (/\p{Cc}/u.test(c) ? `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}` : c)).join("");
}
