/** A document as a list of blocks: rendered as Markdown and as HTML from the same source. Text may hold `code` and **bold**. */
import type { Table } from "../util/table.ts";

export type Block =
  | { readonly kind: "heading"; readonly level: 2 | 3; readonly text: string }
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "table"; readonly table: Table; readonly caption?: string; readonly best?: readonly (readonly boolean[])[] }
  | { readonly kind: "figure"; readonly id: string; readonly title: string; readonly caption: string; readonly wide: string; readonly narrow: string }
  | { readonly kind: "list"; readonly items: readonly string[] }
  | { readonly kind: "code"; readonly text: string }
  | { readonly kind: "verdict"; readonly sentences: readonly string[] }
  | { readonly kind: "tiles"; readonly tiles: readonly Tile[] }
  | { readonly kind: "details"; readonly summary: string; readonly blocks: readonly Block[] };

/** One figure that the reader should take away. */
export interface Tile {
  readonly label: string;
  readonly value: string;
  readonly note: string;
}
