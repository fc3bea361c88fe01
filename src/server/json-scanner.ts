/** Finds the end of one JSON value in text that arrives in pieces, without parsing it: strings, escapes and depth. */
export class JsonScanner {
  #depth = 0;
  #isInString = false;
  #isEscaped = false;
  #hasBegun = false;
  #isDone = false;

  get isDone(): boolean {
    return this.#isDone;
  }

  /** Length of the part of `text` that belongs to the value. Less than all of it only when the value ended. */
  push(text: string): number {
    for (let i = 0; i < text.length; i++) {
      if (this.#isDone) return i;
      const c = text[i] as string;
      if (this.#isInString) this.#inString(c);
      else if (this.#depth === 0 && this.#hasBegun && /[\s,}\]]/.test(c)) {
        this.#isDone = true;
        return i;
      } else this.#outside(c);
    }
    return text.length;
  }

  #inString(c: string): void {
    if (this.#isEscaped) this.#isEscaped = false;
    else if (c === "\\") this.#isEscaped = true;
    else if (c === '"') {
      this.#isInString = false;
      this.#isDone = this.#depth === 0;
    }
  }

  #outside(c: string): void {
    if (c === '"') this.#isInString = true;
    else if (c === "{" || c === "[") this.#depth++;
    else if (c === "}" || c === "]") this.#isDone = --this.#depth === 0;
    if (!/\s/.test(c)) this.#hasBegun = true;
  }
}
