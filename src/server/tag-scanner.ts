/** Finds the first of some tags in text that arrives in pieces, and holds back only what may become one. */

export interface TagSplit {
  /** Text before the tag, or all text that is surely not the beginning of one. */
  readonly before: string;
  /** The tag that was found. */
  readonly tag: string | undefined;
  /** What follows the tag; without a tag, the suffix that may become one. */
  readonly rest: string;
}

/** Of tags that begin at the same place the longest wins. */
export function splitAtTag(text: string, tags: readonly string[]): TagSplit {
  let at = -1;
  let found: string | undefined;
  for (const tag of tags) {
    const i = text.indexOf(tag);
    if (i < 0 || (at >= 0 && (i > at || (i === at && tag.length < (found as string).length)))) continue;
    at = i;
    found = tag;
  }
  if (found !== undefined && !mayBecomeEarlier(text, at, tags)) return { before: text.slice(0, at), tag: found, rest: text.slice(at + found.length) };
  const nHeld = Math.max(0, ...tags.map((tag) => borderLength(text, tag)));
  return { before: text.slice(0, text.length - nHeld), tag: undefined, rest: text.slice(text.length - nHeld) };
}

/** A tag that ends the text may be the tail of a longer tag that began before it: "\n</x>" against "</x>". */
function mayBecomeEarlier(text: string, at: number, tags: readonly string[]): boolean {
  return tags.some((tag) => text.length - borderLength(text, tag) < at && borderLength(text, tag) > 0);
}

/** Length of the longest suffix of `text` that is a proper prefix of `tag`. */
function borderLength(text: string, tag: string): number {
  for (let n = Math.min(text.length, tag.length - 1); n > 0; n--) if (text.endsWith(tag.slice(0, n))) return n;
  return 0;
}

/** Passes text on but keeps back white space at its end: it is dropped when what follows turns out to be a tag. */
export class SpaceHolder {
  #held = "";
  #isAtStart: boolean;

  /** `dropLeading`: white space before the first visible character is dropped. */
  constructor(dropLeading: boolean) {
    this.#isAtStart = dropLeading;
  }

  push(text: string): string {
    const all = this.#held + text;
    const visible = all.trimEnd();
    if (visible === "") {
      this.#held = this.#isAtStart ? "" : all;
      return "";
    }
    this.#held = all.slice(visible.length);
    const shown = this.#isAtStart ? visible.trimStart() : visible;
    this.#isAtStart = false;
    return shown;
  }

  /** Forgets what is held: it stood before a tag. What follows is at a start again. */
  drop(): void {
    this.#held = "";
    this.#isAtStart = true;
  }

  /** The end of the text: white space at the end was the model's. */
  flush(): string {
    const held = this.#held;
    this.#held = "";
    return held;
  }
}
