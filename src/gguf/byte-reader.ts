/**
 * Reads a file from front to back through one window, so that memory does not depend on what the file claims.
 * Every length is compared with the bytes that are left before anything is allocated.
 */
import * as fs from "node:fs";
import { formatInteger } from "../util/format.ts";
import { GgufError } from "./error.ts";

const windowBytes = 1 << 18;

export class ByteReader {
  readonly file: string;
  readonly sizeBytes: number;
  #fd: number;
  #window = Buffer.allocUnsafe(windowBytes);
  #start = 0;
  #length = 0;
  #at = 0;
  littleEndian = true;

  constructor(file: string, fd: number, sizeBytes: number) {
    this.file = file;
    this.#fd = fd;
    this.sizeBytes = sizeBytes;
  }

  get offset(): number {
    return this.#start + this.#at;
  }

  get remaining(): number {
    return this.sizeBytes - this.offset;
  }

  fail(reading: string, problem: string, offset = this.offset): never {
    throw new GgufError(this.file, offset, reading, problem);
  }

  seek(offset: number): void {
    if (offset >= this.#start && offset <= this.#start + this.#length) this.#at = offset - this.#start;
    else [this.#start, this.#length, this.#at] = [offset, 0, 0];
  }

  skip(nBytes: number, reading: string): void {
    this.require(nBytes, reading);
    this.seek(this.offset + nBytes);
  }

  require(nBytes: number, reading: string): void {
    if (nBytes > this.remaining)
      this.fail(reading, `needs ${formatInteger(nBytes)} bytes, the file has ${formatInteger(this.remaining)} left (of ${formatInteger(this.sizeBytes)})`);
  }

  /** Position in the window of `nBytes` (at most the window) that are then consumed. */
  #take(nBytes: number, reading: string): number {
    this.require(nBytes, reading);
    if (this.#at + nBytes > this.#length) this.#fill(nBytes, reading);
    const at = this.#at;
    this.#at += nBytes;
    return at;
  }

  #fill(nBytes: number, reading: string): void {
    const start = this.offset;
    let length = 0;
    while (length < nBytes) {
      const n = fs.readSync(this.#fd, this.#window, length, windowBytes - length, start + length);
      if (n === 0) this.fail(reading, `the file ended early: ${formatInteger(length)} of ${formatInteger(nBytes)} bytes`, start);
      length += n;
    }
    [this.#start, this.#length, this.#at] = [start, length, 0];
  }

  u8(reading: string): number {
    return this.#window.readUInt8(this.#take(1, reading));
  }

  i8(reading: string): number {
    return this.#window.readInt8(this.#take(1, reading));
  }

  u16(reading: string): number {
    const at = this.#take(2, reading);
    return this.littleEndian ? this.#window.readUInt16LE(at) : this.#window.readUInt16BE(at);
  }

  i16(reading: string): number {
    const at = this.#take(2, reading);
    return this.littleEndian ? this.#window.readInt16LE(at) : this.#window.readInt16BE(at);
  }

  u32(reading: string): number {
    const at = this.#take(4, reading);
    return this.littleEndian ? this.#window.readUInt32LE(at) : this.#window.readUInt32BE(at);
  }

  i32(reading: string): number {
    const at = this.#take(4, reading);
    return this.littleEndian ? this.#window.readInt32LE(at) : this.#window.readInt32BE(at);
  }

  f32(reading: string): number {
    const at = this.#take(4, reading);
    return this.littleEndian ? this.#window.readFloatLE(at) : this.#window.readFloatBE(at);
  }

  f64(reading: string): number {
    const at = this.#take(8, reading);
    return this.littleEndian ? this.#window.readDoubleLE(at) : this.#window.readDoubleBE(at);
  }

  u64(reading: string): bigint {
    const at = this.#take(8, reading);
    return this.littleEndian ? this.#window.readBigUInt64LE(at) : this.#window.readBigUInt64BE(at);
  }

  i64(reading: string): bigint {
    const at = this.#take(8, reading);
    return this.littleEndian ? this.#window.readBigInt64LE(at) : this.#window.readBigInt64BE(at);
  }

  /**
   * A count or length of items of at least `itemBytes` each, compared with what the rest of the file can hold.
   * Two 32-bit halves as a double: exact below 2^53 and still larger than any file above it, without a bigint per
   * string of a vocabulary.
   */
  count(reading: string, itemBytes: number): number {
    const at = this.#take(8, reading);
    const w = this.#window;
    const n = this.littleEndian ? w.readUInt32LE(at) + w.readUInt32LE(at + 4) * 0x1_0000_0000 : w.readUInt32BE(at + 4) + w.readUInt32BE(at) * 0x1_0000_0000;
    const limit = Math.floor(this.remaining / itemBytes);
    if (n > limit) {
      const exact = this.littleEndian ? w.readBigUInt64LE(at) : w.readBigUInt64BE(at);
      this.fail(reading, `${formatInteger(exact)} is more than the rest of the file can hold (at most ${formatInteger(limit)})`, this.offset - 8);
    }
    return n;
  }

  /** A string of at most `maxBytes`; bytes that are not UTF-8 become U+FFFD. */
  string(reading: string, maxBytes: number): string {
    const n = this.count(reading, 1);
    if (n > maxBytes) this.fail(reading, `a string of ${formatInteger(n)} bytes, the limit is ${formatInteger(maxBytes)}`, this.offset - 8);
    if (n <= windowBytes) {
      const from = this.#take(n, reading);
      return this.#window.toString("utf8", from, from + n);
    }
    const bytes = Buffer.allocUnsafe(n);
    const start = this.offset;
    for (let done = 0; done < n; ) {
      const got = fs.readSync(this.#fd, bytes, done, n - done, start + done);
      if (got === 0) this.fail(reading, "the file ended early", start + done);
      done += got;
    }
    this.seek(start + n);
    return bytes.toString("utf8");
  }

  /**
   * Walks `n` strings; `visit` sees where each lies in the window. A vocabulary has half a million with its merges: those
   * that are whole in the window cost no call each. `visit` does not get a string that is longer than the window.
   */
  walkStrings(n: number, reading: string, visit?: (window: Uint8Array, start: number, end: number) => void): void {
    for (let done = this.#walkWindow(n, visit); done < n; done += this.#walkWindow(n - done, visit)) {
      const reachable = Math.min(windowBytes, this.remaining);
      if (this.#at > 0 || this.#length < reachable) this.#fill(reachable, reading);
      else {
        // Longer than the window, or a lie: the slow way skips it, or names what is wrong.
        this.skip(this.count(reading, 1), reading);
        done++;
      }
    }
  }

  /** hot: up to `most` strings that lie in the window with their lengths; returns how many. */
  #walkWindow(most: number, visit: ((window: Uint8Array, start: number, end: number) => void) | undefined): number {
    const w = this.#window;
    const limit = Math.min(this.#length, this.sizeBytes - this.#start);
    const last = limit - 8;
    const { littleEndian } = this;
    let at = this.#at;
    let n = 0;
    while (n < most && at <= last) {
      const length = littleEndian ? w.readUInt32LE(at) + w.readUInt32LE(at + 4) * 0x1_0000_0000 : w.readUInt32BE(at + 4) + w.readUInt32BE(at) * 0x1_0000_0000;
      const start = at + 8;
      if (length > limit - start) break;
      at = start + length;
      visit?.(w, start, at);
      n++;
    }
    this.#at = at;
    return n;
  }
}
