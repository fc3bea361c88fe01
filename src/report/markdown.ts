/** Blocks as GitHub Markdown. Figures are files beside it. */
import { renderMarkdown } from "../util/table.ts";
import type { Block } from "./block.ts";

export function markdownDocument(title: string, blocks: readonly Block[]): string {
  return `# ${title}\n\n${blocks.map(markdownBlock).join("\n\n")}\n`;
}

function markdownBlock(block: Block): string {
  switch (block.kind) {
    case "heading":
      return `${"#".repeat(block.level)} ${block.text}`;
    case "text":
      return block.text.trim();
    case "table":
      return renderMarkdown(block.table) + (block.caption === undefined ? "" : `\n\n*${block.caption}*`);
    case "figure":
      return `![${block.title}](plots/${block.id}.svg)\n\n*${block.caption}*`;
    case "list":
      return block.items.map((item) => `- ${item}`).join("\n");
    case "code":
      return `\`\`\`bash\n${block.text}\n\`\`\``;
    case "verdict":
      return block.sentences.map((s) => `> ${s}`).join("\n>\n");
    case "tiles":
      return block.tiles.map((t) => `- ${t.label}: **${t.value}** (${t.note})`).join("\n");
    case "details":
      return `<details><summary>${block.summary}</summary>\n\n${block.blocks.map(markdownBlock).join("\n\n")}\n\n</details>`;
    default:
      return block satisfies never;
  }
}
